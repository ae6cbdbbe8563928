package client_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

func TestGuardReplays(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.ok(r.once(), "receipt-1", false)
		if r.store.total() != 2 {
			t.Errorf("a guarded call made %v", r.store.calls)
		}
		r.told(client.EventGranted, client.EventRecorded)
		r.state(store.StateCompleted)
		if o := r.record().Outcome; o.BodyType != "idemd.test.v1.ChargeResponse" || len(o.Status) != 0 || len(o.Header)+len(o.Trailer) != 0 {
			t.Errorf("stored %+v", o)
		}
		time.Sleep(time.Minute)
		r.ok(r.once(), "receipt-1", true)
		r.ran(1)
		if r.store.total() != 3 {
			t.Errorf("with the replay: %v", r.store.calls)
		}
		last := r.events.list[len(r.events.list)-1]
		if last.Kind != client.EventReplayed || last.Age != time.Minute || last.Retention != 24*time.Hour || last.Scope != chargeMethod || last.Namespace != "default" || last.Observed {
			t.Errorf("told %+v", last)
		}
	})
}

// A handler sees its attempt; code that is not guarded has none.
func TestGuardGivesTheAttempt(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		var a *client.Attempt
		var guarded bool
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			a, guarded = client.AttemptFrom(ctx)
			return &testv1.ChargeResponse{}, nil
		})
		r.once()
		if rec := r.record(); !guarded || a.Fence != rec.Fence || a.Number != 1 || a.ID != rec.AttemptID || a.Unsettled || a.Key.ID != key1 {
			t.Errorf("told %+v, the record is %+v", a, rec)
		}
		for _, call := range []func(context.Context, *testv1.ChargeRequest, ...grpc.CallOption) (*testv1.ChargeResponse, error){r.calls.Ping, r.calls.Audit, r.calls.GetBalance} {
			guarded = true
			if _, err := call(keyed(t, client.MetadataKey, key1), &testv1.ChargeRequest{}); err != nil || guarded {
				t.Errorf("%v; guarded %v", err, guarded)
			}
		}
	})
}

// request is one with everything in it.
func request(t *testing.T) *testv1.ChargeRequest {
	t.Helper()
	item := &testv1.Item{Name: "i", Labels: map[string]string{"a": "1", "b": "2", "c": "3", "d": "4"}}
	inside, err := anypb.New(item)
	if err != nil {
		t.Fatal(err)
	}
	return &testv1.ChargeRequest{
		Account: "a", Amount: 42, Labels: item.Labels, Items: []*testv1.Item{item, {Name: "j"}}, Detail: inside,
	}
}

// Case 1: map entries travel in random order, and in a nested message and an Any as well.
func TestCase1MapOrder(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.ok(r.charge(request(t), client.MetadataKey, key1), "receipt-1", false)
		for range 20 {
			r.ok(r.charge(request(t), client.MetadataKey, key1), "receipt-1", true)
		}
		swapped := request(t)
		slices.Reverse(swapped.Items)
		refused(t, r.charge(swapped, client.MetadataKey, key1).err, codes.FailedPrecondition, "FINGERPRINT_MISMATCH")
		r.ran(1)
	})
}

// Case 2, 3: an empty request, one byte, and a field set to zero differ.
func TestCase2And3Fingerprints(t *testing.T) {
	requests := []*testv1.ChargeRequest{{}, {Note: []byte{0}}, {Note: []byte{1}}, {Tip: proto.Int64(0)}, {Tip: proto.Int64(1)}}
	for i, first := range requests {
		guarded(t, func(t *testing.T, r *rig) {
			r.ok(r.charge(first, client.MetadataKey, key1), "receipt-1", false)
			for j, again := range requests {
				got := r.charge(again, client.MetadataKey, key1)
				if i == j {
					r.ok(got, "receipt-1", true)
				} else {
					refused(t, got.err, codes.FailedPrecondition, "FINGERPRINT_MISMATCH")
				}
			}
			r.ran(1)
		})
	}
}

