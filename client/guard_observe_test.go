package client_test

import (
	"context"
	"slices"
	"strings"
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

// observed runs a test with a guard that observes.
func observed(t *testing.T, test func(*testing.T, *rig), opts ...client.GuardOption) {
	t.Helper()
	guarded(t, test, append(opts, client.Observe())...)
}

// saw checks what was reported, also in the background, and that it says that nothing was
// enforced.
func (r *rig) saw(want ...client.EventKind) {
	r.t.Helper()
	synctest.Wait()
	r.events.mu.Lock()
	for _, e := range r.events.list {
		if !e.Observed {
			r.t.Errorf("%v is not marked as observed", e.Kind)
		}
	}
	r.events.mu.Unlock()
	r.told(want...)
}

func TestObserveRepeatsAndMismatches(t *testing.T) {
	observed(t, func(t *testing.T, r *rig) {
		r.ok(r.once(), "receipt-1", false)
		r.saw(client.EventGranted, client.EventRecorded)
		time.Sleep(time.Minute)
		r.ok(r.once(), "receipt-1", false)
		r.saw(client.EventReplayed)
		r.ok(r.charge(&testv1.ChargeRequest{Amount: 1}, client.MetadataKey, key1), "receipt-1", false)
		r.saw(client.EventMismatch)
		r.ok(r.charge(&testv1.ChargeRequest{}), "receipt-1", false)
		r.saw(client.EventNoKey)
		r.ran(4)
	})
}

func TestObserveDoublesInFlight(t *testing.T) {
	observed(t, func(t *testing.T, r *rig) {
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
			time.Sleep(time.Minute)
			return &testv1.ChargeResponse{Receipt: "r"}, nil
		})
		first := make(chan reply)
		go func() { first <- r.once() }()
		synctest.Wait()
		start := time.Now()
		r.ok(r.once(), "r", false)
		if took := time.Since(start); took != time.Minute {
			t.Errorf("took %v", took)
		}
		r.ok(<-first, "r", false)
		r.saw(client.EventGranted, client.EventInProgress, client.EventRecorded)
		r.ran(2)
	})
}

// A policy that waits does not wait, one that holds does not hold, one that requires a key
// does not require it.
func TestObserveBlocksNothing(t *testing.T) {
	observed(t, func(t *testing.T, r *rig) {
		ask := func(order string) error {
			_, err := r.calls.Transfer(t.Context(), &testv1.TransferRequest{OrderId: order})
			return err
		}
		if err := ask(""); err != nil {
			t.Error(err)
		}
		r.saw(client.EventNoKey)
		r.service.fails(status.Error(codes.Unavailable, "gone"))
		for range 2 {
			if err := ask("k"); status.Convert(err).Message() != "gone" {
				t.Error(err)
			}
			synctest.Wait() // it is released in the background
		}
		r.saw(client.EventGranted, client.EventUnknown, client.EventTakeover, client.EventUnknown)
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
			r.service.does(func(context.Context) (*testv1.ChargeResponse, error) { return nil, nil })
			start := time.Now()
			if err := ask("l"); err != nil || time.Since(start) != 0 {
				t.Errorf("%v, after %v", err, time.Since(start))
			}
			return nil, nil
		})
		if err := ask("l"); err != nil {
			t.Error(err)
		}
		r.saw(client.EventGranted, client.EventInProgress, client.EventRecorded)

		// Streams and what is refused before the store is asked.
		stream, err := r.calls.Import(t.Context())
		if err == nil {
			_, err = stream.CloseAndRecv()
		}
		if err != nil {
			t.Errorf("stream: %v", err)
		}
		r.ok(r.charge(&testv1.ChargeRequest{}, client.MetadataKey, "a", client.MetadataKey, "b"), "", false)
		r.ok(r.charge(&testv1.ChargeRequest{}, client.MetadataKey, "a", client.MetadataIntentTime, "yesterday"), "", false)
		r.ok(r.charge(&testv1.ChargeRequest{}, client.MetadataKey, strings.Repeat("k", 256)), "", false)
		r.saw(client.EventRefused, client.EventRefused, client.EventRefused)
	})
}

