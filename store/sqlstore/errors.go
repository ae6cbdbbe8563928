package sqlstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemd/idemd/store"
)

// fault is what an error of the database means for the operation that met it.
type fault uint8

const (
	faultNone    fault = iota
	faultRetry         // nothing was done, and it may work at once
	faultUnknown       // it may have been done: read back what became of it
	faultGone          // a table does not exist, or has not all columns: maintenance must look
	faultRefused       // nothing was done, and sending it again does not help
)

// faults are the SQLSTATEs that are not faultRefused. Both databases' documentation lists
// them under the same numbers; those with a C after the class are CockroachDB's own
// (pkg/sql/pgwire/pgcode). An error that ends a statement has rolled it back; one that ends
// the connection may have come after the commit.
var faults = map[string]fault{
	"40001": faultRetry, // serialization_failure
	"40P01": faultRetry, // deadlock_detected
	"55P03": faultRetry, // lock_not_available: lock_timeout
	"53000": faultRetry, // insufficient_resources
	"53200": faultRetry, // out_of_memory
	"53300": faultRetry, // too_many_connections
	"08001": faultRetry, // sqlclient_unable_to_establish_sqlconnection
	"08004": faultRetry, // sqlserver_rejected_establishment_of_sqlconnection
	"57P03": faultRetry, // cannot_connect_now: starting up
	"25006": faultRetry, // read_only_sql_transaction: a replica, until the pool finds the primary
	"25P03": faultRetry, // idle_in_transaction_session_timeout
	"57P05": faultRetry, // idle_session_timeout: it was ended before the statement came

	"40003": faultUnknown, // statement_completion_unknown
	"57014": faultUnknown, // query_canceled: a COMMIT that waits for a replica is done all the same
	"57P01": faultUnknown, // admin_shutdown: the node drains
	"57P02": faultUnknown, // crash_shutdown
	"57P04": faultUnknown, // database_dropped
	"57000": faultUnknown, // operator_intervention
	"25P04": faultUnknown, // transaction_timeout, from PostgreSQL 17 on
	"08000": faultUnknown, // connection_exception and its kind
	"08003": faultUnknown,
	"08006": faultUnknown,
	"08007": faultUnknown, // transaction_resolution_unknown
	"08P01": faultUnknown, // protocol_violation: what poolers say when they lose a server
	"08C00": faultUnknown, // a proxy lost its node
	"58C00": faultUnknown, // RangeUnavailable
	"58C01": faultUnknown, // InternalConnectionFailure
	"XXA00": faultUnknown, // committed, but a schema change failed

	"42P01": faultGone, // undefined_table: this replica's copy of the registry is old
	"42703": faultGone, // undefined_column: a replica of an older release has just made the bucket
}

// faultOf classifies an error of a statement that was sent or may have been.
func faultOf(err error) fault {
	var (
		answered   *pgconn.PgError
		connecting *pgconn.ConnectError
	)
	switch {
	case err == nil:
		return faultNone
	case errors.Is(err, errNotDone):
		return faultRetry
	case isRefusal(err):
		return faultRefused
	case errors.As(err, &answered):
		f, ok := faults[answered.Code]
		switch {
		case !ok:
			return faultRefused
		case f == faultUnknown && errors.As(err, &connecting): // no statement was sent
			return faultRetry
		}
		return f
	case errors.Is(err, errOldCopy):
		return faultGone
	case errors.As(err, &connecting), pgconn.SafeToRetry(err), errors.Is(err, errAgain), errors.Is(err, errUnfit):
		return faultRetry
	case errors.Is(err, errDamagedRow):
		return faultRefused
	default: // a lost connection, a context that ended
		return faultUnknown
	}
}

// hasCode says that the database's answer was one of these SQLSTATEs.
func hasCode(err error, codes ...string) bool {
	var answered *pgconn.PgError
	return errors.As(err, &answered) && slices.Contains(codes, answered.Code)
}

// errNotDone marks an error after which it is known that nothing was done.
var errNotDone = errors.New("nothing was done")

// locked says that somebody held a row locked for too long.
func locked(err error) bool { return hasCode(err, "55P03") }

// incomplete says that a bucket has not got the columns of this release, see columns.go.
func incomplete(err error) bool { return hasCode(err, "42703") }

// damagedPage says that the database cannot read what it has stored: data_corrupted or
// index_corrupted.
func damagedPage(err error) bool { return hasCode(err, "XX001", "XX002") }

// errAgain says that a statement found the key, or the time, not as it was decided upon.
var errAgain = errors.New("the key or the bucket changed meanwhile")

// errNoBucket is why a claim is refused whose bucket is still to be made.
var errNoBucket = errors.New("a bucket is missing")

// tries is how often an operation is tried before it is given up as unavailable.
const tries = 8

// backoff waits before the n-th try, with jitter, from a millisecond to a fifth of a second.
// The second try follows at once: it is mostly one that has learned the time or the place.
func backoff(ctx context.Context, n int) error {
	if n < 2 {
		return ctx.Err()
	}
	longest := min(time.Millisecond<<n, 400*time.Millisecond)
	timer := time.NewTimer(longest/2 + rand.N(longest/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// corrupt is the refusal for a row that cannot be trusted.
func corrupt(cause error) error {
	return &store.Error{
		Sentinel: store.ErrRecordCorrupt, Cause: cause,
		Detail: "what is stored for this key is damaged; nothing was changed or granted; an operator must repair it",
	}
}
