package pebblestore

import (
	"context"
	"sync"
	"sync/atomic"
)

// op is one operation on its way through the intake and the loop.
type op struct {
	class     class
	namespace string // for fairness; empty for the store's own work
	bytes     int    // what it takes in the queue and in a batch, about
	// run decides and writes to the turn; only the loop calls it. Its error is the answer.
	run func(*turn) error

	state atomic.Int32
	err   error
	done  chan struct{} // gets one value once err and what run has set are final
}

// The states of an op.
const (
	opQueued int32 = iota
	opTaken        // by the loop: it may take effect
	opAbandoned
)

const opBytes = 512 // an op and its row, without the outcome

var opPool = sync.Pool{New: func() any { return &op{done: make(chan struct{}, 1)} }}

// do queues an operation, waits until its answer may leave, and returns it. An
// operation whose context ends while it is queued has no effect.
func (s *Store) do(ctx context.Context, c class, namespace string, bytes int, run func(*turn) error) error {
	o := opPool.Get().(*op)
	o.class, o.namespace, o.bytes, o.run, o.err = c, namespace, bytes+opBytes, run, nil
	o.state.Store(opQueued)
	if err := s.intake.put(o); err != nil {
		opPool.Put(o)
		return s.failureOr(err)
	}
	select {
	case <-o.done:
		err := o.err
		o.run = nil
		opPool.Put(o)
		return err
	case <-ctx.Done():
		o.state.CompareAndSwap(opQueued, opAbandoned)
		return ctx.Err()
	case <-s.failed:
		return s.failureOr(errClosed)
	}
}
