package client_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

// Case 13: a handler that outlives its lease keeps it.
func TestCase13Heartbeat(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			for range 90 {
				time.Sleep(time.Second)
				if ctx.Err() != nil {
					t.Error("the context ended")
				}
			}
			refused(t, r.once().err, codes.Aborted, "KEY_IN_PROGRESS")
			return &testv1.ChargeResponse{Receipt: "r"}, nil
		})
		r.ok(r.once(), "r", false)
		r.ok(r.once(), "r", true)
		r.ran(1)
		renewals := r.store.count("renew")
		if renewals < 6 || renewals > 30 {
			t.Errorf("%d renewals in three leases", renewals)
		}
		time.Sleep(time.Hour)
		if r.store.count("renew") != renewals {
			t.Error("renewed after the end")
		}
	})
}

// Case 13, 23: a handler that lost its lease is told, and what it did afterwards does not
// count once another attempt has taken over.
func TestCase13And23LostLease(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			r.store.fail("renew", store.ErrUnavailable)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), client.ErrLeaseLost) {
				t.Errorf("cause %v", context.Cause(ctx))
			}
			time.Sleep(30 * time.Second)
			r.store.fail("renew", nil)
			r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
				return &testv1.ChargeResponse{Receipt: "other's"}, nil
			})
			r.ok(r.once(), "other's", false)
			return &testv1.ChargeResponse{Receipt: "late"}, nil
		})
		refused(t, r.once().err, codes.Aborted, "STALE_FENCE")
		r.ok(r.once(), "other's", true)
		r.told(client.EventGranted, client.EventTakeover, client.EventRecorded, client.EventLeaseLost, client.EventRecordingFailed, client.EventReplayed)
		events := r.store.inspect(t, r.record().Key).Events
		late := &testv1.ChargeResponse{}
		if err := proto.Unmarshal(events[len(events)-1].Outcome.Body, late); err != nil || late.GetReceipt() != "late" {
			t.Errorf("the late outcome is not kept as evidence: %+v", events)
		}
	})
}

// Case 23: a process that was stopped past its lease sees its context ended before what it
// did is recorded, also if it gets there before any timer.
func TestCase23StoppedProcess(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		var acting context.Context
		r.store.before("complete", func() {
			if !errors.Is(context.Cause(acting), client.ErrLeaseLost) {
				t.Errorf("recording with cause %v", context.Cause(acting))
			}
		})
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			acting = ctx
			r.store.stall("renew", time.Minute) // as the timers of a stopped process
			time.Sleep(40 * time.Second)
			return &testv1.ChargeResponse{Receipt: "late"}, nil
		})
		r.ok(r.once(), "late", false) // nobody has taken over: the late holder settles it
		r.ok(r.once(), "late", true)
		r.told(client.EventGranted, client.EventLeaseLost, client.EventRecorded, client.EventReplayed)
	})
}

// Case 24: the caller disconnects after the effect.
func TestCase24CallerGone(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(keyed(t, client.MetadataKey, key1))
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			cancel()
			<-ctx.Done()
			return &testv1.ChargeResponse{Receipt: "r"}, nil
		})
		req := &testv1.ChargeRequest{Account: "a", Amount: 42}
		if got := r.chargeAs(ctx, req); status.Code(got.err) != codes.Canceled {
			t.Error(got.err)
		}
		synctest.Wait()
		r.state(store.StateCompleted)
		r.ok(r.once(), "r", true)
		r.told(client.EventGranted, client.EventRecorded, client.EventReplayed)
	})
}

// Case 24: the same if the store is slow to record it, and the deadline has passed.
func TestCase24DeadlinePassed(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithTimeout(keyed(t, client.MetadataKey, key1), 2*time.Second)
		defer cancel()
		r.store.stall("complete", 3*time.Second)
		if got := r.chargeAs(ctx, &testv1.ChargeRequest{Account: "a", Amount: 42}); status.Code(got.err) != codes.DeadlineExceeded {
			t.Error(got.err)
		}
		time.Sleep(3 * time.Second)
		r.ok(r.once(), "receipt-1", true)
	})
}

