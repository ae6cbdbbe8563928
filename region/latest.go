package region

import (
	"context"
	"sync"
)

// latest lets callers share a piece of work that began after they came: what they are told is
// never older than their question, and however many ask, it is done once at a time.
type latest struct {
	turn sync.Mutex // who works

	mu   sync.Mutex
	next *flight // the one that has not begun; nil: there is none
}

type flight struct {
	done chan struct{}
	err  error
}

// do waits until work, or the context, has ended. The work goes on for the others: it runs in a
// goroutine of wg's.
func (l *latest) do(ctx context.Context, wg *sync.WaitGroup, work func() error) error {
	l.mu.Lock()
	f := l.next
	if f == nil {
		f = &flight{done: make(chan struct{})}
		l.next = f
		wg.Go(func() { l.fly(f, work) })
	}
	l.mu.Unlock()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *latest) fly(f *flight, work func() error) {
	l.turn.Lock()
	defer l.turn.Unlock()
	l.mu.Lock()
	l.next = nil
	l.mu.Unlock()
	f.err = work()
	close(f.done)
}
