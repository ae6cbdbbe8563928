package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/idemd/idemd/proto/examples/payments/v1"
	"github.com/idemd/idemd/store"
)

// kills is how often each process is killed.
func kills(t *testing.T) int {
	if testing.Short() {
		t.Log("-short: 5 kills instead of 30")
		return 5
	}
	return 30
}

// The answers with which a caller can do no more than ask a person.
var (
	checkFirst = refusal(errCheckFirst)
	unresolved = "KEY_UNRESOLVED"
)

// chargeUntilAnswered sends a call again until its answer is final, as a caller does that
// must know.
func chargeUntilAnswered(ctx context.Context, c *caller, order string) answer {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		a := c.charge(ctx, request(order))
		if a.err == nil || slices.Contains([]string{checkFirst, unresolved}, refusal(a.err)) || ctx.Err() != nil {
			return a
		}
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

func dialPayments(t *testing.T, addr string) *caller {
	t.Helper()
	c, err := newCaller(addr, "account-1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

// chargesOf reads the ledger: what was charged for each order.
func chargesOf(t *testing.T, path string) map[string][]entry {
	t.Helper()
	l, err := openLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close() //nolint:errcheck // it was only read
	all, err := l.all(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	orders := map[string][]entry{}
	for _, e := range all {
		order := strings.TrimPrefix(e.Reference, "account-1/")
		orders[order] = append(orders[order], e)
	}
	return orders
}

// TestKilledBetweenChargeAndRecord kills the service each time after it has charged and
// before it has said so to anybody, while the callers of all orders go on calling. Every
// order is charged once, and its caller gets the charge; or, where nothing looks at the
// provider, is told that somebody has to.
func TestKilledBetweenChargeAndRecord(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string // empty: the charge
	}{
		"recover": {nil, ""},
		"told":    {[]string{"--recover=false"}, checkFirst},
		"hold":    {[]string{"--hold"}, unresolved},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKilled(t, test.args)
			n := kills(t)
			for i := range n {
				k.chargeAndKill(t, fmt.Sprintf("order-%d", i))
			}
			k.check(t, n, test.want)
			switch name {
			case "told":
				k.checkStillTold(t)
			case "hold":
				k.checkResolved(t)
			}
		})
	}
}

// killed is a service that is killed each time it has charged.
type killed struct {
	idemd  *child
	ledger string
	args   []string
	relay  *relay
	caller *caller

	calls   sync.WaitGroup
	ctx     context.Context
	mu      sync.Mutex
	answers map[string]answer
}

func newKilled(t *testing.T, args []string) *killed {
	dir := t.TempDir()
	k := &killed{
		idemd: startIdemd(t, filepath.Join(dir, "idemd")), ledger: filepath.Join(dir, "ledger"), args: args,
		relay: newRelay(t), answers: map[string]answer{},
	}
	k.caller = dialPayments(t, k.relay.addr())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(func() { cancel(); k.calls.Wait() })
	k.ctx = ctx
	return k
}

// chargeAndKill has an order charged, and kills the service then. Only this order is
// charged by this process: a second charge of another one is not what it says.
func (k *killed) chargeAndKill(t *testing.T, order string) {
	service := startPayments(t, "stuck", k.idemd.addr, k.ledger, k.args...)
	k.relay.to(service.addr)
	k.calls.Go(func() {
		a := chargeUntilAnswered(k.ctx, k.caller, order)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.answers[order] = a
	})
	service.expect(t, "charged account-1/"+order+" <nil>")
	k.relay.to("")
	service.kill()
}

// check starts the service once more, and waits for every caller to be answered.
func (k *killed) check(t *testing.T, orders int, want string) {
	k.relay.to(startPayments(t, "none", k.idemd.addr, k.ledger, k.args...).addr)
	k.calls.Wait()
	charges := chargesOf(t, k.ledger)
	if len(charges) != orders || len(k.answers) != orders {
		t.Errorf("%d orders charged, %d answered, want %d", len(charges), len(k.answers), orders)
	}
	for order, list := range charges {
		expected := want
		if expected == "" {
			expected = list[0].ID
		}
		got := k.answers[order]
		got.repeat = false // whether the first call that was answered still acted is chance
		if len(list) != 1 || got.String() != expected {
			t.Errorf("%s: charged %d times, answered %q, want once and %q", order, len(list), got, expected)
		}
	}
}

// checkStillTold checks that being told has settled nothing.
func (k *killed) checkStillTold(t *testing.T) {
	if a := chargeUntilAnswered(k.ctx, k.caller, "order-0"); a.String() != checkFirst {
		t.Errorf("a later repeat is answered %q, want %q", a, checkFirst)
	}
	if n := len(chargesOf(t, k.ledger)["order-0"]); n != 1 {
		t.Errorf("%d charges, want 1", n)
	}
}

// checkResolved settles an order as an operator does that has looked at the provider.
func (k *killed) checkResolved(t *testing.T) {
	found := chargeOf(chargesOf(t, k.ledger)["order-0"][0], "order-0")
	body, err := proto.Marshal(&pb.ChargeResponse{Charge: found})
	if err != nil {
		t.Fatal(err)
	}
	_, err = dialIdemd(t, k.idemd.addr).Resolve(k.ctx, store.ResolveRequest{
		Key: keyOf("order-0"), AnyFence: true, Reason: "looked at the provider",
		Outcome: &store.Outcome{Body: body, BodyType: string((&pb.ChargeResponse{}).ProtoReflect().Descriptor().FullName())},
	})
	if err != nil {
		t.Fatal(err)
	}
	a := k.caller.charge(k.ctx, request("order-0"))
	if want := found.GetId() + " (repeat)"; a.String() != want {
		t.Errorf("once settled, a repeat is answered %q, want %q", a, want)
	}
}

// keyOf is the key under which the guard claims an order.
func keyOf(order string) store.Key {
	return store.Key{
		Namespace: store.DefaultNamespace, Scope: pb.PaymentsService_Charge_FullMethodName, ID: order, Entity: "account-1",
	}
}

// TestIdemdKilledUnderLoad kills idemd again and again while many callers have orders
// charged, and starts it again on its data.
func TestIdemdKilledUnderLoad(t *testing.T) {
	for name, args := range map[string][]string{"recover": nil, "told": {"--recover=false"}, "hold": {"--hold"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLoad(t, args)
			n := kills(t)
			for range n {
				l.answer(t, 5+rand.IntN(100))
				l.restart(t)
			}
			l.stop()
			l.check(t, name)
			t.Logf("%d kills, %d orders", n, len(l.answers))
		})
	}
}