// Case 4: a request with a field that this server does not know is no mismatch, and counted.
func TestCase4UnknownFields(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		newer := &testv1.ChargeRequest{Account: "a", Amount: 42}
		newer.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x07}) // field 99 is 7
		r.ok(r.once(), "receipt-1", false)
		r.told(client.EventGranted, client.EventRecorded)
		r.ok(r.charge(newer, client.MetadataKey, key1), "receipt-1", true)
		r.told(client.EventReplayed, client.EventIncomparable)
		r.ran(1)
	})
}

// Case 5: a wrong payload is refused each time, and reveals nothing. (There is no cache
// that could be warm.)
func TestCase5WrongPayload(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			return &testv1.ChargeResponse{Receipt: "secret"}, grpc.SetHeader(ctx, metadata.Pairs("receipt-no", "secret"))
		})
		r.once()
		r.events.take()
		before := r.record()
		for range 3 {
			got := r.charge(&testv1.ChargeRequest{Account: "a", Amount: 43}, client.MetadataKey, key1)
			st := refused(t, got.err, codes.FailedPrecondition, "FINGERPRINT_MISMATCH")
			if strings.Contains(fmt.Sprint(st.Proto(), got.header, got.trailer), "secret") {
				t.Errorf("reveals %v %v %v", st, got.header, got.trailer)
			}
			r.told(client.EventMismatch)
		}
		if after := r.record(); after.Fence != before.Fence || after.State != before.State || string(after.Outcome.Body) != string(before.Outcome.Body) {
			t.Errorf("the record was changed: %+v", after)
		}
		r.ok(r.once(), "secret", true)
	}, client.ReplayMetadata("receipt-no"))
}

// Case 7: one key on two methods is two keys.
func TestCase7ScopePerMethod(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.ok(r.once(), "receipt-1", false)
		var header metadata.MD
		if _, err := r.calls.Refund(keyed(t, client.MetadataKey, key1), &testv1.RefundRequest{Amount: 1}, grpc.Header(&header)); err != nil || len(header.Get(client.MetadataReplayed)) != 0 {
			t.Errorf("%v, %v", err, header)
		}
		r.ran(2)
		if r.recordOf(chargeMethod, key1, "") == nil || r.recordOf(refundMethod, key1, "") == nil {
			t.Error("not two records")
		}
	})
}

