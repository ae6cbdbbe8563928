package sqlstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgfault"
)

// What a caller is told of the database is so: whether it answered, whether something may have
// been done, and what to do, where there is an attempt to send again.
func TestUnavailableSaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	connecting := func() error {
		_, err := pgconn.Connect(t.Context(), "postgres://u@127.0.0.1:1/db?sslmode=disable")
		return err
	}()
	denied, broken := &pgconn.PgError{Code: "42501"}, &pgconn.PgError{Code: "57014"}
	lost := errors.New("EOF")
	change, order, read := &task{}, &task{once: true}, &task{reads: true}
	for _, c := range []struct {
		task    *task
		cause   error
		unknown bool
		want    string
	}{
		{change, connecting, false, "no connection to the database; nothing was done"},
		{change, denied, false, "the database could not carry it out; nothing was done"},
		{change, lost, true, "the database did not answer; it may have been done: send it again with the same attempt id"},
		{change, connecting, true, "the database did not answer; it may have been done: send it again with the same attempt id"},
		{change, broken, true, "the database does not say whether it carried it out; it may have been done: send it again with the same attempt id"},
		{change, errAgain, false, "it could not be carried out; nothing was done"},
		{order, lost, true, "the database did not answer; it may have been done: look whether it was done before you send it again"},
		{read, lost, true, "the database did not answer"},
		{read, denied, true, "the database could not carry it out; nothing was done"},
	} {
		err := c.task.unavailable(c.cause, c.unknown)
		var refused *store.Error
		if !errors.As(err, &refused) || !errors.Is(err, store.ErrUnavailable) || refused.Detail != c.want || refused.Cause == nil {
			t.Errorf("%v: %v, want %q", c.cause, err, c.want)
		}
	}
}

// A database that answers and does not carry out what it is told is seen in Health, until it
// does.
func TestHealthSaysThatOperationsFail(t *testing.T) {
	t.Parallel()
	g := newStage(t, Timing{})
	s, proxy := g.proxied()
	rule := proxy.Add(pgfault.Rule{Match: claimText, Do: pgfault.Fail("42501")})
	_, err := s.Claim(t.Context(), claimOf(g.key(), "a"))
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "could not carry it out; nothing was done") {
		t.Errorf("claim: %v", err)
	}
	if err := s.Health(t.Context()); err == nil || errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "operations in tier hour fail since") || !strings.Contains(err.Error(), "42501") {
		t.Errorf("health: %v", err)
	}
	proxy.Remove(rule)
	g.granted(s, claimOf(g.key(), "a"))
}

func TestTroubles(t *testing.T) {
	t.Parallel()
	const longest = 2 * time.Second
	down := unavailable(&pgconn.PgError{Code: "55P03", Message: "canceling statement due to lock timeout"})
	began := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	at := began.Add
	for name, c := range map[string]struct {
		err  error
		took time.Duration
		want string
	}{
		"refused by the database": {down, 0, "operations in tier day fail since 2026-11-29T12:00:00Z: canceling statement due to lock timeout (SQLSTATE 55P03); hint"},
		"never ended":             {context.DeadlineExceeded, 10 * time.Second, "the database did not end them in time; hint"},
		"an impatient caller":     {context.DeadlineExceeded, time.Millisecond, ""},
		"a caller who left":       {context.Canceled, time.Minute, ""},
		"a refusal":               {store.ErrStaleFence, 0, ""},
		"too much to do":          {store.ErrOverloaded, 0, ""},
		"success":                 {nil, 0, ""},
	} {
		var tr troubles
		tr.note(store.TierDay, c.err, c.took, longest, began)
		if err := tr.health(at(time.Second), "; hint"); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	var tr troubles
	tr.note(store.TierDay, down, 0, longest, began)
	tr.note(store.TierDay, nil, 0, longest, at(time.Second)) // a repeat, which needs no write
	tr.note(store.TierHour, nil, 0, longest, at(time.Minute))
	if tr.health(at(troubleAge), "") == nil {
		t.Error("a success of another tier, or a repeat soon after, ended it")
	}
	if err := tr.health(at(troubleAge+1), ""); err != nil {
		t.Errorf("nobody has tried for a while: %v", err)
	}
	tr.note(store.TierDay, nil, 0, longest, at(troubleStays))
	if err := tr.health(at(troubleStays), ""); err != nil {
		t.Errorf("after a success: %v", err)
	}
}
