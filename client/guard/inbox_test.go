package guard_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/client/guard"
)

// TestAnswers is what the guards answer one transaction after the other, over every database.
func TestAnswers(t *testing.T) {
	t.Parallel()
	overAll(t, func(t *testing.T, d *database) {
		for name, test := range map[string]func(*testing.T, *database){
			"Inbox":                testInbox,
			"InboxRefuses":         testInboxRefuses,
			"InboxWithoutOutcome":  testInboxWithoutOutcome,
			"InboxLookup":          testInboxLookup,
			"Forget":               testForget,
			"ForgetEntity":         testForgetEntity,
			"Tables":               testTables,
			"ForgetOldestFirst":    testForgetOldestFirst,
			"OutcomeNotRecorded":   testOutcomeNotRecorded,
			"Once":                 testOnce,
			"OnceWithoutOutcome":   testOnceWithoutOutcome,
			"Transition":           testTransition,
			"TransitionComesBack":  testTransitionComesBack,
			"TransitionNames":      testTransitionNames,
			"TransitionOfManyRows": testTransitionOfManyRows,
			"Sequence":             testSequence,
			"Fence":                testFence,
			"RecordedAt":           testRecordedAt,
		} {
			d.clear(t)
			t.Run(name, func(t *testing.T) { test(t, d) })
		}
	})
}

// enter runs Do with an effect, and says what it answered.
func enter(tx guard.Tx, in guard.Inbox, key string, fingerprint, outcome []byte) (guard.Entry, error) {
	return in.Do(context.Background(), tx, key, fingerprint, func() ([]byte, error) {
		return outcome, effect(tx, key, 1)
	})
}

func testInbox(t *testing.T, d *database) {
	outcome := []byte("receipt \x00\xff 7")
	want := func(in guard.Inbox, key string, repeat bool, outcome []byte) func(guard.Tx) error {
		return func(tx guard.Tx) error {
			entry, err := enter(tx, in, key, []byte("42 EUR"), outcome)
			wantEqual(t, key+" is a repeat", entry.Repeat, repeat)
			if !bytes.Equal(entry.Outcome, outcome) {
				t.Errorf("%s: outcome %q, want %q", key, entry.Outcome, outcome)
			}
			return err
		}
	}
	d.undone(t, want(inbox, "k", false, outcome))
	d.do(t, want(inbox, "k", false, outcome)) // what was rolled back never was
	d.do(t, want(inbox, "k", true, outcome))
	wantEqual(t, "effects", d.effects(t, "k"), 1)

	d.do(t, want(guard.Inbox{Name: "mail"}, "k", false, outcome)) // another consumer of the same message
	d.do(t, want(guard.Inbox{}, "k", false, nil))
	d.do(t, want(guard.Inbox{}, "k", true, nil))
	d.do(t, want(inbox, "K", false, []byte{})) // another key
	d.do(t, want(inbox, "K", true, []byte{}))
	d.do(t, func(tx guard.Tx) error { // a repeat within the transaction of the first
		return errors.Join(want(inbox, "twice", false, outcome)(tx), want(inbox, "twice", true, outcome)(tx))
	})
	wantEqual(t, "effects", d.effects(t, "twice"), 1)
	wide := strings.Repeat("é", 127) + "."
	d.do(t, want(inbox, wide, false, outcome))
	d.do(t, want(inbox, wide, true, outcome))
}

func testInboxRefuses(t *testing.T, d *database) {
	d.do(t, func(tx guard.Tx) error {
		_, err := enter(tx, inbox, "k", []byte("42 EUR"), nil)
		return err
	})
	d.do(t, func(tx guard.Tx) error {
		for _, fingerprint := range [][]byte{nil, {}, []byte("43 EUR")} {
			entry, err := enter(tx, inbox, "k", fingerprint, nil)
			wantIs(t, "another request", err, guard.ErrMismatch)
			wantEqual(t, "a mismatch reveals nothing", entry.Outcome == nil && !entry.Repeat, true)
		}
		for _, key := range []string{"", strings.Repeat("k", 256), "\xff", "a\x00b"} {
			_, err := enter(tx, inbox, key, nil, nil)
			wantIs(t, key, err, guard.ErrInvalid)
		}
		_, err := enter(tx, guard.Inbox{Name: "\xff"}, "k", nil, nil)
		wantIs(t, "name", err, guard.ErrInvalid)
		_, err = enter(tx, guard.Inbox{Table: "a..b"}, "k", nil, nil)
		wantIs(t, "table", err, guard.ErrInvalid)
		return effect(tx, "after", 1) // nothing of this has broken the transaction
	})
	wantEqual(t, "effects", d.effects(t, "k"), 1)
	wantEqual(t, "effects", d.effects(t, "after"), 1)
}

