package pgfault

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"

	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// bench is a database with a table, reached through a proxy, and past it to see what the server has done.
type bench struct {
	*Proxy
	t      *testing.T
	direct *pgx.Conn
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dsn := pgtest.Shared(t).NewDatabase(t)
	b := &bench{Proxy: New(t, dsn), t: t, direct: pgtest.Dial(t, dsn)}
	mustExec(t, b.direct, "CREATE TABLE rows (id text PRIMARY KEY)")
	return b
}

func (b *bench) dial() *pgx.Conn {
	b.t.Helper()
	return pgtest.Dial(b.t, b.DSN())
}

// rows asserts which rows the server has, by their ids.
func (b *bench) rows(want ...string) {
	b.t.Helper()
	rows, err := b.direct.Query(b.t.Context(), "SELECT id FROM rows ORDER BY id")
	if err != nil {
		b.t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		b.t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		b.t.Errorf("the server has rows %q, want %q", got, want)
	}
}

func (b *bench) fired(a *Added, want int) {
	b.t.Helper()
	if got := a.Fired(); got != want {
		b.t.Errorf("the rule for %v acted %d times, want %d", a.rule.Match, got, want)
	}
}

func mustExec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != code {
		t.Errorf("got error %v, want SQLSTATE %s", err, code)
	}
}

func wantStatus(t *testing.T, conn *pgx.Conn, want byte) {
	t.Helper()
	if conn.IsClosed() {
		t.Errorf("the connection is closed, want transaction status %c", want)
	} else if got := conn.PgConn().TxStatus(); got != want {
		t.Errorf("transaction status %c, want %c", got, want)
	}
}

func wantReset(t *testing.T, conn *pgx.Conn, err error) {
	t.Helper()
	// In the simple protocol pgx says no more than that the connection is closed.
	var refused *pgconn.PgError
	if err == nil || errors.As(err, &refused) {
		t.Errorf("got error %v, want a connection reset", err)
	}
	if !conn.IsClosed() {
		t.Error("the connection is open")
	}
}

const insert = "INSERT INTO rows VALUES ($1)"

var (
	inserts   = regexp.MustCompile(`^INSERT INTO rows`)
	commitsRE = regexp.MustCompile(`(?i)^commit`)
)

// ways are the protocols by which pgx sends a statement with arguments.
var ways = map[string]pgx.QueryExecMode{
	"prepared": pgx.QueryExecModeCacheStatement,
	"unnamed":  pgx.QueryExecModeExec,
	"simple":   pgx.QueryExecModeSimpleProtocol,
}

func eachWay(t *testing.T, test func(t *testing.T, b *bench, way pgx.QueryExecMode)) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) { test(t, newBench(t), way) })
	}
}

func TestMain(m *testing.M) {
	// The server of all tests is stopped by the end of the process.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/idemd/idemd/store/sqlstore/pgtest.startProcess.func1"))
}