// Case 25: the store fails after the effect.
func TestCase25RecordedLater(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.store.fail("complete", store.ErrUnavailable)
		got := r.once()
		r.ok(got, "receipt-1", false)
		if !slices.Equal(got.trailer.Get(client.MetadataNotRecorded), []string{"true"}) {
			t.Errorf("trailer %v", got.trailer)
		}
		r.told(client.EventGranted, client.EventNotRecorded)
		time.Sleep(2 * time.Minute) // four leases
		refused(t, r.once().err, codes.Aborted, "KEY_IN_PROGRESS")
		r.store.fail("complete", nil)
		if err := client.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		got = r.once()
		r.ok(got, "receipt-1", true)
		if len(got.trailer.Get(client.MetadataNotRecorded)) != 0 {
			t.Errorf("trailer %v", got.trailer)
		}
		r.ran(1)
		r.told(client.EventInProgress, client.EventRecorded, client.EventReplayed)
		if r.store.count("release") != 0 {
			t.Error("released")
		}
	})
}

// Case 25: it is given up at last; then the key lapses, and the next call is told to check.
func TestCase25GivenUp(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.store.fail("complete", store.ErrUnavailable)
		r.ok(r.once(), "receipt-1", false)
		time.Sleep(12 * time.Minute)
		r.told(client.EventGranted, client.EventNotRecorded, client.EventRecordingFailed)
		r.store.fail("complete", nil)
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			if a, _ := client.AttemptFrom(ctx); !a.Unsettled {
				t.Error("not told to check")
			}
			return &testv1.ChargeResponse{Receipt: "checked"}, nil
		})
		r.ok(r.once(), "checked", false)
	})
}

// Case 25: a store that refuses for good does not take the answer away either.
func TestCase25RefusedToRecord(t *testing.T) {
	for _, refusal := range []error{store.ErrKeyNotFound, store.ErrLeaseExpired, store.ErrAttemptTooLong} {
		guarded(t, func(t *testing.T, r *rig) {
			r.store.fail("complete", refusal)
			got := r.once()
			r.ok(got, "receipt-1", false)
			if len(got.trailer.Get(client.MetadataNotRecorded)) != 1 {
				t.Errorf("trailer %v", got.trailer)
			}
			r.told(client.EventGranted, client.EventRecordingFailed)
			if r.store.count("complete") != 1 || r.store.count("release") != 0 {
				t.Errorf("%v: %v", refusal, r.store.calls)
			}
		})
	}
	for refusal, reason := range map[error]string{store.ErrStaleFence: "STALE_FENCE", store.ErrStaleAttempt: "STALE_ATTEMPT"} {
		guarded(t, func(t *testing.T, r *rig) {
			r.store.fail("complete", refusal)
			refused(t, r.once().err, codes.Aborted, reason)
		})
	}
}

// The error of a handler is answered also if the release of its key cannot be recorded.
func TestReleasedLater(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.fails(client.NoEffect(status.Error(codes.Unavailable, "busy")))
		r.store.fail("release", store.ErrUnavailable)
		got := r.once()
		if status.Code(got.err) != codes.Unavailable || len(got.trailer.Get(client.MetadataNotRecorded)) != 1 {
			t.Errorf("%v, %v", got.err, got.trailer)
		}
		r.store.fail("release", nil)
		time.Sleep(10 * time.Second)
		r.state(store.StateReleased)
		r.told(client.EventGranted, client.EventNotRecorded, client.EventReleased)
	})
}

// recovers is what a server has outside the guard, as the guard lets a panic go on.
func recovers(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = status.Errorf(codes.Internal, "recovered %v", p)
		}
	}()
	return handler(ctx, req)
}

