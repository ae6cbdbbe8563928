package client_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

// twice runs a test whose server has a second guard inside the first one, over the same store.
func twice(t *testing.T, first, second []client.GuardOption, test func(*testing.T, *rig)) {
	t.Helper()
	var inside grpc.UnaryServerInterceptor
	inner := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return inside(ctx, req, info, handler)
	}
	rigged(t, rigOptions{guard: append(first, client.NoOwner()), inner: []grpc.UnaryServerInterceptor{inner}}, func(t *testing.T, r *rig) {
		inside = r.guard.UnaryServerInterceptor()
		if second != nil {
			inside = client.NewGuard(r.store, append(second, client.NoOwner(), client.OnEvent(r.events.add))...).UnaryServerInterceptor()
		}
		test(t, r)
	})
}

// A guard that is installed twice says so, and holds no key that would have to be settled.
func TestGuardInstalledTwice(t *testing.T) {
	for _, policy := range []client.Policy{{}, {Hold: true}, {FailOpen: true}} {
		twice(t, []client.GuardOption{client.Method(chargeMethod, policy)}, nil, func(t *testing.T, r *rig) {
			for range 2 {
				got := r.once()
				if status.Code(got.err) != codes.Internal || !strings.Contains(status.Convert(got.err).Message(), "installed twice") {
					t.Error(got.err)
				}
				r.told(client.EventGranted, client.EventRefused, client.EventReleased)
				r.state(store.StateReleased)
			}
			r.ran(0)
			_, err := r.calls.Ping(keyed(t, client.MetadataKey, key1), &testv1.ChargeRequest{})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// Two guards with keys of their own, in two namespaces for example, are no such thing.
func TestTwoGuards(t *testing.T) {
	twice(t, nil, []client.GuardOption{client.Namespace("other")}, func(t *testing.T, r *rig) {
		if _, err := r.store.inner.CreateNamespace(t.Context(), store.Namespace{Name: "other"}.WithDefaults()); err != nil {
			t.Fatal(err)
		}
		r.ok(r.once(), "receipt-1", false)
		r.ok(r.once(), "receipt-1", true)
		r.ran(1)
	})
}
