package sqlstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// The benchmarks here compare: each takes its variants in alternating rounds on one
// PostgreSQL that syncs what it commits, and prints the medians and the medians of the rounds'
// ratios. Run one with
//
//	go test ./store/sqlstore -run XXX -bench Pairs -benchtime 1x
//
// on a machine that has nothing else to do. With -short they only show that they run.

// benchCallers is how many callers work at once where many do.
const benchCallers = 256

// benchTimes are how many rounds there are, and how long each variant has in each.
func benchTimes() (rounds int, each time.Duration) {
	if testing.Short() {
		return 1, 500 * time.Millisecond
	}
	return 7, 2 * time.Second
}

// benchServer is PostgreSQL with memory and WAL as a small server would have them.
func benchServer(b *testing.B) *pgtest.Server {
	return pgtest.New(b, pgtest.Durable, "shared_buffers='256MB'", "max_wal_size='4GB'", "checkpoint_timeout='30min'")
}

func benchStore(b *testing.B, dsn string, opts Options) *Store {
	b.Helper()
	migrateUp(b, dsn, opts)
	s := open(b, dsn, opts)
	b.Cleanup(func() { closeStore(b, s) })
	return s
}

func benchRequest(id string) store.ClaimRequest {
	return store.ClaimRequest{
		Key:         store.Key{Namespace: store.DefaultNamespace, Scope: "/bank.v1.Transfers/Create", ID: id, Entity: "account-1"},
		AttemptID:   "0123456789abcdef",
		Fingerprint: store.Fingerprint{Version: 1, Digest: "0123456789abcdef0123456789abcdef"},
	}
}

var benchOutcome = &store.Outcome{Body: make([]byte, 100), BodyType: "bank.v1.Transfer"}

func benchClaim(b *testing.B, s *Store, id string) (fence int64) {
	answer, err := s.Claim(b.Context(), benchRequest(id))
	if err != nil || answer.Granted == nil {
		b.Errorf("claim: %+v, %v; want granted", answer, err)
		return 0
	}
	return answer.Granted.Fence
}

func benchPair(b *testing.B, s *Store, id string) {
	fence := benchClaim(b, s, id)
	req := benchRequest(id)
	_, err := s.Complete(b.Context(), store.CompleteRequest{Key: req.Key, AttemptID: req.AttemptID, Fence: fence, Outcome: benchOutcome})
	if err != nil {
		b.Error(err)
	}
}

var benchSerial atomic.Int64

// benchID is an id that was never used.
func benchID() string { return "order-" + strconv.FormatInt(benchSerial.Add(1), 10) }

// rate lets callers repeat op for a time, and returns how often a second it was done.
func rate(callers int, d time.Duration, op func()) float64 {
	var done atomic.Int64
	var workers sync.WaitGroup
	begun := time.Now()
	for range callers {
		workers.Go(func() {
			for time.Since(begun) < d {
				op()
				done.Add(1)
			}
		})
	}
	workers.Wait()
	return float64(done.Load()) / time.Since(begun).Seconds()
}

// p50 lets one caller repeat op for a time, and returns how many µs it took in the median.
func p50(d time.Duration, op func()) float64 {
	var took []float64
	for begun := time.Now(); time.Since(begun) < d; {
		start := time.Now()
		op()
		took = append(took, float64(time.Since(start).Nanoseconds())/1000)
	}
	return median(took)
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// variant is one of the things that a benchmark compares. Measure takes so long.
type variant struct {
	name    string
	measure func(time.Duration) float64
	values  []float64
}

// rounds measures all variants in alternation.
func rounds(variants ...*variant) {
	n, each := benchTimes()
	for range n {
		for _, v := range variants {
			v.values = append(v.values, v.measure(each))
		}
	}
}

// ratio is the median of the rounds' ratios of one variant to another.
func ratio(of, to *variant) float64 {
	ratios := make([]float64, len(of.values))
	for i := range ratios {
		ratios[i] = of.values[i] / to.values[i]
	}
	return median(ratios)
}

// table prints rows of cells, separated by tabs.
func table(rows ...string) {
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw)
	for _, row := range rows {
		fmt.Fprintln(tw, row)
	}
	_ = tw.Flush()
}