// Cases 26, 27: what an error of the handler means for its key.
func TestCase26And27Errors(t *testing.T) {
	nested, err := status.New(codes.FailedPrecondition, "nested").WithDetails(&errdetails.ErrorInfo{Domain: "idemd", Reason: "KEY_UNRESOLVED"})
	if err != nil {
		t.Fatal(err)
	}
	released, unknown, completed := store.StateReleased, store.StateInProgress, store.StateCompleted
	plain := fmt.Errorf("connection reset")
	for _, test := range []struct {
		err   error
		code  codes.Code
		state store.State
	}{
		{plain, codes.Unknown, unknown},
		{context.Canceled, codes.Canceled, unknown},
		{context.DeadlineExceeded, codes.DeadlineExceeded, unknown},
		{status.Error(codes.Canceled, "x"), codes.Canceled, unknown},
		{status.Error(codes.Unknown, "x"), codes.Unknown, unknown},
		{status.Error(codes.InvalidArgument, "x"), codes.InvalidArgument, completed},
		{status.Error(codes.DeadlineExceeded, "x"), codes.DeadlineExceeded, unknown},
		{status.Error(codes.NotFound, "x"), codes.NotFound, completed},
		{status.Error(codes.AlreadyExists, "x"), codes.AlreadyExists, completed},
		{status.Error(codes.PermissionDenied, "x"), codes.PermissionDenied, unknown},
		{status.Error(codes.ResourceExhausted, "x"), codes.ResourceExhausted, unknown},
		{status.Error(codes.FailedPrecondition, "x"), codes.FailedPrecondition, completed},
		{status.Error(codes.Aborted, "x"), codes.Aborted, unknown},
		{status.Error(codes.OutOfRange, "x"), codes.OutOfRange, completed},
		{status.Error(codes.Unimplemented, "x"), codes.Unimplemented, unknown},
		{status.Error(codes.Internal, "x"), codes.Internal, unknown},
		{status.Error(codes.Unavailable, "x"), codes.Unavailable, unknown},
		{status.Error(codes.DataLoss, "x"), codes.DataLoss, unknown},
		{status.Error(codes.Unauthenticated, "x"), codes.Unauthenticated, unknown},
		{status.Error(codes.Code(77), "x"), codes.Code(77), unknown},
		{fmt.Errorf("wrapped: %w", status.Error(codes.NotFound, "x")), codes.NotFound, completed},
		{nested.Err(), codes.FailedPrecondition, unknown},
		{fmt.Errorf("wrapped: %w", nested.Err()), codes.FailedPrecondition, unknown},
		{store.ErrKeyInProgress, codes.Unknown, unknown},
		{client.NoEffect(plain), codes.Unknown, released},
		{client.NoEffect(status.Error(codes.Unavailable, "x")), codes.Unavailable, released},
		{client.NoEffect(status.Error(codes.InvalidArgument, "x")), codes.InvalidArgument, released},
		{fmt.Errorf("wrapped: %w", client.NoEffect(plain)), codes.Unknown, released},
		{okError{}, codes.Internal, unknown},
	} {
		t.Run(test.err.Error(), func(t *testing.T) {
			guarded(t, func(t *testing.T, r *rig) {
				r.service.fails(test.err)
				first := r.once()
				if status.Code(first.err) != test.code {
					t.Errorf("got %v, want %v", first.err, test.code)
				}
				r.state(test.state)
				var attempt *client.Attempt
				r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
					attempt, _ = client.AttemptFrom(ctx)
					return &testv1.ChargeResponse{Receipt: "second"}, nil
				})
				again := r.once()
				switch test.state {
				case completed:
					equalStatus(t, again.err, first.err)
					r.ran(1)
					r.told(client.EventGranted, client.EventRecorded, client.EventReplayed)
				case released:
					r.ok(again, "second", false)
					r.told(client.EventGranted, client.EventReleased, client.EventGranted, client.EventRecorded)
				default:
					r.ok(again, "second", false)
					r.told(client.EventGranted, client.EventUnknown, client.EventTakeover, client.EventRecorded)
				}
				if attempt != nil && (attempt.Unsettled != (test.state == unknown) || attempt.Number != 2 || attempt.PreviousFence == 0) {
					t.Errorf("the second attempt is told %+v", attempt)
				}
			})
		})
	}
}

// The mark of an error is about this call's intent: what stands outside the guard, where
// another one may be carried out, sees the error without it.
func TestNoEffectStaysInside(t *testing.T) {
	busy := status.Error(codes.Unavailable, "busy")
	var seen error
	outer := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		response, err := handler(ctx, req)
		seen = err
		return response, err
	}
	for _, opts := range [][]client.GuardOption{{client.NoOwner()}, {client.NoOwner(), client.Observe()}} {
		rigged(t, rigOptions{guard: opts, outer: []grpc.UnaryServerInterceptor{outer}}, func(t *testing.T, r *rig) {
			r.service.fails(client.NoEffect(busy))
			r.once()
			if seen != busy { //nolint:errorlint // the very error
				t.Errorf("outside is %#v", seen)
			}
		})
	}
}

// okError claims to be a success, which no error is.
type okError struct{}

func (okError) Error() string              { return "fine" }
func (okError) GRPCStatus() *status.Status { return status.New(codes.OK, "fine") }

// The codes that a method lists mean that nothing happened.
func TestNoEffectCodes(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		for i, test := range []struct {
			code  codes.Code
			state store.State
		}{
			{codes.ResourceExhausted, store.StateReleased}, {codes.Unauthenticated, store.StateReleased},
			{codes.Unavailable, store.StateInProgress}, {codes.NotFound, store.StateCompleted},
		} {
			r.service.fails(status.Error(test.code, "x"))
			id := fmt.Sprint("order-", i)
			if _, err := r.calls.Transfer(t.Context(), &testv1.TransferRequest{OrderId: id}); status.Code(err) != test.code {
				t.Errorf("%v: %v", test.code, err)
			}
			if rec := r.recordOf(transferMethod, id, ""); rec.State != test.state || rec.LapsePolicy != store.Hold {
				t.Errorf("%v: %+v", test.code, rec)
			}
		}
	})
}

