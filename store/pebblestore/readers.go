package pebblestore

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/idemd/idemd/store/internal/fair"
)

// maxReaders is how many operators of one namespace may wait to read.
const maxReaders = 64

// readers let operators read rows one at a time, so that they take but one core, in turn over the
// namespaces. The zero readers are ready to use.
type readers struct {
	mu      sync.Mutex
	busy    bool
	turns   []string                   // the namespaces for which somebody waits, next first
	waiting map[string][]chan struct{} // closed when it is their turn
}

// enter waits for the turn of somebody who reads for the namespace, and returns what ends it, however
// often it is called. Who waits here must not hold what the one whose turn it is may wait for.
func (r *readers) enter(ctx context.Context, namespace string) (leave func(), err error) {
	turn, err := r.queue(namespace)
	if err != nil {
		return nil, err
	}
	select {
	case <-turn:
		return sync.OnceFunc(r.leave), nil
	case <-ctx.Done():
		r.giveUp(namespace, turn)
		return nil, ctx.Err()
	}
}

// queue returns what is closed when it is the caller's turn.
func (r *readers) queue(namespace string) (chan struct{}, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	turn := make(chan struct{})
	if !r.busy {
		r.busy = true
		close(turn)
		return turn, nil
	}
	own := r.waiting[namespace]
	if len(own) >= maxReaders {
		return nil, fair.Overloaded(fmt.Sprintf("too many operators of namespace %q are waiting to read records", namespace))
	}
	if len(own) == 0 {
		r.turns = append(r.turns, namespace)
	}
	if r.waiting == nil {
		r.waiting = map[string][]chan struct{}{}
	}
	r.waiting[namespace] = append(own, turn)
	return turn, nil
}

// giveUp takes out one who waits, or passes on a turn that has come meanwhile.
func (r *readers) giveUp(namespace string, turn chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := r.waiting[namespace]
	i := slices.Index(own, turn)
	if i < 0 {
		r.next()
		return
	}
	if r.keep(namespace, slices.Delete(own, i, i+1)) == 0 {
		r.turns = slices.DeleteFunc(r.turns, func(name string) bool { return name == namespace })
	}
}

// leave ends a turn.
func (r *readers) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next()
}

// next begins the turn of whoever waits longest for the namespace that is next.
func (r *readers) next() {
	if len(r.turns) == 0 {
		r.busy = false
		return
	}
	namespace := r.turns[0]
	r.turns = r.turns[1:]
	own := r.waiting[namespace]
	close(own[0])
	if r.keep(namespace, own[1:]) > 0 {
		r.turns = append(r.turns, namespace)
	}
}

// keep stores who waits for a namespace, and returns how many that are.
func (r *readers) keep(namespace string, own []chan struct{}) int {
	if len(own) == 0 {
		delete(r.waiting, namespace)
	} else {
		r.waiting[namespace] = own
	}
	return len(own)
}
