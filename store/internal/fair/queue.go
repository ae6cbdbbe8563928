// Package fair has the queue in which operations wait for a backend: served round robin over
// the namespaces, so that a greedy one delays itself only, and bounded, in all and for each.
package fair

import (
	"fmt"
	"time"

	"github.com/idemd/idemd/store"
)

// Limits of what may wait.
const (
	MaxOps            = 1 << 16
	MaxBytes          = 64 << 20
	MaxOpsNamespace   = 1 << 14
	MaxBytesNamespace = 16 << 20

	overloadRetryAfter = 200 * time.Millisecond
)

// Queue is a fair queue of items. The zero Queue is empty and ready to use. Its methods need
// a lock around them.
type Queue[T any] struct {
	namespaces map[string]*line[T]
	first      *line[T] // next to be served; the ring of lines that are not empty ends at last
	last       *line[T]
	ops, bytes int
}

// line is the queue of one namespace.
type line[T any] struct {
	items      []waiting[T] // from head on
	head       int
	ops, bytes int
	next       *line[T] // in the ring
}

type waiting[T any] struct {
	item  T
	bytes int
}

// Len is how many items wait.
func (q *Queue[T]) Len() int { return q.ops }

// Has reports whether the queue has had an item of the namespace.
func (q *Queue[T]) Has(namespace string) bool { return q.namespaces[namespace] != nil }

// Put adds an item that takes so many bytes. It refuses with store.ErrOverloaded what there
// is no room for.
func (q *Queue[T]) Put(namespace string, bytes int, item T) error {
	own := q.namespaces[namespace]
	switch {
	case q.ops >= MaxOps || q.bytes+bytes > MaxBytes:
		return Overloaded("too many operations are waiting")
	case own != nil && (own.ops >= MaxOpsNamespace || own.bytes+bytes > MaxBytesNamespace):
		return Overloaded(fmt.Sprintf("too many operations of namespace %q are waiting", namespace))
	}
	q.Push(namespace, bytes, item)
	return nil
}

// Overloaded is the refusal of what there is no room for.
func Overloaded(detail string) error {
	return &store.Error{
		Sentinel:   store.ErrOverloaded,
		Detail:     detail + "; nothing was done, send it again later",
		RetryAfter: overloadRetryAfter,
	}
}

// Push adds an item whether or not there is room.
func (q *Queue[T]) Push(namespace string, bytes int, item T) {
	if q.namespaces == nil {
		q.namespaces = map[string]*line[T]{}
	}
	own := q.namespaces[namespace]
	if own == nil {
		own = &line[T]{}
		q.namespaces[namespace] = own
	}
	if own.ops == 0 {
		q.append(own)
	}
	own.push(waiting[T]{item, bytes})
	q.ops, q.bytes = q.ops+1, q.bytes+bytes
}

// Pop takes the item whose turn it is. The queue must not be empty.
func (q *Queue[T]) Pop() (item T, bytes int) {
	own := q.first
	q.first = own.next
	w := own.pop()
	q.ops, q.bytes = q.ops-1, q.bytes-w.bytes
	if own.ops > 0 {
		q.append(own)
	}
	return w.item, w.bytes
}

// append puts a line at the end of the ring.
func (q *Queue[T]) append(own *line[T]) {
	own.next = nil
	if q.first == nil {
		q.first = own
	} else {
		q.last.next = own
	}
	q.last = own
}

func (l *line[T]) push(w waiting[T]) {
	l.items = append(l.items, w)
	l.ops, l.bytes = l.ops+1, l.bytes+w.bytes
}

func (l *line[T]) pop() waiting[T] {
	w := l.items[l.head]
	l.items[l.head] = waiting[T]{} // so that it can be collected
	l.head++
	l.ops, l.bytes = l.ops-1, l.bytes-w.bytes
	switch {
	case l.ops == 0 && cap(l.items) > keptItems:
		l.items, l.head = nil, 0
	case l.head > len(l.items)/2: // half of it is free: each item is moved once at most
		n := copy(l.items, l.items[l.head:])
		clear(l.items[n:])
		l.items, l.head = l.items[:n], 0
	}
	return w
}

// keptItems is how much room an empty line keeps.
const keptItems = 64
