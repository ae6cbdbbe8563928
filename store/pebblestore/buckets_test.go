package pebblestore

import (
	"context"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
)

// askedContext runs a function when it is first asked whether it has ended.
type askedContext struct {
	context.Context
	asked func()
}

func (c *askedContext) Err() error {
	if asked := c.asked; asked != nil {
		c.asked = nil
		asked()
	}
	return c.Context.Err()
}

// Keys that are claimed while the filters of an opened store are read are in the filters
// afterwards: else they would be granted again.
func TestKeysClaimedWhileFiltersAreRead(t *testing.T) {
	opts := testOptions(vfs.NewCrashableMem())
	opts.CacheBytes = 1 // what is not in the filters is not found
	s := mustOpen(t, opts)
	var claimed []string
	claim := func(when string) {
		for i := range 50 {
			id := fmt.Sprint(when, " ", i)
			mustClaim(t, s, id, "a")
			claimed = append(claimed, id)
		}
	}
	claim("before")
	mustClose(t, s)
	s = mustOpen(t, opts)
	s.background.Wait()
	claim("after")

	// As when it is opened, and nothing has been read yet.
	var ids []bucketID
	err := s.do(t.Context(), classSettle, "", 0, func(turn *turn) (err error) {
		turn.l.buckets, err = loadBuckets(s.db)
		ids = turn.l.buckets.all()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	claim("before reading")
	s.fillFilters(&askedContext{t.Context(), func() { claim("while reading") }}, ids)
	claim("after reading")

	for _, id := range claimed {
		answer, err := s.Claim(t.Context(), testClaim(id, "b"))
		if err != nil || answer.InProgress == nil {
			t.Errorf("claim of %q: %+v, %v; want in progress", id, answer, err)
		}
	}
	if got := incomplete(t, s, ids); len(got) > 0 {
		t.Errorf("the filters of %v are not complete", got)
	}
}

// incomplete returns which of the buckets still have an incomplete filter.
func incomplete(t *testing.T, s *Store, ids []bucketID) (buckets []store.Bucket) {
	t.Helper()
	err := s.do(t.Context(), classSettle, "", 0, func(turn *turn) error {
		for _, id := range ids {
			if !turn.l.buckets.get(id).complete {
				buckets = append(buckets, id.describe())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return buckets
}