func TestWithoutRules(t *testing.T) {
	b := newBench(t)
	conn := b.dial()
	for _, way := range ways {
		var sum int
		if err := conn.QueryRow(t.Context(), "SELECT sum(i) FROM generate_series(1, $1::int) i", way, 1000).Scan(&sum); err != nil || sum != 500500 {
			t.Errorf("a query: %d, %v", sum, err)
		}
	}
	ids := make([][]any, 1000)
	for i := range ids {
		ids[i] = []any{fmt.Sprintf("%04d", i)}
	}
	if n, err := conn.CopyFrom(t.Context(), pgx.Identifier{"rows"}, []string{"id"}, pgx.CopyFromRows(ids)); err != nil || n != 1000 {
		t.Errorf("copy in: %d, %v", n, err)
	}
	if _, err := conn.CopyFrom(t.Context(), pgx.Identifier{"rows"}, []string{"id"}, pgx.CopyFromRows(ids)); err == nil {
		t.Error("copy in again: no error")
	} else {
		wantCode(t, err, "23505")
	}
	var out strings.Builder
	if _, err := conn.PgConn().CopyTo(t.Context(), &out, "COPY rows TO STDOUT"); err != nil || out.Len() != 5000 {
		t.Errorf("copy out: %d bytes, %v", out.Len(), err)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(t.Context(), insert, "0000")
	wantCode(t, err, "23505")
	wantStatus(t, conn, 'E')
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	wantStatus(t, conn, 'I')
}

// The proxy must not wait for a client that waits for it.
func TestPipelineLargerThanAllBuffers(t *testing.T) {
	b := newBench(t)
	conn := b.dial()
	var batch pgx.Batch
	const statements, size = 3000, 5000
	for range statements {
		batch.Queue("SELECT repeat('x', $1), $2::text", size, strings.Repeat("y", size))
	}
	results := conn.SendBatch(t.Context(), &batch)
	for range statements {
		var x, y string
		if err := results.QueryRow().Scan(&x, &y); err != nil || len(x) != size || len(y) != size {
			t.Fatalf("%d, %d, %v", len(x), len(y), err)
		}
	}
	if err := results.Close(); err != nil {
		t.Error(err)
	}
}

func TestDroppedParameters(t *testing.T) {
	b := newBench(t)
	const unknown = "&default_transaction_use_follower_reads=off&application_name=kept"
	if conn, err := pgx.Connect(t.Context(), b.DSN()+unknown); err == nil {
		t.Error("the server knows the parameter")
		_ = conn.Close(t.Context())
	}
	b.DropParameter("default_transaction_use_follower_reads")
	conn := pgtest.Dial(t, b.DSN()+unknown)
	var name string
	if err := conn.QueryRow(t.Context(), "SELECT current_setting('application_name')").Scan(&name); err != nil || name != "kept" {
		t.Errorf("the other parameter is %q, %v", name, err)
	}
}

func TestNotificationsComeBetweenStatements(t *testing.T) {
	b := newBench(t)
	conn := b.dial()
	mustExec(t, conn, "LISTEN news")
	wantNews := func(want string) {
		t.Helper()
		if n, err := conn.WaitForNotification(t.Context()); err != nil || n.Payload != want {
			t.Errorf("%v, %v; want %s", n, err, want)
		}
	}
	mustExec(t, b.direct, "NOTIFY news, 'today'")
	wantNews("today")
	// They are not part of the answer that is kept from the client.
	b.Add(Rule{Match: regexp.MustCompile("^NOTIFY"), Do: FailAfter("40003")})
	_, err := conn.Exec(t.Context(), "NOTIFY news, 'from here'")
	wantCode(t, err, "40003")
	wantNews("from here")
}

func TestCancelRequestsReachTheServer(t *testing.T) {
	b := newBench(t)
	conn := b.dial()
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT pg_sleep(1000)")
		done <- err
	}()
	var sleeps int
	for sleeps == 0 {
		if err := b.direct.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()").Scan(&sleeps); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-done, "57014")
	wantStatus(t, conn, 'I')
}

func TestFail(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench, way pgx.QueryExecMode) {
		conn := b.dial()
		rule := b.Add(Rule{Match: inserts, Nth: 2, Do: Fail("40001")})
		mustExec(t, conn, insert, way, "1")
		_, err := conn.Exec(t.Context(), insert, way, "2")
		wantCode(t, err, "40001")
		wantStatus(t, conn, 'I')
		mustExec(t, conn, insert, way, "3")
		b.rows("1", "3")
		b.fired(rule, 1)
	})
}

func TestFailAbortsTheTransaction(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench, way pgx.QueryExecMode) {
		conn := b.dial()
		b.Add(Rule{Match: inserts, Nth: 2, Do: Fail("40001")})
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		mustExec(t, conn, insert, way, "1")
		_, err = tx.Exec(t.Context(), insert, way, "2")
		wantCode(t, err, "40001")
		wantStatus(t, conn, 'E')
		_, err = tx.Exec(t.Context(), insert, way, "3")
		wantCode(t, err, "25P02")
		if err := tx.Commit(t.Context()); !errors.Is(err, pgx.ErrTxCommitRollback) {
			t.Errorf("commit: %v", err)
		}
		wantStatus(t, conn, 'I')
		b.rows()
	})
}

