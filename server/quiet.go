package server

import (
	"sync"
	"time"
)

// quietFor is how long nothing more is logged of a kind of refusals of which there may be any number:
// when the store is away that is every call.
const quietFor = time.Second

// quiet lets one line of a kind through in a while, and counts those it holds back.
type quiet struct {
	mu    sync.Mutex
	kinds map[string]*quieted
}

type quieted struct {
	last time.Time
	held int
}

// pass says whether a line is to be written, and how many of its kind were not since the last.
func (q *quiet) pass(kind string, now time.Time) (held int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	k := q.kinds[kind]
	if k == nil {
		if q.kinds == nil {
			q.kinds = map[string]*quieted{}
		}
		k = &quieted{}
		q.kinds[kind] = k
	}
	if !k.last.IsZero() && now.Sub(k.last) < quietFor {
		k.held++
		return 0, false
	}
	held, k.held, k.last = k.held, 0, now
	return held, true
}
