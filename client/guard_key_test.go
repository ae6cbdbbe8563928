package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

// refund calls Refund, whose requests have a request_id.
func (r *rig) refund(requestID string, pairs ...string) error {
	_, err := r.calls.Refund(keyed(r.t, pairs...), &testv1.RefundRequest{RequestId: requestID, Amount: 1})
	return err
}

func TestKeyOfTheCall(t *testing.T) {
	const header = client.MetadataKey
	for _, test := range []struct {
		name      string
		requestID string
		metadata  []string
		key       string // empty: refused
		reason    string
	}{
		{"metadata", "", []string{header, "k"}, "k", ""},
		{"request_id", "k", nil, "k", ""},
		{"both, equal", "k", []string{header, "k"}, "k", ""},
		{"both, different", "k", []string{header, "other"}, "", "INVALID_ARGUMENT"},
		{"twice, equal", "", []string{header, "k", header, "k"}, "k", ""},
		{"twice, different", "", []string{header, "k", header, "other"}, "", "INVALID_ARGUMENT"},
		{"none", "", nil, "", "KEY_REQUIRED"},
		{"empty metadata", "", []string{header, ""}, "", "INVALID_ARGUMENT"},
		{"empty metadata, request_id", "k", []string{header, ""}, "", "INVALID_ARGUMENT"},
		{"255 bytes", strings.Repeat("k", 255), nil, strings.Repeat("k", 255), ""},
		{"256 bytes", strings.Repeat("k", 256), nil, "", "INVALID_ARGUMENT"},
		{"control character", "a\nb", nil, "", "INVALID_ARGUMENT"},
		{"as given", " K-é", nil, " K-é", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			guarded(t, func(t *testing.T, r *rig) {
				err := r.refund(test.requestID, test.metadata...)
				if test.key == "" {
					refused(t, err, codes.InvalidArgument, test.reason)
					r.ran(0)
					want := client.EventRefused
					if test.reason == "KEY_REQUIRED" {
						want = client.EventNoKey
					}
					if r.events.list[0].Err == nil {
						t.Error("the event does not say why it was refused")
					}
					r.told(want)
					return
				}
				if err != nil || r.recordOf(refundMethod, test.key, "") == nil {
					t.Errorf("no record of %q: %v", test.key, err)
				}
				// The field that holds the key is no part of the request's fingerprint.
				if err := r.refund(test.key); err != nil {
					t.Error(err)
				}
				r.ran(1)
			})
		})
	}
}

// Where a key is not required, a call without one acts and is counted.
func TestKeyIsNotRequired(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		for range 2 {
			r.ok(r.charge(&testv1.ChargeRequest{}), "receipt-1", false)
			if err := r.events.list[0].Err; err != nil {
				t.Errorf("the event of a call that ran says %v", err)
			}
			r.told(client.EventNoKey)
		}
		r.ran(2)
		if r.store.total() != 0 {
			t.Errorf("the store was called: %v", r.store.calls)
		}
	})
}

// Method wins over the .proto, also over what that leaves unguarded; Unguarded over both.
func TestMethodWins(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		_, err := r.calls.Audit(t.Context(), &testv1.ChargeRequest{})
		refused(t, err, codes.InvalidArgument, "KEY_REQUIRED")
		_, err = r.calls.Ping(t.Context(), &testv1.ChargeRequest{})
		refused(t, err, codes.InvalidArgument, "KEY_REQUIRED")
		if err := r.refund(""); err != nil {
			t.Errorf("Method does not require a key: %v", err)
		}
		if _, err := r.calls.Transfer(t.Context(), &testv1.TransferRequest{}); err != nil {
			t.Errorf("Unguarded: %v", err)
		}
		// Its key is another field.
		if _, err := r.calls.Audit(t.Context(), &testv1.ChargeRequest{Account: "k", Amount: 1}); err != nil {
			t.Error(err)
		}
		_, err = r.calls.Audit(t.Context(), &testv1.ChargeRequest{Account: "k", Amount: 2})
		refused(t, err, codes.FailedPrecondition, "FINGERPRINT_MISMATCH")
	},
		client.Method(auditMethod, client.Policy{Required: true, KeyField: "account"}), client.Method(pingMethod, client.Policy{Required: true}),
		client.Method(refundMethod, client.Policy{}), client.Unguarded(transferMethod))
}

// Everything that the option of a method can say.
func TestEveryOption(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		ask := func(order, traceID string, amount int64) error {
			_, err := r.calls.Transfer(t.Context(), &testv1.TransferRequest{OrderId: order, Amount: amount, Trace: &testv1.Trace{Id: traceID}})
			return err
		}
		refused(t, ask("", "", 1), codes.InvalidArgument, "KEY_REQUIRED")
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
			rec := r.recordOf(transferMethod, "k", "")
			if lease := rec.LeaseEnd.Sub(rec.GrantedAt); lease != 10*time.Second || rec.LapsePolicy != store.Hold {
				t.Errorf("lease %v, lapse policy %v", lease, rec.LapsePolicy)
			}
			start := time.Now()
			refused(t, ask("k", "", 1), codes.Aborted, "KEY_IN_PROGRESS")
			if waited := time.Since(start); waited != 2*time.Second {
				t.Errorf("waited %v", waited)
			}
			return &testv1.ChargeResponse{}, nil
		})
		if err := ask("k", "trace-1", 1); err != nil {
			t.Error(err)
		}
		if err := ask("k", "trace-2", 1); err != nil {
			t.Errorf("another trace: %v", err)
		}
		refused(t, ask("k", "trace-1", 2), codes.FailedPrecondition, "FINGERPRINT_MISMATCH")
		r.ran(1)
	})
}