// A table has the name that the caller gives it, and may be in a schema.
func testTables(t *testing.T, d *database) {
	name := "public.Shop's inbox"
	if d.dialect == guard.SQLite {
		name = "main.Shop's inbox"
	}
	own := guard.Inbox{Table: name}
	statements, err := own.DDL(d.dialect)
	wantEqual(t, "error", err, nil)
	for range 2 { // they can be repeated
		for _, statement := range statements {
			d.do(t, func(tx guard.Tx) error { return run(tx, statement) })
		}
	}
	for _, repeat := range []bool{false, true} {
		d.do(t, func(tx guard.Tx) error {
			entry, err := enter(tx, own, "k", nil, nil)
			wantEqual(t, "a repeat", entry.Repeat, repeat)
			deleted, err2 := own.Forget(t.Context(), tx, time.Hour, 1)
			wantEqual(t, "deleted", deleted, 0)
			return errors.Join(err, err2)
		})
	}
	for _, bad := range badNames {
		for kind, ddl := range map[string]func(guard.Dialect) ([]string, error){
			"inbox": guard.Inbox{Name: bad}.DDL, "once": guard.Once{Name: bad}.DDL, "sequence": guard.Sequence{Name: bad}.DDL, "fence": guard.Fence{Name: bad}.DDL,
		} {
			_, err := ddl(d.dialect)
			wantIs(t, kind+" with a name", err, guard.ErrInvalid)
		}
	}
	for _, bad := range []string{"a..b", "a\x00", strings.Repeat("a", 51)} {
		_, err := guard.Inbox{Table: bad}.DDL(d.dialect)
		wantIs(t, "inbox", err, guard.ErrInvalid)
		_, err = guard.Once{Table: bad}.DDL(d.dialect)
		wantIs(t, "once", err, guard.ErrInvalid)
		_, err = guard.Sequence{Table: bad}.DDL(d.dialect)
		wantIs(t, "sequence", err, guard.ErrInvalid)
	}
}

// An effect that failed and was committed all the same may be there in part: no repeat is told that it
// is done, and none does it again.
func testInboxWithoutOutcome(t *testing.T, d *database) {
	failed := errors.New("the ledger is closed")
	fail := func() ([]byte, error) { return nil, failed }
	d.do(t, func(tx guard.Tx) error {
		_, err := inbox.Do(t.Context(), tx, "k", nil, fail)
		wantEqual(t, "the effect's error as it is", err, failed)
		return nil
	})
	d.do(t, func(tx guard.Tx) error {
		_, err := enter(tx, inbox, "k", nil, nil)
		wantIs(t, "after a failure that was committed", err, guard.ErrNoOutcome)
		_, _, err = inbox.Lookup(t.Context(), tx, "k")
		wantIs(t, "lookup", err, guard.ErrNoOutcome)
		_, err = inbox.Do(t.Context(), tx, "nested", nil, func() ([]byte, error) {
			_, err := enter(tx, inbox, "nested", nil, nil)
			wantIs(t, "within itself", err, guard.ErrNoOutcome)
			return nil, nil
		})
		return err
	})
	wantEqual(t, "effects", d.effects(t, "k")+d.effects(t, "nested"), 0)
}

func testInboxLookup(t *testing.T, d *database) {
	d.do(t, func(tx guard.Tx) error {
		_, err := enter(tx, inbox, "k", []byte("f"), []byte("receipt 7"))
		return err
	})
	d.do(t, func(tx guard.Tx) error {
		outcome, found, err := inbox.Lookup(t.Context(), tx, "k")
		wantEqual(t, "outcome", string(outcome), "receipt 7")
		wantEqual(t, "found", found, true)
		_, found, err2 := inbox.Lookup(t.Context(), tx, "other")
		wantEqual(t, "found another", found, false)
		return errors.Join(err, err2)
	})
}

