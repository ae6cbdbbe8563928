package client_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
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

// calling runs a test whose client has the interceptor.
func calling(t *testing.T, o rigOptions, test func(*testing.T, *rig), opts ...client.CallerOption) {
	t.Helper()
	o.guard = append(o.guard, client.NoOwner())
	o.caller = append(o.caller, grpc.WithChainUnaryInterceptor(client.UnaryClientInterceptor(opts...)))
	rigged(t, o, test)
}

// arrivals keeps the keys with which calls arrive at the server, outside the guard.
type arrivals struct {
	mu   sync.Mutex
	keys []string
	rig  *rig
	cuts int // how many calls lose their reply: the connection breaks after they were served
}

func (a *arrivals) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	key := metadata.ValueFromIncomingContext(ctx, client.MetadataKey)
	if len(key) != 1 {
		key = []string{""}
	}
	a.mu.Lock()
	a.keys = append(a.keys, key[0])
	a.mu.Unlock()
	response, err := handler(ctx, req)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cuts > 0 {
		a.cuts--
		a.rig.cut()
	}
	return response, err
}

// outside returns options with a under which calls arrive.
func (a *arrivals) outside() rigOptions {
	return rigOptions{outer: []grpc.UnaryServerInterceptor{a.intercept}}
}

// take returns the keys since the last take.
func (a *arrivals) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	keys := a.keys
	a.keys = nil
	return keys
}

// ordinary has a call arrive that goes well, from which callers learn that it is guarded.
func (a *arrivals) ordinary(r *rig) {
	r.t.Helper()
	r.ok(r.charge(&testv1.ChargeRequest{}), "receipt-1", false)
	a.oneKey(r.t, 1)
}

// oneKey checks that n calls arrived, under one key.
func (a *arrivals) oneKey(t *testing.T, n int) string {
	t.Helper()
	keys := a.take()
	distinct := slices.Compact(slices.Clone(keys))
	if len(keys) != n || len(distinct) != 1 || distinct[0] == "" {
		t.Errorf("%d calls arrived under the keys %q, want %d under one", len(keys), distinct, n)
		return ""
	}
	return distinct[0]
}

// Case 10: one key per logical call, the same on every retry, and another for the next call.
func TestCase10OneKeyPerCall(t *testing.T) {
	a := &arrivals{}
	calling(t, a.outside(), func(t *testing.T, r *rig) {
		fails := 0
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			if fails++; fails%3 != 0 {
				return nil, status.Error(codes.Unavailable, "gone")
			}
			attempt, _ := client.AttemptFrom(ctx)
			if attempt.Number != 3 || !attempt.Unsettled {
				t.Errorf("told %+v", attempt)
			}
			return &testv1.ChargeResponse{Receipt: "r"}, nil
		})
		r.ok(r.charge(&testv1.ChargeRequest{}), "r", false)
		first := a.oneKey(t, 3)
		r.ok(r.charge(&testv1.ChargeRequest{}), "r", false)
		if second := a.oneKey(t, 3); first == second || len(first) < 22 {
			t.Errorf("keys %q, %q", first, second)
		}
		if r.recordOf(chargeMethod, first, "").State != store.StateCompleted {
			t.Error("not completed")
		}
	})
}

// The reply is lost because the connection breaks after the handler ran: the retry gets
// what it returned.
func TestLostReply(t *testing.T) {
	a := &arrivals{}
	calling(t, a.outside(), func(t *testing.T, r *rig) {
		a.ordinary(r)
		a.rig, a.cuts = r, 2
		r.ok(r.charge(&testv1.ChargeRequest{}), "receipt-1", true)
		a.oneKey(t, 3)
		r.ran(2)
	})
}

// The reply is late: a try times out, and the next one gets it.
func TestLateReply(t *testing.T) {
	a := &arrivals{}
	calling(t, a.outside(), func(t *testing.T, r *rig) {
		a.ordinary(r)
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
			time.Sleep(3 * time.Second)
			return &testv1.ChargeResponse{Receipt: "r"}, nil
		})
		r.ok(r.charge(&testv1.ChargeRequest{}), "r", true)
		if keys := a.take(); len(keys) < 3 || len(slices.Compact(keys)) != 1 {
			t.Errorf("keys %q", keys)
		}
		r.ran(2)
	}, client.TryTimeout(time.Second))
}

