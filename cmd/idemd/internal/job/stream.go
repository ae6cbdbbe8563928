package job

import (
	"context"
	"io"
	"os"
	"sync"
)

// How much of what was read from a command is held for whoever reads more slowly: then the
// command has to wait. Once it has ended all that a pipe can hold is read.
const (
	maxUnwritten      = 64 << 10
	maxUnwrittenAtEnd = 2 << 20
)

// A stream reads what the command writes to one of its streams, keeps its end, and passes it
// on. That nobody reads it any more is no reason to break off what the command does, nor is
// it one to wait with what came of the command.
type stream struct {
	to     io.Writer
	pipe   *os.File      // from the command
	read   chan struct{} // closed when all was read
	passed chan struct{} // closed when all was passed on

	mu        sync.Mutex
	changed   *sync.Cond
	kept      tail
	unwritten []byte
	gone      bool // to takes no more
	ended     bool // the command has
	over      bool // nothing more comes
}

func newStream(pipe *os.File, to io.Writer) *stream {
	s := &stream{to: to, pipe: pipe, read: make(chan struct{}), passed: make(chan struct{})}
	s.changed = sync.NewCond(&s.mu)
	go s.readOn()
	go s.passOn()
	return s
}

func (s *stream) readOn() {
	defer close(s.read)
	buffer := make([]byte, 32<<10)
	for {
		n, err := s.pipe.Read(buffer)
		if !s.take(buffer[:n]) || err != nil {
			return
		}
	}
}

// take waits until there is room. It reports whether more is to be read.
func (s *stream) take(p []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept.add(p)
	for !s.gone && !s.ended && len(s.unwritten) >= maxUnwritten {
		s.changed.Wait()
	}
	if !s.gone {
		s.unwritten = append(s.unwritten, p...)
		s.changed.Broadcast()
	}
	return len(s.unwritten) < maxUnwrittenAtEnd
}

func (s *stream) passOn() {
	defer close(s.passed)
	for {
		p := s.next()
		if len(p) == 0 {
			return
		}
		_, err := s.to.Write(p)
		s.mu.Lock()
		if err != nil {
			s.gone, s.unwritten = true, nil
		}
		s.changed.Broadcast()
		s.mu.Unlock()
	}
}

// next waits for something to pass on. It returns nothing at the end.
func (s *stream) next() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.unwritten) == 0 && !s.over {
		s.changed.Wait()
	}
	p := s.unwritten
	s.unwritten = nil
	s.changed.Broadcast()
	return p
}

// note passes on what the command did not write, after what it has.
func (s *stream) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone {
		s.unwritten = append(s.unwritten, text...)
		s.changed.Broadcast()
	}
}

// end is called when the command has ended: it reads on until nothing more can come, or the
// time is over, and returns what is kept. What is passed on may be still on its way.
func (s *stream) end(over <-chan struct{}) Output {
	s.mu.Lock()
	s.ended = true
	s.changed.Broadcast()
	s.mu.Unlock()
	select {
	case <-s.read:
	case <-over:
	}
	_ = s.pipe.Close()
	<-s.read
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept.output()
}

// stop has passOn end when everything is passed on.
func (s *stream) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.changed.Broadcast()
}

// output is both streams of a command.
type output struct{ stdout, stderr *stream }

// end fills in what came of them.
func (o *output) end(e *Ending) {
	over, cancel := context.WithTimeout(context.Background(), lingering)
	defer cancel()
	e.Stdout, e.Stderr = o.stdout.end(over.Done()), o.stderr.end(over.Done())
	o.stdout.stop()
	o.stderr.stop()
	passed := make(chan struct{})
	e.Passed = passed
	go func() {
		<-o.stdout.passed
		<-o.stderr.passed
		close(passed)
	}()
}
