package guard_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/idemd/idemd/client/guard"
)

func testOnce(t *testing.T, d *database) {
	// the outcome has the key of who asks in it, and the answer that of the first
	want := func(o guard.Once, entity, key, by string) func(guard.Tx) error {
		return func(tx guard.Tx) error {
			ran := false
			entry, err := o.Do(t.Context(), tx, entity, key, func() ([]byte, error) {
				ran = true
				return []byte("\x00\xff receipt for " + key), effect(tx, o.Name+entity, 1)
			})
			wantEqual(t, entity+" by "+key+" is a repeat", entry.Repeat, !ran)
			wantEqual(t, entity+" was done by", entry.Key, by)
			wantEqual(t, entity+" outcome", string(entry.Outcome), "\x00\xff receipt for "+by)
			return err
		}
	}
	d.undone(t, want(once, "order-1", "key-0", "key-0"))
	d.do(t, want(once, "order-1", "key-1", "key-1"))
	wantEqual(t, "effects, of the first", d.effects(t, "captureorder-1"), 1)
	d.do(t, want(once, "order-1", "key-2", "key-1")) // the app was restarted, and made a fresh key
	d.do(t, want(once, "order-1", "key-1", "key-1"))
	refund := guard.Once{Name: "refund"}
	d.do(t, want(refund, "order-1", "key-3", "key-3"))
	d.do(t, want(refund, "order-1", "key-4", "key-3"))
	d.do(t, want(once, "order-1", "key-4", "key-1"))
	d.do(t, want(once, "order-2", "key-1", "key-1"))
	for _, id := range []string{"captureorder-1", "refundorder-1", "captureorder-2"} {
		wantEqual(t, id, d.effects(t, id), 1)
	}
	d.do(t, func(tx guard.Tx) error {
		for _, bad := range [][2]string{{"", "k"}, {"order-3", ""}, {"\xff", "k"}, {"order-3", "\x00"}} {
			_, err := once.Do(t.Context(), tx, bad[0], bad[1], func() ([]byte, error) { return nil, effect(tx, "bad", 1) })
			wantIs(t, "input", err, guard.ErrInvalid)
		}
		return nil
	})
	wantEqual(t, "effects of what is invalid", d.effects(t, "bad"), 0)
}

// Nobody but the row of the entity keeps what came of it, so its answer is there for as long as it is.
func testOnceWithoutOutcome(t *testing.T, d *database) {
	failed := errors.New("the ledger is closed")
	do := func(tx guard.Tx, entity string, outcome []byte, err error) (guard.Entry, error) {
		return once.Do(t.Context(), tx, entity, "key-1", func() ([]byte, error) { return outcome, err })
	}
	d.do(t, func(tx guard.Tx) error {
		_, err := do(tx, "failed", nil, failed)
		wantEqual(t, "the effect's error as it is", err, failed)
		_, err = do(tx, "failed", nil, nil)
		wantIs(t, "after a failure that was committed", err, guard.ErrNoOutcome)
		for _, repeat := range []bool{false, true} {
			entry, err := do(tx, "empty", nil, nil)
			wantEqual(t, "an empty outcome is one", entry.Repeat, repeat)
			wantEqual(t, "error", err, nil)
		}
		return nil
	})
}

