package pebblestore

import (
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
)

// maxInFlight is how many commits may be between Pebble and the disk. With two, one is
// prepared while the other syncs; with more, batches would stay small under load.
const maxInFlight = 2

// loop is the one writer. It owns everything here; nobody else reads or writes it.
type loop struct {
	s          *Store
	cache      *cache
	buckets    bucketSet
	namespaces map[string]*store.Namespace
	newest     commitTime // handed to Pebble
	chainLow   uint64
	ops        []*op
	encoded    []byte // scratch

	// A slot is taken for each batch on its way and given back once it is answered.
	slots   chan struct{}
	commits chan *commit
}

// commit is a batch on its way to its answers.
type commit struct {
	batch *pebble.Batch // nil if nothing was changed
	at    commitTime
	ops   []*op
	bytes int
	begun time.Time

	settled []settledRow
}

// run takes batches until the intake is closed and empty, and ends with a commit of the
// exact clock.
func (l *loop) run() {
	defer close(l.commits)
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.s.failed:
			return
		}
		l.ops = l.s.intake.take(l.ops[:0])
		t := &turn{l: l, now: l.s.clock.Now()}
		if len(l.ops) == 0 {
			_ = l.finish(t, commitTime{seq: l.newest.seq + 1, now: t.now, until: t.now}, nil)
			return
		}
		if !l.turn(t) {
			return
		}
	}
}

// turn decides one batch and sends it on. It returns false if the store has failed.
func (l *loop) turn(t *turn) bool {
	ops := make([]*op, 0, len(l.ops))
	for _, o := range l.ops {
		if o.state.CompareAndSwap(opQueued, opTaken) {
			o.err = o.run(t)
			ops = append(ops, o)
		}
	}
	ok := true
	if t.batch == nil && !t.now.After(l.newest.until) {
		l.answerUnchanged(t, ops)
	} else {
		at := commitTime{seq: l.newest.seq + 1, now: t.now, until: t.now.Add(clockReserve)}
		ok = l.finish(t, at, ops)
	}
	l.cache.trim()
	return ok
}

// answerUnchanged answers operations that changed nothing: at once if all that they saw is
// synced, else behind the commits on their way.
func (l *loop) answerUnchanged(t *turn, ops []*op) {
	c := &commit{ops: ops, settled: t.settled}
	if len(l.slots) == 1 {
		l.s.answer(c)
		<-l.slots
		return
	}
	l.commits <- c
}

// finish applies the turn's batch and hands it to the syncer.
func (l *loop) finish(t *turn, at commitTime, ops []*op) bool {
	b := t.writes()
	putCommitTime(b, at)
	if low := l.s.pruner.low.Load(); low > l.chainLow {
		putChainLow(b, low)
		l.chainLow = low
	}
	l.newest = at
	l.s.pruner.applied.Store(at.seq)
	c := &commit{batch: b, at: at, ops: ops, bytes: b.Len(), begun: time.Now(), settled: t.settled}
	if err := l.apply(b); err != nil {
		l.s.fail(fmt.Errorf("commit %d: %w", at.seq, err))
		return false
	}
	l.commits <- c
	return true
}

// apply writes the batch to Pebble's log and memory without waiting for the sync. Pebble
// panics if the log cannot be written.
func (l *loop) apply(b *pebble.Batch) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = gaveUp("%v", p)
		}
	}()
	if seedNoSync {
		return l.s.db.Apply(b, pebble.NoSync)
	}
	return l.s.db.ApplyNoSyncWait(b, pebble.Sync)
}

// sync waits for each commit in order and then answers its operations.
func (l *loop) sync() {
	for c := range l.commits {
		if seedEarlyAnswer {
			l.s.answer(c)
			c.ops = nil
		}
		if c.batch != nil {
			if err := c.batch.SyncWait(); err != nil {
				l.s.fail(fmt.Errorf("sync of commit %d: %w", c.at.seq, err))
				return
			}
			l.s.durable.Store(&c.at)
		}
		l.s.answer(c)
		<-l.slots
		if c.batch != nil {
			l.s.marker.advance(c.at)
			l.s.opts.Observer.Committed(len(c.ops), c.bytes, time.Since(c.begun))
			_ = c.batch.Close()
		}
	}
}

// answer lets the callers go, unless the store has failed. The operations are theirs again.
func (s *Store) answer(c *commit) {
	if s.failureOr(nil) != nil {
		return
	}
	s.settled.put(c.settled)
	for _, o := range c.ops {
		o.done <- struct{}{}
	}
}