func testForget(t *testing.T, d *database) {
	other := guard.Inbox{Name: "mail"}
	keys := []string{"a", "b", "c", "d", "e"}
	d.do(t, func(tx guard.Tx) error {
		for _, key := range keys {
			_, err := enter(tx, inbox, key, nil, nil)
			_, err2 := enter(tx, other, key, nil, nil)
			if err := errors.Join(err, err2); err != nil {
				return err
			}
		}
		return nil
	})
	forget := func(age time.Duration, limit int) (n int64) {
		d.do(t, func(tx guard.Tx) (err error) {
			n, err = inbox.Forget(t.Context(), tx, age, limit)
			return err
		})
		return n
	}
	wantEqual(t, "nothing is that old", forget(time.Hour, 10), 0)
	d.age(t, "idemd_inbox", "'a', 'b', 'c'", "2 hours")
	wantEqual(t, "nothing is that old", forget(2*time.Hour+time.Minute, 10), 0)
	wantEqual(t, "first batch", forget(2*time.Hour-time.Minute, 2), 2)
	wantEqual(t, "last batch", forget(2*time.Hour-time.Minute, 2), 1)
	d.do(t, func(tx guard.Tx) error {
		for i, key := range keys {
			entry, err := enter(tx, inbox, key, nil, nil)
			wantEqual(t, key+" is a repeat", entry.Repeat, i > 2)
			mail, err2 := enter(tx, other, key, nil, nil)
			wantEqual(t, key+" is a repeat for the other consumer", mail.Repeat, true)
			if err := errors.Join(err, err2); err != nil {
				return err
			}
		}
		_, err := inbox.Forget(t.Context(), tx, 0, 1)
		wantIs(t, "no age", err, guard.ErrInvalid)
		_, err = inbox.Forget(t.Context(), tx, time.Hour, 0)
		wantIs(t, "no limit", err, guard.ErrInvalid)
		for _, name := range badNames {
			_, err = guard.Inbox{Name: name}.Forget(t.Context(), tx, time.Hour, 1)
			wantIs(t, "name", err, guard.ErrInvalid)
		}
		return effect(tx, "after", 1) // the transaction goes on
	})
}

// A batch is of the oldest, so that what is left is never older than what went.
// What stands for an entity goes with it, by its name, and only that.
func testForgetEntity(t *testing.T, d *database) {
	for name, forget := range map[string]func(tx guard.Tx, entity string) (bool, error){
		"once":     func(tx guard.Tx, e string) (bool, error) { return guard.Once{Name: "n"}.Forget(t.Context(), tx, e) },
		"sequence": func(tx guard.Tx, e string) (bool, error) { return guard.Sequence{Name: "n"}.Forget(t.Context(), tx, e) },
		"fence":    func(tx guard.Tx, e string) (bool, error) { return guard.Fence{Name: "n"}.Forget(t.Context(), tx, e) },
	} {
		// first reports whether what is asked for is new to the guard of the name n.
		first := func(tx guard.Tx, n, e string) (is bool, err error) {
			switch name {
			case "once":
				_, err = guard.Once{Name: n}.Do(t.Context(), tx, e, "k", func() ([]byte, error) { is = true; return nil, nil })
			case "sequence":
				var order guard.Order
				order, _, err = guard.Sequence{Name: n}.Advance(t.Context(), tx, e, 1)
				is = order == guard.Newer
			case "fence":
				is = !errors.Is(guard.Fence{Name: n}.Check(t.Context(), tx, e, 1), guard.ErrStaleFence)
				if is {
					err = guard.Fence{Name: n}.Check(t.Context(), tx, e, 2)
				}
			}
			return is, err
		}
		d.do(t, func(tx guard.Tx) error {
			for _, at := range [][2]string{{"n", "a"}, {"n", "b"}, {"other", "a"}} {
				if is, err := first(tx, at[0], at[1]); err != nil || !is {
					t.Errorf("%s: %v is not new: %v", name, at, err)
				}
			}
			for _, want := range []bool{true, false} {
				if was, err := forget(tx, "a"); err != nil || was != want {
					t.Errorf("%s: forgotten %v, %v; want %v", name, was, err, want)
				}
			}
			_, err := forget(tx, "")
			wantIs(t, name+": no entity", err, guard.ErrInvalid)
			for at, want := range map[[2]string]bool{{"n", "a"}: true, {"n", "b"}: false, {"other", "a"}: false} {
				if is, err := first(tx, at[0], at[1]); err != nil || is != want {
					t.Errorf("%s: %v is new %v, %v; want %v", name, at, is, err, want)
				}
			}
			return nil
		})
	}
}

func testForgetOldestFirst(t *testing.T, d *database) {
	d.do(t, func(tx guard.Tx) error {
		for _, key := range []string{"a", "b", "c"} {
			if _, err := enter(tx, inbox, key, nil, nil); err != nil {
				return err
			}
		}
		return nil
	})
	for key, by := range map[string]string{"'a'": "2 hours", "'b'": "4 hours", "'c'": "3 hours"} {
		d.age(t, "idemd_inbox", key, by)
	}
	for _, want := range []string{"b", "c", "a"} {
		d.do(t, func(tx guard.Tx) error {
			deleted, err := inbox.Forget(t.Context(), tx, time.Hour, 1)
			wantEqual(t, "deleted", deleted, 1)
			_, found, err2 := inbox.Lookup(t.Context(), tx, want)
			wantEqual(t, want+" is left", found, false)
			return errors.Join(err, err2)
		})
	}
}