// Case 33: a panic after the effect.
func TestCase33Panic(t *testing.T) {
	for _, observe := range []bool{false, true} {
		opts := []client.GuardOption{client.NoOwner()}
		if observe {
			opts = append(opts, client.Observe())
		}
		rigged(t, rigOptions{guard: opts, outer: []grpc.UnaryServerInterceptor{recovers}}, func(t *testing.T, r *rig) {
			r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
				time.Sleep(15 * time.Second) // so that the heartbeat runs
				panic("oops")
			})
			if got := r.once(); status.Code(got.err) != codes.Internal || !strings.Contains(got.err.Error(), "recovered oops") {
				t.Error(got.err)
			}
			time.Sleep(time.Second)
			if last := r.events.last(); last.Err == nil || !strings.Contains(last.Err.Error(), "panicked") {
				t.Errorf("the event %v says %v", last.Kind, last.Err)
			}
			r.told(client.EventGranted, client.EventUnknown)
			renewals := r.store.count("renew")
			time.Sleep(time.Hour)
			if renewals == 0 || r.store.count("renew") != renewals {
				t.Errorf("%d renewals, then %d", renewals, r.store.count("renew"))
			}
			r.service.does(func(context.Context) (*testv1.ChargeResponse, error) { return &testv1.ChargeResponse{}, nil })
			r.ok(r.once(), "", false)
			synctest.Wait()
			r.told(client.EventTakeover, client.EventRecorded)
		})
	}
}

// A handler that ends its goroutine is as one that panics. gRPC cannot answer it.
func TestGoexit(t *testing.T) { synctest.Test(t, testGoexit) }

func testGoexit(t *testing.T) {
	s, events := newStore(t), &eventLog{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = client.Do(t.Context(), s, orderKey, nil, func(context.Context, *client.Attempt) (string, error) {
			runtime.Goexit()
			return "", nil
		}, client.OnEvent(events.add))
	}()
	<-done
	equalKinds(t, events.take(), client.EventGranted, client.EventUnknown)
}

// The recover hook is asked if an earlier attempt may have acted, and only then.
func TestRecoverHook(t *testing.T) {
	type answer struct {
		response *testv1.ChargeResponse
		found    bool
		err      error
	}
	var next answer
	var asked []*client.Attempt
	hook := client.RecoverCall(func(_ context.Context, req *testv1.ChargeRequest, a *client.Attempt) (*testv1.ChargeResponse, bool, error) {
		if req.GetAmount() != 42 {
			t.Errorf("asked about %v", req)
		}
		asked = append(asked, a)
		return next.response, next.found, next.err
	})
	policy := client.Policy{Recover: hook}
	for _, test := range []struct {
		name   string
		answer answer
		code   codes.Code
		runs   int
		state  store.State
	}{
		{"found", answer{&testv1.ChargeResponse{Receipt: "found"}, true, nil}, codes.OK, 1, store.StateCompleted},
		{"not found", answer{nil, false, nil}, codes.OK, 2, store.StateCompleted},
		{"error", answer{nil, false, status.Error(codes.NotFound, "no such provider")}, codes.Unavailable, 1, store.StateInProgress},
		{"error that claims to be without effect", answer{nil, false, client.NoEffect(errors.New("x"))}, codes.Unavailable, 1, store.StateInProgress},
	} {
		t.Run(test.name, func(t *testing.T) {
			guarded(t, func(t *testing.T, r *rig) {
				asked, next = nil, test.answer
				r.service.fails(status.Error(codes.Unavailable, "gone"))
				r.once()
				if len(asked) != 0 {
					t.Error("asked about the first attempt")
				}
				r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
					return &testv1.ChargeResponse{Receipt: "acted"}, nil
				})
				got := r.once()
				if status.Code(got.err) != test.code {
					t.Error(got.err)
				}
				if len(asked) != 1 || !asked[0].Unsettled || asked[0].Number != 2 {
					t.Errorf("asked %+v", asked)
				}
				r.ran(test.runs)
				r.state(test.state)
				if test.code == codes.OK {
					r.ok(r.once(), got.response.GetReceipt(), true)
				}
			}, client.Method(chargeMethod, policy))
		})
	}
}

// A hook for another type of request is found out before it is needed.
func TestRecoverHookOfAnotherType(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		if got := r.once(); status.Code(got.err) != codes.Internal || !strings.Contains(got.err.Error(), "RefundRequest") {
			t.Error(got.err)
		}
		r.ran(0)
	}, client.Method(chargeMethod, client.Policy{Recover: hookFor[*testv1.RefundRequest, *testv1.ChargeResponse]()}))
}