// A guard that is set up wrongly says so, and blocks nothing either.
func TestObserveWithoutAnOwner(t *testing.T) {
	rigged(t, rigOptions{guard: []client.GuardOption{client.Observe()}}, func(t *testing.T, r *rig) {
		r.ok(r.once(), "receipt-1", false)
		r.saw(client.EventRefused)
	})
	rigged(t, rigOptions{guard: []client.GuardOption{client.Observe(), client.Owner(ownerOf)}}, func(t *testing.T, r *rig) {
		r.ok(r.charge(&testv1.ChargeRequest{}, client.MetadataKey, key1, "test-owner", "denied"), "receipt-1", false)
		r.saw(client.EventRefused)
	})
}

// A store that hangs costs a call 250 ms, and one that fails nothing.
func TestObserveStoreDown(t *testing.T) {
	observed(t, func(t *testing.T, r *rig) {
		for _, operation := range []string{"claim", "hang", "complete"} {
			if operation == "hang" {
				r.store.fail("claim", nil)
				r.store.hang(true)
			} else {
				r.store.hang(false)
				r.store.fail(operation, store.ErrUnavailable)
			}
			start := time.Now()
			r.ok(r.once(), "receipt-1", false)
			want := map[string]time.Duration{"hang": 250 * time.Millisecond}[operation]
			if took := time.Since(start); took != want {
				t.Errorf("%s: took %v", operation, took)
			}
			if operation == "complete" {
				r.saw(client.EventGranted)
			} else {
				r.saw(client.EventStoreDown)
			}
		}
		r.store.fail("complete", nil)
		if err := client.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		r.saw(client.EventRecorded)
		r.ok(r.once(), "receipt-1", false)
		r.saw(client.EventReplayed)
	})
}

// What is recorded while observing is what a repeat gets once the guard enforces.
func TestObserveThenEnforce(t *testing.T) {
	observed(t, func(t *testing.T, r *rig) {
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			a, ok := client.AttemptFrom(ctx)
			if !ok || a.Fence != r.record().Fence || a.DownstreamKey("x") == "" {
				t.Errorf("the handler finds the attempt %+v, %v", a, ok)
			}
			return &testv1.ChargeResponse{Receipt: "r"}, grpc.SetHeader(ctx, metadata.Pairs("location", "/1"))
		})
		if got := r.once(); !slices.Equal(got.header.Get("location"), []string{"/1"}) {
			t.Errorf("header %v", got.header)
		}
		synctest.Wait()
		if o := r.record().Outcome; len(o.Header) != 1 || string(o.Header[0].Value) != "/1" {
			t.Errorf("stored %+v", o)
		}
		enforcing := client.NewGuard(r.store, client.NoOwner(), client.ReplayMetadata("location"))
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(client.MetadataKey, key1))
		stream := &fakeStream{}
		ctx = grpc.NewContextWithServerTransportStream(ctx, stream)
		got, err := enforcing.UnaryServerInterceptor()(ctx, &testv1.ChargeRequest{Account: "a", Amount: 42}, &grpc.UnaryServerInfo{FullMethod: chargeMethod},
			func(context.Context, any) (any, error) { t.Error("it ran again"); return nil, nil })
		if err != nil || got.(*testv1.ChargeResponse).GetReceipt() != "r" || !slices.Equal(stream.header.Get("location"), []string{"/1"}) {
			t.Errorf("%v, %v, %v", got, err, stream.header)
		}
	}, client.ReplayMetadata("location"))
}

