package client

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/store"
)

// fakeConn is a connection whose calls end with err, and with an empty answer if it is nil.
type fakeConn struct {
	grpc.ClientConnInterface
	err    error
	called []string
}

func (c *fakeConn) Invoke(_ context.Context, method string, _, _ any, _ ...grpc.CallOption) error {
	c.called = append(c.called, method)
	return c.err
}

var key = store.Key{Namespace: "default", ID: "order-1"}

// everyCall makes every call of a client, with valid requests or with ones that are not.
func everyCall(ctx context.Context, c *Client, valid bool) map[string]error {
	key, name, reason, attempt := key, "shop", "r", "a"
	size := 0
	if !valid {
		key.ID, name, reason, attempt, size = "", "Not a name", "", "", -1
	}
	errs := map[string]error{}
	_, errs["Claim"] = c.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: attempt})
	_, errs["Renew"] = c.Renew(ctx, store.RenewRequest{Key: key, AttemptID: attempt, Fence: 1})
	_, errs["Complete"] = c.Complete(ctx, store.CompleteRequest{Key: key, AttemptID: attempt, Fence: 1, Outcome: &store.Outcome{}})
	_, errs["Release"] = c.Release(ctx, store.ReleaseRequest{Key: key, AttemptID: attempt, Fence: 1, Effect: store.EffectNone})
	_, errs["Lookup"] = c.Lookup(ctx, store.LookupRequest{Key: key})
	_, errs["ListRecords"] = c.ListRecords(ctx, store.ListRequest{Namespace: name, PageSize: size})
	_, errs["InspectRecord"] = c.InspectRecord(ctx, key)
	_, errs["Resolve"] = c.Resolve(ctx, store.ResolveRequest{Key: key, AnyFence: true, Reason: reason})
	_, errs["ForceRelease"] = c.ForceRelease(ctx, store.ForceReleaseRequest{Key: key, AnyFence: true, Reason: reason})
	_, errs["CreateNamespace"] = c.CreateNamespace(ctx, store.Namespace{Name: name})
	_, errs["GetNamespace"] = c.GetNamespace(ctx, name)
	_, errs["UpdateNamespace"] = c.UpdateNamespace(ctx, store.Namespace{Name: name})
	return errs
}

func TestBadRequestsAreNotSent(t *testing.T) {
	cc := &fakeConn{}
	for call, err := range everyCall(t.Context(), New(cc), false) {
		if !errors.Is(err, store.ErrInvalidArgument) && !errors.Is(err, store.ErrKeyRequired) {
			t.Errorf("%s: %v", call, err)
		}
	}
	if len(cc.called) != 0 {
		t.Errorf("called %v", cc.called)
	}
	cc.err = status.Error(codes.InvalidArgument, "sent") // one that is not worth sending again
	if errs := everyCall(t.Context(), New(cc), true); len(cc.called) != len(errs) {
		t.Errorf("of %d valid requests %v were sent", len(errs), cc.called)
	}
}

// Case 32.
func TestLargeOutcomesAreNotSent(t *testing.T) {
	cc := &fakeConn{}
	large := &store.Outcome{Body: make([]byte, 5<<20)}
	_, err := New(cc).Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: 1, Outcome: large})
	if !errors.Is(err, store.ErrOutcomeTooLarge) || len(cc.called) != 0 {
		t.Errorf("%v; called %v", err, cc.called)
	}
}

func TestErrorsUnwrapToSentinels(t *testing.T) { synctest.Test(t, errorsUnwrapToSentinels) }

func errorsUnwrapToSentinels(t *testing.T) {
	broken := &fakeConn{err: status.Error(codes.Unavailable, "connection refused")}
	for call, err := range everyCall(t.Context(), New(broken), true) {
		var refused *store.Error
		if !errors.As(err, &refused) || refused.Sentinel != store.ErrUnavailable || status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", call, err)
		}
	}
}

// An empty answer is what a newer server's looks like. It must not be taken for a grant.
func TestAnswersThatAreNotUnderstood(t *testing.T) { synctest.Test(t, answersThatAreNotUnderstood) }

func answersThatAreNotUnderstood(t *testing.T) {
	answer, err := New(&fakeConn{}).Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "a"})
	if !errors.Is(err, store.ErrInternal) || answer != (store.ClaimAnswer{}) {
		t.Errorf("got %+v, %v", answer, err)
	}
	if _, err := New(&fakeConn{}).InspectRecord(t.Context(), key); !errors.Is(err, store.ErrInternal) {
		t.Errorf("got %v", err)
	}
	if _, err := New(&fakeConn{}).GetNamespace(t.Context(), "shop"); !errors.Is(err, store.ErrInternal) {
		t.Errorf("got %v", err)
	}
	for name, call := range map[string]func(*Client) error{
		"Resolve": func(c *Client) error {
			rec, err := c.Resolve(t.Context(), store.ResolveRequest{Key: key, AnyFence: true, Reason: "r"})
			if rec != nil {
				t.Errorf("a record out of nothing: %+v", rec)
			}
			return err
		},
		"ForceRelease": func(c *Client) error {
			_, err := c.ForceRelease(t.Context(), store.ForceReleaseRequest{Key: key, AnyFence: true, Reason: "r"})
			return err
		},
	} {
		if err := call(New(&fakeConn{})); !errors.Is(err, store.ErrInternal) {
			t.Errorf("%s without a record: %v", name, err)
		}
	}
}

func TestWhoCancelled(t *testing.T) { synctest.Test(t, whoCancelled) }

func whoCancelled(t *testing.T) {
	cc := &fakeConn{err: status.Error(codes.Canceled, "gone")}
	_, err := New(cc).Lookup(t.Context(), store.LookupRequest{Key: key})
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, context.Canceled) {
		t.Errorf("cancelled by the server: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(cc).Lookup(ended, store.LookupRequest{Key: key}); err != context.Canceled { //nolint:errorlint // the very error
		t.Errorf("cancelled by the caller: %v", err)
	}
}

func TestDialIsPlainTextOnlyOnThisMachine(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:7600", "[::1]:7600", "localhost:7600"} {
		c, err := Dial(addr)
		if err != nil {
			t.Errorf("%s: %v", addr, err)
			continue
		}
		if err := c.Close(); err != nil {
			t.Errorf("%s: Close: %v", addr, err)
		}
	}
	for _, addr := range []string{"192.0.2.1:7600", "idemd.example.com:7600", "localhost.example.com:7600", "127.0.0.1.example.com:1", ""} {
		_, err := Dial(addr)
		if err == nil || !strings.Contains(err.Error(), "credentials") {
			t.Errorf("%q: %v", addr, err)
		}
		c, err := Dial(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Errorf("%q with credentials: %v", addr, err)
			continue
		}
		_ = c.Close() // nothing was sent
	}
}

func TestCloseLeavesTheCallersConnection(t *testing.T) {
	if err := New(&fakeConn{}).Close(); err != nil {
		t.Error(err)
	}
}