// What a recover hook was told by others does not reach this server's callers. The event has it.
func TestRecoverHookFails(t *testing.T) {
	cause := status.Error(codes.PermissionDenied, "provider at 10.0.0.7: bad password")
	hook := client.RecoverCall(func(context.Context, *testv1.ChargeRequest, *client.Attempt) (*testv1.ChargeResponse, bool, error) {
		return nil, false, cause
	})
	guarded(t, func(t *testing.T, r *rig) {
		r.service.fails(errors.New("gone"))
		r.once()
		r.told(client.EventGranted, client.EventUnknown)
		got := r.once()
		if status.Code(got.err) != codes.Unavailable || strings.Contains(got.err.Error(), "10.0.0.7") {
			t.Error(got.err)
		}
		if last := r.events.list[1]; !errors.Is(last.Err, cause) {
			t.Errorf("the event %v says %v", last.Kind, last.Err)
		}
		r.told(client.EventTakeover, client.EventUnknown)
		r.store.fail("release", store.ErrUnavailable)
		r.once()
		if last := r.events.list[1]; !errors.Is(last.Err, cause) || !errors.Is(last.Err, store.ErrUnavailable) {
			t.Errorf("the event %v says %v", last.Kind, last.Err)
		}
		r.told(client.EventTakeover, client.EventUnknown)
		r.store.fail("release", nil)
	}, client.RecoverMethod(chargeMethod, hook))
}

// RecoverMethod leaves the rest of the policy as it is declared.
func TestRecoverMethodKeepsThePolicy(t *testing.T) {
	hook := client.RecoverCall(func(context.Context, *testv1.TransferRequest, *client.Attempt) (*testv1.ChargeResponse, bool, error) {
		return nil, false, nil
	})
	guarded(t, func(t *testing.T, r *rig) {
		_, err := r.calls.Transfer(t.Context(), &testv1.TransferRequest{})
		refused(t, err, codes.InvalidArgument, "KEY_REQUIRED") // its .proto requires it
	}, client.RecoverMethod(transferMethod, hook))
}

// Case 38: the store is gone: closed unless a method asks for failing open.
func TestCase38StoreDown(t *testing.T) {
	for _, failOpen := range []bool{false, true} {
		for _, hangs := range []bool{false, true} {
			guarded(t, func(t *testing.T, r *rig) {
				r.store.hang(hangs)
				if !hangs {
					r.store.fail("claim", store.ErrUnavailable)
				}
				for _, deadline := range []time.Duration{time.Second, time.Minute} {
					ctx, cancel := context.WithTimeout(keyed(t, client.MetadataKey, key1), deadline)
					defer cancel()
					start := time.Now()
					got := r.chargeAs(ctx, &testv1.ChargeRequest{})
					if took := time.Since(start); took > 5*time.Second || took >= deadline {
						t.Errorf("took %v of %v", took, deadline)
					}
					if failOpen {
						r.ok(got, "receipt-1", false)
						r.told(client.EventFailedOpen)
					} else {
						refused(t, got.err, codes.Unavailable, "STORE_UNAVAILABLE")
						r.told(client.EventStoreDown)
					}
				}
				want := 0
				if failOpen {
					want = 2
				}
				r.ran(want)
			}, client.Method(chargeMethod, client.Policy{FailOpen: failOpen}))
		}
	}
}