func TestFailOfCommitRollsBack(t *testing.T) {
	b := newBench(t)
	conn := b.dial()
	rule := b.Add(Rule{Match: commitsRE, Times: 2, Do: Fail("40001")})
	for range 2 { // again on the same connection
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		mustExec(t, conn, insert, "1")
		wantCode(t, tx.Commit(t.Context()), "40001")
		wantStatus(t, conn, 'I')
		b.rows()
	}
	b.fired(rule, 2)
}

// run sends statements in one pipeline and returns the error of each.
func run(t *testing.T, conn *pgx.Conn, statements ...string) []error {
	t.Helper()
	var batch pgx.Batch
	for _, sql := range statements {
		batch.Queue(sql)
	}
	results := conn.SendBatch(t.Context(), &batch)
	var errs []error
	for range statements {
		_, err := results.Exec()
		errs = append(errs, err)
	}
	_ = results.Close() // the first error once more
	return errs
}

func TestFailInABatch(t *testing.T) {
	b := newBench(t)
	conn := b.dial()
	b.Add(Rule{Match: inserts, Nth: 2, Do: Fail("40001")})
	errs := run(t, conn, "INSERT INTO rows VALUES ('1')", "INSERT INTO rows VALUES ('2')", "INSERT INTO rows VALUES ('3')")
	if errs[0] != nil {
		t.Errorf("the first: %v", errs[0])
	}
	wantCode(t, errs[1], "40001")
	wantStatus(t, conn, 'I')
	b.rows() // one implicit transaction
}

func TestFailOfCommitInABatch(t *testing.T) {
	b := newBench(t)
	conn := b.dial()
	b.Add(Rule{Match: commitsRE, Times: 2, Do: Fail("40001")})
	for range 2 {
		errs := run(t, conn, "BEGIN", "INSERT INTO rows VALUES ('1')", "COMMIT")
		if errs[0] != nil || errs[1] != nil {
			t.Errorf("before COMMIT: %v", errs)
		}
		wantCode(t, errs[2], "40001")
		wantStatus(t, conn, 'I')
		b.rows()
	}
	if errs := run(t, conn, "BEGIN", "INSERT INTO rows VALUES ('1')", "COMMIT"); errors.Join(errs...) != nil {
		t.Errorf("without a rule: %v", errs)
	}
	b.rows("1")
}

func TestFailAfter(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench, way pgx.QueryExecMode) {
		conn := b.dial()
		rule := b.Add(Rule{Match: inserts, Nth: 2, Do: FailAfter("40003")})
		mustExec(t, conn, insert, way, "1")
		_, err := conn.Exec(t.Context(), insert, way, "2")
		wantCode(t, err, "40003")
		wantStatus(t, conn, 'I')
		b.rows("1", "2")
		mustExec(t, conn, insert, way, "3")
		b.fired(rule, 1)
	})
}

func TestFailAfterAbortsAnOpenTransaction(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench, way pgx.QueryExecMode) {
		conn := b.dial()
		b.Add(Rule{Match: inserts, Do: FailAfter("40003")})
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(t.Context(), insert, way, "1")
		wantCode(t, err, "40003")
		wantStatus(t, conn, 'E')
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		wantStatus(t, conn, 'I')
		b.rows()
	})
}

func TestFailAfterCommit(t *testing.T) {
	b := newBench(t)
	conn := b.dial()
	b.Add(Rule{Match: commitsRE, Do: FailAfter("40003")})
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, conn, insert, "1")
	wantCode(t, tx.Commit(t.Context()), "40003")
	wantStatus(t, conn, 'I')
	b.rows("1")
}

