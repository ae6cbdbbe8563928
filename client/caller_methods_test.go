package client

import (
	"context"
	"testing"

	"google.golang.org/grpc"
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
