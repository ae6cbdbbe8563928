package server

import "sync/atomic"

// maxIdle is how many goroutines a session keeps for the next operations: their stacks have
// grown.
const maxIdle = 64

// workers carry out the operations of a session, as many at once as there are.
type workers struct {
	carryOut func(*sessionOperation)
	next     chan *sessionOperation // to one that is idle
	idle     atomic.Int32
}

func newWorkers(carryOut func(*sessionOperation)) *workers {
	return &workers{carryOut: carryOut, next: make(chan *sessionOperation)}
}

func (w *workers) run(o *sessionOperation) {
	select {
	case w.next <- o:
	default:
		go w.work(o)
	}
}

func (w *workers) work(o *sessionOperation) {
	for {
		w.carryOut(o)
		if !w.rest(&o) {
			return
		}
	}
}

// rest waits for the next operation, unless enough wait for it already.
func (w *workers) rest(o **sessionOperation) (ok bool) {
	defer w.idle.Add(-1)
	if w.idle.Add(1) > maxIdle {
		return false
	}
	*o, ok = <-w.next
	return ok
}

// end lets the idle ones go. None is run any more.
func (w *workers) end() { close(w.next) }