// BenchmarkPairs measures pairs of a Claim and its Complete by many callers, with batches and
// with a statement for each operation, and pgbench doing the insert and the update by hand.
func BenchmarkPairs(b *testing.B) {
	server := benchServer(b)
	coalesced := benchStore(b, server.NewDatabase(b), Options{})
	single := benchStore(b, server.NewDatabase(b), Options{MaxBatch: 1})
	pairs := func(name string, s *Store) *variant {
		return &variant{name: name, measure: func(d time.Duration) float64 {
			return rate(benchCallers, d, func() { benchPair(b, s, benchID()) })
		}}
	}
	hand := newPgbench(b, server)
	for b.Loop() {
		together, apart := pairs("coalesced", coalesced), pairs("MaxBatch 1", single)
		variants := []*variant{together, apart}
		for _, conns := range []int{16, 32, 64} {
			variants = append(variants, &variant{
				name:    fmt.Sprintf("pgbench -M prepared, %d connections", conns),
				measure: func(d time.Duration) float64 { return hand.pairs(b, conns, d) },
			})
		}
		rounds(variants...)
		best := slices.MaxFunc(variants[2:], func(x, y *variant) int { return cmp.Compare(median(x.values), median(y.values)) })
		rows := []string{"VARIANT\tPAIRS/S\tCOALESCED IS"}
		for _, v := range variants {
			rows = append(rows, fmt.Sprintf("%s\t%.0f\t%.2f times", v.name, median(v.values), ratio(together, v)))
		}
		table(rows...)
		b.ReportMetric(median(together.values), "pairs/s")
		b.ReportMetric(ratio(together, apart), "x-MaxBatch-1")
		b.ReportMetric(ratio(together, best), "x-pgbench")
	}
}

// pgbench is the same work written by hand: an INSERT, and an UPDATE guarded by fence, attempt
// and state, each a transaction, on a table like a bucket's with a payload of the same size.
type pgbench struct{ program, dsn, script string }