// Case 28: a status with details is byte-equal on replay.
func TestCase28StatusDetails(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		st, err := status.New(codes.FailedPrecondition, "declined: é").WithDetails(
			&errdetails.ErrorInfo{Reason: "DECLINED", Domain: "pay", Metadata: map[string]string{"a": "1"}},
			&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}, &testv1.Item{Name: "custom"})
		if err != nil {
			t.Fatal(err)
		}
		p := st.Proto()
		p.Details = append(p.Details, &anypb.Any{TypeUrl: "type.googleapis.com/nobody.Knows", Value: []byte{1, 2, 3}})
		r.service.fails(status.FromProto(p).Err())
		first := r.once()
		again := r.once()
		equalStatus(t, first.err, status.FromProto(p).Err())
		for i, detail := range status.Convert(again.err).Proto().Details {
			if detail.TypeUrl != p.Details[i].TypeUrl || string(detail.Value) != string(p.Details[i].Value) {
				t.Errorf("detail %d is %v, was %v", i, detail, p.Details[i])
			}
		}
		equalStatus(t, again.err, first.err)
		if !slices.Equal(again.header.Get(client.MetadataReplayed), []string{"true"}) {
			t.Errorf("header %v", again.header)
		}
		r.ran(1)
	})
}

// Case 29: listed metadata is replayed, whatever way the handler set it.
func TestCase29Metadata(t *testing.T) {
	for _, fails := range []bool{false, true} {
		guarded(t, func(t *testing.T, r *rig) {
			r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
				for _, err := range []error{
					grpc.SetHeader(ctx, metadata.Pairs("location", "/1", "location", "/2", "private", "p")),
					grpc.SetHeader(ctx, metadata.Pairs("Mixed-Case", "m")),
					grpc.SendHeader(ctx, metadata.Pairs("digest-bin", "\x00\xff")),
					grpc.SetTrailer(ctx, metadata.Pairs("cost", "3", "private", "p")),
				} {
					if err != nil {
						t.Error(err)
					}
				}
				if err := grpc.SetHeader(ctx, metadata.Pairs("location", "too-late")); err == nil {
					t.Error("set after it was sent")
				}
				if fails {
					return nil, status.Error(codes.NotFound, "no such account")
				}
				return &testv1.ChargeResponse{Receipt: "r"}, nil
			})
			first, again := r.once(), r.once()
			equalStatus(t, again.err, first.err)
			for name, want := range map[string][]string{
				"location": {"/1", "/2"}, "mixed-case": {"m"}, "digest-bin": {"\x00\xff"},
			} {
				if !slices.Equal(first.header.Get(name), want) || !slices.Equal(again.header.Get(name), want) {
					t.Errorf("header %s: %q, then %q, want %q", name, first.header.Get(name), again.header.Get(name), want)
				}
			}
			if !slices.Equal(again.trailer.Get("cost"), []string{"3"}) || !slices.Equal(first.trailer.Get("cost"), []string{"3"}) {
				t.Errorf("trailers %v, %v", first.trailer, again.trailer)
			}
			if len(first.header.Get("private")) != 1 || len(again.header.Get("private"))+len(again.trailer.Get("private")) != 0 {
				t.Errorf("what is not listed: %v, then %v, %v", first.header, again.header, again.trailer)
			}
			r.ran(1)
			if o := r.record().Outcome; len(o.Header) != 4 || len(o.Trailer) != 1 {
				t.Errorf("stored %+v", o)
			}
		}, client.ReplayMetadata("Location", "mixed-case", "digest-bin", "cost", "never-set"))
	}
}