// Under hold nobody acts after an end that is unknown.
func TestHeldKey(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.fails(errors.New("connection reset"))
		req := &testv1.TransferRequest{OrderId: "k"}
		if _, err := r.calls.Transfer(t.Context(), req); status.Code(err) != codes.Unknown {
			t.Error(err)
		}
		for range 2 {
			_, err := r.calls.Transfer(t.Context(), req)
			st := refused(t, err, codes.FailedPrecondition, "KEY_UNRESOLVED")
			if !strings.HasSuffix(st.Message(), "an attempt lapsed and the key is held: its holder may still report, else an operator settles it") {
				t.Error(st.Message())
			}
		}
		r.ran(1)
		r.told(client.EventGranted, client.EventUnknown, client.EventUnresolved, client.EventUnresolved)
	})
}

// A call that waits gets what the other one got.
func TestWaitForTheOther(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
			time.Sleep(time.Second)
			return &testv1.ChargeResponse{Receipt: "r"}, nil
		})
		replies := make(chan error)
		for range 10 {
			go func() {
				got, err := r.calls.Transfer(t.Context(), &testv1.TransferRequest{OrderId: "k"})
				if err == nil && got.GetReceipt() != "r" {
					err = errors.New("another response")
				}
				replies <- err
			}()
		}
		for range 10 {
			if err := <-replies; err != nil {
				t.Error(err)
			}
		}
		r.ran(1)
	})
}

type ownerKey struct{}

// ownerOf reads the owner out of metadata, as an interceptor for identity would.
func ownerOf(ctx context.Context) (string, error) {
	names := metadata.ValueFromIncomingContext(ctx, "test-owner")
	if len(names) == 0 {
		return "", nil
	}
	switch names[0] {
	case "denied":
		return "", status.Error(codes.PermissionDenied, "not yours")
	case "broken":
		return "", errors.New("secret: the token does not parse")
	default:
		return names[0], nil
	}
}

func TestOwner(t *testing.T) {
	rigged(t, rigOptions{guard: []client.GuardOption{client.Owner(ownerOf)}}, func(t *testing.T, r *rig) {
		ask := func(owner string, amount int64) reply {
			return r.charge(&testv1.ChargeRequest{Amount: amount}, client.MetadataKey, key1, "test-owner", owner)
		}
		r.ok(ask("ann", 1), "receipt-1", false)
		r.ok(ask("bob", 2), "receipt-1", false) // two owners with one key are two intents
		r.ok(ask("ann", 1), "receipt-1", true)
		r.ok(ask("bob", 2), "receipt-1", true)
		refused(t, ask("bob", 1).err, codes.FailedPrecondition, "FINGERPRINT_MISMATCH")
		r.ran(2)
		if r.recordOf(chargeMethod, key1, "ann") == nil || r.recordOf(chargeMethod, key1, "bob") == nil || r.recordOf(chargeMethod, key1, "") != nil {
			t.Error("the records are not those of ann and bob")
		}

		r.events.take()
		if got := ask("denied", 1); status.Code(got.err) != codes.PermissionDenied || status.Convert(got.err).Message() != "not yours" {
			t.Error(got.err)
		}
		if got := ask("broken", 1); status.Code(got.err) != codes.Unauthenticated || strings.Contains(got.err.Error(), "secret") {
			t.Error(got.err)
		}
		// Callers of whom nothing is known are not one party.
		if got := r.once(); status.Code(got.err) != codes.Unauthenticated {
			t.Error(got.err)
		}
		refused(t, ask(strings.Repeat("o", 256), 1).err, codes.InvalidArgument, "INVALID_ARGUMENT")
		r.told(client.EventRefused, client.EventRefused, client.EventRefused, client.EventRefused)
		r.ran(2)
	})
}

// Without a word on who owns the keys no guarded call runs, and others do.
func TestOwnerIsRequired(t *testing.T) {
	for _, opts := range [][]client.GuardOption{nil, {client.Owner(ownerOf), client.NoOwner()}} {
		rigged(t, rigOptions{guard: opts}, func(t *testing.T, r *rig) {
			if got := r.once(); status.Code(got.err) != codes.Internal || !strings.Contains(got.err.Error(), "who owns the keys") {
				t.Error(got.err)
			}
			r.ran(0)
			if _, err := r.calls.Ping(t.Context(), &testv1.ChargeRequest{}); err != nil {
				t.Error(err)
			}
			if err := r.guard.Verify(r.server); err == nil || !strings.Contains(err.Error(), "NoOwner") {
				t.Error(err)
			}
		})
	}
}

