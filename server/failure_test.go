package server

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// reasonIn returns the code and the reason of idemd in the error of a call.
func reasonIn(err error) (codes.Code, string) {
	st, _ := status.FromError(err)
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == "idemd" {
			return st.Code(), info.GetReason()
		}
	}
	return st.Code(), ""
}

// Case 38: the store is gone.
func TestStoreGoneIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := &store.Error{Sentinel: store.ErrUnavailable, RetryAfter: time.Second, Cause: errors.New("disk /dev/secret is on fire")}
		r := newRig(t, &hooked{newMemory(), func(context.Context, operation) error { return gone }})
		defer r.close()
		for op, err := range everyOperation(t.Context(), r.client()) {
			var refused *store.Error
			if !errors.As(err, &refused) || refused.Sentinel != store.ErrUnavailable || refused.RetryAfter != time.Second {
				t.Errorf("%v: %v", op, err)
			}
			if code, reason := reasonIn(err); code != codes.Unavailable || reason != "STORE_UNAVAILABLE" {
				t.Errorf("%v: code %v, reason %q", op, code, reason)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%v: the cause crossed the wire: %v", op, err)
			}
		}
		if !strings.Contains(r.log.String(), "on fire") {
			t.Errorf("the cause is not in the log:\n%s", r.log)
		}
	})
}

// Case 38: the store does not answer. The caller is told before its own deadline, in a
// status of the server's.
func TestStoreThatHangsIsUnavailableWithinTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &hooked{newMemory(), func(ctx context.Context, _ operation) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		defer r.close()
		once := pb.NewIdempotencyServiceClient(r.connect()) // a client of idemd's would send it again
		for deadline, within := range map[time.Duration]time.Duration{
			time.Second: time.Second,
			time.Minute: maxStoreTime,
			0:           maxStoreTime,
		} {
			ctx, cancel := context.WithCancel(t.Context())
			if deadline > 0 {
				ctx, cancel = context.WithTimeout(t.Context(), deadline)
			}
			start := time.Now()
			_, err := once.Claim(ctx, &pb.ClaimRequest{Key: storepb.KeyToProto(testKey), AttemptId: []byte("a")})
			if code, reason := reasonIn(err); code != codes.Unavailable || reason != "STORE_UNAVAILABLE" {
				t.Errorf("deadline %v: %v", deadline, err)
			}
			if took := time.Since(start); took > within {
				t.Errorf("deadline %v: answered after %v", deadline, took)
			}
			cancel()
		}
	})
}

func TestCallersOwnEndIsItsContextsError(t *testing.T) {
	entered := make(chan struct{})
	r := newRig(t, &hooked{newMemory(), func(ctx context.Context, op operation) error {
		if op == opGetNamespace { // health
			return nil
		}
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	if _, err := r.client().Claim(ctx, store.ClaimRequest{Key: testKey, AttemptID: "a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestPanicInTheStoreIsInternal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calm atomic.Bool
		var panicked atomic.Int64
		r := newRig(t, &hooked{newMemory(), func(_ context.Context, op operation) error {
			if op != opGetNamespace && !calm.Load() { // which health asks for, and not for a caller
				panicked.Add(1)
				panic("the secret of the panic")
			}
			return nil
		}})
		defer r.close()
		c := r.client()
		for op, err := range everyOperation(t.Context(), c) {
			if code, reason := reasonIn(err); code != codes.Internal || reason != "INTERNAL" || !errors.Is(err, store.ErrInternal) {
				t.Errorf("%v: %v", op, err)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%v: the panic crossed the wire: %v", op, err)
			}
		}
		log := r.log.String()
		for _, text := range []string{"the secret of the panic", "failure_test.go", pb.IdempotencyService_Claim_FullMethodName} {
			if !strings.Contains(log, text) {
				t.Errorf("the log does not have %q", text)
			}
		}
		if got := r.value("idemd_panics_total"); got != float64(panicked.Load()) || got < 5 {
			t.Errorf("counted %v panics of %v", got, panicked.Load())
		}
		calm.Store(true)
		grant(t, c, testKey, "a") // the server goes on
	})
}

func TestServerThatIsNotThereIsUnavailable(t *testing.T) {
	lis := bufconn.Listen(1)
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	conn := dialPipe(t, lis)
	defer conn.Close()
	for op, err := range everyOperation(t.Context(), client.New(conn)) {
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%v: %v", op, err)
		}
	}
}
