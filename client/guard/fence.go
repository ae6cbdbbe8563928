package guard

import (
	"context"
	"fmt"
)

// Fence keeps an attempt out that was overtaken: one that was paused past its lease and goes on.
// The zero value is ready for use, once its table is there.
type Fence struct {
	// Table has a row for each resource, see DDL. "idemd_fence" if empty.
	Table string
	// Name is what is fenced. 255 bytes at most; it may be empty.
	Name string
}

// StaleFence is the refusal of a fence: the attempt must stop. [errors.Is] finds [ErrStaleFence].
type StaleFence struct {
	Fence   int64 // of the attempt
	Highest int64 // that has been here
}

func (e *StaleFence) Error() string {
	return fmt.Sprintf("%v: fence %d is lower than %d; stop acting", ErrStaleFence, e.Fence, e.Highest)
}

// Unwrap returns ErrStaleFence.
func (e *StaleFence) Unwrap() error { return ErrStaleFence }

func (f Fence) numbers() numbers {
	return numbers{table{f.Table, "idemd_fence", f.Name}, "resource", "fence"}
}

// DDL returns the statements that make the table, for your migrations; they can be repeated.
// The error is [ErrInvalid], for a bad name.
//
// Nothing is forgotten by itself: without its row every old fence passes again, and how long a process may be paused
// nobody knows. The table has one row for each resource. A row goes with its resource, see Forget; if each intent is a
// resource, so that the table grows, delete what is much older than any process lives: DELETE … WHERE recorded_at < ….
func (f Fence) DDL(d Dialect) ([]string, error) { return f.numbers().ddl(d) }

// Check is asked before the effect, in its transaction, with the attempt's fence (client.Attempt.Fence). It
// remembers the highest one and refuses a lower one with a [*StaleFence]. An equal one is the same attempt and
// passes. Until the transaction ends no other passes: Check waits for its end.
//
// Fences grow for each key of idemd, so a resource is what is acted on under *one* key; 1 to 255 bytes of
// UTF-8, for example client.Attempt.DownstreamKey("ledger"). fence is positive: an unguarded call has none.
// A fence keeps out who is late. It does not tell a repeat, as the next attempt's is higher: that does an [Inbox].
func (f Fence) Check(ctx context.Context, tx Tx, resource string, fence int64) error {
	if fence <= 0 {
		return invalid("fence %d is not one: it is positive, from the grant", fence)
	}
	raised, highest, err := f.numbers().raise(ctx, tx, resource, fence, "<=")
	if err == nil && !raised {
		return &StaleFence{Fence: fence, Highest: highest}
	}
	return err
}

// Forget deletes the resource's row, in the transaction that deletes the resource itself, and reports whether there was one. A
// process that was paused since may pass after that.
func (f Fence) Forget(ctx context.Context, tx Tx, resource string) (bool, error) {
	return f.numbers().forget(ctx, tx, "resource", resource)
}
