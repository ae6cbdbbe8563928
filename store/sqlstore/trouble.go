package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemd/idemd/store"
)

// troubleAge is how long a failure counts when nothing has succeeded since: without a caller
// it may be over.
const troubleAge = time.Minute

// troubleStays is how long it counts though something has succeeded: repeats may be answered
// while nothing can be written.
const troubleStays = 10 * time.Second

// troubles are the tiers in which operations fail for want of the database. Reading
// the catalog may go well all the while: a COMMIT waits for a standby, a lock is held.
type troubles struct {
	mu   sync.Mutex
	last map[store.Tier]trouble
}

type trouble struct {
	since, at time.Time
	why       string
}

// note takes note of how an operation ended. One that did not end in time counts if it had
// longer than one statement may take.
func (t *troubles) note(tier store.Tier, err error, took, longest time.Duration, now time.Time) {
	late := errors.Is(err, context.DeadlineExceeded) && !isRefusal(err)
	if errors.Is(err, context.Canceled) && !isRefusal(err) || late && took <= longest || errors.Is(err, store.ErrOverloaded) {
		return // says nothing about the database
	}
	if err != nil && errors.Is(causeOf(err), errNoBucket) {
		return // Health tells of it for as long as it is so
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !late && !errors.Is(err, store.ErrUnavailable) {
		if now.Sub(t.last[tier].at) >= troubleStays {
			delete(t.last, tier)
		}
		return
	}
	if t.last == nil {
		t.last = map[store.Tier]trouble{}
	}
	since := now
	if before, ok := t.last[tier]; ok {
		since = before.since
	}
	t.last[tier] = trouble{since: since, at: now, why: reason(err)}
}

// reason is why an operation failed, in the database's own words if it has said something.
func reason(err error) string {
	var said *pgconn.PgError
	switch {
	case errors.As(causeOf(err), &said):
		return fmt.Sprintf("%s (SQLSTATE %s)", said.Message, said.Code)
	case errors.Is(err, store.ErrUnavailable):
		return err.Error()
	}
	return "the database did not end them in time"
}

// health says in which tiers operations fail. Hint is what may hold up a COMMIT.
func (t *troubles) health(now time.Time, hint string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []error
	for _, tier := range store.Tiers {
		last, ok := t.last[tier]
		if !ok || now.Sub(last.at) > troubleAge {
			continue
		}
		list = append(list, fmt.Errorf("operations in tier %s fail since %s: %s%s", tierNames[tier], last.since.UTC().Format(time.RFC3339), last.why, hint))
	}
	return errors.Join(list...)
}

// commitHint is what to think of when operations do not end.
func (s *Store) commitHint() string {
	if s.dialect.barrier() == "" {
		return ""
	}
	return "; if it is not that, commits wait for a synchronous standby (synchronous_standby_names) that is gone"
}