func newPgbench(b *testing.B, server *pgtest.Server) *pgbench {
	p := &pgbench{program: pgtest.Program(b, "pgbench"), dsn: server.NewDatabase(b), script: filepath.Join(b.TempDir(), "pair.sql")}
	execute(b, dial(b, p.dsn), "CREATE TABLE hand ("+bucketColumns+") WITH (fillfactor = 70)")
	row := handRow(b)
	text := `\set id random(1, 9000000000000000000)
` + handInsert(":id::int8", row) + `;
UPDATE hand SET state = 2, outcome = ` + row.outcome + `, outcome_digest = ` + row.outcomeDigest + `,
  ended_at = (extract(epoch from now()) * 1000000)::int8, expires_at = (extract(epoch from now()) * 1000000)::int8 + retention
WHERE digest = sha256(int8send(:id::int8)) AND fence = :id::int8 AND attempt = ` + row.attempt + ` AND state = 1;
`
	if err := os.WriteFile(p.script, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	return p
}

// handPayload are the literals of a row as the benchmarks' requests make it.
type handPayload struct{ key, attempt, fp, outcome, outcomeDigest string }

func handRow(b *testing.B) handPayload {
	b.Helper()
	literal := func(v []byte) string { return fmt.Sprintf(`'\x%x'::bytea`, v) }
	req := benchRequest("order-123456")
	outcome, digest, err := outcomeArgs(benchOutcome, benchOutcome.Digest())
	if err != nil {
		b.Fatal(err)
	}
	return handPayload{
		key: literal(req.Key.AppendEncoded(nil)), attempt: literal([]byte(req.AttemptID)), fp: literal([]byte(req.Fingerprint.Digest)),
		outcome: literal(outcome), outcomeDigest: literal(digest),
	}
}

func handInsert(id string, row handPayload) string {
	const us = "(extract(epoch from now()) * 1000000)::int8"
	return `INSERT INTO hand (digest, key, state, fence, attempt, attempt_number, fp_version, fp,
  granted_at, lease_end, attempt_limit, expires_at, lapse_policy, retention)
VALUES (sha256(int8send(` + id + `)), ` + row.key + `, 1, ` + id + `, ` + row.attempt + `, 1, 1, ` + row.fp + `,
  ` + us + `, ` + us + ` + 30000000, ` + us + ` + 3600000000, ` + us + ` + 86430000000, 1, 86400000000)`
}

var tps = regexp.MustCompile(`(?m)^tps = ([0-9.]+)`)

// pairs runs pgbench for a time of whole seconds, and returns its pairs per second.
func (p *pgbench) pairs(b *testing.B, conns int, d time.Duration) float64 {
	seconds := strconv.Itoa(int(max(d, time.Second).Seconds()))
	cmd := exec.CommandContext(b.Context(), p.program, "-n", "-M", "prepared",
		"-c", strconv.Itoa(conns), "-j", "2", "-T", seconds, "-f", p.script, p.dsn)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	match := tps.FindSubmatch(out)
	if err != nil || match == nil {
		b.Fatalf("pgbench: %v\n%s%s", err, out, stderr.String())
	}
	n, err := strconv.ParseFloat(string(match[1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// BenchmarkLone measures the Claims of a caller that is alone, and a prepared INSERT of one
// row of the same size, which is the least that a database asks for.
func BenchmarkLone(b *testing.B) {
	server := benchServer(b)
	s := benchStore(b, server.NewDatabase(b), Options{})
	insert := loneInsert(b, server.NewDatabase(b))
	for b.Loop() {
		claim := &variant{name: "Claim", measure: func(d time.Duration) float64 {
			return p50(d, func() { benchClaim(b, s, benchID()) })
		}}
		plain := &variant{name: "prepared INSERT", measure: func(d time.Duration) float64 { return p50(d, insert) }}
		rounds(plain, claim)
		table("LONE CALLER\tP50", fmt.Sprintf("%s\t%.0f µs", plain.name, median(plain.values)),
			fmt.Sprintf("%s\t%.0f µs\t%.2f times", claim.name, median(claim.values), ratio(claim, plain)))
		b.ReportMetric(median(claim.values), "µs-claim")
		b.ReportMetric(ratio(claim, plain), "x-insert")
	}
}

func loneInsert(b *testing.B, dsn string) func() {
	conn := dial(b, dsn)
	execute(b, conn, "CREATE TABLE hand ("+bucketColumns+") WITH (fillfactor = 70)")
	if _, err := conn.Prepare(b.Context(), "insert", handInsert("$1::int8", handRow(b))); err != nil {
		b.Fatal(err)
	}
	return func() {
		if _, err := conn.Exec(b.Context(), "insert", benchSerial.Add(1)); err != nil {
			b.Error(err)
		}
	}
}

// addBucket makes an open bucket with rows that were completed in it.
func addBucket(b *testing.B, conn *pgx.Conn, id bucketID, rows int) {
	b.Helper()
	name := id.table("local")
	for _, statement := range (&postgres{}).createBucket(id, "local") {
		execute(b, conn, statement)
	}
	fillTable(b, conn, name, id.start, rows)
	execute(b, conn, "INSERT INTO idem_buckets (region, tier, start_us, state, changed_us) VALUES ('local', $1, $2, 1, 0)", int16(id.tier), id.start)
}

// fillTable adds completed rows, as of a time, under keys that nobody claims.
func fillTable(b *testing.B, conn *pgx.Conn, name string, at int64, rows int) {
	b.Helper()
	row := handRow(b)
	execute(b, conn, fmt.Sprintf(`INSERT INTO %s (digest, key, state, fence, attempt, attempt_number, fp_version, fp,
  granted_at, lease_end, attempt_limit, ended_at, expires_at, lapse_policy, retention, outcome, outcome_digest)
SELECT sha256(convert_to('%s' || i, 'UTF8')), %s, 2, %[4]d + i, %[5]s, 1, 1, %[6]s,
  %[4]d + i, %[4]d + i + 30000000, %[4]d + i + 3600000000, %[4]d + i, %[4]d + i + 86400000000, 1, 86400000000, %[7]s, %[8]s
FROM generate_series(1, %[9]d) AS i`, name, name, row.key, at, row.attempt, row.fp, row.outcome, row.outcomeDigest, rows))
	execute(b, conn, "ANALYZE "+name)
}

func scaled(n int) int {
	if testing.Short() {
		return n / 100
	}
	return n
}

// homeNow is the bucket of a tier in which a grant goes now.
func homeNow(s *Store, tier store.Tier) bucketID { return bucketAt(tier, s.clock.estimate()) }

func relation(b *testing.B, conn *pgx.Conn, name string) (exists bool) {
	b.Helper()
	if err := conn.QueryRow(context.WithoutCancel(b.Context()), "SELECT to_regclass($1) IS NOT NULL", strings.ToLower(name)).Scan(&exists); err != nil {
		b.Fatal(err)
	}
	return exists
}
