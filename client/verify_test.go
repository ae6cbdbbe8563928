package client_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
)

// verify returns the lines of what Verify finds with a server of PaymentService.
func verify(t *testing.T, opts ...client.GuardOption) []string {
	t.Helper()
	server := grpc.NewServer()
	testv1.RegisterPaymentServiceServer(server, testv1.UnimplementedPaymentServiceServer{})
	return verified(server, opts...)
}

func verified(server *grpc.Server, opts ...client.GuardOption) []string {
	err := client.NewGuard(nil, opts...).Verify(server)
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

// equalLines checks that each line holds each of the words for it.
func equalLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d lines, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i, line := range got {
		for word := range strings.SplitSeq(want[i], "|") {
			if !strings.Contains(line, word) {
				t.Errorf("line %d is %q, want %q in it", i, line, word)
			}
		}
	}
}

func TestVerifyNamesWhatIsUndeclared(t *testing.T) {
	equalLines(t, verify(t, client.NoOwner()),
		auditMethod+"|nobody has said|(idemd.options.v1.idempotency)|client.Unguarded",
		importMethod+"|streaming method cannot be guarded", // case 34
		watchMethod+"|nobody has said|streaming method",
	)
	declared := client.Unguarded(auditMethod, importMethod, watchMethod)
	equalLines(t, verify(t, client.NoOwner(), declared))
	equalLines(t, verify(t, client.NoOwner(), client.Method(auditMethod, client.Policy{}), client.Unguarded(importMethod, watchMethod)))
	equalLines(t, verify(t, declared), "say who owns the keys")
	equalLines(t, verify(t, declared, client.NoOwner(), client.Owner(ownerOf)), "say who owns the keys")
	equalLines(t, verify(t, declared, client.Owner(ownerOf)))
}

// hookFor is a recover hook for types, which finds nothing.
func hookFor[Request, Response proto.Message]() client.RecoverHook {
	return client.RecoverCall(func(context.Context, Request, *client.Attempt) (found Response, ok bool, err error) {
		return found, false, nil
	})
}

// A method has one recover hook.
func TestVerifyTwoRecoverHooks(t *testing.T) {
	hook := hookFor[*testv1.ChargeRequest, *testv1.ChargeResponse]()
	declared := client.Unguarded(auditMethod, importMethod, watchMethod)
	equalLines(t, verify(t, client.NoOwner(), declared, client.RecoverMethod(chargeMethod, hook)))
	equalLines(t, verify(t, client.NoOwner(), declared, client.RecoverMethod(chargeMethod, hook),
		client.Method(chargeMethod, client.Policy{Recover: hook})), chargeMethod+"|two recover hooks")
}

