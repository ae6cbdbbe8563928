package pebblestore

import (
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
)

// loop is the one writer. It owns everything here; nobody else reads or writes it.
type loop struct {
	s          *Store
	cache      *cache
	buckets    bucketSet
	namespaces map[string]*store.Namespace
	forgetting map[string]*forgetting // by namespace
	membership store.Membership
	newest     commitTime // handed to Pebble
	chainLow   uint64
	ops        []*op
	encoded    []byte // scratch
}

// run takes batches until the intake is closed and empty, and ends with a commit of the
// exact clock.
func (l *loop) run() {
	for {
		l.ops = l.s.intake.take(l.ops[:0])
		if l.s.failureOr(nil) != nil {
			return
		}
		t := &turn{l: l, now: l.s.clock.Now()}
		if len(l.ops) == 0 {
			l.commit(t, commitTime{seq: l.newest.seq + 1, now: t.now, until: t.now}, nil)
			return
		}
		if !l.turn(t) {
			return
		}
		clear(l.ops) // they are their callers' again
	}
}

// turn decides one batch, and answers it once it is on disk. It returns false if the store
// has failed.
func (l *loop) turn(t *turn) bool {
	ops := l.ops[:0]
	for _, o := range l.ops {
		if o.state.CompareAndSwap(opQueued, opTaken) {
			o.err = o.run(t)
			ops = append(ops, o)
		}
	}
	ok := true
	if t.batch == nil && !t.now.After(l.newest.until) {
		l.s.answer(t, ops) // nothing was changed, and all that was seen is on disk
	} else {
		at := commitTime{seq: l.newest.seq + 1, now: t.now, until: t.now.Add(clockReserve)}
		ok = l.commit(t, at, ops)
	}
	l.cache.trim()
	return ok
}

// commit writes the turn's batch, waits until it is on disk, and answers.
func (l *loop) commit(t *turn, at commitTime, ops []*op) bool {
	b := t.writes()
	putCommitTime(b, at)
	if low := l.s.pruner.low.Load(); low > l.chainLow {
		putChainLow(b, low)
		l.chainLow = low
	}
	l.newest = at
	l.s.pruner.applied.Store(at.seq)
	begun, operations, bytes := time.Now(), len(ops), b.Len()
	if err := l.apply(b); err != nil {
		l.s.fail(fmt.Errorf("commit %d: %w", at.seq, err))
		return false
	}
	if seedEarlyAnswer {
		l.s.answer(t, ops)
		ops = nil
	}
	if err := b.SyncWait(); err != nil {
		l.s.fail(fmt.Errorf("sync of commit %d: %w", at.seq, err))
		return false
	}
	l.s.durable.Store(&at)
	l.s.answer(t, ops)
	l.s.marker.advance(at)
	l.s.opts.Observer.Committed(operations, bytes, time.Since(begun))
	_ = b.Close() // its memory is used again
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

// answer lets the callers go, unless the store has failed. The operations are theirs again.
func (s *Store) answer(t *turn, ops []*op) {
	if s.failureOr(nil) != nil {
		return
	}
	s.settled.put(t.settled)
	for _, o := range ops {
		o.done <- struct{}{}
	}
}
