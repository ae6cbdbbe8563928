package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

// away takes a store away, or brings it back.
func (s *faultyStore) away(away bool) {
	var err error
	if away {
		err = store.ErrUnavailable
	}
	for _, operation := range []string{"claim", "renew", "complete", "release"} {
		s.fail(operation, err)
	}
}

// What was done while the store was away for longer than the lease is not done again by the
// process that knows what came of it.
func TestOutageLongerThanTheLease(t *testing.T) {
	for _, observed := range []bool{false, true} {
		opts := []client.GuardOption{client.Method(chargeMethod, client.Policy{Lease: time.Second})}
		if observed {
			opts = append(opts, client.Observe())
		}
		guarded(t, func(t *testing.T, r *rig) {
			r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
				r.store.away(true)
				return &testv1.ChargeResponse{Receipt: "receipt-1"}, nil
			})
			r.ok(r.once(), "receipt-1", false)
			time.Sleep(20 * time.Second) // between two sends
			r.store.away(false)
			r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
				return &testv1.ChargeResponse{Receipt: "receipt-1"}, nil
			})
			fence := r.record().Fence
			r.events.take()
			r.ok(r.once(), "receipt-1", !observed)
			if got := r.record(); got.State != store.StateCompleted || got.Fence <= fence {
				t.Errorf("the record: %+v", got)
			}
			if err := client.Drain(t.Context()); err != nil {
				t.Error(err)
			}
			r.told(client.EventRecorded, client.EventReplayed, client.EventRecorded) // by the repeat; it was one; by the first call
			if observed {
				r.ran(2)
			} else {
				r.ran(1)
			}
		}, opts...)
	}
}

// So it is with Do, and with two keys nothing is mixed up.
func TestOutageLongerThanTheLeaseInDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		ran := map[string]int{}
		do := func(id string) client.Result[string] {
			key := store.Key{Namespace: store.DefaultNamespace, ID: id}
			got, err := client.Do(t.Context(), s, key, nil, func(context.Context, *client.Attempt) (string, error) {
				ran[id]++
				s.away(true)
				return "done " + id, nil
			}, client.Lease(time.Second))
			if err != nil || got.Value != "done "+id {
				t.Errorf("%s: %+v, %v", id, got, err)
			}
			return got
		}
		do("a")
		s.away(false)
		do("b")
		time.Sleep(20 * time.Second)
		s.away(false)
		for _, id := range []string{"a", "b"} {
			if got := do(id); !got.Replayed || ran[id] != 1 {
				t.Errorf("%s after the outage: %+v, ran %d times", id, got, ran[id])
			}
		}
	})
}

// What waits to be recorded does not wait for long once the store has answered something else.
func TestFirstAnswerWakesWhatWaits(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
			r.store.away(true)
			return &testv1.ChargeResponse{Receipt: "receipt-1"}, nil
		})
		r.once()
		time.Sleep(5 * time.Minute)
		r.store.away(false)
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) { return &testv1.ChargeResponse{}, nil })
		r.charge(&testv1.ChargeRequest{}, client.MetadataKey, "another")
		time.Sleep(firstPauses)
		r.state(store.StateCompleted)
	})
}

// firstPauses is how soon, at most, an outcome is sent once the store answers again.
const firstPauses = 750 * time.Millisecond