func TestNamespace(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		// What the server's own set-up lacks is told to whoever runs it, not to its callers.
		st := refused(t, r.once().err, codes.Unavailable, "STORE_UNAVAILABLE")
		if !strings.Contains(st.Message(), "whether an earlier one with this key did is not known") || strings.Contains(st.Message(), "shop") || strings.Contains(st.Message(), "namespace") {
			t.Error(st.Message())
		}
		r.ran(0)
		if err := r.events.list[0].Err; !errors.Is(err, store.ErrNamespaceUnknown) {
			t.Errorf("the event says %v", err)
		}
		r.told(client.EventRefused)
		ns := store.Namespace{Name: "shop", Tier: store.TierDay}
		if _, err := r.store.inner.CreateNamespace(t.Context(), ns.WithDefaults()); err != nil {
			t.Fatal(err)
		}
		r.ok(r.once(), "receipt-1", false)
		if rec := r.store.inspect(t, store.Key{Namespace: "shop", Scope: chargeMethod, ID: key1}).Record; rec == nil {
			t.Error("no record in the namespace")
		}
	}, client.Namespace("shop"))
}

func TestIntentTime(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		ask := func(when string) error {
			return r.charge(&testv1.ChargeRequest{}, client.MetadataKey, when, client.MetadataIntentTime, when).err
		}
		at := func(d time.Duration) string { return time.Now().Add(d).Format(time.RFC3339Nano) }
		for _, bad := range []string{"yesterday", "2026-11-29 12:00:00", "1", "0001-01-01T00:00:00Z", "1969-01-01T00:00:00Z", at(2 * time.Minute)} {
			refused(t, ask(bad), codes.InvalidArgument, "INVALID_ARGUMENT")
		}
		refused(t, r.charge(&testv1.ChargeRequest{}, client.MetadataKey, key1, client.MetadataIntentTime, "").err, codes.InvalidArgument, "INVALID_ARGUMENT")
		refused(t, r.charge(&testv1.ChargeRequest{}, client.MetadataKey, key1, client.MetadataIntentTime, at(0), client.MetadataIntentTime, at(-time.Second)).err,
			codes.InvalidArgument, "INVALID_ARGUMENT")
		refused(t, ask(at(-25*time.Hour)), codes.FailedPrecondition, "KEY_EXPIRED")
		r.ran(0)
		for _, good := range []string{at(0), at(-23 * time.Hour), at(30 * time.Second)} {
			if err := ask(good); err != nil {
				t.Errorf("%s: %v", good, err)
			}
		}
		r.ran(3)
	})
}

// Case 35: after retention a repeat is refused, and not taken for new.
func TestKeyExpires(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		made := time.Now().Format(time.RFC3339Nano)
		ask := func() reply {
			return r.charge(&testv1.ChargeRequest{}, client.MetadataKey, key1, client.MetadataIntentTime, made)
		}
		r.ok(ask(), "receipt-1", false)
		time.Sleep(24*time.Hour - time.Second)
		r.ok(ask(), "receipt-1", true)
		time.Sleep(time.Minute)
		refused(t, ask().err, codes.FailedPrecondition, "KEY_EXPIRED")
		r.ran(1)
	})
}

// What a caller is told does not hold how the guard reaches its store.
func TestStoreErrorsStayInside(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		for _, sentinel := range []error{store.ErrUnavailable, store.ErrInternal} {
			r.store.fail("claim", &store.Error{Sentinel: sentinel, Detail: "dial tcp 10.1.2.3:7600: refused", RetryAfter: 7 * time.Second})
			if got := r.once(); strings.Contains(got.err.Error(), "10.1.2.3") {
				t.Error(got.err)
			}
		}
		r.store.fail("claim", errors.New("10.1.2.3"))
		if got := r.once(); status.Code(got.err) != codes.Internal || strings.Contains(got.err.Error(), "10.1.2.3") {
			t.Error(got.err)
		}
		r.ran(0)
	})
}

// Interceptors outside the guard see its refusals and replays, those inside only runs.
func TestInterceptorOrder(t *testing.T) {
	var outside, inside int
	count := func(n *int) grpc.UnaryServerInterceptor {
		return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			*n++
			return handler(context.WithValue(ctx, ownerKey{}, "set outside"), req)
		}
	}
	owner := func(ctx context.Context) (string, error) {
		name, _ := ctx.Value(ownerKey{}).(string)
		return name, nil
	}
	rigged(t, rigOptions{
		guard: []client.GuardOption{client.Owner(owner)}, outer: []grpc.UnaryServerInterceptor{count(&outside)}, inner: []grpc.UnaryServerInterceptor{count(&inside)},
	}, func(t *testing.T, r *rig) {
		r.ok(r.once(), "receipt-1", false)
		r.ok(r.once(), "receipt-1", true)
		refused(t, r.charge(&testv1.ChargeRequest{}, client.MetadataKey, key1).err, codes.FailedPrecondition, "FINGERPRINT_MISMATCH")
		if outside != 3 || inside != 1 || r.recordOf(chargeMethod, key1, "set outside") == nil {
			t.Errorf("outside %d, inside %d", outside, inside)
		}
	})
}
