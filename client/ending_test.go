package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

// Every part of an error must say that nothing happened, and whoever wraps it may say more.
func TestMarksInAnError(t *testing.T) {
	plain := errors.New("connection refused")
	marked := client.NoEffect(plain)
	for _, test := range []struct {
		name string
		err  error
		want store.State
	}{
		{"wrapped", fmt.Errorf("charging: %w", marked), store.StateReleased},
		{"twice", client.NoEffect(fmt.Errorf("charging: %w", marked)), store.StateReleased},
		{"one of two", errors.Join(plain, marked), store.StateInProgress},
		{"the other of two", errors.Join(marked, plain), store.StateInProgress},
		{"one of two in a text", fmt.Errorf("%w, then %w", marked, plain), store.StateInProgress},
		{"both", fmt.Errorf("charging: %w", errors.Join(marked, nil, fmt.Errorf("again: %w", marked))), store.StateReleased},
		{"around two", client.NoEffect(errors.Join(plain, plain)), store.StateReleased},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				fn, _ := returns("", test.err)
				_, err := client.Do(t.Context(), s, orderKey, nil, fn)
				if !errors.Is(err, plain) || err.Error() != test.err.Error() {
					t.Errorf("got %v, want %v", err, test.err)
				}
				if rec := s.inspect(t, orderKey).Record; rec.State != test.want {
					t.Errorf("state %v, want %v", rec.State, test.want)
				}
			})
		})
	}
}

// codedError is an error of a caller's own with a status.
type codedError struct{ code codes.Code }

func (e *codedError) Error() string              { return "the stock is asleep" }
func (e *codedError) GRPCStatus() *status.Status { return status.New(e.code, "the stock is asleep") }

// The mark of an intent within another says nothing about the outer one, and the error is
// all else that it was.
func TestMarkOfAnIntentWithinAnother(t *testing.T) {
	cause := &codedError{codes.Unavailable}
	inner := orderKey
	inner.Scope = "reserve"
	do := func(ctx context.Context, s *faultyStore, err error) error {
		fn, _ := returns("", err)
		_, err = client.Do(ctx, s, inner, nil, fn)
		return err
	}
	guard := func(opts ...client.GuardOption) func(context.Context, *faultyStore, error) error {
		return func(ctx context.Context, s *faultyStore, err error) error {
			guard := client.NewGuard(s, append(opts, client.NoOwner())...)
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(client.MetadataKey, key1))
			_, err = guard.UnaryServerInterceptor()(ctx, &testv1.ChargeRequest{}, &grpc.UnaryServerInfo{FullMethod: chargeMethod},
				func(context.Context, any) (any, error) { return nil, err })
			return err
		}
	}
	for name, within := range map[string]func(context.Context, *faultyStore, error) error{
		"Do": do, "Guard": guard(), "observing Guard": guard(client.Observe()),
	} {
		for _, mark := range []error{
			client.NoEffect(cause),
			fmt.Errorf("reserving: %w", client.NoEffect(cause)),
			client.NoEffect(fmt.Errorf("reserving: %w", client.NoEffect(cause))),
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStore(t)
					unsettled := false
					outer := func(ctx context.Context, a *client.Attempt) (string, error) {
						unsettled = a.Unsettled
						err := within(ctx, s, mark)
						var coded *codedError
						if !errors.Is(err, cause) || !errors.As(err, &coded) || err.Error() != mark.Error() || status.Code(err) != codes.Unavailable {
							t.Errorf("the inner one returns %v with code %v, want %v", err, status.Code(err), mark)
						}
						return "", fmt.Errorf("ordering: %w", err)
					}
					for range 2 {
						if _, err := client.Do(t.Context(), s, orderKey, nil, outer); !errors.Is(err, cause) || status.Code(err) != codes.Unavailable {
							t.Errorf("got %v", err)
						}
						if err := client.Drain(t.Context()); err != nil { // an observing guard records later
							t.Error(err)
						}
					}
					if rec := s.inspect(t, orderKey).Record; rec.State != store.StateInProgress || !unsettled {
						t.Errorf("state %v, the second attempt unsettled %v; want unknown", rec.State, unsettled)
					}
					knows := func(ctx context.Context, _ *client.Attempt) (string, error) {
						return "", client.NoEffect(within(ctx, s, mark))
					}
					other := orderKey
					other.ID = "order-2"
					_, _ = client.Do(t.Context(), s, other, nil, knows)
					if rec := s.inspect(t, other).Record; rec.State != store.StateReleased {
						t.Errorf("state %v after the outer one marked it, want released", rec.State)
					}
				})
			})
		}
	}
}

// A final answer stays one if its message is no text; it is stored as gRPC sends it.
func TestMessageThatIsNotUTF8(t *testing.T) { synctest.Test(t, testMessageThatIsNotUTF8) }

func testMessageThatIsNotUTF8(t *testing.T) {
	s := newStore(t)
	fn, runs := returns("", status.Error(codes.NotFound, "no account \"caf\xe9\xe8\""))
	for _, want := range []string{"no account \"caf\xe9\xe8\"", "no account \"caf\ufffd\ufffd\""} {
		_, err := client.Do(t.Context(), s, orderKey, nil, fn)
		if st := status.Convert(err); st.Code() != codes.NotFound || st.Message() != want || *runs != 1 {
			t.Errorf("got %q with code %v, want %q; ran %d times", st.Message(), st.Code(), want, *runs)
		}
	}
}
