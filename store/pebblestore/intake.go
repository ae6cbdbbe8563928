package pebblestore

import (
	"sync"

	"github.com/idemd/idemd/store/internal/fair"
)

// class orders the work: what settles keys frees callers and memory, so it goes before
// what takes on more.
type class uint8

const (
	classSettle class = iota // Renew, Complete, Release, Lookup, operators, the store itself
	classClaim
	classes
)

// onNamespaces is whose share callers' operations take that are of no namespace in
// particular. No namespace can have this name.
const onNamespaces = "(namespaces)"

// Limits of one batch. A waiting class always gets a quarter of it.
const (
	maxBatchOps   = 1024
	maxBatchBytes = 4 << 20
)

// intake is where operations wait for the loop, a fair queue for each class.
type intake struct {
	mu     sync.Mutex
	filled sync.Cond // signalled when an op is put into an empty intake, and on close
	queues [classes]fair.Queue[*op]
	closed bool
}

func newIntake() *intake {
	in := &intake{}
	in.filled.L = &in.mu
	return in
}

// put queues o. The store's own operations (no namespace), of which there are a few at a
// time, are never refused for lack of room.
func (in *intake) put(o *op) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return errClosed
	}
	q := &in.queues[o.class]
	if o.namespace == "" {
		q.Push("", o.bytes, o)
	} else if err := q.Put(o.namespace, o.bytes, o); err != nil {
		return err
	}
	in.filled.Signal()
	return nil
}

// take waits until something is queued and appends a batch of it to dst. It returns
// dst unchanged when the intake is closed and empty.
func (in *intake) take(dst []*op) []*op {
	in.mu.Lock()
	defer in.mu.Unlock()
	for in.queues[classSettle].Len() == 0 && in.queues[classClaim].Len() == 0 && !in.closed {
		in.filled.Wait()
	}
	settle, claim := &in.queues[classSettle], &in.queues[classClaim]
	room := batchRoom{ops: maxBatchOps, bytes: maxBatchBytes}
	if claim.Len() > 0 {
		room.ops, room.bytes = room.ops*3/4, room.bytes*3/4
	}
	dst = takeFrom(settle, dst, &room)
	if claim.Len() > 0 {
		room.ops, room.bytes = room.ops+maxBatchOps/4, room.bytes+maxBatchBytes/4
		dst = takeFrom(claim, dst, &room)
	}
	return dst
}

// close makes later puts fail. What is queued can still be taken.
func (in *intake) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.filled.Broadcast()
}

// batchRoom is what is left of a batch's limits.
type batchRoom struct{ ops, bytes int }

// takeFrom moves operations to dst, one a namespace in turn, while there is room.
func takeFrom(q *fair.Queue[*op], dst []*op, room *batchRoom) []*op {
	for q.Len() > 0 && room.ops > 0 && room.bytes > 0 {
		o, bytes := q.Pop()
		room.ops, room.bytes = room.ops-1, room.bytes-bytes
		dst = append(dst, o)
	}
	return dst
}
