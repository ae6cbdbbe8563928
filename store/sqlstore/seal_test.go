package sqlstore

import (
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// sealRig has a server of its own: a seal waits for the transactions of all its databases.
func sealRig(t *testing.T) *rig {
	r := newRigOn(t, pgtest.New(t, pgtest.Fast).NewDatabase(t))
	r.migrate()
	return r
}

// writer is a transaction that has a number and does not end by itself.
func (r *rig) writer() pgx.Tx {
	r.t.Helper()
	conn, err := pgx.Connect(r.t.Context(), r.dsn)
	r.must(err)
	r.t.Cleanup(func() { _ = conn.Close(r.t.Context()) })
	tx, err := conn.Begin(r.t.Context())
	r.must(err)
	_, err = tx.Exec(r.t.Context(), "SELECT pg_current_xact_id()")
	r.must(err)
	return tx
}

// step lets the seal do what it does ten times a second.
func (r *rig) step(s *Store) (pending bool) {
	r.t.Helper()
	r.must(s.catalog.refresh(r.t.Context()))
	pending, err := s.seal.advance(r.t.Context())
	r.must(err)
	return pending
}

func TestSealWaitsForTransactions(t *testing.T) {
	t.Parallel()
	r := sealRig(t)
	s := r.replica()
	wantEqual(t, "sealed at the start", s.seal.upTo(), began)

	// In the same bucket there is nothing more to know, and nothing is asked.
	r.advance(time.Minute)
	wantEqual(t, "pending", r.step(s), false)
	wantEqual(t, "sealed in the same bucket", s.seal.upTo(), began)

	// A bucket begins. Until its window is over no mark is taken.
	next := bucketAt(store.TierHour, began).next().start
	window := s.seal.window
	r.set(next + window - time.Second.Microseconds())
	wantEqual(t, "pending in the window", r.step(s), false)
	wantEqual(t, "sealed in the window", s.seal.upTo(), began)

	// After it there is one, which waits for a transaction that runs, and not for readers.
	tx := r.writer()
	r.set(next + window + 1)
	wantEqual(t, "pending after the window", r.step(s), true)
	r.advance(time.Minute)
	wantEqual(t, "pending later", r.step(s), true)
	wantEqual(t, "sealed while a transaction runs", s.seal.upTo(), began)
	r.must(tx.Commit(t.Context()))
	wantEqual(t, "pending at its end", r.step(s), false)
	wantEqual(t, "sealed at its end", s.seal.upTo(), next+window+1)
}

// While a transaction does not end, later ones do not put off what waits for it alone.
func TestSealIsNotPutOff(t *testing.T) {
	t.Parallel()
	r := sealRig(t)
	s := r.replica()
	first := r.writer()
	var later pgx.Tx
	at := bucketAt(store.TierHour, began).start + s.seal.window
	for range 4 {
		at += bucketAt(store.TierHour, began).width()
		r.set(at)
		wantEqual(t, "pending", r.step(s), true)
		later = r.writer()
	}
	wantEqual(t, "marks", len(s.seal.pending()), 2)
	oldest := s.seal.pending()[0]
	r.must(first.Commit(t.Context()))
	r.step(s)
	wantEqual(t, "sealed", s.seal.upTo(), oldest.at)
	wantEqual(t, "marks", len(s.seal.pending()), 1)
	r.must(later.Commit(t.Context()))
	wantEqual(t, "pending: others run on", r.step(s), true)
}

// A mark that is waited for so long that the server may have forgotten it is taken again.
func TestStaleMarkIsTakenAgain(t *testing.T) {
	t.Parallel()
	r := sealRig(t)
	s := r.replica()
	r.set(bucketAt(store.TierHour, began).next().start + s.seal.window)
	s.seal.marks = []sealMark{{at: r.now().UnixMicro(), xid: "9000000000000", taken: time.Now()}}
	s.seal.taken = r.now().UnixMicro()
	wantEqual(t, "pending", r.step(s), true)
	s.seal.marks[0].taken = time.Now().Add(-sealStale - time.Second)
	r.advance(time.Second)
	wantEqual(t, "pending", r.step(s), false)
	wantEqual(t, "sealed", s.seal.upTo(), r.now().UnixMicro())
}

func TestCockroachNeedsNoSeal(t *testing.T) {
	t.Parallel()
	s := newSealer(nil, &cockroach{}, Options{}, &dbClock{}, &catalog{})
	wantEqual(t, "sealed", s.upTo(), int64(math.MaxInt64))
}