func testTransition(t *testing.T, d *database) {
	d.do(t, func(tx guard.Tx) error {
		return run(tx, "INSERT INTO orders VALUES ('1', 'new'), ('2', 'cancelled'), ('3', NULL)")
	})
	apply := func(id string) (applied bool, err error) {
		d.do(t, func(tx guard.Tx) error {
			applied, err = orders.Apply(t.Context(), tx, id, "new", "paid")
			return effect(tx, "after", 1) // whatever it says, the transaction goes on
		})
		return applied, err
	}
	d.undone(t, func(tx guard.Tx) error {
		applied, err := orders.Apply(t.Context(), tx, "1", "new", "paid")
		wantEqual(t, "applied", applied, true)
		return err
	})
	for _, first := range []bool{true, false, false} {
		applied, err := apply("1")
		wantEqual(t, "applied", applied, first)
		wantEqual(t, "error", err, nil)
	}
	var conflict *guard.Conflict
	applied, err := apply("2")
	wantEqual(t, "applied", applied, false)
	wantIs(t, "elsewhere", err, guard.ErrConflict)
	if !errors.As(err, &conflict) || *conflict != (guard.Conflict{From: "new", To: "paid", State: "cancelled"}) {
		t.Errorf("the conflict says %+v", conflict)
	}
	_, err = apply("3")
	wantIs(t, "no state", err, guard.ErrConflict)
	_, err = apply("4")
	wantIs(t, "no row", err, guard.ErrAbsent)
	_, err = apply("1' OR '1'='1")
	wantIs(t, "no row", err, guard.ErrAbsent)
	wantEqual(t, "transactions that went on", d.effects(t, "after"), 7)
}

