package pebblestore

import (
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
)

// A listing says that there is more than it could read.
func TestListCountsDamagedRows(t *testing.T) {
	w := newWorld(t)
	w.claim("1", "a", false)
	w.claim("2", "a", false)
	it, err := w.s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixRow}, UpperBound: []byte{prefixRow + 1}})
	if err != nil {
		t.Fatal(err)
	}
	if !it.First() {
		t.Fatal("no row is stored")
	}
	key, value := slices.Clone(it.Key()), slices.Clone(it.Value())
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	value[len(value)-1] ^= 1
	if err := w.s.db.Set(key, value, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	page, err := w.s.ListRecords(t.Context(), store.ListRequest{Namespace: "hour"})
	if err != nil || len(page.Records) != 1 || page.Damaged != 1 {
		t.Errorf("%d records and %d damaged, %v; want one of each", len(page.Records), page.Damaged, err)
	}
}