// load is many callers that each have one order after the other charged.
type load struct {
	dir    string
	idemd  *child
	relay  *relay
	caller *caller

	answered chan struct{} // one for each answer
	stopped  atomic.Bool
	next     atomic.Int64
	calls    sync.WaitGroup
	mu       sync.Mutex
	answers  map[string]answer
}

func newLoad(t *testing.T, args []string) *load {
	dir := t.TempDir()
	l := &load{
		dir: dir, idemd: startIdemd(t, filepath.Join(dir, "idemd")), relay: newRelay(t),
		answered: make(chan struct{}, 1<<20), answers: map[string]answer{},
	}
	l.relay.to(l.idemd.addr)
	service := startPayments(t, "none", l.relay.addr(), l.ledger(), args...)
	l.caller = dialPayments(t, service.addr)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(func() { cancel(); l.stop() })
	for range 32 {
		l.calls.Go(func() {
			for !l.stopped.Load() && ctx.Err() == nil {
				l.one(ctx)
			}
		})
	}
	return l
}

func (l *load) ledger() string { return filepath.Join(l.dir, "ledger") }

func (l *load) one(ctx context.Context) {
	order := fmt.Sprintf("order-%d", l.next.Add(1))
	a := chargeUntilAnswered(ctx, l.caller, order)
	l.mu.Lock()
	l.answers[order] = a
	l.mu.Unlock()
	l.answered <- struct{}{}
}

// answer returns when so many more calls have been answered.
func (l *load) answer(t *testing.T, calls int) {
	t.Helper()
	timeout := time.After(patience)
	for range calls {
		select {
		case <-l.answered:
		case <-timeout:
			t.Fatal("calls are not answered any more")
		}
	}
}

func (l *load) restart(t *testing.T) {
	l.relay.to("")
	l.idemd.kill()
	l.idemd = startIdemd(t, filepath.Join(l.dir, "idemd"))
	l.relay.to(l.idemd.addr)
	for len(l.answered) > 0 { // of before the restart
		<-l.answered
	}
}

func (l *load) stop() {
	l.stopped.Store(true)
	l.calls.Wait()
}

// check holds every answer against the ledger. An order whose caller got a charge was
// charged once, and that is the charge. One that nobody could settle was charged at most once.
func (l *load) check(t *testing.T, name string) {
	charges := chargesOf(t, l.ledger())
	open := map[string]string{"told": checkFirst, "hold": unresolved}[name]
	told := 0
	for order, a := range l.answers {
		list := charges[order]
		switch {
		case a.err == nil && len(list) == 1 && list[0].ID == a.charge.GetId():
		case a.err != nil && open != "" && refusal(a.err) == open && len(list) <= 1:
			told++
		default:
			t.Errorf("%s: charged %d times, answered %q", order, len(list), a)
		}
	}
	for order, list := range charges {
		if _, asked := l.answers[order]; !asked || len(list) > 1 {
			t.Errorf("%s: charged %d times, asked for: %v", order, len(list), asked)
		}
	}
	t.Logf("%d orders are left to a person", told)
}
