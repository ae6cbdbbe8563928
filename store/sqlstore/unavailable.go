package sqlstore

import (
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemd/idemd/store"
)

// unavailable is the refusal of what the database has not carried out, or of which it is not
// known whether it has. Why is its cause, which is for the log and not for the caller.
func unavailable(cause error) error {
	if isRefusal(cause) {
		return cause
	}
	return refusal(cause, detail(cause))
}

// mayBeDone is the refusal of what may have taken effect. Advice is what to do then.
func mayBeDone(cause error, advice string) error {
	text := "the database did not answer"
	if answered(cause) {
		text = "the database does not say whether it carried it out"
	}
	return refusal(cause, text+"; it may have been done: "+advice)
}

const (
	sendAgain = "send it again with the same attempt id"
	lookFirst = "look whether it was done before you send it again"
)

func refusal(cause error, detail string) error {
	return &store.Error{Sentinel: store.ErrUnavailable, Cause: cause, RetryAfter: 100 * time.Millisecond, Detail: detail}
}

// detail says what became of an operation.
func detail(cause error) string {
	switch f := faultOf(cause); {
	case unsent(cause):
		return "no connection to the database; nothing was done"
	case f == faultUnknown && answered(cause):
		return "the database broke it off"
	case f == faultUnknown:
		return "the database did not answer"
	case answered(cause):
		return "the database could not carry it out; nothing was done"
	case errors.Is(cause, errNotDone):
		return "the database did not answer; nothing was done"
	}
	return "it could not be carried out; nothing was done"
}

// unsent says that there was no connection to send anything on.
func unsent(err error) bool {
	var connecting *pgconn.ConnectError
	return errors.As(err, &connecting) || pgconn.SafeToRetry(err)
}

// answered says that the database answered with an error.
func answered(err error) bool {
	var said *pgconn.PgError
	return errors.As(err, &said)
}
