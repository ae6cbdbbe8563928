package pgfault

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Action is what a rule does: one of the two.
type Action struct {
	apply   func(*session, execution, func()) error
	rewrite func(*statement, *regexp.Regexp)
}

// execution is a statement (or the start of a connection) on its way to the server.
type execution struct {
	forward func() error // has the server do it
	refuse  func() error // has the server fail in its place: a transaction is aborted as it would be
}

// Fail answers with an error of this SQLSTATE, and the server does not see the statement. A transaction is left aborted on
// both sides, and ended if the statement was its COMMIT. The codes by which servers end connections do that.
func Fail(code string) Action {
	return Action{apply: func(s *session, e execution, fired func()) error {
		fired()
		if fatal(code) {
			return s.hangUp(code)
		}
		s.swallowUntilReady(func() error {
			s.toClient(injected(code), &pgproto3.ReadyForQuery{TxStatus: s.status})
			return nil
		})
		return e.refuse()
	}}
}

// FailAfter lets the server carry out the statement, and all that the client sends with it before it
// synchronises, and answers with an error. A transaction that is still open then is left aborted on both sides.
func FailAfter(code string) Action {
	return Action{apply: func(s *session, e execution, fired func()) error {
		s.swallowUntilReady(func() error {
			fired()
			if fatal(code) {
				return s.hangUp(code)
			}
			if err := s.abort(); err != nil {
				return err
			}
			s.toClient(injected(code), &pgproto3.ReadyForQuery{TxStatus: s.status})
			return nil
		})
		return e.forward()
	}}
}

// ResetBefore resets the connection, and the server does not see the statement.
func ResetBefore() Action {
	return Action{apply: func(s *session, _ execution, fired func()) error {
		fired()
		return s.reset()
	}}
}

// ResetAfter lets the server carry out the statement, and all that the client sends with it before it
// synchronises, and resets the connection instead of answering.
func ResetAfter() Action {
	return Action{apply: func(s *session, e execution, fired func()) error {
		s.swallowUntilReady(func() error {
			fired()
			return s.reset()
		})
		return e.forward()
	}}
}

// Stall holds the statement back until the channel is closed, for ever if it is nil, and forwards
// it then even if its client has gone away meanwhile. When a context ends a statement, pgx also sends a cancel
// request, in the background: it may arrive before the statement that is let go, or during it, or after.
func Stall(until <-chan struct{}) Action {
	return Action{apply: func(s *session, e execution, fired func()) error {
		fired()
		if err := s.wait(until); err != nil {
			return err
		}
		return e.forward()
	}}
}

// StallAfter lets the server carry out the statement, and all that the client sends with it before it
// synchronises, and holds the answer back until the channel is closed, for ever if it is nil.
func StallAfter(until <-chan struct{}) Action {
	return Action{apply: func(s *session, e execution, fired func()) error {
		s.holdUntilReady(func(held []message) error {
			fired()
			if err := s.wait(until); err != nil {
				return err
			}
			for _, m := range held {
				s.toClient(m)
			}
			s.toClient(&pgproto3.ReadyForQuery{TxStatus: s.status})
			return nil
		})
		return e.forward()
	}}
}

// Rewrite replaces each match of the rule in the statement's text, before the server sees it.
func Rewrite(by string) Action {
	return Action{rewrite: func(st *statement, match *regexp.Regexp) { st.sent = match.ReplaceAllString(st.sent, by) }}
}

// Answer has the statement answered with this command tag and, if there are columns, these rows of nil, string, bool, int and
// int64. The server sees a stand-in that changes nothing; in an aborted transaction it refuses that as it does any other.
// The statement must not have parameters.
func Answer(tag string, columns []string, rows ...[]any) Action {
	standIn := "DO $$BEGIN END$$"
	if len(columns) > 0 {
		standIn = table(columns, rows)
	}
	return Action{rewrite: func(st *statement, _ *regexp.Regexp) { st.sent, st.tag = standIn, tag }}
}

// table is a query for rows.
func table(columns []string, rows [][]any) string {
	names := make([]string, len(columns))
	for i, name := range columns {
		names[i] = `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
	}
	where := ""
	if len(rows) == 0 { // VALUES needs one
		rows, where = [][]any{make([]any, len(columns))}, " WHERE false"
	}
	lines := make([]string, len(rows))
	for i, row := range rows {
		values := make([]string, len(row))
		for j, value := range row {
			values[j] = literal(value)
		}
		lines[i] = "(" + strings.Join(values, ", ") + ")"
	}
	return fmt.Sprintf("SELECT * FROM (VALUES %s) AS answer (%s)%s", strings.Join(lines, ", "), strings.Join(names, ", "), where)
}

func literal(value any) string {
	switch v := value.(type) {
	case nil:
		return "NULL"
	case string:
		return "'" + strings.ReplaceAll(v, "'", "''") + "'::text"
	case bool:
		return fmt.Sprintf("%t", v)
	case int, int64:
		return fmt.Sprintf("%d::bigint", v)
	default:
		panic(fmt.Sprintf("pgfault: Answer takes nil, string, bool, int and int64, and not %T", value))
	}
}

// fatal reports whether servers end the connection with this error.
func fatal(code string) bool { return strings.HasPrefix(code, "57P") || code == "53300" }

func injected(code string) *pgproto3.ErrorResponse {
	severity := "ERROR"
	if fatal(code) {
		severity = "FATAL"
	}
	return &pgproto3.ErrorResponse{Severity: severity, SeverityUnlocalized: severity, Code: code, Message: "injected by pgfault"}
}
