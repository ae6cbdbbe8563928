package sqlstore

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/internal/fair"
)

const (
	// batchesAtOnce is how many batches of a kind are on their way. While they are, those
	// that come wait for the next, which is the larger the more there is to do.
	batchesAtOnce = 2
	// maxBatchBytes bounds what a batch carries, beyond its last operation.
	maxBatchBytes = 1 << 20
	// operationBytes is what an operation takes in the queue and in a batch, about, without
	// its outcome.
	operationBytes = 512
)

// coalescer gathers operations of one kind into batches. An operation that comes while
// fewer than atOnce are on their way leaves at once, alone or with those that wait:
// nothing is delayed in order to gather more.
type coalescer[Q, A any] struct {
	// run carries out a batch and sets every operation's answer or error. Operations are in
	// the order of their keys' digests, one per key; see operation.more for further ones.
	run    func([]*operation[Q, A])
	limit  int   // operations in a batch
	atOnce int   // batches on their way
	room   *room // shared by the coalescers of a store

	mu      sync.Mutex
	waiting fair.Queue[*operation[Q, A]]
	running int
	closed  bool
	ended   sync.WaitGroup
}

// room is what all that waits in a store may take together.
type room struct{ bytes atomic.Int64 }

func (r *room) take(bytes int) error {
	if r.bytes.Add(int64(bytes)) > fair.MaxBytes {
		r.free(bytes)
		return fair.Overloaded("too many operations are waiting")
	}
	return nil
}

func (r *room) free(bytes int) { r.bytes.Add(int64(-bytes)) }

// operation is one call in a batch.
type operation[Q, A any] struct {
	ctx    context.Context
	digest store.KeyDigest
	bytes  int
	query  Q
	answer A
	err    error
	done   chan struct{}
	// more are further operations of the batch on the same key.
	more []*operation[Q, A]
}

func newCoalescer[Q, A any](limit, atOnce int, room *room, run func([]*operation[Q, A])) *coalescer[Q, A] {
	return &coalescer[Q, A]{run: run, limit: limit, atOnce: atOnce, room: room}
}

// do carries out one operation on a key, which takes so many bytes beside what each takes.
// When ctx ends first it has no effect if it still waits, else it may. It is refused when
// too many wait.
func (c *coalescer[Q, A]) do(ctx context.Context, t *task, size int, query Q) (answer A, err error) {
	op := &operation[Q, A]{ctx: ctx, digest: t.digest, bytes: size + operationBytes, query: query, done: make(chan struct{})}
	if err := c.add(t.key.Namespace, op); err != nil {
		return answer, err
	}
	select {
	case <-op.done:
		return op.answer, op.err
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// add queues an operation, unless the coalescer is closed or full.
func (c *coalescer[Q, A]) add(namespace string, op *operation[Q, A]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClosed
	}
	if err := c.room.take(op.bytes); err != nil {
		return err
	}
	if err := c.waiting.Put(namespace, op.bytes, op); err != nil {
		c.room.free(op.bytes)
		return err
	}
	if c.running < c.atOnce {
		c.running++
		c.ended.Go(c.work)
	}
	return nil
}

// work carries out batches until nothing waits.
func (c *coalescer[Q, A]) work() {
	for {
		taken := c.take()
		if taken == nil {
			return
		}
		c.run(byKey(taken))
		for _, op := range taken {
			close(op.done)
		}
	}
}

// take returns the operations whose turn it is, as many as one batch may have. Those whose
// callers have left are dropped.
func (c *coalescer[Q, A]) take() (taken []*operation[Q, A]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for size := 0; c.waiting.Len() > 0 && len(taken) < c.limit && size < maxBatchBytes; {
		if op := c.pop(); op.ctx.Err() == nil {
			taken, size = append(taken, op), size+op.bytes
		}
	}
	if taken == nil {
		c.running--
	}
	return taken
}

func (c *coalescer[Q, A]) pop() *operation[Q, A] {
	op, bytes := c.waiting.Pop()
	c.room.free(bytes)
	return op
}

// close refuses what comes and what waits, and returns when nothing is on its way any more.
func (c *coalescer[Q, A]) close() {
	c.mu.Lock()
	c.closed = true
	for c.waiting.Len() > 0 {
		op := c.pop()
		op.err = errClosed
		close(op.done)
	}
	c.mu.Unlock()
	c.ended.Wait()
}

// byKey returns the first operation of each key, in the order in which all lock rows, with
// the further ones behind it.
func byKey[Q, A any](ops []*operation[Q, A]) []*operation[Q, A] {
	ops = slices.Clone(ops)
	slices.SortStableFunc(ops, func(a, b *operation[Q, A]) int { return bytes.Compare(a.digest[:], b.digest[:]) })
	firsts := ops[:0]
	for _, op := range ops {
		if n := len(firsts); n > 0 && firsts[n-1].digest == op.digest {
			firsts[n-1].more = append(firsts[n-1].more, op)
			continue
		}
		firsts = append(firsts, op)
	}
	return firsts
}

// each calls f with every operation of a batch.
func each[Q, A any](ops []*operation[Q, A], f func(*operation[Q, A])) {
	for _, op := range ops {
		f(op)
		for _, more := range op.more {
			f(more)
		}
	}
}
