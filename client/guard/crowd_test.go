package guard_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/client/guard"
)

const crowd = 50

// together runs f so many times at once.
func together(t *testing.T, n int64, f func(n int64) error) {
	t.Helper()
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			if err := f(i + 1); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	wg.Wait()
}

// overLevels runs a test over every database and each of its isolation levels.
func overLevels(t *testing.T, test func(t *testing.T, d *database, level sql.IsolationLevel)) {
	t.Helper()
	overAll(t, func(t *testing.T, d *database) {
		for _, level := range d.levels {
			t.Run(level.String(), func(t *testing.T) {
				d.clear(t)
				test(t, d, level)
			})
		}
	})
}

// Many at once: one effect, and all others are told what the one did.
func TestCrowd(t *testing.T) {
	t.Parallel()
	overLevels(t, func(t *testing.T, d *database, level sql.IsolationLevel) {
		for _, name := range slices.Sorted(maps.Keys(acts)) {
			d.clear(t)
			d.do(t, newOrder)
			var mu sync.Mutex
			said := map[string]int{}
			together(t, crowd, func(n int64) error {
				var answer string
				err := d.inTx(level, func(tx guard.Tx) (err error) {
					answer, err = acts[name](tx, n, func() {})
					return err
				})
				mu.Lock()
				defer mu.Unlock()
				said[answer]++
				return err
			})
			wantEqual(t, name+": effects", d.effects(t, "x"), 1)
			wantOneFirst(t, name, said)
		}
	})
}

// wantOneFirst: one is the first, and what the repeats are told is the same but for that word.
func wantOneFirst(t *testing.T, name string, said map[string]int) {
	t.Helper()
	wantEqual(t, name+": different answers", len(said), 2)
	for answer, n := range said {
		if rest, first := strings.CutPrefix(answer, "repeat false"); first {
			wantEqual(t, name+": firsts", n, 1)
			wantEqual(t, name+": repeats with what the first said", said["repeat true"+rest], crowd-1)
		}
	}
}

// Events out of order and from many at once: what was applied only ever grew, and the last is the newest. Of
// attempts with their fences the same.
func TestCrowdOfNumbers(t *testing.T) {
	t.Parallel()
	overLevels(t, func(t *testing.T, d *database, level sql.IsolationLevel) {
		write := func(tx guard.Tx, id string, n int64) error { // where the order of commits shows
			_, err := tx.Exec(context.Background(), forDialect(tx, `INSERT INTO effects
				SELECT CAST($1 AS TEXT), CASE WHEN COALESCE(MAX(value), 0) < $2 THEN CAST($2 AS BIGINT) ELSE -1 END FROM effects WHERE id = $1`), id, n)
			return err
		}
		together(t, crowd, func(n int64) error {
			n = n*29%crowd + 1
			applied := d.inTx(level, func(tx guard.Tx) error {
				order, last, err := seq.Advance(context.Background(), tx, "x", n)
				if err != nil || order != guard.Newer {
					if err == nil && last <= n {
						err = fmt.Errorf("%d was left, and %d is newer", n, last)
					}
					return err
				}
				return write(tx, "sequence", n)
			})
			passed := d.inTx(level, func(tx guard.Tx) error {
				if err := fence.Check(context.Background(), tx, "x", n); err != nil {
					return err
				}
				return write(tx, "fence", n)
			})
			var stale *guard.StaleFence
			if errors.As(passed, &stale) && stale.Highest > n {
				passed = nil
			}
			return errors.Join(applied, passed)
		})
		for _, id := range []string{"sequence", "fence"} {
			var least, most int64
			d.do(t, func(tx guard.Tx) error {
				_, err := tx.QueryRow(t.Context(), forDialect(tx, "SELECT MIN(value), MAX(value) FROM effects WHERE id = $1"), []any{id}, &least, &most)
				return err
			})
			wantEqual(t, id+": none was applied after a newer one", least > 0, true)
			wantEqual(t, id+": the last", most, crowd)
		}
	})
}

