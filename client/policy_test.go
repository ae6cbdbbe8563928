package client

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	optionsv1 "github.com/idemd/idemd/proto/idemd/options/v1"
)

// A lapse policy that a newer option has is not taken for the loosest one.
func TestUnknownLapsePolicy(t *testing.T) {
	for policy, known := range map[optionsv1.LapsePolicy]bool{
		optionsv1.LapsePolicy_LAPSE_POLICY_UNSPECIFIED: true, optionsv1.LapsePolicy_LAPSE_POLICY_TAKEOVER: true,
		optionsv1.LapsePolicy_LAPSE_POLICY_HOLD: true, 3: false,
	} {
		got, err := policyFromProto(&optionsv1.Idempotency{LapsePolicy: policy})
		if (err == nil) != known || got.Hold != (policy == optionsv1.LapsePolicy_LAPSE_POLICY_HOLD) {
			t.Errorf("%v: %+v, %v", policy, got, err)
		}
	}
}

func TestUnguardedSaysNothingElse(t *testing.T) {
	if err := checkUnguarded(&optionsv1.Idempotency{Unguarded: true}); err != nil {
		t.Error(err)
	}
	for _, o := range []*optionsv1.Idempotency{{Required: true}, {Lease: durationpb.New(0)}, {KeyField: "x"}, {NoEffectCodes: []string{"ABORTED"}}} {
		o.Unguarded = true
		if checkUnguarded(o) == nil {
			t.Errorf("%v is taken", o)
		}
	}
}

func TestCodesOf(t *testing.T) {
	for _, name := range []string{"", "unavailable", "14", "UNAVAILABLE\"", "CANCELED"} {
		if got, err := codesOf([]string{name}); err == nil || !strings.Contains(err.Error(), "UNAVAILABLE") {
			t.Errorf("%q is %v, %v", name, got, err)
		}
	}
}

// Names that callers make up are not kept.
func TestUnknownMethodsAreNotKept(t *testing.T) {
	g := NewGuard(nil, NoOwner())
	for _, name := range []string{"/made.Up/Method", "/made.Up", "", "made", "/idemd.test.v1.PaymentService/MadeUp"} {
		err := g.StreamServerInterceptor()(nil, nil, &grpc.StreamServerInfo{FullMethod: name}, func(any, grpc.ServerStream) error { return nil })
		if err != nil {
			t.Errorf("%q: %v", name, err)
		}
		_, err = g.UnaryServerInterceptor()(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: name}, func(context.Context, any) (any, error) { return nil, nil })
		if err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	g.methods.Range(func(name, _ any) bool {
		t.Errorf("%v is kept", name)
		return true
	})
}