// An effect that deletes its own row, as a job that cleans up may, leaves nothing for its outcome to be recorded in.
func testOutcomeNotRecorded(t *testing.T, d *database) {
	for name, do := range map[string]func(tx guard.Tx, effect func() ([]byte, error)) (guard.Entry, error){
		"inbox": func(tx guard.Tx, effect func() ([]byte, error)) (guard.Entry, error) {
			return inbox.Do(t.Context(), tx, "k", nil, effect)
		},
		"once": func(tx guard.Tx, effect func() ([]byte, error)) (guard.Entry, error) {
			return once.Do(t.Context(), tx, "k", "key", effect)
		},
	} {
		err := d.tryTx(d.levels[0], func(tx guard.Tx) error {
			entry, err := do(tx, func() ([]byte, error) { return []byte("done"), run(tx, "DELETE FROM idemd_"+name) })
			wantEqual(t, name+": an outcome", entry.Outcome == nil, true)
			return err
		})
		wantIs(t, name, err, guard.ErrChanged)
	}
}

// badNames are none that a database takes.
var badNames = []string{"a\x00", "\xff", strings.Repeat("a", 256)}

// age makes rows older than they are.
func (d *database) age(t *testing.T, table, keys, by string) {
	t.Helper()
	older := "recorded_at - INTERVAL '" + by + "'"
	if d.dialect == guard.SQLite {
		older = "strftime('%Y-%m-%dT%H:%M:%fZ', recorded_at, '-" + by + "')"
	}
	d.do(t, func(tx guard.Tx) error {
		return run(tx, "UPDATE "+table+" SET recorded_at = "+older+" WHERE key IN ("+keys+")")
	})
}

// What is deleted between its conflict and the look at it is no repeat: run again.
func TestDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, overPGX)
	for name, ask := range map[string]func(tx guard.Tx) error{
		"inbox": func(tx guard.Tx) error { _, err := enter(tx, inbox, "k", nil, nil); return err },
		"once":  func(tx guard.Tx) error { _, err := acts["once"](tx, 1, func() {}); return err },
	} {
		d.do(t, ask)
		err := d.tryTx(sql.LevelReadCommitted, func(tx guard.Tx) error {
			return ask(between{tx, func() {
				d.do(t, func(tx guard.Tx) error { return run(tx, "DELETE FROM idemd_"+name) })
			}})
		})
		wantIs(t, name+" deleted meanwhile", err, guard.ErrChanged)
	}
	wantEqual(t, "effects", d.effects(t, "k")+d.effects(t, "x"), 2)
}

// A number's row is locked by then, so only its own transaction can delete it.
func TestNumberDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	overAll(t, func(t *testing.T, d *database) {
		for name, ask := range map[string]func(tx guard.Tx, number int64) error{
			"sequence": func(tx guard.Tx, number int64) error {
				_, _, err := seq.Advance(t.Context(), tx, "x", number)
				return err
			},
			"fence": func(tx guard.Tx, number int64) error { return fence.Check(t.Context(), tx, "x", number) },
		} {
			d.do(t, func(tx guard.Tx) error { return ask(tx, 2) })
			err := d.tryTx(d.levels[0], func(tx guard.Tx) error {
				return ask(between{tx, func() { wantEqual(t, "delete", run(tx, "DELETE FROM idemd_"+name), nil) }}, 1)
			})
			wantIs(t, name+" deleted meanwhile", err, guard.ErrChanged)
		}
	})
}

// A row that comes, between two statements, to where it is to start from is taken on all the same.
func TestTransitionLooksTwice(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, overPGX)
	d.do(t, func(tx guard.Tx) error { return run(tx, "INSERT INTO orders VALUES ('x', 'draft')") })
	err := d.tryTx(sql.LevelReadCommitted, func(tx guard.Tx) error {
		applied, err := orders.Apply(t.Context(), between{tx, func() {
			d.do(t, func(tx guard.Tx) error { return run(tx, "UPDATE orders SET state = 'new'") })
		}}, "x", "new", "paid")
		wantEqual(t, "applied", applied, true)
		return err
	})
	wantEqual(t, "error", err, nil)
}

// between does something before each query.
type between struct {
	guard.Tx
	happens func()
}

func (b between) QueryRow(ctx context.Context, query string, args []any, dest ...any) (bool, error) {
	b.happens()
	return b.Tx.QueryRow(ctx, query, args, dest...)
}
