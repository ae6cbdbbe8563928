package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	keys "github.com/idemd/idemd/client/key"
	"github.com/idemd/idemd/store"
)

// ErrRetentionTooShort says that a namespace forgets what became of a message before the queue
// delivers it for the last time.
var ErrRetentionTooShort = errors.New("the namespace's retention is too short for the queue")

// NewConsumer returns a [Consumer] that has h carry out the messages of q. Options are [Lease],
// [Hold], [Wait], [ProviderKeys] and [OnEvent]. Those that
// are about one intent are not: the handler itself looks up what [Recover] would, and
// calls [Do] with [RecordFirst] for a step that nothing guards, under a key of its own.
//
// It asks s whether everything is as it must be, by claiming a key in the namespace for q's
// scope and releasing it, so that what is wrong shows here and not with every message:
// [ErrRetentionTooShort] if outcomes are not kept for longer than [Queue.MaxAge];
// [store.ErrInvalidArgument] for a queue or an option that cannot be, or that the namespace does
// not allow, such as a lease or keys without an entity;
// [store.ErrNamespaceUnknown], [store.ErrPermissionDenied]; [store.ErrUnknownHistory] if the store
// has just been restored, until its recovery floor is past or lifted; and [store.ErrUnavailable] if there
// is no answer: call it again then. What is changed afterwards is not seen.
func NewConsumer(ctx context.Context, s store.Store, q Queue, h Handler, opts ...DoOption) (*Consumer, error) {
	c := &Consumer{store: s, queue: q, handle: h}
	if c.queue.Concurrency == 0 {
		c.queue.Concurrency = defaultConcurrency
	}
	for _, opt := range opts {
		opt.applyDo(&c.options)
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	retention, err := c.retention(ctx)
	if errors.Is(err, store.ErrInvalidArgument) {
		err = fmt.Errorf("%w (with an Entity in the key: %v, as Queue.Owned says)", err, q.Owned)
	}
	if err != nil {
		return nil, fmt.Errorf("asking for the retention of namespace %q: %w", q.Namespace, err)
	}
	ns := store.Namespace{Retention: retention}
	if remembered := retention - ns.Skew(); remembered < q.MaxAge {
		return nil, fmt.Errorf("%w: namespace %q keeps outcomes for %v, which answers messages that are up to %v old; the queue delivers them for %v. "+
			"Take a namespace with a longer retention (its tier bounds it, at 35 days at most), or have the queue keep messages, and redrive dead letters, for a shorter time",
			ErrRetentionTooShort, q.Namespace, retention, remembered, q.MaxAge)
	}
	return c, nil
}

func (c *Consumer) validate() error {
	o := &c.options
	switch {
	case c.handle == nil:
		return invalidQueue("a Handler is required")
	case c.queue.Scope == "":
		return invalidQueue("Scope is required: it names what is done with a message, and keeps apart two consumers of one event")
	case c.queue.MaxAge <= 0:
		return invalidQueue("MaxAge is required: how old a message can be when the queue delivers it for the last time, redrives included")
	case c.queue.Concurrency < 0:
		return invalidQueue("Concurrency must not be negative")
	case o.found != nil:
		return invalidQueue("Recover is not for a Consumer: its handler looks up what happened where Attempt.Unsettled is set")
	case o.first != nil:
		return invalidQueue("RecordFirst is not for a Consumer: call Do with it in the handler, under a key of its own (Attempt.DownstreamKey)")
	case !o.claim.IntentTime.IsZero():
		return invalidQueue("IntentTime is not for a Consumer: it is the Time of each message")
	default:
		return o.keys.check()
	}
}

func invalidQueue(detail string) error { return store.Refuse(store.ErrInvalidArgument, detail) }

// retention asks how long outcomes are kept, with the rights of whoever may claim: it claims
// and releases a key that nobody else has, which then shows it.
func (c *Consumer) retention(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	req := c.options.claim
	req.Key = store.Key{Namespace: c.queue.Namespace, Scope: c.queue.Scope, ID: "retention-check/" + keys.New()}
	if c.queue.Owned {
		req.Key.Entity = "retention-check"
	}
	req.AttemptID, req.IntentTime, req.Wait = newAttemptID(), time.Now().Add(-store.MinRetention/10), 0
	req.Hold = false // if this process dies here, nobody has to settle it
	claimed, err := c.store.Claim(ctx, req)
	if err != nil {
		return 0, err
	}
	if claimed.Granted == nil {
		return 0, notGranted(claimed)
	}
	release := store.ReleaseRequest{Key: req.Key, AttemptID: req.AttemptID, Fence: claimed.Granted.Fence, Effect: store.EffectNone}
	if _, err = c.store.Release(ctx, release); err != nil {
		return 0, err
	}
	found, err := c.store.Lookup(ctx, store.LookupRequest{Key: req.Key})
	if err != nil {
		return 0, err
	}
	return found.ExpiresAt.Sub(found.EndedAt), nil
}
