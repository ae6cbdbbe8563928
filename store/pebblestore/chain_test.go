package pebblestore

import (
	"errors"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
)

// A sealed value belongs to its key: in the place of another one it is damage, though its
// bytes are sound.
func TestSealIsOfOneKey(t *testing.T) {
	sealed := append(make([]byte, sealLen), "payload"...)
	seal([]byte("one"), sealed)
	if payload, err := unseal([]byte("one"), sealed); err != nil || string(payload) != "payload" {
		t.Errorf("under its key: %q, %v", payload, err)
	}
	for _, key := range []string{"two", "on", "onep", ""} {
		if _, err := unseal([]byte(key), sealed); !errors.Is(err, errDamagedValue) {
			t.Errorf("under %q: %v, want that it is damaged", key, err)
		}
	}
}

func TestOpenRefusesValuesInEachOthersPlace(t *testing.T) {
	for name, keys := range map[string][2][]byte{
		"commits":    {chainKey(2), chainKey(3)},
		"namespaces": {namespaceKey(store.DefaultNamespace), namespaceKey("another")},
	} {
		t.Run(name, func(t *testing.T) {
			fs := closedStore(t)
			s := mustOpen(t, testOptions(fs))
			if _, err := s.CreateNamespace(t.Context(), store.Namespace{Name: "another"}); err != nil {
				t.Fatal(err)
			}
			mustClose(t, s)
			db, err := pebble.Open("data/db", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}})
			if err != nil {
				t.Fatal(err)
			}
			one, two := mustGet(t, db, keys[0]), mustGet(t, db, keys[1])
			err = errors.Join(db.Set(keys[0], two, pebble.Sync), db.Set(keys[1], one, pebble.Sync), db.Close())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Open("data", testOptions(fs)); !errors.Is(err, ErrDamaged) {
				t.Errorf("Open: %v, want ErrDamaged", err)
			}
		})
	}
}

func mustGet(t *testing.T, db *pebble.DB, key []byte) []byte {
	t.Helper()
	value, closer, err := db.Get(key)
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	return slices.Clone(value)
}