// Case 29: without a list nothing is stored.
func TestMetadataIsNotStoredUnasked(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			return &testv1.ChargeResponse{Receipt: "r"}, grpc.SetHeader(ctx, metadata.Pairs("set-cookie", "session=secret"))
		})
		if got := r.once(); len(got.header.Get("set-cookie")) != 1 {
			t.Errorf("the first call lost %v", got.header)
		}
		if got := r.once(); len(got.header.Get("set-cookie")) != 0 {
			t.Errorf("replayed %v", got.header)
		}
		if o := r.record().Outcome; len(o.Header) != 0 {
			t.Errorf("stored %+v", o)
		}
	})
}

// Case 30: an empty response is an outcome, and so is none.
func TestCase30EmptyResponse(t *testing.T) {
	for _, response := range []*testv1.ChargeResponse{{}, nil} {
		guarded(t, func(t *testing.T, r *rig) {
			r.service.does(func(context.Context) (*testv1.ChargeResponse, error) { return response, nil })
			r.ok(r.once(), "", false)
			r.ok(r.once(), "", true)
			r.ran(1)
			r.state(store.StateCompleted)
		})
	}
}

// An interceptor inside the guard may answer with nothing at all, which gRPC sends as an
// empty message.
func TestNothingAtAllIsAnEmptyResponse(t *testing.T) {
	ran := 0
	nothing := func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
		ran++
		return nil, nil
	}
	rigged(t, rigOptions{guard: []client.GuardOption{client.NoOwner()}, inner: []grpc.UnaryServerInterceptor{nothing}}, func(t *testing.T, r *rig) {
		r.ok(r.once(), "", false)
		r.state(store.StateCompleted)
		r.ok(r.once(), "", true)
		if ran != 1 {
			t.Errorf("ran %d times", ran)
		}
	})
}

// A response of another type, from an interceptor inside, can be stored but not replayed as
// what it is not.
func TestAResponseOfAnotherType(t *testing.T) {
	other := func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
		return wrapperspb.String("not a ChargeResponse"), nil
	}
	rigged(t, rigOptions{guard: []client.GuardOption{client.NoOwner()}, inner: []grpc.UnaryServerInterceptor{other}}, func(t *testing.T, r *rig) {
		if got := r.once(); got.err != nil {
			t.Error(got.err)
		}
		refused(t, r.once().err, codes.FailedPrecondition, "OUTCOME_OMITTED")
	})
}

// A response that is no message is answered with an error by gRPC, so nothing is known.
func TestAResponseThatIsNoMessage(t *testing.T) {
	other := func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) { return "text", nil }
	rigged(t, rigOptions{guard: []client.GuardOption{client.NoOwner()}, inner: []grpc.UnaryServerInterceptor{other}}, func(t *testing.T, r *rig) {
		if got := r.once(); status.Code(got.err) != codes.Internal {
			t.Error(got.err)
		}
		r.state(store.StateInProgress)
		r.told(client.EventGranted, client.EventUnknown)
	})
}

// Case 31: there is no cache in the client: what is claimed again is always what the store
// says.
func TestCase31ClaimCompleteClaim(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		hold := make(chan struct{})
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
			<-hold
			return &testv1.ChargeResponse{Receipt: "r"}, nil
		})
		first := make(chan reply)
		go func() { first <- r.once() }()
		synctest.Wait()
		refused(t, r.once().err, codes.Aborted, "KEY_IN_PROGRESS")
		close(hold)
		r.ok(<-first, "r", false)
		r.ok(r.once(), "r", true)
		r.told(client.EventGranted, client.EventInProgress, client.EventRecorded, client.EventReplayed)
	})
}

