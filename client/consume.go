package client

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/idemd/idemd/client/fingerprint"
	keys "github.com/idemd/idemd/client/key"
	"github.com/idemd/idemd/store"
)

// A Queue says where the messages of a [Consumer] come from, and what they are for.
type Queue struct {
	// Namespace is that of the keys.
	Namespace string
	// Scope names what is done with a message, such as "send-receipt". Two consumers that do
	// different things with one event must have different ones: theirs are two intents.
	Scope string
	// Owned says that messages have an Entity: [NewConsumer] asks whether the namespace takes
	// keys with one, or without. A message that is otherwise is retried, if the namespace does not.
	Owned bool
	// MaxAge is how long after a message was made the queue may still deliver it: with all
	// redeliveries, and after it lay among the dead letters and was redriven into the queue
	// again. The namespace must keep outcomes for longer than that. If it is set to a shorter time later, messages
	// that it may have forgotten are retried until they are as old as MaxAge, so that somebody can mend that.
	MaxAge time.Duration
	// Concurrency is how many messages of a batch are handled at once. Zero: 16.
	Concurrency int
	// Ordered has the messages of a batch that have the same Entity, or none, handled one after
	// the other, as they come in the batch; when one of them is to be retried, so are those after
	// it, without being begun. That is an order across batches and processes only if the queue
	// keeps one for each entity (a partition, a message group), and delivers no later message
	// before these are settled. Without Ordered there is no order at all.
	Ordered bool
}

const defaultConcurrency = 16

// A Message is one delivery of an event.
type Message struct {
	// ID is what its producer named the event, the same on every delivery; not the number of
	// a delivery or an offset. Source is within what ids are unique: a topic, a producer. The
	// key is Event(Source, ID) of package client/key.
	ID, Source string
	// Time is when the event was made, by its producer or else by the queue; never when it
	// was delivered. It is the intent time: what comes so late that it may have been done and
	// forgotten is not run again, and is a dead letter once it is as old as [Queue.MaxAge]. Zero means that it is not known; then
	// only [Queue.MaxAge] stands against that.
	Time time.Time
	// Entity is whose event it is: see [store.Key]. It may be empty.
	Entity string
	// Body is what is compared when the event comes again: one id with two bodies is a
	// producer's bug, and a dead letter. It must not change while Consume runs.
	Body []byte
}

// Action is what is to be done with a delivery.
type Action uint8

// The actions. Whatever is not known to be settled is retried.
const (
	// Retry: have it delivered again, after [Disposition.After].
	Retry Action = iota
	// Ack: it was carried out, now or before. Acknowledge it.
	Ack
	// DeadLetter: it is not carried out, and coming again will not help. Put it where a
	// person looks, then acknowledge it.
	DeadLetter
)

// String is the action as a label of a metric.
func (a Action) String() string {
	switch a {
	case Ack:
		return "ack"
	case DeadLetter:
		return "dead_letter"
	default:
		return "retry"
	}
}

// A Disposition says what is to be done with a delivery. The zero one is to retry it at once.
type Disposition struct {
	Action Action
	// After is how long to wait before a retry, if the queue can. Coming earlier does no harm.
	After time.Duration
	// Repeat says that this delivery found the end of an earlier one, and ran nothing.
	Repeat bool
	// Err is why it is retried, or a dead letter. It is nil with Ack.
	Err error
}

// A Handler carries out what a message asks for. It runs at least once: where
// [Attempt.Unsettled] is set an earlier run may have acted, and the handler finds that out by
// its own reference before it acts, unless what it does is guarded: by [Attempt.DownstreamKey],
// [Attempt.Fence], or a row in the same transaction. Its context ends with that of
// Consume, and when the lease is lost ([ErrLeaseLost]).
type Handler func(ctx context.Context, a *Attempt, m Message) error

// A Consumer carries out the messages of an at-least-once queue, each once. Make it with
// [NewConsumer]. It may be used by any number of goroutines.
type Consumer struct {
	store   store.Store
	queue   Queue
	handle  Handler
	options doOptions
	quiet   quiet // of the store
}

