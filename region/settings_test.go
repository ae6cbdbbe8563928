package region

import (
	"reflect"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// Whatever setting differs is told; what a store sets itself is no difference.
func TestDifferences(t *testing.T) {
	base := store.Namespace{Name: "orders"}.WithDefaults()
	own := map[string]bool{
		"Name": true, "RecoveryFloor": true, "FloorForNew": true, "Recovery": true, "CreatedAt": true, "UpdatedAt": true, "IfUpdatedAt": true, "PastRetentions": true, "Placement": true, "SharedBy": true,
	}
	for field := range reflect.TypeFor[store.Namespace]().Fields() {
		other := base
		switch v := reflect.ValueOf(&other).Elem().FieldByName(field.Name); v.Kind() {
		case reflect.Int, reflect.Int64:
			v.SetInt(v.Int() + int64(time.Second))
		case reflect.Uint8:
			v.SetUint(v.Uint()%2 + 1)
		}
		got := differences("eu", base, "us", other)
		if (got == "") != own[field.Name] {
			t.Errorf("%s differs: %q", field.Name, got)
		}
	}
	other := base
	other.Retention, other.LapsePolicy = time.Hour, store.Hold
	want := "retention is 24h in eu and 1h in us, lapse policy is takeover in eu and hold in us"
	if got := differences("eu", base, "us", other); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
