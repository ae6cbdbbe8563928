package sqlstore

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/idemd/idemd/store"
)

const (
	// batchesAtOnce is how many batches of a kind are on their way. While they are, those
	// that come wait for the next, which is the larger the more there is to do.
	batchesAtOnce = 2
	// maxBatchBytes bounds what a batch carries, beyond one operation.
	maxBatchBytes = 1 << 20
)

// coalescer gathers operations of one kind into batches. An operation that comes while
// fewer than batchesAtOnce are on their way leaves at once, alone or with those that wait:
// nothing is delayed in order to gather more.
type coalescer[Q, A any] struct {
	// run carries out a batch and sets every operation's answer or error. Operations are in
	// the order of their keys' digests, one per key; see operation.more for further ones.
	run   func([]*operation[Q, A])
	limit int

	mu      sync.Mutex
	waiting []*operation[Q, A]
	running int
	closed  bool
	ended   sync.WaitGroup
}

// operation is one call in a batch.
type operation[Q, A any] struct {
	digest store.KeyDigest
	bytes  int
	query  Q
	answer A
	err    error
	done   chan struct{}
	// more are further operations of the batch on the same key.
	more []*operation[Q, A]
}

func newCoalescer[Q, A any](limit int, run func([]*operation[Q, A])) *coalescer[Q, A] {
	return &coalescer[Q, A]{run: run, limit: limit}
}

// do carries out one operation. When ctx ends first it may still be carried out.
func (c *coalescer[Q, A]) do(ctx context.Context, digest store.KeyDigest, size int, query Q) (answer A, err error) {
	op := &operation[Q, A]{digest: digest, bytes: size, query: query, done: make(chan struct{})}
	if !c.add(op) {
		return answer, errClosed
	}
	select {
	case <-op.done:
		return op.answer, op.err
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// add queues an operation, unless the coalescer is closed.
func (c *coalescer[Q, A]) add(op *operation[Q, A]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.waiting = append(c.waiting, op)
	if c.running < batchesAtOnce {
		c.running++
		c.ended.Go(c.work)
	}
	return true
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

// take returns the operations that have waited longest, as many as one batch may have.
func (c *coalescer[Q, A]) take() []*operation[Q, A] {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, size := 0, 0
	for n < min(len(c.waiting), c.limit) {
		if size += c.waiting[n].bytes; n > 0 && size > maxBatchBytes {
			break
		}
		n++
	}
	if n == 0 {
		c.running--
		return nil
	}
	taken := slices.Clone(c.waiting[:n])
	c.waiting = slices.Delete(c.waiting, 0, n)
	return taken
}

// close refuses what comes, and returns when nothing is on its way any more.
func (c *coalescer[Q, A]) close() {
	c.mu.Lock()
	c.closed = true
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
