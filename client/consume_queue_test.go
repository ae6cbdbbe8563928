package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

// TestConsumeAll has four processes carry out the messages of a queue that delivers them in no
// order and every tenth one again while it is being handled, where with every hundredth run of
// the handler the process dies, before or after the effect, with all of its batch. Each
// effect happens once, and none is lost.
func TestConsumeAll(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 1_000
		t.Log("-short: 1,000 messages instead of 10,000")
	}
	for name, serve := range map[string]func(*testing.T, *pebblestore.Store) store.Store{
		"embedded": func(_ *testing.T, s *pebblestore.Store) store.Store { return s },
		"wire":     overTheWire,
	} {
		t.Run(name, func(t *testing.T) {
			// The store pools what belongs to a bubble.
			emptyPools := func() { runtime.GC(); runtime.GC() }
			emptyPools()
			defer emptyPools()
			synctest.Test(t, func(t *testing.T) {
				embedded, err := pebblestore.Open("idemd", pebblestore.Options{FS: vfs.NewMem()})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := embedded.Close(); err != nil {
						t.Error(err)
					}
				})
				consumeAll(t, serve(t, embedded), n)
			})
		})
	}
}

// overTheWire serves a store, and returns a client of it.
func overTheWire(t *testing.T, backend *pebblestore.Store) store.Store {
	srv, err := server.New(server.Config{Backend: backend, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	lis := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:///pipe", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	c := client.New(conn)
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), conn.Close(), srv.Shutdown(context.Background()), <-served); err != nil {
			t.Error(err)
		}
	})
	return c
}

func consumeAll(t *testing.T, s store.Store, n int) {
	q := &fakeQueue{random: rand.New(rand.NewPCG(1, 2))}
	for i := range n {
		q.messages = append(q.messages, &queued{Message: client.Message{ID: fmt.Sprint(i), Source: "orders", Time: time.Now(), Body: []byte("b")}})
	}
	effects := &effectTable{inbox: map[store.Key]bool{}, count: map[string]int{}}
	var processes sync.WaitGroup
	for range 4 {
		processes.Go(func() {
			for q.left() > 0 {
				p := &process{Store: s, T: t, queue: q, effects: effects}
				p.run()
			}
		})
	}
	processes.Wait()
	if err := client.Drain(t.Context()); err != nil { // what dead ones still try
		t.Error(err)
	}
	for i := range n {
		if got := effects.count[fmt.Sprint(i)]; got != 1 {
			t.Errorf("the effect of event %d happened %d times", i, got)
		}
	}
	t.Logf("%d deliveries, %d while running; %d processes died; the handler ran %d times, and found its effect %d times",
		q.deliveries, q.doubles, effects.deaths, effects.runs, effects.found)
	if q.dead != 0 || q.doubles < n/12 || effects.deaths < n/1000 || effects.runs-n > n/4 {
		t.Error("that is not what was to be tested, or too much ran in vain; dead letters:", q.dead)
	}
}

// fakeQueue delivers messages, in no order, until they are acknowledged.
type fakeQueue struct {
	mu                        sync.Mutex
	random                    *rand.Rand
	messages                  []*queued // that are not settled
	deliveries, doubles, dead int
}

type queued struct {
	client.Message
	hidden  time.Time // until when it is not delivered again
	settled bool
}

func (q *fakeQueue) left() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.messages)
}

// draw draws a number below n.
func (q *fakeQueue) draw(n int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.random.IntN(n)
}

// receive delivers up to 32 messages. Nine of ten are then hidden until they must have been
// handled; one is not.
func (q *fakeQueue) receive() (batch []*queued) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	q.random.Shuffle(len(q.messages), func(i, j int) { q.messages[i], q.messages[j] = q.messages[j], q.messages[i] })
	for _, m := range q.messages {
		if len(batch) == 32 {
			break
		}
		if now.Before(m.hidden) {
			continue
		}
		m.hidden = now.Add(45 * time.Second)
		if q.random.IntN(10) == 0 {
			m.hidden = now.Add(time.Duration(q.random.IntN(20)) * time.Millisecond)
			q.doubles++
		}
		q.deliveries++
		batch = append(batch, m)
	}
	return batch
}

