package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		for _, test := range []struct {
			opts []client.GuardOption
			want error
		}{
			{[]client.GuardOption{client.NoOwner()}, nil},
			{[]client.GuardOption{client.NoOwner(), client.Namespace("shop")}, store.ErrNamespaceUnknown},
		} {
			if err := client.NewGuard(s, test.opts...).Ready(t.Context()); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		}
		if err := client.NewGuard(s).Ready(t.Context()); err == nil {
			t.Error("a guard of which nobody said who owns the keys is ready")
		}
		gone := client.NewGuard(downStore{s}, client.NoOwner())
		if err := gone.Ready(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Error(err)
		}
	})
}

// downStore does not answer lookups.
type downStore struct{ store.Store }

func (downStore) Lookup(context.Context, store.LookupRequest) (store.LookupAnswer, error) {
	return store.LookupAnswer{}, store.ErrUnavailable
}
