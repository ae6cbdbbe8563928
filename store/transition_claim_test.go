package store_test

import (
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// A Claim that is sent again writes nothing, so it costs no sync.
func TestClaimAgainChangesNothing(t *testing.T) {
	ns := store.Namespace{Name: "n"}.WithDefaults()
	req := store.ClaimRequest{Key: store.Key{Namespace: "n", ID: "k"}, AttemptID: "a"}
	_, first, err := store.DecideClaim(nil, &ns, req, storetest.Start)
	if err != nil || first.Record == nil {
		t.Fatalf("got %+v, %v; want a grant", first, err)
	}
	answer, again, err := store.DecideClaim(first.Record, &ns, req, storetest.Start.Add(time.Second))
	if err != nil || answer.Granted == nil || again != (store.Change{}) {
		t.Errorf("got %+v, change %+v, %v; want granted and no change", answer, again, err)
	}
}