func TestFailAfterInABatchCarriesOutAllOfIt(t *testing.T) {
	b := newBench(t)
	conn := b.dial()
	rule := b.Add(Rule{Match: inserts, Do: FailAfter("40003")})
	errs := run(t, conn, "INSERT INTO rows VALUES ('1')", "INSERT INTO rows VALUES ('2')")
	wantCode(t, errs[0], "40003")
	b.rows("1", "2") // one implicit transaction
	b.fired(rule, 1)
	wantStatus(t, conn, 'I')
}

func TestOneActionInAPipeline(t *testing.T) {
	b := newBench(t)
	conn := b.dial()
	b.Add(Rule{Match: inserts, Nth: 1, Do: FailAfter("40003")})
	other := b.Add(Rule{Match: inserts, Nth: 2, Do: Fail("40001")})
	errs := run(t, conn, "INSERT INTO rows VALUES ('1')", "INSERT INTO rows VALUES ('2')")
	wantCode(t, errs[0], "40003")
	b.rows("1", "2")
	b.fired(other, 0)
}

func TestFailAfterOfCopy(t *testing.T) {
	b := newBench(t)
	conn := b.dial()
	b.Add(Rule{Match: regexp.MustCompile(`(?i)^copy`), Do: FailAfter("40003")})
	_, err := conn.CopyFrom(t.Context(), pgx.Identifier{"rows"}, []string{"id"}, pgx.CopyFromRows([][]any{{"1"}}))
	wantCode(t, err, "40003")
	b.rows("1")
}

func TestFatalErrorsEndTheConnection(t *testing.T) {
	for name, c := range map[string]struct {
		do   Action
		rows []string
	}{
		"before": {Fail("57P01"), nil},
		"after":  {FailAfter("57P01"), []string{"1"}},
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, b *bench, way pgx.QueryExecMode) {
				conn := b.dial()
				b.Add(Rule{Match: inserts, Do: c.do})
				_, err := conn.Exec(t.Context(), insert, way, "1")
				wantCode(t, err, "57P01")
				if !conn.IsClosed() {
					t.Error("the connection is open")
				}
				b.rows(c.rows...)
			})
		})
	}
}

func TestFatalErrorsEndTheTransaction(t *testing.T) {
	b := newBench(t)
	b.Add(Rule{Match: inserts, Nth: 2, Do: Fail("57P01")})
	conn, err := b.dial().PgConn().Hijack() // a client that leaves the connection as it is
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{"BEGIN", "INSERT INTO rows VALUES ('1')", "INSERT INTO rows VALUES ('2')"} {
		conn.Frontend.Send(&pgproto3.Query{String: sql})
	}
	if err := conn.Frontend.Flush(); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := conn.Frontend.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := m.(*pgproto3.ErrorResponse); ok {
			break
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := b.direct.Exec(ctx, insert, "1"); err != nil { // waits for the transaction that has the row
		t.Error(err)
	}
	_ = conn.Conn.Close()
}

func TestResetBefore(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench, way pgx.QueryExecMode) {
		conn := b.dial()
		rule := b.Add(Rule{Match: inserts, Nth: 2, Do: ResetBefore()})
		mustExec(t, conn, insert, way, "1")
		_, err := conn.Exec(t.Context(), insert, way, "2")
		wantReset(t, conn, err)
		b.rows("1")
		b.fired(rule, 1)
	})
}

func TestResetAfter(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench, way pgx.QueryExecMode) {
		conn := b.dial()
		rule := b.Add(Rule{Match: inserts, Nth: 2, Do: ResetAfter()})
		mustExec(t, conn, insert, way, "1")
		_, err := conn.Exec(t.Context(), insert, way, "2")
		wantReset(t, conn, err)
		b.rows("1", "2")
		b.fired(rule, 1)
	})
}