// Names are quoted: what they hold is a name, never a part of the statement; and a column that the table has
// not is an error of the database, also where a quoted name may stand for a text.
func testTransitionNames(t *testing.T, d *database) {
	create := func(_ int64, err error) error { return err }
	odd := guard.Transition{Table: `Shop "x"; DROP TABLE orders; --`, ID: `$1 "%d`, State: "order?"}
	d.do(t, func(tx guard.Tx) error {
		return errors.Join(
			create(tx.Exec(t.Context(), `CREATE TABLE "Shop ""x""; DROP TABLE orders; --" ("$1 ""%d" TEXT, "order?" TEXT)`)),
			run(tx, `INSERT INTO "Shop ""x""; DROP TABLE orders; --" VALUES ('1', 'new')`),
			run(tx, "INSERT INTO orders VALUES ('1', 'new')"))
	})
	d.do(t, func(tx guard.Tx) error {
		applied, err := odd.Apply(t.Context(), tx, "1", "new", "paid")
		wantEqual(t, "applied", applied, true)
		return err
	})
	for _, wrong := range []guard.Transition{
		{Table: "orders", ID: "id", State: "new"},
		{Table: "orders", ID: "1", State: "state"},
		{Table: "orders", ID: `id" = "id" OR "id`, State: "state"},
		{Table: `orders" SET "state" = 'paid' --`, ID: "id", State: "state"},
	} {
		err := d.tryTx(d.levels[0], func(tx guard.Tx) error {
			_, err := wrong.Apply(t.Context(), tx, "1", "new", "paid")
			return err
		})
		if err == nil || errors.Is(err, guard.ErrAbsent) || errors.Is(err, guard.ErrConflict) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	d.do(t, func(tx guard.Tx) error {
		for _, bad := range []guard.Transition{{}, {Table: "orders", ID: "id"}, {Table: "orders", State: "state"}, {Table: ".orders", ID: "id", State: "state"}, {Table: "o\x00", ID: "id", State: "state"}} {
			_, err := bad.Apply(t.Context(), tx, "1", "new", "paid")
			wantIs(t, "names", err, guard.ErrInvalid)
		}
		for _, bad := range [][2]string{{"new\x00", "paid"}, {"new", "\x00"}, {"\xff", "paid"}, {"new", "\xff"}} {
			_, err := orders.Apply(t.Context(), tx, "1", bad[0], bad[1])
			wantIs(t, "states", err, guard.ErrInvalid)
		}
		_, err := orders.Apply(t.Context(), tx, "1", "new", "new")
		wantIs(t, "to itself", err, guard.ErrInvalid)
		applied, err := orders.Apply(t.Context(), tx, "1", "new", "paid") // nothing has touched it
		wantEqual(t, "applied", applied, true)
		return err
	})
}

// A state that comes back: the first step is delivered again when the row is, by the next one, where it began. The row alone
// cannot tell, so it is taken again; with the message's key in an Inbox around it, it is a repeat. So is one that
// comes after the next step, which by itself is a conflict.
func testTransitionComesBack(t *testing.T, d *database) {
	bare := func(tx guard.Tx, _, from, to string) (string, error) {
		applied, err := orders.Apply(t.Context(), tx, "1", from, to)
		if errors.Is(err, guard.ErrConflict) {
			return "conflict", nil
		}
		return fmt.Sprintf("applied %v", applied), err
	}
	entered := func(tx guard.Tx, message, from, to string) (answer string, err error) {
		entry, err := inbox.Do(t.Context(), tx, message, nil, func() ([]byte, error) {
			answer, err := bare(tx, message, from, to)
			return []byte(answer), err
		})
		return fmt.Sprintf("%s, repeat %v", entry.Outcome, entry.Repeat), err
	}
	for _, c := range []struct {
		step              func(tx guard.Tx, message, from, to string) (string, error)
		first, back, late string
		state             string
	}{
		{bare, "applied true", "applied true", "conflict", "closed"},
		{entered, "applied true, repeat false", "applied true, repeat true", "applied true, repeat true", "closed"},
	} {
		d.clear(t)
		d.do(t, func(tx guard.Tx) error { return run(tx, "INSERT INTO orders VALUES ('1', 'active')") })
		step := func(message, from, to, want string) {
			t.Helper()
			d.do(t, func(tx guard.Tx) error {
				got, err := c.step(tx, message, from, to)
				wantEqual(t, message+" "+from+" to "+to, got, want)
				return err
			})
		}
		state := func() (s string) {
			d.do(t, func(tx guard.Tx) error {
				_, err := tx.QueryRow(t.Context(), "SELECT state FROM orders", nil, &s)
				return err
			})
			return s
		}
		bareAgain := c.back == "applied true"
		step("1", "active", "suspended", c.first)
		step("2", "suspended", "active", c.first)
		step("1", "active", "suspended", c.back)
		wantEqual(t, "after a late repeat", state(), map[bool]string{true: "suspended", false: "active"}[bareAgain])
		step("3", state(), "closed", c.first)
		step("1", "active", "suspended", c.late)
		wantEqual(t, "in the end", state(), c.state)
	}
}

func testTransitionOfManyRows(t *testing.T, d *database) {
	byState := guard.Transition{Table: "orders", ID: "state", State: "state"}
	d.do(t, func(tx guard.Tx) error { return run(tx, "INSERT INTO orders VALUES ('1', 'new'), ('2', 'new')") })
	err := d.tryTx(d.levels[0], func(tx guard.Tx) error {
		_, err := byState.Apply(t.Context(), tx, "new", "new", "paid")
		return err
	})
	wantIs(t, "a column that is not unique", err, guard.ErrInvalid)
}

// States may be of other types: an enum, a number.
func TestTransitionTypes(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{overSQL, overPGX} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t, kind)
			d.do(t, func(tx guard.Tx) error {
				return errors.Join(
					run(tx, "CREATE TYPE phase AS ENUM ('new', 'paid', 'sent')"),
					run(tx, `CREATE SCHEMA "Shop"`),
					run(tx, `CREATE TABLE "Shop"."Orders" (id uuid PRIMARY KEY, phase phase, step int2)`),
					run(tx, `INSERT INTO "Shop"."Orders" VALUES ('0193a4a0-0000-7000-8000-000000000001', 'new', 1)`))
			})
			for column, states := range map[string][3]string{"phase": {"new", "paid", "sent"}, "step": {"1", "2", "3"}} {
				typed := guard.Transition{Table: "Shop.Orders", ID: "id", State: column}
				d.do(t, func(tx guard.Tx) error {
					for _, first := range []bool{true, false} {
						applied, err := typed.Apply(t.Context(), tx, "0193a4a0-0000-7000-8000-000000000001", states[0], states[1])
						wantEqual(t, column+" applied", applied, first)
						if err != nil {
							return err
						}
					}
					_, err := typed.Apply(t.Context(), tx, "0193a4a0-0000-7000-8000-000000000001", states[0], states[2])
					wantIs(t, column, err, guard.ErrConflict)
					return nil
				})
			}
		})
	}
}