func TestVerifyNamesWhatIsWrong(t *testing.T) {
	policy := func(p client.Policy) client.GuardOption { return client.Method(chargeMethod, p) }
	for _, test := range []struct {
		name string
		opt  client.GuardOption
		want string
	}{
		{"no such service", client.Method("/pay.v1.Nobody/Charge", client.Policy{}), "/pay.v1.Nobody/Charge|not registered"},
		{"no such method", client.Unguarded("/idemd.test.v1.PaymentService/Nothing"), "Nothing|not registered"},
		{"no slash", client.Method("idemd.test.v1.PaymentService/Charge", client.Policy{}), "not registered|/pay.v1.Payments/Charge"},
		{"short lease", policy(client.Policy{Lease: time.Millisecond}), chargeMethod + "|lease 1ms"},
		{"long lease", policy(client.Policy{Lease: 16 * time.Minute}), chargeMethod + "|lease 16m"},
		{"negative lease", policy(client.Policy{Lease: -time.Second}), chargeMethod + "|lease -1s"},
		{"long wait", policy(client.Policy{Wait: 6 * time.Minute}), chargeMethod + "|wait 6m"},
		{"negative wait", policy(client.Policy{Wait: -time.Second}), chargeMethod + "|wait -1s"},
		{"exclude path", policy(client.Policy{FingerprintExclude: []string{"nothing.there"}}), chargeMethod + "|nothing"},
		{"key field", policy(client.Policy{KeyField: "nothing"}), chargeMethod + "|\"nothing\" is not a string field"},
		{"key field of another type", policy(client.Policy{KeyField: "amount"}), chargeMethod + "|\"amount\" is not a string field"},
		{"key field that is a list", policy(client.Policy{KeyField: "tags"}), chargeMethod + "|\"tags\" is not a string field"},
		{"success without effect", policy(client.Policy{NoEffect: []codes.Code{codes.OK}}), chargeMethod + "|OK cannot mean"},
		{"guarded stream", client.Method(importMethod, client.Policy{}), importMethod + "|both to Method and to Unguarded"},
		{"no side effects", client.Method(balanceMethod, client.Policy{}), balanceMethod + "|NO_SIDE_EFFECTS"},
		{"both", client.Method(auditMethod, client.Policy{}), auditMethod + "|both to Method and to Unguarded"},
		{"recover hook for another request", policy(client.Policy{Recover: hookFor[*testv1.RefundRequest, *testv1.ChargeResponse]()}), chargeMethod + "|request type *testv1.RefundRequest|must be *testv1.ChargeRequest"},
		{"recover hook for another response", client.RecoverMethod(refundMethod, hookFor[*testv1.RefundRequest, *testv1.RefundRequest]()), refundMethod + "|response type *testv1.RefundRequest|must be *testv1.ChargeResponse"},
		{"recover hook for any request", policy(client.Policy{Recover: hookFor[proto.Message, *testv1.ChargeResponse]()}), chargeMethod + "|request type"},
		{"no recover hook", client.RecoverMethod(chargeMethod, client.RecoverHook{}), chargeMethod + "|given no hook"},
		{"recover hook where nothing is guarded", client.RecoverMethod(auditMethod, hookFor[*testv1.ChargeRequest, *testv1.ChargeResponse]()), auditMethod + "|nothing declares it guarded"},
		{"recover hook of no method", client.RecoverMethod("/idemd.test.v1.PaymentService/Nothing", hookFor[*testv1.ChargeRequest, *testv1.ChargeResponse]()), "Nothing|not registered"},
		{"namespace", client.Namespace("No Such"), "namespace must be"},
		{"cookie", client.ReplayMetadata("Set-Cookie"), "set-cookie|credential"},
		{"authorization", client.ReplayMetadata("authorization"), "authorization|credential"},
		{"proxy", client.ReplayMetadata("Proxy-Authorization"), "proxy-authorization|credential"},
		{"gRPC's own", client.ReplayMetadata("grpc-status-details-bin"), "grpc-status-details-bin|gRPC itself"},
		{"content type", client.ReplayMetadata("Content-Type"), "content-type|gRPC itself"},
	} {
		t.Run(test.name, func(t *testing.T) {
			equalLines(t, verify(t, client.NoOwner(), client.Unguarded(auditMethod, importMethod, watchMethod), test.opt), test.want)
		})
	}
	stream := client.Method(watchMethod, client.Policy{})
	equalLines(t, verify(t, client.NoOwner(), client.Unguarded(auditMethod, importMethod), stream), watchMethod+"|streaming method cannot be guarded")
}

// What is wrong in a .proto.
func TestVerifyOptions(t *testing.T) {
	server := grpc.NewServer()
	testv1.RegisterMisdeclaredServiceServer(server, testv1.UnimplementedMisdeclaredServiceServer{})
	const service = "/idemd.test.v1.MisdeclaredService/"
	equalLines(t, verified(server, client.NoOwner()),
		service+"Both|NO_SIDE_EFFECTS",
		service+"Code|NOT_A_CODE|UNAVAILABLE",
		service+"Exclude|trace",
		service+"KeyField|amount",
		service+"Lease|lease 15m1s",
		service+"Neither|unguarded",
		service+"Success|OK cannot mean",
		service+"Wait|wait 5m1s",
	)
}

// What belongs to gRPC itself needs no declaration.
func TestVerifyInfrastructure(t *testing.T) {
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	equalLines(t, verified(server, client.NoOwner()))
}

// A service without generated code can be declared as unguarded only.
func TestVerifyUnknownServices(t *testing.T) {
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "hand.Made", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Do"}}}, nil)
	equalLines(t, verified(server, client.NoOwner()), "/hand.Made/Do|nobody has said")
	equalLines(t, verified(server, client.NoOwner(), client.Method("/hand.Made/Do", client.Policy{})), "/hand.Made/Do|no generated protobuf code")
	equalLines(t, verified(server, client.NoOwner(), client.Unguarded("/hand.Made/Do")))
}