func TestResetIsAReset(t *testing.T) {
	b := newBench(t)
	b.Add(Rule{Match: inserts, Nth: 1, Do: ResetBefore()})
	b.Add(Rule{Match: inserts, Do: ResetAfter()})
	for range 2 {
		if _, err := b.dial().Exec(t.Context(), insert, "1"); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("got error %v, want %v", err, syscall.ECONNRESET)
		}
	}
	b.rows("1")
}

func TestResetAroundCommit(t *testing.T) {
	for name, c := range map[string]struct {
		do   Action
		rows []string
	}{
		"before": {ResetBefore(), nil},
		"after":  {ResetAfter(), []string{"1"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			conn := b.dial()
			b.Add(Rule{Match: commitsRE, Do: c.do})
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			mustExec(t, conn, insert, "1")
			wantReset(t, conn, tx.Commit(t.Context()))
			b.rows(c.rows...)
		})
	}
}

func TestResetAfterInABatch(t *testing.T) {
	b := newBench(t)
	conn := b.dial()
	b.Add(Rule{Match: inserts, Nth: 2, Do: ResetAfter()})
	errs := run(t, conn, "INSERT INTO rows VALUES ('1')", "INSERT INTO rows VALUES ('2')", "INSERT INTO rows VALUES ('3')")
	wantReset(t, conn, errs[1])
	b.rows("1", "2", "3")
}

func TestStall(t *testing.T) {
	for name, c := range map[string]struct {
		do       func(<-chan struct{}) Action
		meantime []string
	}{
		"before": {Stall, nil},
		"after":  {StallAfter, []string{"1"}},
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, b *bench, way pgx.QueryExecMode) {
				conn, release := b.dial(), make(chan struct{})
				rule := b.Add(Rule{Match: inserts, Do: c.do(release)})
				done := make(chan error, 1)
				go func() {
					_, err := conn.Exec(context.Background(), insert, way, "1")
					done <- err
				}()
				rule.Wait(t, 1)
				b.rows(c.meantime...)
				select {
				case err := <-done:
					t.Errorf("the statement ended while stalled: %v", err)
				default:
				}
				close(release)
				if err := <-done; err != nil {
					t.Error(err)
				}
				b.rows("1")
				wantStatus(t, conn, 'I')
			})
		})
	}
}

