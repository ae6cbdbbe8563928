package sqlstore

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
)

// BenchmarkAbsent claims absent keys with six buckets that can hold a key, and with one, with
// the same number of rows in all.
func BenchmarkAbsent(b *testing.B) {
	rows := scaled(600_000)
	server := benchServer(b)
	spread := func(buckets int) *Store {
		dsn := server.NewDatabase(b)
		s := benchStore(b, dsn, Options{})
		conn := dial(b, dsn)
		home := homeNow(s, store.TierDay)
		fillTable(b, conn, home.table("local"), home.start, rows/buckets)
		for id := home.previous(); buckets > 1; id, buckets = id.previous(), buckets-1 {
			addBucket(b, conn, id, rows/buckets)
		}
		if err := s.CatchUp(b.Context()); err != nil {
			b.Fatal(err)
		}
		return s
	}
	one, six := spread(1), spread(6)
	for b.Loop() {
		alone := func(name string, s *Store) *variant {
			return &variant{name: name, measure: func(d time.Duration) float64 {
				return p50(d, func() { benchClaim(b, s, benchID()) })
			}}
		}
		many := func(name string, s *Store) *variant {
			return &variant{name: name, measure: func(d time.Duration) float64 {
				return float64(benchCallers) / rate(benchCallers, d, func() { benchClaim(b, s, benchID()) }) * 1e6
			}}
		}
		v := []*variant{alone("alone, 1 bucket", one), alone("alone, 6 buckets", six), many("256 callers, 1 bucket", one), many("256 callers, 6 buckets", six)}
		rounds(v...)
		table("ABSENT CLAIM\tTAKES\tOF 1 BUCKET",
			fmt.Sprintf("%s\t%.0f µs", v[0].name, median(v[0].values)),
			fmt.Sprintf("%s\t%.0f µs\t%.2f times", v[1].name, median(v[1].values), ratio(v[1], v[0])),
			fmt.Sprintf("%s\t%.0f µs", v[2].name, median(v[2].values)),
			fmt.Sprintf("%s\t%.0f µs\t%.2f times", v[3].name, median(v[3].values), ratio(v[3], v[2])))
		b.ReportMetric(ratio(v[1], v[0]), "x-alone")
		b.ReportMetric(ratio(v[3], v[2]), "x-256-callers")
	}
}

// BenchmarkDropBucket retires and drops a bucket of a million records while 16 callers claim,
// and deletes as many rows from a table beside it. Window medians are compared.
func BenchmarkDropBucket(b *testing.B) {
	rows := scaled(1_000_000)
	server := benchServer(b)
	for b.Loop() {
		dsn := server.NewDatabase(b)
		s := benchStore(b, dsn, Options{MaintainEvery: -1})
		conn := dial(b, dsn)
		execute(b, conn, "CREATE TABLE beside ("+bucketColumns+") WITH (fillfactor = 70)")
		old := bucketAt(store.TierDay, s.clock.estimate()-(store.TierDay.MaxAttempt()+store.TierDay.MaxRetention()+3*store.TierDay.BucketWidth()).Microseconds())
		fillTable(b, conn, "beside", old.start, rows)
		addBucket(b, conn, old, rows)
		execute(b, conn, "CHECKPOINT")
		if err := s.CatchUp(b.Context()); err != nil {
			b.Fatal(err)
		}
		full := databaseBytes(b, conn)
		perRow := bytesOf(b, conn, old.table("local")) / float64(rows)

		load := startLoad(b, s, 16)
		before := load.windows(20)
		retire := load.windowsWhile(func() { maintain(b, s) })
		waited := time.Now()
		var drop []float64
		for relation(b, conn, old.table("local")) {
			if time.Since(waited) > 2*time.Minute {
				b.Fatal("the bucket is still there")
			}
			load.windows(5)
			drop = load.windowsWhile(func() { maintain(b, s) })
		}
		after := load.windows(20)
		dropped := databaseBytes(b, conn)
		begun := time.Now()
		deletes := load.windowsWhile(func() { execute(b, conn, "DELETE FROM beside") })
		deleteTook := time.Since(begun)
		deleted := databaseBytes(b, conn)
		load.stop()

		base := median(before)
		row := func(name string, windows []float64, bytes float64) string {
			return fmt.Sprintf("%s\t%.0f µs\t%.2f times\t%.2f times\t%.0f MB", name, median(windows), median(windows)/base, slices.Max(windows)/base, bytes/1e6)
		}
		table(fmt.Sprintf("A BUCKET OF %d ROWS OF %.0f BYTES\tCLAIM\tOF BEFORE\tWORST\tDATABASE", rows, perRow),
			row("before", before, full), row("while it is retired", retire, full), row("while it is dropped", drop, dropped),
			row("afterwards", after, dropped),
			row(fmt.Sprintf("while as many rows are deleted (%.1f s)", deleteTook.Seconds()), deletes, deleted))
		b.ReportMetric(median(retire)/base, "x-retire")
		b.ReportMetric(median(drop)/base, "x-drop")
		b.ReportMetric(median(after)/base, "x-after")
		b.ReportMetric(median(deletes)/base, "x-delete")
		b.ReportMetric((full-dropped)/1e6, "MB-back")
		b.ReportMetric(perRow, "B/row")
	}
}