// A call that is too slow at each try ends with the error of the last.
func TestEachTryTimesOut(t *testing.T) {
	a := &arrivals{}
	calling(t, a.outside(), func(t *testing.T, r *rig) {
		a.ordinary(r)
		r.store.stall("claim", time.Minute)
		got := r.charge(&testv1.ChargeRequest{})
		if _, itself := got.err.(interface{ GRPCStatus() *status.Status }); !itself || status.Code(got.err) != codes.DeadlineExceeded {
			t.Errorf("%#v", got.err)
		}
		a.oneKey(t, 5)
		r.ran(1)
		time.Sleep(time.Hour)
	}, client.TryTimeout(time.Second))
}

// A key in progress is waited for, as long as the server says.
func TestInProgressIsWaitedFor(t *testing.T) {
	a := &arrivals{}
	calling(t, a.outside(), func(t *testing.T, r *rig) {
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
			time.Sleep(2500 * time.Millisecond)
			return &testv1.ChargeResponse{Receipt: "r"}, nil
		})
		first := make(chan reply)
		go func() { first <- r.once() }()
		synctest.Wait()
		start := time.Now()
		r.ok(r.once(), "r", true)
		if took := time.Since(start); took < 2500*time.Millisecond || took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		r.ok(<-first, "r", false)
		r.ran(1)
		if keys := a.take(); len(keys) > 5 {
			t.Errorf("%d calls", len(keys))
		}
	})
}

// What to send again: only what may be answered otherwise.
func TestWhatIsSentAgain(t *testing.T) {
	for _, test := range []struct {
		claim error // of the store
		err   error // of the handler
		sent  int
		code  codes.Code
	}{
		{store.ErrUnavailable, nil, 5, codes.Unavailable},
		{store.ErrOverloaded, nil, 5, codes.ResourceExhausted},
		{store.ErrQuota, nil, 5, codes.ResourceExhausted},
		{store.ErrStaleFence, nil, 5, codes.Aborted},
		{store.ErrFingerprintMismatch, nil, 1, codes.FailedPrecondition},
		{store.ErrKeyExpired, nil, 1, codes.FailedPrecondition},
		{store.ErrRecordCorrupt, nil, 1, codes.DataLoss},
		{nil, status.Error(codes.Unavailable, "x"), 5, codes.Unavailable},
		{nil, status.Error(codes.NotFound, "x"), 1, codes.NotFound},
		{nil, status.Error(codes.Internal, "x"), 1, codes.Internal},
		{nil, status.Error(codes.Unknown, "x"), 1, codes.Unknown},
		{nil, status.Error(codes.Aborted, "x"), 1, codes.Aborted},
		{nil, status.Error(codes.ResourceExhausted, "x"), 1, codes.ResourceExhausted},
		{nil, status.Error(codes.DeadlineExceeded, "x"), 1, codes.DeadlineExceeded},
	} {
		a := &arrivals{}
		calling(t, a.outside(), func(t *testing.T, r *rig) {
			r.store.fail("claim", test.claim)
			r.service.fails(test.err)
			if got := r.charge(&testv1.ChargeRequest{}); status.Code(got.err) != test.code {
				t.Errorf("%v, %v: %v", test.claim, test.err, got.err)
			}
			a.oneKey(t, test.sent)
		})
	}
}

