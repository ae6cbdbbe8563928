package server

import (
	"runtime"
	"sync"

	"google.golang.org/protobuf/proto"

	pb "github.com/idemd/idemd/proto/idemd/v1"
)

const (
	// maxShared is about how many bytes of answers share a message.
	maxShared = 64 << 10
	// maxUnsent is how many bytes of answers may wait to be sent before nothing more is read and
	// carried out.
	maxUnsent = 1 << 20
)

// outbox sends the answers of a session: all that are ready, in one message.
type outbox struct {
	send  func(*pb.SessionResponse) error
	wake  chan struct{} // has an element if there is something to do
	ended chan struct{} // closed when all was sent

	mu      sync.Mutex
	room    sync.Cond // broadcast when there is room again
	answers []*pb.SessionAnswer
	sizes   []int // of the answers
	unsent  int   // their sum
	closing bool  // to be said
	broken  bool  // nothing can be sent any more
	lifted  bool  // there is room for everything
	over    bool  // nothing is put any more
}

func newOutbox(send func(*pb.SessionResponse) error) *outbox {
	b := &outbox{send: send, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	b.room.L = &b.mu
	return b
}

// put has an answer sent.
func (b *outbox) put(answer *pb.SessionAnswer) {
	size := sizeOf(answer)
	b.mu.Lock()
	if !b.broken {
		b.answers, b.sizes = append(b.answers, answer), append(b.sizes, size)
		b.unsent += size
	}
	b.mu.Unlock()
	b.notify()
}

// sizeOf is about how many bytes an answer takes: what can be large is an outcome.
func sizeOf(answer *pb.SessionAnswer) int {
	return 256 + proto.Size(answer.GetClaim().GetCompleted().GetOutcome()) + proto.Size(answer.GetLookup().GetOutcome())
}

// sayClosing has the client told to half-close.
func (b *outbox) sayClosing() {
	b.mu.Lock()
	b.closing = true
	b.mu.Unlock()
	b.notify()
}

func (b *outbox) notify() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// end ends run, once all is sent. Nothing is put any more.
func (b *outbox) end() {
	b.mu.Lock()
	b.over = true
	b.mu.Unlock()
	b.notify()
}

// wait waits while too much is not sent: who does not read answers shall not ask for more.
func (b *outbox) wait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.unsent > maxUnsent && !b.broken && !b.lifted {
		b.room.Wait()
	}
}

// run sends until the end, or until nothing can be sent any more.
func (b *outbox) run() {
	defer close(b.ended)
	m := &pb.SessionResponse{}
	for !b.isOver() {
		<-b.wake
		runtime.Gosched() // what others are about to put shares the message
		for b.take(m) {
			if b.send(m) != nil {
				b.giveUp()
				return
			}
		}
	}
}

func (b *outbox) isOver() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.over && len(b.answers) == 0
}

// take moves what is ready to the message, as far as it has room, and reports whether there
// is something.
func (b *outbox) take(m *pb.SessionResponse) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, size := 0, 0
	for n < len(b.answers) && (n == 0 || size+b.sizes[n] <= maxShared) {
		size += b.sizes[n]
		n++
	}
	clear(m.Answers)
	m.Answers = append(m.Answers[:0], b.answers[:n]...)
	m.Closing, b.closing = b.closing, false
	b.answers, b.sizes = cut(b.answers, n), cut(b.sizes, n)
	full := b.unsent > maxUnsent
	if b.unsent -= size; full && b.unsent <= maxUnsent {
		b.room.Broadcast()
	}
	return n > 0 || m.Closing
}

// cut takes the first n off, and keeps the memory.
func cut[T any](list []T, n int) []T {
	rest := copy(list, list[n:])
	clear(list[rest:])
	return list[:rest]
}

// lift makes room for everything that is in flight.
func (b *outbox) lift() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lifted = true
	b.room.Broadcast()
}

func (b *outbox) giveUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken, b.answers, b.unsent = true, nil, 0
	b.room.Broadcast()
}