// The second of two waits for the first: it is a repeat if that commits, and the first if it rolls back.
func TestSecondWaits(t *testing.T) {
	t.Parallel()
	overLevels(t, func(t *testing.T, d *database, level sql.IsolationLevel) {
		for _, name := range slices.Sorted(maps.Keys(acts)) {
			for _, commits := range []bool{false, true} {
				d.clear(t)
				d.do(t, newOrder)
				secondWaits(t, d, level, name, commits)
			}
		}
	})
}

func secondWaits(t *testing.T, d *database, level sql.IsolationLevel, name string, commits bool) {
	t.Helper()
	first, err := d.begin(t.Context(), level)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := acts[name](first, 1, func() {}); err != nil {
		t.Fatal(errors.Join(err, first.rollback()))
	}
	said := make(chan string, 1)
	go func() {
		var answer string
		err := d.inTx(level, func(tx guard.Tx) (err error) {
			answer, err = acts[name](tx, 2, func() {})
			return err
		})
		said <- fmt.Sprint(answer, err)
	}()
	d.waitBlocked(t)
	end, want := first.rollback, "repeat false"
	if commits {
		end, want = first.commit, "repeat true"
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	if answer := <-said; !strings.HasPrefix(answer, want) || !strings.HasSuffix(answer, "<nil>") {
		t.Errorf("%s: the second is told %q, want %s", name, answer, want)
	}
	wantEqual(t, name+": effects", d.effects(t, "x"), 1)
}

// That a row is where it was to go stays true until the transaction ends: who would take it on waits.
func TestAlreadyDoneStays(t *testing.T) {
	t.Parallel()
	overLevels(t, func(t *testing.T, d *database, level sql.IsolationLevel) {
		d.do(t, func(tx guard.Tx) error { return run(tx, "INSERT INTO orders VALUES ('x', 'paid')") })
		first, err := d.begin(t.Context(), level)
		if err != nil {
			t.Fatal(err)
		}
		applied, err := orders.Apply(t.Context(), first, "x", "new", "paid")
		wantEqual(t, "applied", applied, false)
		wantEqual(t, "error", err, nil)
		sent := make(chan error, 1)
		go func() {
			sent <- d.inTx(level, func(tx guard.Tx) error {
				_, err := orders.Apply(context.Background(), tx, "x", "paid", "sent")
				return err
			})
		}()
		d.waitBlocked(t)
		wantEqual(t, "commit", first.commit(), nil)
		wantEqual(t, "who waited", <-sent, nil)
	})
}

// waitBlocked waits until one transaction waits for another. SQLite does not show that, nor need it: whenever
// the second asks, it is refused or waits.
func (d *database) waitBlocked(t *testing.T) {
	t.Helper()
	if d.dialect == guard.SQLite || d.kind == overCRDB {
		return
	}
	deadline := time.Now().Add(10 * time.Second)
	for blocked := 0; blocked == 0; {
		if time.Now().After(deadline) {
			t.Error("no transaction waits for another")
			return
		}
		d.do(t, func(tx guard.Tx) error {
			_, err := tx.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'", nil, &blocked)
			return err
		})
	}
}

// Many who enter a key in one and the same microsecond: all but one are repeats, and none is told of an index.
func TestCrowdInOneMicrosecond(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, overPGX)
	d.do(t, func(tx guard.Tx) error {
		return run(tx, "ALTER TABLE idemd_inbox ALTER recorded_at SET DEFAULT '2026-01-01'")
	})
	for key := range 100 {
		together(t, 8, func(int64) error {
			return d.inTx(sql.LevelReadCommitted, func(tx guard.Tx) error {
				_, err := enter(tx, inbox, fmt.Sprint(key), nil, nil)
				return err
			})
		})
		wantEqual(t, "effects", d.effects(t, fmt.Sprint(key)), 1)
	}
}