func TestStalledStatementArrivesAfterItsClientHasGone(t *testing.T) {
	const sql = "INSERT INTO rows VALUES ('1')"
	for name, messages := range map[string][]pgproto3.FrontendMessage{
		"simple":   {&pgproto3.Query{String: sql}},
		"extended": {&pgproto3.Parse{Query: sql}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			release := make(chan struct{})
			rule := b.Add(Rule{Match: inserts, Do: Stall(release)})
			// Not by a context: then pgx also sends a cancel request, which may or may not come too late.
			conn, err := b.dial().PgConn().Hijack()
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range messages {
				conn.Frontend.Send(m)
			}
			if err := conn.Frontend.Flush(); err != nil {
				t.Fatal(err)
			}
			rule.Wait(t, 1)
			if err := conn.Conn.Close(); err != nil {
				t.Fatal(err)
			}
			b.rows()
			close(release)
			for n := 0; n == 0; { // it is on its way
				if err := b.direct.QueryRow(t.Context(), "SELECT count(*) FROM rows").Scan(&n); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestStalledStatementCanBeGivenUp(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench, way pgx.QueryExecMode) {
		conn := b.dial()
		rule := b.Add(Rule{Match: inserts, Do: Stall(nil)})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			rule.Wait(t, 1)
			cancel()
		}()
		if _, err := conn.Exec(ctx, insert, way, "1"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that the context ended it", err)
		}
		b.rows()
	})
}

func TestStallForEverEndsWithTheTest(t *testing.T) {
	done := make(chan error, 1)
	t.Run("user", func(t *testing.T) {
		b := newBench(t)
		conn, err := pgx.Connect(t.Context(), b.DSN()) // closed by its failure
		if err != nil {
			t.Fatal(err)
		}
		rule := b.Add(Rule{Match: inserts, Do: Stall(nil)})
		go func() {
			_, err := conn.Exec(context.Background(), insert, "1")
			done <- err
		}()
		rule.Wait(t, 1)
	})
	if err := <-done; err == nil {
		t.Error("a stalled statement succeeded")
	}
}

func TestAnswer(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench, way pgx.QueryExecMode) {
		conn := b.dial()
		version := b.Add(Rule{Match: regexp.MustCompile(`^SELECT version\(\)`),
			Do: Answer("SELECT 1", []string{"version"}, []any{"CockroachDB 'CCL' v25"})})
		regions := b.Add(Rule{Match: regexp.MustCompile(`^SHOW REGIONS`),
			Do: Answer("SHOW REGIONS 2", []string{"region", "zones", "primary", "note"},
				[]any{"a", 3, true, nil}, []any{"b", int64(1), false, "x"})})
		none := b.Add(Rule{Match: regexp.MustCompile(`^SHOW NOTHING`), Do: Answer("SHOW NOTHING 0", []string{"a", "b"})})
		split := b.Add(Rule{Match: regexp.MustCompile(`SPLIT AT VALUES`), Do: Answer("ALTER TABLE SPLIT", nil)})

		var text string
		if err := conn.QueryRow(t.Context(), "SELECT version()", way).Scan(&text); err != nil || text != "CockroachDB 'CCL' v25" {
			t.Errorf("version: %q, %v", text, err)
		}
		type region struct {
			Name    string
			Zones   int
			Primary bool
			Note    *string
		}
		rows, err := conn.Query(t.Context(), "SHOW REGIONS FROM DATABASE", way)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[region])
		if err != nil || len(got) != 2 || got[0].Name != "a" || got[0].Zones != 3 || !got[0].Primary || got[0].Note != nil ||
			got[1].Name != "b" || got[1].Zones != 1 || got[1].Primary || *got[1].Note != "x" {
			t.Errorf("regions: %+v, %v", got, err)
		}
		if tag := rows.CommandTag().String(); tag != "SHOW REGIONS 2" {
			t.Errorf("tag %q", tag)
		}
		if err := conn.QueryRow(t.Context(), "SHOW NOTHING", way).Scan(&text, &text); !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("no rows: %v", err)
		}
		tag, err := conn.Exec(t.Context(), "ALTER TABLE rows SPLIT AT VALUES ('\\x40')", way)
		if err != nil || tag.String() != "ALTER TABLE SPLIT" {
			t.Errorf("split: %q, %v", tag, err)
		}
		for _, a := range []*Added{version, regions, none, split} {
			b.fired(a, 1)
		}
		// What is not answered has its own tag.
		if tag, err := conn.Exec(t.Context(), insert, way, "1"); err != nil || tag.String() != "INSERT 0 1" {
			t.Errorf("insert: %q, %v", tag, err)
		}
	})
}

func TestAnswerInATransaction(t *testing.T) {
	b := newBench(t)
	conn := b.dial()
	b.Add(Rule{Match: regexp.MustCompile(`SPLIT AT`), Do: Answer("ALTER TABLE SPLIT", nil)})
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, conn, insert, "1")
	mustExec(t, conn, "ALTER TABLE rows SPLIT AT VALUES (1)")
	wantStatus(t, conn, 'T')
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	b.rows("1")
}

func TestRewrite(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench, way pgx.QueryExecMode) {
		conn := b.dial()
		rule := b.Add(Rule{Match: regexp.MustCompile(` LOCALITY REGIONAL BY TABLE IN "[^"]*"`), Do: Rewrite("")})
		fail := b.Add(Rule{Match: regexp.MustCompile(`LOCALITY`), Times: 1, Do: Fail("40001")}) // sees what the client sent
		const create = `CREATE TABLE here (id int) LOCALITY REGIONAL BY TABLE IN "us-east1"`
		_, err := conn.Exec(t.Context(), create, way)
		wantCode(t, err, "40001")
		mustExec(t, conn, create, way)
		mustExec(t, b.direct, "SELECT id FROM here")
		b.fired(fail, 1)
		if rule.Fired() == 0 {
			t.Error("the rule did not act")
		}
	})
}

