package client_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// chargesAndFails is a handler that acts, and whose reply is an error.
func chargesAndFails(err error) func(context.Context) (*testv1.ChargeResponse, error) {
	return func(ctx context.Context) (*testv1.ChargeResponse, error) {
		if e := grpc.SetHeader(ctx, metadata.Pairs("x-request", "1")); e != nil {
			return nil, e
		}
		return nil, err
	}
}

// Where nothing is enforced, sending a call again would act again.
func TestSentOnceWhereNothingIsEnforced(t *testing.T) {
	failOpen := client.Method(chargeMethod, client.Policy{FailOpen: true})
	furtherOn := storepb.ToStatus(store.ErrKeyInProgress).Err()
	for _, test := range []struct {
		name  string
		guard client.GuardOption
		down  bool
		err   error
	}{
		{"observed", client.Observe(), false, status.Error(codes.Unavailable, "the provider's reply was lost")},
		{"observed, with a refusal of a service further on", client.Observe(), false, furtherOn},
		{"observed, and too slow", client.Observe(), false, status.Error(codes.DeadlineExceeded, "slow")},
		{"the store is down", failOpen, true, status.Error(codes.Unavailable, "the provider's reply was lost")},
		{"the store is down, and a service further on refuses", failOpen, true, furtherOn},
		{"not guarded by the server", client.Unguarded(chargeMethod), false, status.Error(codes.Unavailable, "gone")},
	} {
		for _, header := range []bool{false, true} {
			calling(t, rigOptions{guard: []client.GuardOption{test.guard}}, func(t *testing.T, r *rig) {
				r.ok(r.charge(&testv1.ChargeRequest{}), "receipt-1", false) // from which more may be learned than is true later
				r.service.fails(test.err)
				if header {
					r.service.does(chargesAndFails(test.err))
				}
				if test.down {
					r.store.fail("claim", store.ErrUnavailable)
				}
				if got := r.charge(&testv1.ChargeRequest{}); status.Code(got.err) != status.Code(test.err) {
					t.Errorf("%s: %v", test.name, got.err)
				}
				if ran := r.service.ran() - 1; ran != 1 {
					t.Errorf("%s: the handler ran %d times, want once", test.name, ran)
				}
			}, client.TryTimeout(time.Minute))
		}
	}
}

// A reply that is lost does not say whether the call was guarded: the last one that came does.
func TestWhatALostReplyMeans(t *testing.T) {
	a := &arrivals{}
	o := a.outside()
	o.guard = []client.GuardOption{client.Method(chargeMethod, client.Policy{FailOpen: true})}
	calling(t, o, func(t *testing.T, r *rig) {
		a.rig = r
		loses := func(sent int) {
			t.Helper()
			a.take()
			a.cuts = 1
			got := r.charge(&testv1.ChargeRequest{})
			if again := sent > 1; (got.err == nil) != again {
				t.Errorf("sent again is %v: %v", again, got.err)
			}
			a.oneKey(t, sent)
		}
		loses(1) // nothing is known
		refund := func() {
			t.Helper()
			if _, err := r.calls.Refund(t.Context(), &testv1.RefundRequest{}); err != nil {
				t.Error(err)
			}
		}
		refund() // is another method
		loses(1)
		r.ok(r.charge(&testv1.ChargeRequest{}), "receipt-1", false)
		loses(2)
		r.store.fail("claim", store.ErrUnavailable) // and so it fails open
		r.ok(r.charge(&testv1.ChargeRequest{}), "receipt-1", false)
		r.store.fail("claim", nil)
		loses(1)
		r.service.fails(status.Error(codes.NotFound, "no such account"))
		if got := r.charge(&testv1.ChargeRequest{}); status.Code(got.err) != codes.NotFound {
			t.Error(got.err)
		}
		r.service.fails(nil)
		loses(2)
	})
}

// Every response of an enforced call says so, and no other one.
func TestWhichCallsAreMarkedAsGuarded(t *testing.T) {
	marked := func(t *testing.T, got reply, want bool) {
		t.Helper()
		if marks := got.trailer.Get(client.MetadataGuarded); len(marks) > 1 || (len(marks) == 1 && marks[0] == "true") != want {
			t.Errorf("trailer %v, marked as guarded should be %v; %v", got.trailer, want, got.err)
		}
	}
	guarded(t, func(t *testing.T, r *rig) {
		marked(t, r.once(), true)
		marked(t, r.once(), true) // a repeat
		marked(t, r.charge(&testv1.ChargeRequest{Amount: 1}, client.MetadataKey, key1), true)
		marked(t, r.charge(&testv1.ChargeRequest{}, client.MetadataKey, "a", client.MetadataKey, "b"), true)
		marked(t, r.charge(&testv1.ChargeRequest{}), false) // without a key
		r.store.fail("claim", store.ErrUnavailable)
		marked(t, r.once(), true)
		r.store.fail("claim", nil)
		r.service.fails(status.Error(codes.Unavailable, "gone"))
		marked(t, r.charge(&testv1.ChargeRequest{}, client.MetadataKey, "k2"), true)
		var trailer metadata.MD
		_, err := r.calls.Ping(keyed(t, client.MetadataKey, key1), &testv1.ChargeRequest{}, grpc.Trailer(&trailer))
		marked(t, reply{trailer: trailer, err: err}, false)
	})
	guarded(t, func(t *testing.T, r *rig) {
		marked(t, r.once(), true)
		r.store.fail("claim", store.ErrUnavailable)
		marked(t, r.once(), false)
		r.store.fail("claim", store.ErrKeyExpired)
		marked(t, r.once(), true)
	}, client.Method(chargeMethod, client.Policy{FailOpen: true}))
	observed(t, func(t *testing.T, r *rig) {
		marked(t, r.once(), false)
		marked(t, r.once(), false)
		r.service.fails(status.Error(codes.Unavailable, "gone"))
		marked(t, r.charge(&testv1.ChargeRequest{}, client.MetadataKey, "k2"), false)
	})
	rigged(t, rigOptions{guard: []client.GuardOption{client.NoOwner()}, outer: []grpc.UnaryServerInterceptor{recovers}}, func(t *testing.T, r *rig) {
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) { panic("in the handler") })
		marked(t, r.once(), true)
	})
}
