package client_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

// A call that may fail open does not act as long as this process knows itself what came of the key.
func TestFailOpenWithTheOutcomeInHand(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
			r.store.away(true)
			return &testv1.ChargeResponse{Receipt: "receipt-1"}, nil
		})
		r.ok(r.once(), "receipt-1", false)
		r.told(client.EventGranted, client.EventNotRecorded)
		for _, pause := range []time.Duration{0, 20 * time.Second} { // within the lease, and after it
			time.Sleep(pause)
			r.ok(r.once(), "receipt-1", true)
			r.told(client.EventReplayed)
			refused(t, r.charge(&testv1.ChargeRequest{Account: "a", Amount: 43}, client.MetadataKey, key1).err, codes.FailedPrecondition, "FINGERPRINT_MISMATCH")
			r.told(client.EventMismatch)
		}
		r.ran(1)
		r.store.away(false)
		if err := client.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		r.events.take()
		r.ok(r.once(), "receipt-1", true)
		r.told(client.EventReplayed)
		r.ran(1)
		r.store.away(true) // it is the store's now, and nobody knows it here
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) { return &testv1.ChargeResponse{}, nil })
		r.ok(r.once(), "", false)
		r.told(client.EventFailedOpen)
	}, client.Method(chargeMethod, client.Policy{FailOpen: true, Lease: time.Second}))
}

// Nor does it act beside an attempt of this process, as long as that has its lease.
func TestFailOpenBesideAnAttempt(t *testing.T) {
	for _, how := range []string{"ends", "outlives its lease"} {
		guarded(t, func(t *testing.T, r *rig) {
			goOn := make(chan struct{})
			r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
				r.store.away(true)
				<-goOn
				return nil, client.NoEffect(status.Error(codes.NotFound, "nobody's account"))
			})
			done := make(chan reply)
			go func() { done <- r.once() }()
			time.Sleep(time.Second)
			r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
				return &testv1.ChargeResponse{Receipt: "2"}, nil
			})
			refused(t, r.once().err, codes.Aborted, "KEY_IN_PROGRESS")
			r.ok(r.charge(&testv1.ChargeRequest{Account: "b"}, client.MetadataKey, "another"), "2", false)
			r.told(client.EventGranted, client.EventInProgress, client.EventFailedOpen)
			if how == "outlives its lease" {
				time.Sleep(store.DefaultLease)
			} else {
				close(goOn)
				<-done
			}
			r.ok(r.once(), "2", false)
			r.ran(3)
			if how == "outlives its lease" {
				close(goOn)
				<-done
			}
			r.store.away(false)
		}, client.Method(chargeMethod, client.Policy{FailOpen: true}))
	}
}

// What an unanswered claim was granted after all is not given back as if nobody knew what came of the
// attempt before: that is recorded under it.
func TestPendingOutcomeOutlivesAnUnansweredClaim(t *testing.T) {
	for _, failOpen := range []bool{false, true} {
		guarded(t, func(t *testing.T, r *rig) {
			r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
				r.store.away(true)
				return &testv1.ChargeResponse{Receipt: "receipt-1"}, nil
			})
			r.ok(r.once(), "receipt-1", false)
			time.Sleep(3 * time.Minute) // the first call's outcome is sent seldom by now
			r.once()                    // its claim is sent once more, to give back what it may have been granted
			r.store.away(false)
			time.Sleep(30 * time.Second)
			r.service.does(func(context.Context) (*testv1.ChargeResponse, error) { return &testv1.ChargeResponse{}, nil })
			r.ok(r.once(), "receipt-1", true)
			r.ran(1)
		}, client.Method(chargeMethod, client.Policy{FailOpen: failOpen, Lease: time.Second}))
	}
}
