package sqlstore

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgfault"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

func TestFaultOf(t *testing.T) {
	t.Parallel()
	for want, codes := range map[fault][]string{
		faultRetry:   {"40001", "40P01", "55P03", "53000", "53200", "53300", "57P03", "57P05", "25006", "25P03", "08001", "08004"},
		faultUnknown: {"40003", "57000", "57014", "57P01", "57P02", "57P04", "25P04", "08000", "08003", "08006", "08007", "08P01", "58C00", "58C01"},
		faultGone:    {"42P01"},
		faultRefused: {"53100", "53400", "58000", "58030", "58P01", "XX000", "XX001", "XX002", "42501", "28P01", "23505"},
	} {
		for _, code := range codes {
			if got := faultOf(fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: code})); got != want {
				t.Errorf("%s: want %d, got %d", code, want, got)
			}
		}
	}
	for _, c := range []struct {
		err  error
		want fault
	}{
		{nil, faultNone},
		{errors.New("EOF"), faultUnknown},
		{store.Refuse(store.ErrStaleFence, "no"), faultRefused},
		{damagedRow("cut short"), faultRefused},
		{errAgain, faultRetry},
		{unfit("statement_timeout", "2000", "0"), faultRetry},
	} {
		if got := faultOf(c.err); got != c.want {
			t.Errorf("%v: want %d, got %d", c.err, c.want, got)
		}
	}
}

// While a connection is made no statement has been sent.
func TestFaultOfConnecting(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]fault{"57P01": faultRetry, "57P03": faultRetry, "28P01": faultRefused} {
		proxy := pgfault.New(t, pgtest.Shared(t).NewDatabase(t))
		proxy.Add(pgfault.Rule{Connect: true, Do: pgfault.Fail(code)})
		_, err := pgconn.Connect(t.Context(), proxy.DSN())
		if got := faultOf(err); got != want {
			t.Errorf("%v: want %d, got %d", err, want, got)
		}
	}
}
