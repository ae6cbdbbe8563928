package server

import (
	"context"
	"slices"
)

const (
	// firstExpected is how large an answer that may be large is taken to be before there was one.
	firstExpected = 16 << 10
	// maxExpected lets some be carried out at once however large their answers are.
	maxExpected = maxUnsent / 16
)

// room is that for the answers that may be large, which is reserved before they are asked for:
// each by the size that such answers had lately. Who waits for room gets it in turn.
type room struct {
	reserved int // bytes
	expected int // bytes of an answer
	waiting  []*waiter
}

// reservation is how many bytes are reserved; nil for an answer that is small for sure.
type reservation *int

type waiter struct {
	size    int
	granted chan struct{} // closed when there is room
}

func newRoom() room { return room{expected: firstExpected} }

// grant lets those go on that there is room for next to what is unsent: at least one, if
// there is nothing else.
func (r *room) grant(unsent int, unbounded bool) {
	for len(r.waiting) > 0 {
		w := r.waiting[0]
		if taken := unsent + r.reserved; !unbounded && taken > 0 && taken+w.size > maxUnsent {
			return
		}
		r.reserved += w.size
		r.waiting = cut(r.waiting, 1)
		close(w.granted)
	}
}

// settle ends a reservation; the size of its answer is part of what is expected from then on.
func (r *room) settle(reserved reservation, size int) {
	if reserved == nil {
		return
	}
	r.reserved -= *reserved
	r.expected = min(r.expected+(size-r.expected)/4, maxExpected)
}

// reserve waits until there is room for an answer that may be large, or its operation has
// ended. One that waits for another attempt (idle) keeps no room for so long.
func (b *outbox) reserve(ctx context.Context, idle bool) reservation {
	b.mu.Lock()
	w := &waiter{granted: make(chan struct{})}
	if !idle {
		w.size = b.room.expected
	}
	b.room.waiting = append(b.room.waiting, w)
	b.grant()
	b.mu.Unlock()
	select {
	case <-w.granted:
		return &w.size
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.room.waiting, w); i >= 0 {
		b.room.waiting = slices.Delete(b.room.waiting, i, i+1)
		return nil
	}
	return &w.size
}