func (q *fakeQueue) settle(batch []*queued, all []client.Disposition) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, d := range all {
		switch d.Action {
		case client.Ack:
			batch[i].settled = true
		case client.DeadLetter:
			batch[i].settled = true
			q.dead++
		case client.Retry:
			batch[i].hidden = time.Now().Add(d.After)
		}
	}
	kept := q.messages[:0]
	for _, m := range q.messages {
		if !m.settled {
			kept = append(kept, m)
		}
	}
	q.messages = kept
}

// effectTable is a database of the consumer's own: the effect and the row that says which
// intent it was for are committed together.
type effectTable struct {
	mu                  sync.Mutex
	inbox               map[store.Key]bool
	count               map[string]int
	runs, found, deaths int
}

// process is a process that consumes, until it dies: then it asks for nothing, acts no more,
// and the queue does not hear of its batch.
type process struct {
	store.Store
	*testing.T
	queue   *fakeQueue
	effects *effectTable
	die     context.CancelFunc
	life    context.Context
}

func (p *process) run() {
	p.life, p.die = context.WithCancel(p.Context())
	defer p.die()
	c, err := client.NewConsumer(p.life, p, ofOrders, p.handle)
	if err != nil {
		p.Error(err)
		return
	}
	for p.queue.left() > 0 {
		batch := p.queue.receive()
		if len(batch) == 0 {
			time.Sleep(time.Second)
			continue
		}
		var messages []client.Message
		for _, m := range batch {
			messages = append(messages, m.Message)
		}
		all := c.Consume(p.life, messages)
		if p.life.Err() != nil {
			return
		}
		p.queue.settle(batch, all)
	}
}

// handle has one of a hundred runs end the process, half of them after the effect, and a few
// others fail alone.
func (p *process) handle(ctx context.Context, a *client.Attempt, m client.Message) error {
	time.Sleep(time.Duration(len(m.ID)) * 5 * time.Millisecond)
	switch p.queue.draw(200) {
	case 0:
		return p.dies()
	case 1:
		return client.NoEffect(errors.New("not now"))
	}
	if err := p.commit(a, m); err != nil {
		return err
	}
	switch p.queue.draw(200) {
	case 0:
		return p.dies()
	case 1:
		return errors.New("the answer to the commit was lost")
	}
	return ctx.Err()
}

func (p *process) dies() error {
	p.effects.mu.Lock()
	defer p.effects.mu.Unlock()
	p.effects.deaths++
	p.die()
	return p.life.Err()
}

// commit is the transaction. A run that finds its effect must have been told that it may.
func (p *process) commit(a *client.Attempt, m client.Message) error {
	e := p.effects
	e.mu.Lock()
	defer e.mu.Unlock()
	if p.life.Err() != nil {
		return p.life.Err()
	}
	e.runs++
	if e.inbox[a.Key] {
		e.found++
		if !a.Unsettled {
			p.Errorf("event %s was carried out, and runs again as if it had not been", m.ID)
		}
		return nil
	}
	e.inbox[a.Key] = true
	e.count[m.ID]++
	return nil
}

var errDead = store.Refuse(store.ErrUnavailable, "the process is dead")

func (p *process) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	if p.life.Err() != nil {
		return store.ClaimAnswer{}, errDead
	}
	return p.Store.Claim(ctx, req)
}

func (p *process) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	if p.life.Err() != nil {
		return store.RenewAnswer{}, errDead
	}
	return p.Store.Renew(ctx, req)
}

func (p *process) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	if p.life.Err() != nil {
		return store.CompleteAnswer{}, errDead
	}
	return p.Store.Complete(ctx, req)
}

func (p *process) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	if p.life.Err() != nil {
		return store.ReleaseAnswer{}, errDead
	}
	return p.Store.Release(ctx, req)
}