func maintain(b *testing.B, s *Store) {
	if _, err := s.Maintain(b.Context()); err != nil {
		b.Error(err)
	}
}

func databaseBytes(b *testing.B, conn *pgx.Conn) (n float64) {
	b.Helper()
	if err := conn.QueryRow(b.Context(), "SELECT pg_database_size(current_database())::float8").Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// bytesOf is what a table takes with its index.
func bytesOf(b *testing.B, conn *pgx.Conn, name string) (n float64) {
	b.Helper()
	if err := conn.QueryRow(b.Context(), "SELECT pg_total_relation_size($1::regclass)::float8", name).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// benchLoad claims and releases one key a caller without end, so that it adds little to the
// disk, and keeps how long each claim took.
type benchLoad struct {
	workers sync.WaitGroup
	stopped atomic.Bool

	mu   sync.Mutex
	took []float64 // µs, of the window that runs
}

func startLoad(b *testing.B, s *Store, callers int) *benchLoad {
	l := &benchLoad{}
	for i := range callers {
		l.workers.Go(func() {
			req := benchRequest(fmt.Sprint("load-", i))
			for n := 0; !l.stopped.Load(); n++ {
				req.AttemptID = strconv.Itoa(n)
				if !l.visit(b, s, req) {
					return
				}
			}
		})
	}
	return l
}

func (l *benchLoad) visit(b *testing.B, s *Store, req store.ClaimRequest) bool {
	begun := time.Now()
	answer, err := s.Claim(b.Context(), req)
	took := float64(time.Since(begun).Nanoseconds()) / 1000
	if err != nil || answer.Granted == nil {
		b.Errorf("got %+v, %v; want granted", answer, err)
		return false
	}
	l.mu.Lock()
	l.took = append(l.took, took)
	l.mu.Unlock()
	_, err = s.Release(b.Context(), store.ReleaseRequest{
		Key: req.Key, AttemptID: req.AttemptID, Fence: answer.Granted.Fence, Effect: store.EffectNone,
	})
	if err != nil {
		b.Error(err)
	}
	return err == nil
}

func (l *benchLoad) stop() {
	l.stopped.Store(true)
	l.workers.Wait()
}

// window lasts a tenth of a second and returns the median of its claims.
func (l *benchLoad) window() float64 {
	l.mu.Lock()
	l.took = l.took[:0]
	l.mu.Unlock()
	time.Sleep(100 * time.Millisecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.took) == 0 {
		return 100_000 // nothing was answered
	}
	return median(l.took)
}

func (l *benchLoad) windows(n int) (medians []float64) {
	for range n {
		medians = append(medians, l.window())
	}
	return medians
}

// windowsWhile takes windows until f has returned, at least one.
func (l *benchLoad) windowsWhile(f func()) (medians []float64) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	for {
		medians = append(medians, l.window())
		select {
		case <-done:
			return medians
		default:
		}
	}
}