// A key that lapsed while it was only observed waits for no person: a repeat that runs
// settles it, and the first one that is enforced is told to check.
func TestObserveHoldsNothing(t *testing.T) {
	hold := client.Method(chargeMethod, client.Policy{Hold: true})
	lapses := func(r *rig) {
		r.service.fails(status.Error(codes.Unavailable, "gone"))
		r.once()
		r.saw(client.EventGranted, client.EventUnknown)
		if rec := r.record(); rec.LapsePolicy != store.Takeover || !rec.Lapsed(time.Now()) {
			r.t.Errorf("the record is %+v, want it lapsed under takeover", rec)
		}
	}
	observed(t, func(t *testing.T, r *rig) {
		lapses(r)
		r.service.fails(nil)
		r.ok(r.once(), "", false)
		r.saw(client.EventTakeover, client.EventRecorded)
		r.state(store.StateCompleted)
	}, hold)
	observed(t, func(t *testing.T, r *rig) {
		lapses(r)
		enforcing := client.NewGuard(r.store, client.NoOwner(), hold)
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(client.MetadataKey, key1))
		told := false
		_, err := enforcing.UnaryServerInterceptor()(ctx, &testv1.ChargeRequest{Account: "a", Amount: 42}, &grpc.UnaryServerInfo{FullMethod: chargeMethod},
			func(ctx context.Context, _ any) (any, error) {
				a, _ := client.AttemptFrom(ctx)
				told = a.Unsettled
				return &testv1.ChargeResponse{}, nil
			})
		if err != nil || !told {
			t.Errorf("told to check is %v, %v", told, err)
		}
	}, hold)
}

// fakeStream is the transport of a call that no server made.
type fakeStream struct {
	grpc.ServerTransportStream
	header metadata.MD
}

func (s *fakeStream) SetHeader(md metadata.MD) error {
	s.header = metadata.Join(s.header, md)
	return nil
}

func (s *fakeStream) SetTrailer(metadata.MD) error { return nil }

// The mark of an error is about this call's intent and does not go on; its status does.
func TestObserveNoEffect(t *testing.T) {
	observed(t, func(t *testing.T, r *rig) {
		r.service.fails(client.NoEffect(status.Error(codes.Unavailable, "busy")))
		if got := r.once(); status.Code(got.err) != codes.Unavailable {
			t.Error(got.err)
		}
		r.saw(client.EventGranted, client.EventReleased)
		r.state(store.StateReleased)
	})
}

// A long call keeps its key while it is observed, and a lost lease is reported.
func TestObserveKeepsTheLease(t *testing.T) {
	observed(t, func(t *testing.T, r *rig) {
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			time.Sleep(time.Minute)
			if rec := r.record(); rec.Lapsed(time.Now()) {
				t.Error("not renewed")
			}
			r.store.fail("renew", store.ErrStaleFence)
			time.Sleep(time.Minute)
			if ctx.Err() != nil {
				t.Error("the call was ended")
			}
			return &testv1.ChargeResponse{}, nil
		})
		r.ok(r.once(), "", false)
		r.saw(client.EventGranted, client.EventLeaseLost, client.EventRecorded)
	})
}

// A call that would not have been granted has no attempt: it runs, and nothing is its own.
func TestObserveAttempts(t *testing.T) {
	observed(t, func(t *testing.T, r *rig) {
		var got []bool
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			a, ok := client.AttemptFrom(ctx)
			if ok != (a != nil) {
				t.Errorf("%v, and %v", a, ok)
			}
			got = append(got, ok)
			return &testv1.ChargeResponse{}, nil
		})
		r.once()
		synctest.Wait()
		r.once()                          // would have been replayed
		r.charge(&testv1.ChargeRequest{}) // no key
		r.store.fail("claim", store.ErrUnavailable)
		r.once()
		if !slices.Equal(got, []bool{true, false, false, false}) {
			t.Errorf("attempts: %v", got)
		}
	})
}

// A response that is too large is reported as such, by the call and by its repeat.
func TestObserveTooLarge(t *testing.T) {
	observed(t, func(t *testing.T, r *rig) {
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
			return &testv1.ChargeResponse{Body: make([]byte, store.MaxOutcomeBytes)}, nil
		})
		for range 2 {
			r.once()
			synctest.Wait()
		}
		r.events.says(t, nil, store.ErrOutcomeTooLarge, store.ErrOutcomeOmitted)
		r.saw(client.EventGranted, client.EventRecorded, client.EventReplayed)
	})
}
