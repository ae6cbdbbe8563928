package pebblestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Every commit writes one entry of the chain: its sequence number and the store's clock.
// A store whose chain has a gap has lost part of its files.

// commitTime is the clock of a commit.
type commitTime struct {
	seq uint64
	// now is the time by which the commit's operations were decided.
	now time.Time
	// until: answers that changed nothing were decided at or before until, as long as no
	// later commit is there.
	until time.Time
}

// chainSpan returns the keys [from, to) of the entries from sequence low on.
func chainSpan(low uint64) (from, to []byte) {
	return chainKey(low), []byte{prefixChain + 1}
}

func putCommitTime(b *pebble.Batch, c commitTime) {
	key := chainKey(c.seq)
	value := make([]byte, sealLen, sealLen+16)
	value = appendTime(value, c.now)
	value = appendTime(value, c.until)
	seal(key, value)
	_ = b.Set(key, value, nil) // fails only on a batch that is being committed
}

func decodeCommitTime(key, value []byte) (commitTime, error) {
	payload, err := unseal(key, value)
	if err != nil {
		return commitTime{}, err
	}
	d := decoder{rest: payload}
	c := commitTime{seq: binary.BigEndian.Uint64(key[1:]), now: d.time(), until: d.time()}
	return c, d.finish()
}

// putChainLow says that the chain begins at low and removes what is before.
func putChainLow(b *pebble.Batch, low uint64) {
	value := make([]byte, sealLen, sealLen+8)
	value = binary.BigEndian.AppendUint64(value, low)
	seal(metaChainLow, value)
	_ = b.DeleteRange(chainKey(0), chainKey(low), nil)
	_ = b.Set(metaChainLow, value, nil)
}

func readChainLow(db *pebble.DB) (uint64, error) {
	value, closer, err := db.Get(metaChainLow)
	if err != nil {
		return 0, fmt.Errorf("the start of the chain of commits cannot be read: %w", err)
	}
	defer closer.Close()
	payload, err := unseal(metaChainLow, value)
	if err != nil || len(payload) != 8 {
		return 0, fmt.Errorf("the start of the chain of commits: %w", errors.Join(errDamagedValue, err))
	}
	return binary.BigEndian.Uint64(payload), nil
}

// verifyChain checks that no commit is missing and returns the newest.
func verifyChain(db *pebble.DB) (commitTime, error) {
	low, err := readChainLow(db)
	if err != nil {
		return commitTime{}, err
	}
	from, to := chainSpan(0)
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return commitTime{}, err
	}
	defer it.Close()
	var newest commitTime
	want := low
	for ok := it.First(); ok; ok = it.Next() {
		c, err := decodeCommitTime(it.Key(), it.Value())
		if err != nil {
			return commitTime{}, fmt.Errorf("commit %d cannot be read: %w", want, err)
		}
		if c.seq != want {
			return commitTime{}, fmt.Errorf("commits %d to %d are missing", want, c.seq-1)
		}
		newest, want = c, want+1
	}
	if err := it.Error(); err != nil {
		return commitTime{}, fmt.Errorf("the chain of commits cannot be read: %w", err)
	}
	if newest.seq == 0 {
		return commitTime{}, fmt.Errorf("commits from %d on are missing", low)
	}
	return newest, nil
}

// flushHistory is how many flushes of memtables the chain reaches back, so that it has a
// gap if the record of any of the last flushes is lost. Where a memtable ends is known
// only to be before the flush begins, which costs two; two more are kept for safety.
const flushHistory = 5

// chainPruner learns from Pebble's events which entries of the chain are old.
type chainPruner struct {
	applied atomic.Uint64 // the newest sequence number handed to Pebble
	low     atomic.Uint64 // entries before low may go

	// Used by Pebble's flushes only, which follow one another.
	begun  uint64
	begins []uint64
}

func (p *chainPruner) flushBegin() { p.begun = p.applied.Load() }

func (p *chainPruner) flushEnd() {
	if n := len(p.begins); n > 0 && p.begins[n-1] == p.begun {
		return
	}
	p.begins = append(p.begins, p.begun)
	if len(p.begins) > flushHistory {
		p.begins = p.begins[1:]
		p.low.Store(p.begins[0])
	}
}