// Consume carries out a batch, and says for each message what is to be done with its
// delivery: they are in the order of the batch. One message that fails, or panics, is no
// matter of the others. What a handler returns means:
//
//   - nil: [Ack], now and whenever the event comes again.
//   - an error with a gRPC status of code InvalidArgument, NotFound, AlreadyExists,
//     FailedPrecondition or OutOfRange: [DeadLetter], now and whenever the event comes again:
//     also when it is redriven. Under [NoEffect] nothing is stored, and one that is redriven
//     runs: say that of what a mended handler could carry out.
//   - any other error under NoEffect: [Retry], as if it had not run.
//   - any other error, a panic, or one of those codes where [Attempt.Unsettled] was set (an
//     "already paid" may be about the earlier run): Retry, and that run is told to check first
//     or, under [Hold], waits for a person.
//
// Without being run, a message is a [Retry] as long as another delivery of the event is being
// handled, the key is held for a person ([store.ErrKeyUnresolved]), or idemd does not answer or
// refuses for a reason that may be in the set-up: after a minute, if a person has to do something.
// It is a [DeadLetter] if it is older than what the namespace remembers ([store.ErrKeyExpired]) and than
// [Queue.MaxAge] (a younger one is retried: the namespace's retention was lowered, or idemd's clock is wrong), if
// its id came with another body ([store.ErrFingerprintMismatch]), if no key can be made of it, or if
// its Time cannot be: before 1970, or further ahead than [Queue.MaxAge]. One that is less far ahead
// waits for it.
//
// That an event was carried out is acknowledged also when idemd cannot be told at once: that
// goes on in the background, as with [Do]. Call [Drain] before the process ends. If it dies
// before the queue has heard of a disposition, the event comes again, and gets the same one;
// so dead letters, too, can come twice.
//
// When ctx ends no further message is begun, and what runs is cut off, so that nobody knows what
// it did. To stop in peace end what receives from the queue, and let the last batch finish.
func (c *Consumer) Consume(ctx context.Context, batch []Message) []Disposition {
	all := make([]Disposition, len(batch))
	free := make(chan struct{}, c.queue.Concurrency)
	var working sync.WaitGroup
	for _, row := range c.rows(batch) {
		free <- struct{}{}
		working.Go(func() {
			defer func() { <-free }()
			c.inOrder(ctx, batch, row, all)
		})
	}
	working.Wait()
	return all
}

// rows returns the places in the batch of what is to be handled one after the other.
func (c *Consumer) rows(batch []Message) [][]int {
	var rows [][]int
	of := map[string]int{} // by entity
	for i, m := range batch {
		row, known := of[m.Entity]
		if !known || !c.queue.Ordered {
			row = len(rows)
			of[m.Entity] = row
			rows = append(rows, nil)
		}
		rows[row] = append(rows[row], i)
	}
	return rows
}

func (c *Consumer) inOrder(ctx context.Context, batch []Message, row []int, all []Disposition) {
	for at, i := range row {
		all[i] = c.one(ctx, batch[i])
		if all[i].Action != Retry {
			continue
		}
		for _, later := range row[at+1:] {
			all[later] = Disposition{After: all[i].After, Err: fmt.Errorf("not begun, to keep the order: message %d of the batch, of the same entity, is retried first", i)}
		}
		return
	}
}

// one carries out one message.
func (c *Consumer) one(ctx context.Context, m Message) Disposition {
	if ctx.Err() != nil {
		return Disposition{Err: context.Cause(ctx)}
	}
	x := &execution{store: c.store, request: c.claimOf(m), notify: c.options.notify, patience: c.quiet.patience(), quiet: &c.quiet}
	acting, replay, err := x.claim(ctx)
	if unanswered(err) && x.patience < claimTimeout {
		c.quiet.probe(ctx, c.store, x.request.Key)
	}
	switch {
	case err != nil:
		return c.refused(err, x.request)
	case replay != nil:
		return repeated(replay.Outcome)
	}
	w := &work[struct{}]{attempt: x.attempt, keys: c.options.keys}
	w.fn = func(ctx context.Context, a *Attempt) (struct{}, error) { return struct{}{}, c.run(ctx, a, m) }
	end, _, err := x.act(acting, w.do)
	if err != nil {
		return Disposition{After: retryDelay(err, 1), Err: err} // another attempt took over, and knows
	}
	return ended(end, w.err, x.attempt.Number)
}

// claimOf is the claim for a message. A body without bytes is none: libraries of queues
// do not tell the two apart.
func (c *Consumer) claimOf(m Message) store.ClaimRequest {
	req := c.options.claim
	req.Key = store.Key{Namespace: c.queue.Namespace, Scope: c.queue.Scope, ID: keys.Event(m.Source, m.ID), Entity: m.Entity}
	req.IntentTime = m.Time
	if len(m.Body) > 0 {
		req.Fingerprint = fingerprint.Bytes(m.Body)
	}
	return req
}

// run runs the handler. A panic is its error: it would end the process, then come again.
func (c *Consumer) run(ctx context.Context, a *Attempt, m Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the handler panicked: %v\n%s", p, debug.Stack())
		}
	}()
	return c.handle(ctx, a, m)
}