// A repeat is one however the column writes the state; and what the database takes for one state is
// no transition.
func TestTransitionWrittenOtherwise(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{overSQL, overPGX, overSQLite} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t, kind)
			columns := []struct{ column, from, to string }{
				{"NUMERIC(6,2)", "1", "2"}, {"REAL", "1", "2"}, {"DOUBLE PRECISION", "1.50", "2.5"}, {"INT", "01", "+2"}, {"VARCHAR(10)", "a", "b"},
			}
			if kind == overSQLite {
				columns = append(columns, []struct{ column, from, to string }{{"", "a", "b"}, {"BLOB", "a", "b"}, {"TEXT COLLATE NOCASE", "A", "B"}}...)
			} else {
				columns = append(columns, []struct{ column, from, to string }{{"CHAR(10)", "a", "b"}, {"BOOLEAN", "f", "t"}, {`"char"`, "a", "b"}}...)
			}
			for i, test := range columns {
				table := fmt.Sprintf("typed%d", i)
				typed := guard.Transition{Table: table, ID: "id", State: "state"}
				d.do(t, func(tx guard.Tx) error {
					return errors.Join(run(tx, "CREATE TABLE "+table+" (id TEXT PRIMARY KEY, state "+test.column+")"),
						run(tx, "INSERT INTO "+table+" VALUES ('x', '"+strings.ToLower(test.from)+"')"))
				})
				d.do(t, func(tx guard.Tx) error {
					for _, first := range []bool{true, false, false} {
						applied, err := typed.Apply(t.Context(), tx, "x", test.from, test.to)
						wantEqual(t, test.column+" applied", applied, first)
						wantEqual(t, test.column+" error", err, nil)
					}
					return nil
				})
			}
			d.do(t, func(tx guard.Tx) error {
				number := guard.Transition{Table: "typed0", ID: "id", State: "state"}
				for range 2 {
					_, err := number.Apply(t.Context(), tx, "x", "2", "2.0")
					wantIs(t, "2 to 2.0", err, guard.ErrInvalid)
				}
				_, err := number.Apply(t.Context(), tx, "x", "3", "3.0")
				wantIs(t, "3 to 3.0, elsewhere", err, guard.ErrConflict)
				return nil
			})
		})
	}
}

// A column of SQLite's that has no type keeps a number that is no text, and looks like one.
func TestTransitionWithoutType(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, overSQLite)
	untyped := guard.Transition{Table: "untyped", ID: "id", State: "state"}
	d.do(t, func(tx guard.Tx) error {
		return errors.Join(run(tx, "CREATE TABLE untyped (id TEXT PRIMARY KEY, state)"), run(tx, "INSERT INTO untyped VALUES ('x', 1)"))
	})
	d.do(t, func(tx guard.Tx) error {
		for _, states := range [][2]string{{"1", "2"}, {"2", "1"}} {
			_, err := untyped.Apply(t.Context(), tx, "x", states[0], states[1])
			wantIs(t, "a number", err, guard.ErrInvalid)
		}
		_, err := untyped.Apply(t.Context(), tx, "x", "3", "4")
		wantIs(t, "elsewhere", err, guard.ErrConflict)
		return nil
	})
}

