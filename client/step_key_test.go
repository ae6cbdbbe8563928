package client_test

import (
	"context"
	"maps"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/idemd/idemd/client"
	keys "github.com/idemd/idemd/client/key"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

// sentBy is the outgoing metadata of a call that ctx makes through the caller's interceptor.
func sentBy(ctx context.Context, t *testing.T, opts ...grpc.CallOption) metadata.MD {
	t.Helper()
	var sent metadata.MD
	call := client.UnaryClientInterceptor()
	err := call(ctx, chargeMethod, &testv1.ChargeRequest{}, &testv1.ChargeResponse{}, nil,
		func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			sent, _ = metadata.FromOutgoingContext(ctx)
			return nil
		}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

// A step's call carries a key of its own, and no more: neither the key that came in, also if
// the handler passes all its metadata on, nor anything in baggage.
func TestStepKeyTravels(t *testing.T) {
	var sent []metadata.MD
	guarded(t, func(t *testing.T, r *rig) {
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			in, _ := metadata.FromIncomingContext(ctx)
			sent = append(sent,
				sentBy(ctx, t, client.StepKey(ctx, "charge")),
				sentBy(ctx, t, client.StepKey(ctx, "ship")),
				sentBy(metadata.NewOutgoingContext(ctx, in), t, client.StepKey(ctx, "charge")))
			return &testv1.ChargeResponse{}, nil
		})
		got := r.charge(&testv1.ChargeRequest{Account: "a"}, client.MetadataKey, key1, "baggage", "user=7", "traceparent", "00-1-2-01")
		r.ok(got, "", false)
	})
	intent := store.Key{Namespace: "default", Scope: chargeMethod, ID: key1}
	for i, step := range []string{"charge", "ship", "charge"} {
		want := []string{keys.Downstream(intent, step)}
		if got := sent[i].Get(client.MetadataKey); !slices.Equal(got, want) {
			t.Errorf("call %d carries the key %q, want %q", i, got, want)
		}
		if i < 2 && len(sent[i]) != 1 {
			t.Errorf("call %d carries %v besides", i, slices.Collect(maps.Keys(sent[i])))
		}
	}
	if got := sent[2].Get("baggage"); !slices.Equal(got, []string{"user=7"}) {
		t.Errorf("passed on, the baggage is %q", got)
	}
}

// Where nothing guards there is no intent to take a step of: the call is on its own.
func TestStepKeyWithoutAttempt(t *testing.T) {
	seen := map[string]bool{}
	for range 2 {
		got := sentBy(t.Context(), t, client.StepKey(t.Context(), "charge")).Get(client.MetadataKey)
		if len(got) != 1 || got[0] == "" || seen[got[0]] {
			t.Errorf("the call carries the key %q", got)
		}
		seen[got[0]] = true
	}
}

// In the function of Do too, the same for every attempt.
func TestStepKeyOfDo(t *testing.T) {
	s, stop := memory()
	defer stop()
	var got []string
	for range 2 {
		_, _ = client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, _ *client.Attempt) (string, error) {
			got = append(got, sentBy(ctx, t, client.StepKey(ctx, "charge")).Get(client.MetadataKey)...)
			return "", context.DeadlineExceeded
		})
	}
	if want := keys.Downstream(orderKey, "charge"); !slices.Equal(got, []string{want, want}) {
		t.Errorf("the attempts call under %q, want %q twice", got, want)
	}
}
