package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/examples/payments/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

// A scene is one order, and what goes wrong with it.
type scene struct {
	order, what string
	play        func(ctx context.Context, c *caller, order string) []answer
}

const sentAtOnce = "sent eight times at once"

var scenes = []scene{
	{"order-1", "tapped twice", func(ctx context.Context, c *caller, order string) []answer {
		return []answer{c.charge(ctx, request(order)), c.charge(ctx, request(order))}
	}},
	{"order-2", sentAtOnce, func(ctx context.Context, c *caller, order string) []answer {
		answers := make([]answer, 8)
		var calls sync.WaitGroup
		for i := range answers {
			calls.Go(func() { answers[i] = c.charge(ctx, request(order)) })
		}
		calls.Wait()
		return answers
	}},
	{"order-3", "the reply is lost twice, the call sent again", func(ctx context.Context, c *caller, order string) []answer {
		return c.chargeUntilReply(losing(ctx, 2), request(order))
	}},
	{"order-4", "the key again, for another amount", func(ctx context.Context, c *caller, order string) []answer {
		other := request(order)
		other.AmountCents *= 10
		return []answer{c.charge(ctx, request(order)), c.charge(ctx, other)}
	}},
	{"order-5", "the provider charges, and its reply is lost", func(ctx context.Context, c *caller, order string) []answer {
		return c.chargeUntilReply(ctx, withCard(order, cardReplyLost))
	}},
	{"order-6", "the card is declined, and tried again", func(ctx context.Context, c *caller, order string) []answer {
		return []answer{c.charge(ctx, withCard(order, cardDeclined)), c.charge(ctx, withCard(order, cardDeclined))}
	}},
}

func request(order string) *pb.ChargeRequest { return withCard(order, "good") }

func withCard(order, card string) *pb.ChargeRequest {
	return &pb.ChargeRequest{OrderId: order, AmountCents: 42_00, Card: card}
}

// A line of the table is how a scene ended.
type line struct {
	scene   scene
	answers []answer
	charges []*pb.Charge
}

// play plays every scene.
func play(ctx context.Context, c *caller) ([]line, error) {
	var lines []line
	for _, s := range scenes {
		l := line{scene: s, answers: s.play(ctx, c, s.order)}
		var err error
		if l.charges, err = c.charges(ctx, s.order); err != nil {
			return nil, err
		}
		lines = append(lines, l)
	}
	return lines, nil
}

func printTable(out io.Writer, lines []line) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "ORDER\tWHAT HAPPENS\tCHARGES\tANSWERS")
	for _, l := range lines {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", l.scene.order, l.scene.what, len(l.charges), summary(l.answers))
	}
	return w.Flush()
}

// summary says each answer once, and how often it was given.
func summary(answers []answer) string {
	times := map[string]int{}
	var texts []string
	for _, a := range answers {
		text := a.String()
		if times[text]++; times[text] == 1 {
			texts = append(texts, text)
		}
	}
	slices.SortStableFunc(texts, func(a, b string) int { return times[a] - times[b] })
	for i, text := range texts {
		if n := times[text]; n > 1 {
			texts[i] = fmt.Sprintf("%d × %s", n, text)
		}
	}
	return strings.Join(texts, ", ")
}

func runStory(ctx context.Context, args []string, out io.Writer) error {
	var g guarding
	flags := flag.NewFlagSet("payments", flag.ContinueOnError)
	g.flags(flags)
	if err := parse(flags, args); err != nil {
		return err
	}
	if flags.NFlag() > 0 {
		return tell(ctx, g, out)
	}
	fmt.Fprintln(out, "with the guard")
	if err := tell(ctx, g, out); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nwithout it (--unguarded)")
	g.off = true
	return tell(ctx, g, out)
}

// tell plays the story on a service of its own, and prints it.
func tell(ctx context.Context, g guarding, out io.Writer) error {
	dir, err := os.MkdirTemp("", "payments-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	events := &eventCount{}
	g.report = events.add
	lines, err := playIn(ctx, dir, g)
	if err != nil {
		return err
	}
	if err := printTable(out, lines); err != nil || g.off {
		return err
	}
	title := "the guard's events"
	if g.observe {
		title = "only observed, nothing blocked"
	}
	fmt.Fprintf(out, "%s: %s\n", title, events)
	return nil
}

// playIn plays the story on a service that keeps everything in a directory.
func playIn(ctx context.Context, dir string, g guarding) (lines []line, err error) {
	l, err := openLedger(filepath.Join(dir, "ledger.jsonl"))
	if err != nil {
		return nil, err
	}
	defer l.close() //nolint:errcheck // each entry was synced
	embedded, err := pebblestore.Open(filepath.Join(dir, "idemd"), pebblestore.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, embedded.Close()) }()
	waiter := store.NewWaiter(embedded, store.WaiterOptions{}) // a server has its own
	defer waiter.Close()
	server, _, err := newServer(waiter, l, g)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() { _ = server.Serve(listener) }() // until GracefulStop
	defer func() {
		server.GracefulStop()
		err = errors.Join(err, client.Drain(ctx))
	}()
	c, err := newCaller(listener.Addr().String(), "account-1")
	if err != nil {
		return nil, err
	}
	defer c.close()
	return play(ctx, c)
}

// eventCount counts the events of a guard by kind.
type eventCount struct {
	mu     sync.Mutex
	counts map[client.EventKind]int
}

func (e *eventCount) add(event client.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.counts == nil {
		e.counts = map[client.EventKind]int{}
	}
	e.counts[event.Kind]++
}

func (e *eventCount) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var texts []string
	for _, kind := range slices.Sorted(maps.Keys(e.counts)) {
		texts = append(texts, fmt.Sprintf("%s %d", kind, e.counts[kind]))
	}
	return strings.Join(texts, ", ")
}