// What the store refuses is refused, also where failing open is asked for.
func TestFailOpenIsNotForRefusals(t *testing.T) {
	for _, test := range []struct {
		err    error
		code   codes.Code
		reason string
		event  client.EventKind
	}{
		{store.ErrFingerprintMismatch, codes.FailedPrecondition, "FINGERPRINT_MISMATCH", client.EventMismatch},
		{store.ErrUnknownHistory, codes.FailedPrecondition, "UNKNOWN_HISTORY", client.EventRefused},
		{store.ErrRecordCorrupt, codes.DataLoss, "RECORD_CORRUPT", client.EventRefused},
		{store.ErrNamespaceUnknown, codes.Unavailable, "STORE_UNAVAILABLE", client.EventRefused},
		{store.ErrUnauthenticated, codes.Unavailable, "STORE_UNAVAILABLE", client.EventRefused},
		{store.ErrPermissionDenied, codes.Unavailable, "STORE_UNAVAILABLE", client.EventRefused},
		{store.ErrWrongRegion, codes.Unavailable, "STORE_UNAVAILABLE", client.EventRefused},
		{store.Refuse(store.ErrInvalidArgument, "lease 1h0m0s is longer than the 1m0s that namespace allows"), codes.Unavailable, "STORE_UNAVAILABLE", client.EventRefused},
		{store.ErrKeyExpired, codes.FailedPrecondition, "KEY_EXPIRED", client.EventRefused},
		{store.ErrStaleAttempt, codes.Aborted, "STALE_ATTEMPT", client.EventRefused},
		{store.ErrQuota, codes.ResourceExhausted, "QUOTA", client.EventRefused},
		{store.ErrOverloaded, codes.ResourceExhausted, "OVERLOADED", client.EventRefused},
		{store.ErrNamespaceMoving, codes.Unavailable, "NAMESPACE_MOVING", client.EventRefused},
		{store.ErrNoHome, codes.Unavailable, "STORE_UNAVAILABLE", client.EventRefused},
		{store.ErrInternal, codes.Internal, "INTERNAL", client.EventStoreDown},
	} {
		guarded(t, func(t *testing.T, r *rig) {
			r.store.fail("claim", test.err)
			refused(t, r.once().err, test.code, test.reason)
			r.ran(0)
			r.told(test.event)
		}, client.Method(chargeMethod, client.Policy{FailOpen: true}))
	}
}

// A caller that goes away while it waits is no store that is down, and opens nothing.
func TestCallerGoesAwayWhileItWaits(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.store.hang(true)
		ctx, cancel := context.WithCancel(keyed(t, client.MetadataKey, key1))
		time.AfterFunc(time.Second, cancel)
		if got := r.chargeAs(ctx, &testv1.ChargeRequest{}); status.Code(got.err) != codes.Canceled {
			t.Error(got.err)
		}
		synctest.Wait()
		r.told(client.EventRefused)
		r.ran(0)
	}, client.Method(chargeMethod, client.Policy{FailOpen: true}))
}

// Case 38, over the wire: the connection to idemd cannot be made.
func TestCase38NoConnection(t *testing.T) { synctest.Test(t, testCase38NoConnection) }

func testCase38NoConnection(t *testing.T) {
	conn, err := grpc.NewClient("passthrough:///idemd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			return nil, errors.New("dial tcp 10.1.2.3:7600: refused")
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	defer func() {
		if err := client.Drain(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	call := func(within time.Duration, opts ...client.GuardOption) (ran bool, err error) {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(client.MetadataKey, key1))
		guard := client.NewGuard(client.New(conn), append(opts, client.NoOwner())...)
		start := time.Now()
		_, err = guard.UnaryServerInterceptor()(ctx, &testv1.ChargeRequest{}, &grpc.UnaryServerInfo{FullMethod: chargeMethod}, func(context.Context, any) (any, error) {
			ran = true
			return &testv1.ChargeResponse{}, nil
		})
		if took := time.Since(start); took > within {
			t.Errorf("took %v, want at most %v", took, within)
		}
		return ran, err
	}
	ran, err := call(5 * time.Second)
	st := refused(t, err, codes.Unavailable, "STORE_UNAVAILABLE")
	if ran || strings.Contains(st.Message(), "10.1.2.3") {
		t.Errorf("ran: %v, told %v", ran, st)
	}
	if ran, err := call(5*time.Second, client.Method(chargeMethod, client.Policy{FailOpen: true})); err != nil || !ran {
		t.Errorf("fail open: %v, %v", ran, err)
	}
	if ran, err := call(250*time.Millisecond, client.Observe()); err != nil || !ran {
		t.Errorf("observed: %v, %v", ran, err)
	}
}

// goneStore grants when the caller has just gone.
type goneStore struct {
	*faultyStore
	gone context.CancelFunc
}

func (s *goneStore) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	defer s.gone()
	return s.faultyStore.Claim(ctx, req)
}

// A grant for a caller that has gone is given back: nobody has acted, and no person has to
// find that out.
func TestGrantedTooLate(t *testing.T) { synctest.Test(t, testGrantedTooLate) }

func testGrantedTooLate(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, events := &goneStore{newStore(t), cancel}, &eventLog{}
	fn, runs := returns("", nil)
	if _, err := client.Do(ctx, s, orderKey, nil, fn, client.Hold(), client.OnEvent(events.add)); !errors.Is(err, context.Canceled) || *runs != 0 {
		t.Errorf("%v, ran %d times", err, *runs)
	}
	if rec := s.inspect(t, orderKey).Record; rec.State != store.StateReleased {
		t.Errorf("%+v", rec)
	}
	equalKinds(t, events.take(), client.EventGranted, client.EventReleased)
}

// stuckStore does not answer the first Complete.
type stuckStore struct {
	*faultyStore
	stuck bool
}

func (s *stuckStore) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	if s.stuck {
		s.stuck = false
		<-ctx.Done()
		return store.CompleteAnswer{}, ctx.Err()
	}
	return s.faultyStore.Complete(ctx, req)
}