// A method that is not guarded is sent once, whoever fails; a key that was given goes along.
func TestUnguardedIsSentOnce(t *testing.T) {
	a := &arrivals{}
	calling(t, a.outside(), func(t *testing.T, r *rig) {
		r.service.fails(status.Error(codes.Unavailable, "gone"))
		for _, call := range []func(context.Context, *testv1.ChargeRequest, ...grpc.CallOption) (*testv1.ChargeResponse, error){r.calls.Audit, r.calls.GetBalance, r.calls.Ping} {
			if _, err := call(t.Context(), &testv1.ChargeRequest{}); status.Code(err) != codes.Unavailable {
				t.Error(err)
			}
			if _, err := call(t.Context(), &testv1.ChargeRequest{}, client.Key("mine")); status.Code(err) != codes.Unavailable {
				t.Error(err)
			}
		}
		if keys := a.take(); !slices.Equal(keys, []string{"", "mine", "", "mine", "", "mine"}) {
			t.Errorf("keys %q", keys)
		}
		r.ran(6)
	})
}

// CallGuarded names what the .proto does not.
func TestCallGuarded(t *testing.T) {
	a := &arrivals{}
	o := a.outside()
	o.guard = []client.GuardOption{client.Method(auditMethod, client.Policy{Required: true})}
	calling(t, o, func(t *testing.T, r *rig) {
		r.service.fails(status.Error(codes.Unavailable, "gone"))
		if _, err := r.calls.Audit(t.Context(), &testv1.ChargeRequest{}); status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
		a.oneKey(t, 5)
	}, client.CallGuarded(auditMethod))
}

// Where a call has its key from.
func TestKeyOfACall(t *testing.T) {
	a := &arrivals{}
	calling(t, a.outside(), func(t *testing.T, r *rig) {
		arrived := func(want string) {
			t.Helper()
			if keys := a.take(); !slices.Equal(keys, []string{want}) {
				t.Errorf("keys %q, want %q", keys, want)
			}
		}
		drawn := func() {
			t.Helper()
			if key := a.oneKey(t, 1); key == "incoming" || key == "" {
				t.Errorf("key %q", key)
			}
		}
		incoming := metadata.NewIncomingContext(t.Context(), metadata.Pairs(client.MetadataKey, "incoming"))
		copied := metadata.AppendToOutgoingContext(incoming, client.MetadataKey, "incoming", "other", "kept")
		refund := func(ctx context.Context, requestID string, opts ...grpc.CallOption) error {
			_, err := r.calls.Refund(ctx, &testv1.RefundRequest{RequestId: requestID}, opts...)
			return err
		}
		for _, test := range []struct {
			name  string
			ctx   context.Context
			id    string
			opts  []grpc.CallOption
			check func()
		}{
			{"nothing", t.Context(), "", nil, drawn},
			{"an incoming call has one", incoming, "", nil, drawn},
			{"copied from the incoming call", copied, "", nil, drawn},
			{"copied, and request_id", copied, "k1", nil, func() { arrived("") }},
			{"copied, and given", copied, "", []grpc.CallOption{client.Key("k2")}, func() { arrived("k2") }},
			{"request_id", t.Context(), "k3", nil, func() { arrived("") }},
			{"metadata", keyed(t, client.MetadataKey, "k4"), "", nil, func() { arrived("k4") }},
			{"metadata, in a call that has another", metadata.AppendToOutgoingContext(incoming, client.MetadataKey, "k5"), "", nil, func() { arrived("k5") }},
			{"given", t.Context(), "", []grpc.CallOption{client.Key("k6")}, func() { arrived("k6") }},
			{"given wins over metadata", keyed(t, client.MetadataKey, "k7"), "", []grpc.CallOption{client.Key("k8")}, func() { arrived("k8") }},
			{"given twice", t.Context(), "", []grpc.CallOption{client.Key("k9"), grpc.WaitForReady(true), client.Key("k10")}, func() { arrived("k10") }},
			{"given and request_id", t.Context(), "k11", []grpc.CallOption{client.Key("k11")}, func() { arrived("k11") }},
		} {
			t.Log(test.name)
			if err := refund(test.ctx, test.id, test.opts...); err != nil {
				t.Error(err)
			}
			test.check()
		}
		// A key that is given and empty was meant to be one: it is not made up for.
		refused(t, refund(t.Context(), "", client.Key("")), codes.InvalidArgument, "INVALID_ARGUMENT")
		refused(t, refund(t.Context(), "one", client.Key("another")), codes.InvalidArgument, "INVALID_ARGUMENT")
		// A call whose context goes on to another call leaves no key there.
		a.take()
		ctx := t.Context()
		for range 2 {
			if err := refund(ctx, ""); err != nil {
				t.Error(err)
			}
		}
		if keys := a.take(); len(keys) != 2 || keys[0] == keys[1] {
			t.Errorf("keys %q", keys)
		}
		// Its key field may be another one.
		if _, err := r.calls.Transfer(t.Context(), &testv1.TransferRequest{OrderId: "order"}); err != nil {
			t.Error(err)
		}
		arrived("")
		if r.recordOf(transferMethod, "order", "") == nil {
			t.Error("not under the key of the request")
		}
	})
}

