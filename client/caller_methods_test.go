package client

import (
	"context"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Names that are made up, as where calls are passed on, are not kept.
func TestMadeUpMethodsAreNotKeptByCallers(t *testing.T) {
	const named = "/hand.Made/Do"
	c := newCaller(CallGuarded(named))
	answers := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	for _, name := range []string{"/made.Up/Method", "/made.Up", "", "made", "/idemd.test.v1.PaymentService/MadeUp", named} {
		if err := c.call(context.Background(), name, nil, nil, nil, answers); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, kept := range []func(func(any, any) bool){c.methods.Range, c.enforced.Range} {
		n := 0
		kept(func(name, _ any) bool {
			n++
			if name != named && name != (served{method: named}) {
				t.Errorf("%v is kept", name)
			}
			return true
		})
		if n != 1 {
			t.Errorf("%d are kept, want the one that was named", n)
		}
	}
}

// What one server does says nothing about another, whose connection has the same interceptor.
func TestWhatIsLearnedIsAboutOneTarget(t *testing.T) {
	c := newCaller(CallGuarded("/hand.Made/Do"))
	conns := map[string]*grpc.ClientConn{}
	for _, target := range []string{"passthrough:///guarded", "passthrough:///observed"} {
		conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns[target] = conn
	}
	call := func(target string, marks []string, answer error) (sent int) {
		invoker := func(_ context.Context, _ string, _, _ any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
			sent++
			for _, opt := range opts {
				if o, ok := opt.(grpc.TrailerCallOption); ok && marks != nil {
					*o.TrailerAddr = metadata.Pairs(marks...)
				}
			}
			return answer
		}
		_ = c.call(context.Background(), "/hand.Made/Do", nil, nil, conns[target], invoker)
		return sent
	}
	lost := status.Error(codes.Unavailable, "the connection broke")
	synctest.Test(t, func(*testing.T) { // for the pauses
		call("passthrough:///guarded", []string{MetadataGuarded, "true"}, nil)
		call("passthrough:///observed", nil, nil)
		if sent := call("passthrough:///guarded", nil, lost); sent != maxTries {
			t.Errorf("to the server that guards: sent %d times, want %d", sent, maxTries)
		}
		if sent := call("passthrough:///observed", nil, lost); sent != 1 {
			t.Errorf("to the server that observes: sent %d times, want once", sent)
		}
	})
}