// Case 25: a store that does not answer holds the caller up for five seconds. Nothing that
// the function left running goes on then, and the outcome is recorded all the same.
func TestCase25StoreStuck(t *testing.T) { synctest.Test(t, testCase25StoreStuck) }

func testCase25StoreStuck(t *testing.T) {
	s, events := &stuckStore{newStore(t), true}, &eventLog{}
	var acting context.Context
	start := time.Now()
	got, err := client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, _ *client.Attempt) (string, error) {
		acting = ctx
		return "charged", nil
	}, client.OnEvent(events.add))
	if err != nil || got.Recorded || got.Value != "charged" || time.Since(start) != 5*time.Second {
		t.Errorf("%+v, %v, after %v", got, err, time.Since(start))
	}
	if context.Cause(acting) != context.Canceled { //nolint:errorlint // not one that wraps it
		t.Errorf("cause %v", context.Cause(acting))
	}
	if err := client.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	equalKinds(t, events.take(), client.EventGranted, client.EventNotRecorded, client.EventRecorded)
}

// An error of an attempt that was told to check may be about what an earlier one did, so it
// is no final answer; unless a recover hook has found that nothing was done.
func TestErrorInDoubtIsNotStored(t *testing.T) {
	notFound := client.RecoverCall(func(context.Context, *testv1.ChargeRequest, *client.Attempt) (*testv1.ChargeResponse, bool, error) {
		return nil, false, nil
	})
	for _, test := range []struct {
		name  string
		opts  []client.GuardOption
		event client.EventKind
		runs  int
	}{
		{"no hook", nil, client.EventUnknown, 3},
		{"nothing found", []client.GuardOption{client.Method(chargeMethod, client.Policy{Recover: notFound})}, client.EventRecorded, 2},
		{"observed", []client.GuardOption{client.Observe()}, client.EventUnknown, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			guarded(t, func(t *testing.T, r *rig) {
				r.service.fails(status.Error(codes.Unavailable, "the reply was lost"))
				r.once()
				synctest.Wait()
				if last := r.events.last(); status.Code(last.Err) != codes.Unavailable {
					t.Errorf("the event %v says %v", last.Kind, last.Err)
				}
				r.told(client.EventGranted, client.EventUnknown)
				r.service.fails(status.Error(codes.FailedPrecondition, "already paid"))
				if got := r.once(); status.Code(got.err) != codes.FailedPrecondition {
					t.Error(got.err)
				}
				synctest.Wait()
				r.told(client.EventTakeover, test.event)
				r.service.does(func(context.Context) (*testv1.ChargeResponse, error) { return &testv1.ChargeResponse{}, nil })
				r.once()
				r.ran(test.runs)
				synctest.Wait()
				r.state(store.StateCompleted)
			}, test.opts...)
		})
	}
}

// NoEffect is about this attempt only: what the earlier one did stays unknown.
func TestNoEffectInDoubt(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		for _, err := range []error{errors.New("lost"), client.NoEffect(status.Error(codes.NotFound, "x"))} {
			r.service.fails(err)
			r.once()
		}
		r.told(client.EventGranted, client.EventUnknown, client.EventTakeover, client.EventReleased)
		r.service.fails(status.Error(codes.NotFound, "x"))
		r.once()
		r.told(client.EventTakeover, client.EventUnknown)
	})
}