func testSequence(t *testing.T, d *database) {
	want := func(s guard.Sequence, entity string, number int64, order guard.Order, last int64) func(guard.Tx) error {
		return func(tx guard.Tx) error {
			gotOrder, gotLast, err := s.Advance(t.Context(), tx, entity, number)
			wantEqual(t, "order", gotOrder, order)
			wantEqual(t, "last", gotLast, last)
			return err
		}
	}
	d.undone(t, want(seq, "a", 9, guard.Newer, 9))
	d.do(t, want(seq, "a", math.MinInt64, guard.Newer, math.MinInt64))
	d.do(t, want(seq, "a", 5, guard.Newer, 5)) // it does not wait for 1 to 4
	d.do(t, want(seq, "a", 5, guard.Same, 5))
	d.do(t, want(seq, "a", 4, guard.Older, 5))
	d.undone(t, want(seq, "a", 7, guard.Newer, 7))
	d.do(t, want(seq, "a", 6, guard.Newer, 6))
	d.do(t, want(seq, "b", 1, guard.Newer, 1))
	d.do(t, want(guard.Sequence{}, "a", 1, guard.Newer, 1))
	d.do(t, want(guard.Sequence{}, "a", 1, guard.Same, 1))
	d.do(t, want(seq, "a", math.MaxInt64, guard.Newer, math.MaxInt64))
	d.do(t, want(seq, "a", math.MaxInt64, guard.Same, math.MaxInt64))
	d.do(t, func(tx guard.Tx) error {
		_, _, err := seq.Advance(t.Context(), tx, "", 1)
		wantIs(t, "entity", err, guard.ErrInvalid)
		return nil
	})
}

func testFence(t *testing.T, d *database) {
	check := func(f guard.Fence, resource string, number int64) (err error) {
		d.do(t, func(tx guard.Tx) error {
			err = f.Check(t.Context(), tx, resource, number)
			return effect(tx, "after", 1) // whatever it says, the transaction goes on
		})
		return err
	}
	d.undone(t, func(tx guard.Tx) error { return fence.Check(t.Context(), tx, "r", 9) })
	wantEqual(t, "the first", check(fence, "r", 5), nil)
	wantEqual(t, "the same attempt again", check(fence, "r", 5), nil)
	wantEqual(t, "the next attempt", check(fence, "r", 7), nil)
	err := check(fence, "r", 6)
	wantIs(t, "one that was overtaken", err, guard.ErrStaleFence)
	var stale *guard.StaleFence
	if !errors.As(err, &stale) || *stale != (guard.StaleFence{Fence: 6, Highest: 7}) {
		t.Errorf("the refusal says %+v", stale)
	}
	wantEqual(t, "the highest stays", check(fence, "r", 7), nil)
	wantEqual(t, "another resource", check(fence, "s", 1), nil)
	wantEqual(t, "another guard", check(guard.Fence{}, "r", 1), nil)
	wantIs(t, "no fence", check(fence, "r", 0), guard.ErrInvalid)
	wantIs(t, "no resource", check(fence, "", 1), guard.ErrInvalid)
	wantEqual(t, "transactions that went on", d.effects(t, "after"), 9)
}

// A number's age is that of the last one that was applied, not of the row.
func testRecordedAt(t *testing.T, d *database) {
	for table, raise := range map[string]func(tx guard.Tx, number int64) error{
		"idemd_sequence": func(tx guard.Tx, number int64) error {
			_, _, err := seq.Advance(t.Context(), tx, "x", number)
			return err
		},
		"idemd_fence": func(tx guard.Tx, number int64) error {
			if err := fence.Check(t.Context(), tx, "x", number); !errors.Is(err, guard.ErrStaleFence) {
				return err
			}
			return nil
		},
	} {
		aged := func() (n int) {
			d.do(t, func(tx guard.Tx) error {
				_, err := tx.QueryRow(t.Context(), "SELECT count(*) FROM "+table+" WHERE recorded_at < '2020-01-03'", nil, &n)
				return err
			})
			return n
		}
		d.do(t, func(tx guard.Tx) error {
			return errors.Join(raise(tx, 5), run(tx, "UPDATE "+table+" SET recorded_at = '2020-01-02'"))
		})
		d.do(t, func(tx guard.Tx) error { return raise(tx, 4) })
		wantEqual(t, table+": old after a lower number", aged(), 1)
		d.do(t, func(tx guard.Tx) error { return raise(tx, 6) })
		wantEqual(t, table+": old after a higher number", aged(), 0)
	}
}