// The caller's deadline bounds it all, and what a call got by then is its error.
func TestCallKeepsItsDeadline(t *testing.T) {
	a := &arrivals{}
	calling(t, a.outside(), func(t *testing.T, r *rig) {
		r.store.fail("claim", &store.Error{Sentinel: store.ErrUnavailable, RetryAfter: 3 * time.Second})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		got := r.chargeAs(ctx, &testv1.ChargeRequest{})
		refused(t, got.err, codes.Unavailable, "STORE_UNAVAILABLE")
		a.oneKey(t, 4) // each 3 s later, or a bit more
		if ctx.Err() != nil {
			t.Error("the deadline has passed")
		}
		r.store.fail("claim", nil)
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := r.chargeAs(soon, &testv1.ChargeRequest{}); status.Code(got.err) != codes.DeadlineExceeded {
			t.Error(got.err)
		}
		a.oneKey(t, 1)
	}, client.TryTimeout(20*time.Second))
}

// L5: retries are a tenth of the calls.
func TestCallsKeepToTheBudget(t *testing.T) {
	a := &arrivals{}
	calling(t, a.outside(), func(t *testing.T, r *rig) {
		r.service.fails(status.Error(codes.Unavailable, "gone"))
		const calls = 200
		start := time.Now()
		for range calls {
			r.charge(&testv1.ChargeRequest{})
		}
		limit := calls + calls/10 + 10 + int(time.Since(start).Seconds()) + 1
		if arrived := len(a.take()); arrived > limit || arrived < calls+calls/10 {
			t.Errorf("%d calls arrived in %v, allowed are %d", arrived, time.Since(start), limit)
		}
	})
}

// gRPC's own retries, below the interceptor, carry the same key. (grpc-go does no hedging.)
func TestRetriesOfGRPC(t *testing.T) {
	a := &arrivals{}
	o := a.outside()
	o.caller = []grpc.DialOption{grpc.WithDefaultServiceConfig(`{"methodConfig": [{
		"name": [{"service": "idemd.test.v1.PaymentService"}],
		"retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2, "retryableStatusCodes": ["ABORTED"]}
	}]}`)}
	calling(t, o, func(t *testing.T, r *rig) {
		runs := 0
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
			if runs++; runs < 3 {
				return nil, status.Error(codes.Aborted, "again")
			}
			return &testv1.ChargeResponse{Receipt: "r"}, nil
		})
		r.ok(r.charge(&testv1.ChargeRequest{}), "r", false)
		a.oneKey(t, 3)
	})
}

// An error that no status is in comes back as it is.
func TestErrorsBelowTheInterceptor(t *testing.T) {
	broken := errors.New("broken")
	var sent atomic.Int32
	breaks := func(context.Context, string, any, any, *grpc.ClientConn, grpc.UnaryInvoker, ...grpc.CallOption) error {
		sent.Add(1)
		return broken
	}
	rigged(t, rigOptions{
		guard:  []client.GuardOption{client.NoOwner()},
		caller: []grpc.DialOption{grpc.WithChainUnaryInterceptor(client.UnaryClientInterceptor(), breaks)},
	}, func(t *testing.T, r *rig) {
		if got := r.once(); !errors.Is(got.err, broken) || sent.Load() != 1 {
			t.Errorf("%v, sent %d times", got.err, sent.Load())
		}
	})
}
