package guard_test

import (
	"context"
	"fmt"

	"github.com/idemd/idemd/client/guard"
)

// acts are the guards, each with an effect on the one thing "x", as an attempt brings it about. n is the attempt's
// number, which is also its fence. It returns what the guard said. at is called when the effect is there and
// not yet recorded.
var acts = map[string]func(tx guard.Tx, n int64, at func()) (string, error){
	"inbox": func(tx guard.Tx, n int64, at func()) (string, error) {
		entry, err := inbox.Do(context.Background(), tx, "x", []byte("42 EUR"), func() ([]byte, error) {
			defer at()
			return fmt.Appendf(nil, "by %d", n), effect(tx, "x", n)
		})
		return fmt.Sprintf("repeat %v, %s", entry.Repeat, entry.Outcome), err
	},
	"once": func(tx guard.Tx, n int64, at func()) (string, error) { // with a fresh key each time
		entry, err := once.Do(context.Background(), tx, "x", fmt.Sprint(n), func() ([]byte, error) {
			defer at()
			return fmt.Appendf(nil, "by %d", n), effect(tx, "x", n)
		})
		return fmt.Sprintf("repeat %v, %s under %s", entry.Repeat, entry.Outcome, entry.Key), err
	},
	"transition": func(tx guard.Tx, n int64, at func()) (string, error) {
		applied, err := orders.Apply(context.Background(), tx, "x", "new", "paid")
		if err == nil && applied {
			err = effect(tx, "x", n)
			at()
		}
		return fmt.Sprintf("repeat %v", !applied), err
	},
	"sequence": func(tx guard.Tx, n int64, at func()) (string, error) { // the same event each time
		order, last, err := seq.Advance(context.Background(), tx, "x", 7)
		if err == nil && order == guard.Newer {
			err = effect(tx, "x", n)
			at()
		}
		return fmt.Sprintf("repeat %v, last %d", order == guard.Same, last), err
	},
}

// newOrder is the row that transition needs.
func newOrder(tx guard.Tx) error { return run(tx, "INSERT INTO orders VALUES ('x', 'new')") }