func TestConnect(t *testing.T) {
	b := newBench(t)
	full := b.Add(Rule{Connect: true, Times: 2, Do: Fail("53300")})
	for range 2 {
		_, err := pgx.Connect(t.Context(), b.DSN())
		wantCode(t, err, "53300")
	}
	mustExec(t, b.dial(), insert, "1")
	b.fired(full, 2)

	conn := b.dial()
	statements := b.Add(Rule{Do: Fail("40001")})
	b.dial()
	b.Remove(statements)
	connections := b.Add(Rule{Connect: true, Do: Fail("53300")})
	mustExec(t, conn, "SELECT 1")
	b.Remove(connections)
	b.fired(statements, 0)
	b.fired(connections, 0)

	b.Add(Rule{Connect: true, Times: 1, Do: ResetBefore()})
	if _, err := pgx.Connect(t.Context(), b.DSN()); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a connection reset", err)
	}
	release := make(chan struct{})
	slow := b.Add(Rule{Connect: true, Do: Stall(release)})
	go func() {
		slow.Wait(t, 1)
		close(release)
	}()
	mustExec(t, b.dial(), insert, "2")
	b.rows("1", "2")
}

func TestProbabilityIsSeeded(t *testing.T) {
	acted := func(seed uint64) string {
		b := newBench(t)
		conn := b.dial()
		rule := b.Add(Rule{Match: inserts, Probability: 0.3, Seed: seed, Do: Fail("40001")})
		var pattern strings.Builder
		for i := range 100 {
			if _, err := conn.Exec(t.Context(), insert, fmt.Sprint(i)); err != nil {
				wantCode(t, err, "40001")
				pattern.WriteString("x")
			} else {
				pattern.WriteString(".")
			}
		}
		b.fired(rule, strings.Count(pattern.String(), "x"))
		return pattern.String()
	}
	first := acted(1)
	if n := strings.Count(first, "x"); n < 15 || n > 45 {
		t.Errorf("acted on %d of 100, want about 30", n)
	}
	if again := acted(1); again != first {
		t.Errorf("the same seed gave\n%s, then\n%s", first, again)
	}
	if other := acted(2); other == first {
		t.Errorf("another seed gave the same: %s", first)
	}
}

func TestTheFirstRuleThatAppliesActs(t *testing.T) {
	b := newBench(t)
	conn := b.dial()
	first := b.Add(Rule{Match: inserts, Nth: 2, Do: Fail("40001")})
	second := b.Add(Rule{Match: inserts, Do: Fail("40003")})
	for i, want := range []string{"40003", "40001", "40003"} {
		_, err := conn.Exec(t.Context(), insert, fmt.Sprint(i))
		wantCode(t, err, want)
	}
	b.fired(first, 1)
	b.fired(second, 2)
	b.Remove(second)
	mustExec(t, conn, insert, "removed")
	b.Add(Rule{Do: Fail("40001")})
	b.Clear()
	mustExec(t, conn, insert, "cleared")
	b.rows("cleared", "removed")
}

func TestServerThatDiesIsAConnectionClosed(t *testing.T) {
	server := pgtest.New(t, pgtest.Fast)
	p := New(t, server.NewDatabase(t))
	conn := pgtest.Dial(t, p.DSN())
	server.Kill(t)
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err == nil || !conn.IsClosed() {
		t.Errorf("got %v, want a connection closed", err)
	}
	if _, err := pgx.Connect(t.Context(), p.DSN()); err == nil {
		t.Error("connected to a server that is down")
	}
	server.Start(t)
	mustExec(t, pgtest.Dial(t, p.DSN()), "SELECT 1")
}