// Case 32: a response that is too large is stored without its body, and not made again.
func TestCase32TooLarge(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		large := &testv1.ChargeResponse{Receipt: "r", Body: make([]byte, 5<<20)}
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) { return large, nil })
		got := r.once()
		r.ok(got, "r", false)
		if len(got.response.GetBody()) != 5<<20 || len(got.trailer.Get(client.MetadataNotRecorded)) != 0 {
			t.Errorf("%d bytes, %v", len(got.response.GetBody()), got.trailer)
		}
		for range 2 {
			refused(t, r.once().err, codes.FailedPrecondition, "OUTCOME_OMITTED")
		}
		r.events.says(t, nil, store.ErrOutcomeTooLarge, store.ErrOutcomeOmitted, store.ErrOutcomeOmitted)
		r.ran(1)
		if o := r.record().Outcome; !o.BodyOmitted || len(o.Body) != 0 {
			t.Errorf("stored %d bytes, %v", len(o.Body), o.BodyOmitted)
		}
	})
}

// A status that is too large keeps its code.
func TestAHugeStatus(t *testing.T) {
	outer := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		response, err := handler(ctx, req)
		if st := status.Convert(err); len(st.Message()) > 1<<10 {
			err = status.Error(st.Code(), "short") // headers have limits of their own
		}
		return response, err
	}
	rigged(t, rigOptions{guard: []client.GuardOption{client.NoOwner()}, outer: []grpc.UnaryServerInterceptor{outer}}, func(t *testing.T, r *rig) {
		r.service.fails(status.Error(codes.NotFound, strings.Repeat("x", 1<<20)))
		if got := r.once(); status.Code(got.err) != codes.NotFound {
			t.Error(got.err)
		}
		if again := r.once(); status.Code(again.err) != codes.NotFound || !strings.Contains(again.err.Error(), "too large") {
			t.Error(again.err)
		}
		r.ran(1)
	})
}

// More metadata than can be stored is left out, but what was done is recorded.
func TestTooMuchMetadata(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			var pairs []string
			for i := range store.MaxMetadataEntries + 1 {
				pairs = append(pairs, "location", fmt.Sprint(i))
			}
			return &testv1.ChargeResponse{Receipt: "r"}, grpc.SetTrailer(ctx, metadata.Pairs(pairs...))
		})
		r.ok(r.once(), "r", false)
		r.state(store.StateCompleted)
		r.ok(r.once(), "r", true)
		r.ran(1)
	}, client.ReplayMetadata("location"))
}

// Case 34: a guarded stream is refused also when nobody has called Verify.
func TestCase34Streams(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		stream, err := r.calls.Import(t.Context())
		if err == nil {
			_, err = stream.CloseAndRecv()
		}
		if status.Code(err) != codes.Unimplemented || r.service.ran() != 0 {
			t.Errorf("guarded: %v", err)
		}
		watching, err := r.calls.Watch(t.Context(), &testv1.ChargeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := watching.Recv(); err != nil || got.GetReceipt() != "receipt-1" {
			t.Errorf("not guarded: %v, %v", got, err)
		}
		if _, err := watching.Recv(); err == nil {
			t.Error("the stream has not ended")
		}
	})
}

// What an operator records by hand cannot be read as this method's response.
func TestAnOperatorsOutcome(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.fails(status.Error(codes.Unavailable, "gone"))
		r.once()
		_, err := r.store.inner.Resolve(t.Context(), store.ResolveRequest{
			Key: r.record().Key, AnyFence: true, Actor: "ann", Reason: "asked the bank",
			Outcome: &store.Outcome{Body: []byte("charged"), BodyType: "text/plain"},
		})
		if err != nil {
			t.Fatal(err)
		}
		refused(t, r.once().err, codes.FailedPrecondition, "OUTCOME_OMITTED")
		r.ran(1)
	})
}

// What is stored as a status and is none is a damaged record, and never a success.
func TestAStatusThatIsNone(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.fails(status.Error(codes.Unavailable, "gone"))
		r.once()
		_, err := r.store.inner.Resolve(t.Context(), store.ResolveRequest{
			Key: r.record().Key, AnyFence: true, Actor: "ann", Reason: "by another program",
			Outcome: &store.Outcome{Status: []byte{0xff}, BodyType: "idemd.test.v1.ChargeResponse"},
		})
		if err != nil {
			t.Fatal(err)
		}
		refused(t, r.once().err, codes.DataLoss, "RECORD_CORRUPT")
		r.ran(1)
	})
}
