package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

// takes makes a call take d, and stop when its context ends.
func (p *payments) takes(d time.Duration) {
	p.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
		select {
		case <-time.After(d):
			return &testv1.ChargeResponse{Receipt: "receipt-1"}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
}

// impatient makes a call whose deadline passes while the handler runs.
func (r *rig) impatient(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(keyed(t, client.MetadataKey, key1), time.Second)
	defer cancel()
	if got := r.chargeAs(ctx, &testv1.ChargeRequest{Account: "a", Amount: 42}); status.Code(got.err) != codes.DeadlineExceeded {
		t.Errorf("an impatient caller got %v", got.err)
	}
	synctest.Wait()
}

func TestDetachedHandlersGoOn(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.takes(3 * time.Second)
		r.impatient(t)
		refused(t, r.once().err, codes.Aborted, "KEY_IN_PROGRESS")
		time.Sleep(3 * time.Second)
		r.ok(r.once(), "receipt-1", true)
		r.ran(1)
		r.told(client.EventGranted, client.EventInProgress, client.EventRecorded, client.EventReplayed)
	}, client.Method(chargeMethod, client.Policy{Detach: true, Hold: true}))
}

// The same without: the caller's deadline ends the handler, and a person has to look.
func TestAttachedHandlersEndWithTheirCaller(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.takes(3 * time.Second)
		r.impatient(t)
		refused(t, r.once().err, codes.FailedPrecondition, "KEY_UNRESOLVED")
		r.ran(1)
		r.told(client.EventGranted, client.EventUnknown, client.EventUnresolved)
	}, client.Method(chargeMethod, client.Policy{Hold: true}))
}

func TestDetachedHandlersEndWithTheLease(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.store.fail("renew", store.ErrStaleFence)
		ended := make(chan error, 1)
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return nil, context.Cause(ctx)
		})
		r.impatient(t)
		if cause := <-ended; !errors.Is(cause, client.ErrLeaseLost) {
			t.Errorf("the handler ended with %v", cause)
		}
	}, client.Method(chargeMethod, client.Policy{Detach: true}))
}

// What a handler sets after its caller has gone is stored for repeats.
func TestMetadataOfADetachedHandler(t *testing.T) {
	for _, listed := range []bool{true, false} {
		opts := []client.GuardOption{client.Method(chargeMethod, client.Policy{Detach: true})}
		if listed {
			opts = append(opts, client.ReplayMetadata("x-charge"))
		}
		guarded(t, func(t *testing.T, r *rig) {
			r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
				time.Sleep(3 * time.Second)
				err := grpc.SetHeader(ctx, metadata.Pairs("x-charge", "1"))
				return &testv1.ChargeResponse{Receipt: "receipt-1"}, err
			})
			r.impatient(t)
			time.Sleep(3 * time.Second)
			got := r.once()
			r.ok(got, "receipt-1", true)
			if has := len(got.header.Get("x-charge")) == 1; has != listed {
				t.Errorf("listed: %v; header %v", listed, got.header)
			}
			r.ran(1)
		}, opts...)
	}
}
