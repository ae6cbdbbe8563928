package pebblestore

import (
	"fmt"
	"sync"
	"time"

	"github.com/idemd/idemd/store"
)

// class orders the work: what settles keys frees callers and memory, so it goes before
// what takes on more.
type class uint8

const (
	classSettle class = iota // Renew, Complete, Release, Lookup, operators, the store itself
	classClaim
	classes
)

// Limits of what may wait, for each class.
const (
	maxQueuedOps            = 1 << 16
	maxQueuedBytes          = 64 << 20
	maxQueuedOpsNamespace   = 1 << 14
	maxQueuedBytesNamespace = 16 << 20

	overloadRetryAfter = 200 * time.Millisecond
)

// onNamespaces is whose share callers' operations take that are of no namespace in
// particular. No namespace can have this name.
const onNamespaces = "(namespaces)"

// Limits of one batch. A waiting class always gets a quarter of it.
const (
	maxBatchOps   = 1024
	maxBatchBytes = 4 << 20
)

// intake is where operations wait for the loop. Each class is served round-robin over its
// namespaces, so that a greedy one delays itself only.
type intake struct {
	mu     sync.Mutex
	filled sync.Cond // signalled when an op is put into an empty intake, and on close
	queues [classes]fairQueue
	closed bool
}

func newIntake() *intake {
	in := &intake{}
	in.filled.L = &in.mu
	for i := range in.queues {
		in.queues[i].namespaces = map[string]*nsQueue{}
	}
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
	if o.namespace != "" {
		if err := q.room(o); err != nil {
			return err
		}
	}
	q.push(o)
	in.filled.Signal()
	return nil
}

// take waits until something is queued and appends a batch of it to dst. It returns
// dst unchanged when the intake is closed and empty.
func (in *intake) take(dst []*op) []*op {
	in.mu.Lock()
	defer in.mu.Unlock()
	for in.queues[classSettle].ops == 0 && in.queues[classClaim].ops == 0 && !in.closed {
		in.filled.Wait()
	}
	settle, claim := &in.queues[classSettle], &in.queues[classClaim]
	room := batchRoom{ops: maxBatchOps, bytes: maxBatchBytes}
	if claim.ops > 0 {
		room.ops, room.bytes = room.ops*3/4, room.bytes*3/4
	}
	dst = settle.take(dst, &room)
	if claim.ops > 0 {
		room.ops, room.bytes = room.ops+maxBatchOps/4, room.bytes+maxBatchBytes/4
		dst = claim.take(dst, &room)
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

// fairQueue is one class: a queue a namespace, and the ring of those that are not empty.
type fairQueue struct {
	namespaces map[string]*nsQueue
	first      *nsQueue // next to be served; the ring is linked from here to last
	last       *nsQueue
	ops, bytes int
}

// nsQueue is the queue of one namespace.
type nsQueue struct {
	head, tail *op
	ops, bytes int
	next       *nsQueue // in the ring
}

func (q *fairQueue) room(o *op) error {
	ns := q.namespaces[o.namespace]
	switch {
	case q.ops >= maxQueuedOps || q.bytes+o.bytes > maxQueuedBytes:
		return overloaded("too many operations are waiting")
	case ns != nil && (ns.ops >= maxQueuedOpsNamespace || ns.bytes+o.bytes > maxQueuedBytesNamespace):
		return overloaded(fmt.Sprintf("too many operations of namespace %q are waiting", o.namespace))
	}
	return nil
}

func overloaded(detail string) error {
	return &store.Error{
		Sentinel:   store.ErrOverloaded,
		Detail:     detail + "; nothing was done, send it again later",
		RetryAfter: overloadRetryAfter,
	}
}

func (q *fairQueue) push(o *op) {
	ns := q.namespaces[o.namespace]
	if ns == nil {
		ns = &nsQueue{}
		q.namespaces[o.namespace] = ns
	}
	if ns.head == nil {
		ns.head = o
		q.append(ns)
	} else {
		ns.tail.next = o
	}
	ns.tail = o
	ns.ops, ns.bytes = ns.ops+1, ns.bytes+o.bytes
	q.ops, q.bytes = q.ops+1, q.bytes+o.bytes
}

// take moves operations to dst, one a namespace in turn, while there is room.
func (q *fairQueue) take(dst []*op, room *batchRoom) []*op {
	for q.ops > 0 && room.ops > 0 && room.bytes > 0 {
		o := q.pop()
		room.ops, room.bytes = room.ops-1, room.bytes-o.bytes
		dst = append(dst, o)
	}
	return dst
}

func (q *fairQueue) pop() *op {
	ns := q.first
	q.first = ns.next
	o := ns.head
	ns.head, o.next = o.next, nil
	ns.ops, ns.bytes = ns.ops-1, ns.bytes-o.bytes
	q.ops, q.bytes = q.ops-1, q.bytes-o.bytes
	if ns.head != nil {
		q.append(ns)
	}
	return o
}

// append puts ns at the end of the ring.
func (q *fairQueue) append(ns *nsQueue) {
	ns.next = nil
	if q.first == nil {
		q.first = ns
	} else {
		q.last.next = ns
	}
	q.last = ns
}
