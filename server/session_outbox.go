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
	// maxSmall is how large an answer may be to be sent before those that are larger.
	maxSmall = 2 << 10
	// maxUnsent is how many bytes of small answers may wait to be sent before nothing more is
	// read, and how many in all before nothing more is carried out that may have a large answer.
	maxUnsent = 1 << 20
)

// outbox sends the answers of a session: all that are ready, in one message. Nobody waits
// behind the large ones who has a small one.
type outbox struct {
	send  func(*pb.SessionResponse) error
	wake  chan struct{} // has an element if there is something to do
	ended chan struct{} // closed when all was sent

	mu      sync.Mutex
	small   unsent
	large   unsent
	room    room
	read    sync.Cond // broadcast when there is room for small answers again
	closing bool      // to be said
	broken  bool      // nothing can be sent any more
	lifted  bool      // there is room for everything
	over    bool      // nothing is put any more
}

// unsent are answers that wait to be sent.
type unsent struct {
	answers []*pb.SessionAnswer
	sizes   []int // of the answers
	size    int   // their sum
}

func newOutbox(send func(*pb.SessionResponse) error) *outbox {
	b := &outbox{send: send, wake: make(chan struct{}, 1), ended: make(chan struct{}), room: newRoom()}
	b.read.L = &b.mu
	return b
}

// put has an answer sent, which takes the room that was reserved for it.
func (b *outbox) put(answer *pb.SessionAnswer, reserved reservation) {
	size := sizeOf(answer)
	b.mu.Lock()
	if !b.broken {
		if size <= maxSmall {
			b.small.add(answer, size)
		} else {
			b.large.add(answer, size)
		}
	}
	b.room.settle(reserved, size)
	b.grant()
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

// wait waits while too many small answers are not sent: who does not read answers shall not
// ask for more.
func (b *outbox) wait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.small.size > maxUnsent && !b.broken && !b.lifted {
		b.read.Wait()
	}
}

// run sends until the end, or until nothing can be sent any more.
func (b *outbox) run() {
	defer close(b.ended)
	for !b.isOver() {
		<-b.wake
		runtime.Gosched() // what others are about to put shares the message
		for m := b.take(); m != nil; m = b.take() {
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
	return b.over && len(b.small.answers)+len(b.large.answers) == 0
}

// take moves what is ready to a message, as far as it has room; nil if there is nothing. Half
// of it is for the small answers, and then at least one large one goes, so that neither kind
// holds up the other. The message is a new one: gRPC may look at it after it was sent.
func (b *outbox) take() *pb.SessionResponse {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.small.answers)+len(b.large.answers) == 0 && !b.closing {
		return nil
	}
	m := &pb.SessionResponse{Closing: b.closing}
	b.closing = false
	full := b.small.size > maxUnsent
	size := b.small.moveTo(m, maxShared/2)
	b.large.moveTo(m, maxShared-size)
	if full && b.small.size <= maxUnsent {
		b.read.Broadcast()
	}
	b.grant()
	return m
}

// grant lets those go on for whose answers there is room now.
func (b *outbox) grant() {
	b.room.grant(b.small.size+b.large.size, b.broken || b.lifted)
}

// lift makes room for everything that is in flight.
func (b *outbox) lift() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lifted = true
	b.grant()
	b.read.Broadcast()
}

func (b *outbox) giveUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken, b.small, b.large = true, unsent{}, unsent{}
	b.grant()
	b.read.Broadcast()
}

func (u *unsent) add(answer *pb.SessionAnswer, size int) {
	u.answers, u.sizes = append(u.answers, answer), append(u.sizes, size)
	u.size += size
}

// moveTo moves the first answers to a message, up to so many bytes but at least one of them,
// and returns how many bytes they are.
func (u *unsent) moveTo(m *pb.SessionResponse, most int) (size int) {
	n := 0
	for n < len(u.answers) && (n == 0 || size+u.sizes[n] <= most) {
		size += u.sizes[n]
		n++
	}
	m.Answers = append(m.Answers, u.answers[:n]...)
	u.answers, u.sizes = cut(u.answers, n), cut(u.sizes, n)
	u.size -= size
	return size
}

// cut takes the first n off, and keeps the memory.
func cut[T any](list []T, n int) []T {
	rest := copy(list, list[n:])
	clear(list[rest:])
	return list[:rest]
}
