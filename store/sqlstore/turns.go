package sqlstore

import (
	"context"
	"sync"

	"github.com/idemd/idemd/store"
)

// turns let one transaction of this process at a time write a key. However many callers a
// hot key has, they wait here, and neither for each other's locks nor with connections that
// others need.
type turns struct {
	mu   sync.Mutex
	keys map[store.KeyDigest]*turn
}

// turn is a key that somebody writes, or waits to.
type turn struct {
	users int
	busy  chan struct{} // holds an element while somebody writes
	ended chan struct{} // closed when the one who writes has ended
}

// first takes the turn of a key if nobody has it, and returns what ends it. If somebody has,
// it waits until that one has ended and returns nil.
func (q *turns) first(ctx context.Context, digest store.KeyDigest) (end func(), err error) {
	q.mu.Lock()
	if u := q.keys[digest]; u != nil {
		ended := u.ended
		q.mu.Unlock()
		select {
		case <-ended:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	u := q.join(digest)
	u.busy <- struct{}{} // has room: it is new
	q.mu.Unlock()
	return func() { q.end(digest, u) }, nil
}

// take waits for the turn of a key and returns what ends it.
func (q *turns) take(ctx context.Context, digest store.KeyDigest) (end func(), err error) {
	q.mu.Lock()
	u := q.join(digest)
	q.mu.Unlock()
	select {
	case u.busy <- struct{}{}:
		return func() { q.end(digest, u) }, nil
	case <-ctx.Done():
		q.mu.Lock()
		defer q.mu.Unlock()
		q.leave(digest, u)
		return nil, ctx.Err()
	}
}

func (q *turns) join(digest store.KeyDigest) *turn {
	u := q.keys[digest]
	if u == nil {
		u = &turn{busy: make(chan struct{}, 1), ended: make(chan struct{})}
		if q.keys == nil {
			q.keys = map[store.KeyDigest]*turn{}
		}
		q.keys[digest] = u
	}
	u.users++
	return u
}

func (q *turns) end(digest store.KeyDigest, u *turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	close(u.ended)
	u.ended = make(chan struct{})
	<-u.busy
	q.leave(digest, u)
}

func (q *turns) leave(digest store.KeyDigest, u *turn) {
	if u.users--; u.users == 0 {
		delete(q.keys, digest)
	}
}
