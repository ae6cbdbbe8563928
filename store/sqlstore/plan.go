package sqlstore

import (
	"fmt"
	"strings"
)

// plan are the statements for one home bucket. The numbers are those of the protocol in the
// package documentation. What comes from outside is in parameters; the names of tables and
// the clock's expressions are this package's.
type plan struct {
	home bucketID
	// searched are the buckets in which a key can be: the older ones, home, and the next one,
	// into which a clock that is ahead may have put it already. Oldest first.
	searched []bucketID
	older    []bucketID // of those

	claim  string // grants absent keys (1)
	one    string // the same for a single key, which costs the database less
	marker string // keeps the previous bucket from getting them (3); empty if there is none
	put    string // puts rows into home, in the place of those without a higher fence
	insert string // puts one whole row into home, under the same guards (6)
	find   string // reads rows (4), without events
	read   string // the same with events

	missing string // counts keys that put has left out although they have no higher fence
}

// texts makes the statements. They are the same on both databases.
type texts struct {
	region    string
	clock     SQLClock
	maxOffset int64
}

func newTexts(opts Options) texts {
	return texts{region: opts.Region, clock: opts.Clock, maxOffset: opts.Timing.MaxOffset.Microseconds()}
}

func (t texts) plan(home bucketID, open []bucketID) *plan {
	p := &plan{home: home}
	var older, others []string
	for _, b := range open {
		if b.start > home.next().start || seeded("next-bucket") && b.start > home.start {
			continue
		}
		p.searched = append(p.searched, b)
		if b.start < home.start || b.start > home.start && !seeded("import-next") {
			others = append(others, b.table(t.region))
		}
		if b.start < home.start && !seeded("older-buckets") {
			p.older = append(p.older, b)
			older = append(older, b.table(t.region))
		}
		if b == home.previous() {
			p.marker = t.marker(b)
		}
	}
	p.claim, p.one = t.claim(home, older, batchOfClaims), t.claim(home, older, oneClaim)
	p.insert, p.put = t.insert(home, older), t.put(home, others)
	p.missing = t.missing(home, p.searched)
	p.find = t.find(p.searched, recordColumns)
	p.read = t.find(p.searched, rowColumns)
	return p
}

// now is a FROM item with the transaction's time and the time at which it is evaluated.
func (t texts) now() string {
	return fmt.Sprintf("(SELECT %s AS us, %s AS running) AS t", us(t.clock.Now), us(t.clock.Running))
}

// newest is the newest time that the database has been told, as the statement's snapshot has it.
func (t texts) newest() string {
	return fmt.Sprintf("coalesce((SELECT newest_us FROM idem_clock WHERE region = '%s'), 0)", t.region)
}

// inTime is the guard against a time that is not the bucket's, that the transaction took too
// long ago, or that the clock shows for the second time (10). The parameters from n on: the
// earliest time, the end, the longest statement.
func (t texts) inTime(n int) string {
	return unless("time-in-home", fmt.Sprintf("t.us >= $%d::int8 AND t.us < $%d::int8", n, n+1)) +
		" AND " + unless("running", fmt.Sprintf("t.running < t.us + $%d::int8", n+2)) +
		" AND " + unless("barred", fmt.Sprintf("t.us >= %s - %d", t.newest(), t.maxOffset))
}

// nowhere is the guard that no older bucket has the key.
func nowhere(older []string, digest string) string {
	var b strings.Builder
	for _, table := range older {
		fmt.Fprintf(&b, "\n  AND NOT EXISTS (SELECT 1 FROM %s AS o WHERE o.digest = %s AND o.state <> %d)", table, digest, stateMoved)
	}
	return b.String()
}

// The claims that a claim statement gets: arrays, or one of each.
const (
	batchOfClaims = `unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::int8[], $5::bytea[], $6::int8[], $7::int8[], $8::int2[], $9::int8[], $10::int8[], $11::int8[])
    AS x(digest, key, attempt, fp_version, fp, lease, max_attempt, lapse_policy, retention, valid_from, valid_until)`
	oneClaim = `(SELECT $1::bytea AS digest, $2::bytea AS key, $3::bytea AS attempt, $4::int8 AS fp_version, $5::bytea AS fp, $6::int8 AS lease,
    $7::int8 AS max_attempt, $8::int2 AS lapse_policy, $9::int8 AS retention, $10::int8 AS valid_from, $11::int8 AS valid_until) AS x`
)

// claim grants keys that are nowhere, in the order of their digests. A row is granted only
// between its valid_from and valid_until: in between the decision is the same at any time. It names
// unsettled_since so that nothing is granted in a bucket without that, see columns.go.
func (t texts) claim(home bucketID, older []string, claims string) string {
	return fmt.Sprintf(`INSERT INTO %s (digest, key, state, fence, attempt, attempt_number, fp_version, fp,
  granted_at, lease_end, attempt_limit, expires_at, lapse_policy, retention, unsettled_since)
SELECT x.digest, x.key, 1, t.us, x.attempt, 1, x.fp_version, x.fp,
  t.us, t.us + x.lease, t.us + x.max_attempt,
  CASE WHEN x.lapse_policy = 1 THEN t.us + x.lease + x.retention END, x.lapse_policy, x.retention, NULL::int8
FROM %s,
  %s
WHERE %s
  AND t.us >= x.valid_from AND t.us < x.valid_until%s
ORDER BY %s
ON CONFLICT (digest) DO NOTHING
RETURNING digest, granted_at`, home.table(t.region), claims, t.now(), t.inTime(12), nowhere(older, "x.digest"), lockOrder("x.digest"))
}

// marker marks keys in a bucket, unless they have a row there.
func (t texts) marker(bucket bucketID) string {
	return fmt.Sprintf(`INSERT INTO %s (digest, state)
SELECT x.digest, %d FROM unnest($1::bytea[]) AS x(digest), %s
WHERE %s
ORDER BY %s
ON CONFLICT (digest) DO NOTHING`, bucket.table(t.region), stateMoved, t.now(), t.inTime(2), lockOrder("x.digest"))
}

// columnTypes are those of rowColumns.
var columnTypes = map[string]string{
	"state": "int2", "lapse_policy": "int2", "released_with": "int2", "attempt_number": "int4", "unsettled": "bool",
	"digest": "bytea", "key": "bytea", "attempt": "bytea", "fp": "bytea", "ended": "bytea", "outcome": "bytea", "outcome_digest": "bytea", "events": "bytea",
}

func columnType(name string) string {
	if t := columnTypes[name]; t != "" {
		return t
	}
	return "int8"
}

// rowParams are the parameters $1 to $23 for rowColumns, with their types. Arrays of them have
// the suffix "[]".
func rowParams(suffix string) []string {
	params := make([]string, len(rowColumns))
	for i, name := range rowColumns {
		params[i] = fmt.Sprintf("$%d::%s%s", i+1, columnType(name), suffix)
	}
	return params
}

// put puts rows into home, in the order of their digests, or in the place of rows there that
// have no higher fence. A key that is in another bucket, the next one included, is left out.
func (t texts) put(home bucketID, others []string) string {
	n := len(rowColumns)
	set := make([]string, 0, n)
	for _, name := range rowColumns[1:] {
		set = append(set, name+" = excluded."+name)
	}
	names := columns(rowColumns, "")
	return fmt.Sprintf(`INSERT INTO %s AS r (%s)
SELECT %s FROM unnest(%s) AS x(%s), %s
WHERE %s%s
ORDER BY %s
ON CONFLICT (digest) DO UPDATE SET %s WHERE r.state <> %d AND r.fence <= excluded.fence`,
		home.table(t.region), names, columns(rowColumns, "x"), strings.Join(rowParams("[]"), ", "), names, t.now(),
		t.inTime(n+1), nowhere(others, "x.digest"), lockOrder("x.digest"), strings.Join(set, ", "), stateMoved)
}

// missing counts the keys that put has not put, and of which there is no row with a higher fence
// either. Parameters: digests, fences.
func (t texts) missing(home bucketID, buckets []bucketID) string {
	var b strings.Builder
	b.WriteString("SELECT count(*)::int8 FROM unnest($1::bytea[], $2::int8[]) AS x(digest, fence) WHERE true")
	for _, bucket := range buckets {
		higher := ">"
		if bucket == home {
			higher = ">="
		}
		fmt.Fprintf(&b, "\n  AND NOT EXISTS (SELECT 1 FROM %s AS o WHERE o.digest = x.digest AND o.state <> %d AND o.fence %s x.fence)",
			bucket.table(t.region), stateMoved, higher)
	}
	return b.String()
}

// insert puts one row into home if the key is in no other bucket any more.
func (t texts) insert(home bucketID, older []string) string {
	n := len(rowColumns)
	return fmt.Sprintf(`INSERT INTO %s (%s)
SELECT %s FROM %s
WHERE %s%s
ON CONFLICT (digest) DO NOTHING`,
		home.table(t.region), columns(rowColumns, ""), strings.Join(rowParams(""), ", "), t.now(), t.inTime(n+1), nowhere(older, "$1::bytea"))
}

// nowRow is the number of the row that find always gives: its fence is the time, and its
// previous fence the newest one that the database has been told.
const nowRow = -1

// find reads the rows of keys from all buckets in one snapshot: bucket by bucket it would
// miss a row that moves. Of a bucket without unsettled_since (see columns.go) it reads NULL: the name
// means none's column only where the table has none.
func (t texts) find(buckets []bucketID, names []string) string {
	first := make([]string, len(names))
	for i, name := range names {
		first[i] = "NULL::" + columnType(name)
		switch {
		case name == "fence":
			first[i] = us(t.clock.Now)
		case name == "previous_fence":
			first[i] = t.newest()
		case columnType(name) == "bool":
			first[i] = "false"
		case name == "ended_at" || name == "expires_at" || name == "unsettled_since": // may be NULL
		case columnType(name) != "bytea":
			first[i] = "0::" + columnType(name)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "SELECT (%d)::int4, %s", nowRow, strings.Join(first, ", "))
	for i, bucket := range buckets {
		fmt.Fprintf(&b, `
UNION ALL SELECT %d::int4, r.* FROM (SELECT NULL::int8 AS unsettled_since) AS none,
  LATERAL (SELECT %s FROM %s WHERE digest = ANY($1) AND state <> %d) AS r`, i, columns(names, ""), bucket.table(t.region), stateMoved)
	}
	return b.String()
}

// bucketTexts are the statements on the rows of one bucket.
type bucketTexts struct {
	complete, renew, release string // batches (7)

	lock   string // one row, with the time
	update string // one row that lock has locked
	move   string // makes one row a marker

	replaced string // makes rows without a higher fence markers (a batch)
}

func (t texts) bucket(b bucketID) *bucketTexts {
	table := b.table(t.region)
	return &bucketTexts{
		complete: t.settle(table, "outcome bytea, outcome_digest bytea",
			// unsettled_since stays: unsettled decides, and a bucket may lack it (see columns.go).
			"state = 2, ended_at = t.us, expires_at = t.us + r.retention, unsettled = false, outcome = x.outcome, outcome_digest = x.outcome_digest",
			unless("attempt-limit", "t.us <= r.attempt_limit"), "r.expires_at"),
		renew: t.settle(table, "lease int8",
			"lease_end = "+renewedEnd+", expires_at = CASE WHEN r.lapse_policy = 1 THEN "+renewedEnd+" + r.retention END",
			"t.us < r.lease_end AND NOT (t.us + x.lease > r.attempt_limit AND r.lease_end = r.attempt_limit)", "r.lease_end"),
		release: t.settle(table, "ended bytea",
			"state = 3, ended_at = t.us, expires_at = t.us + r.retention, released_with = 1, ended = x.ended",
			"NOT r.unsettled AND r.ended = ''", "r.expires_at"),
		lock: fmt.Sprintf("SELECT %s, t.us, r.events FROM %s AS r, %s WHERE r.digest = $1 AND r.state <> %d FOR UPDATE OF r",
			columns(recordColumns, "r"), table, t.now(), stateMoved),
		update: t.update(table),
		move: fmt.Sprintf(`UPDATE %s AS r SET %s
FROM %s WHERE r.digest = $1 AND r.state <> %d AND %s`, table, toMarker, t.now(), stateMoved, t.inTime(2)),
		replaced: fmt.Sprintf(`UPDATE %s AS r SET %s
FROM (SELECT * FROM unnest($1::bytea[], $2::int8[]) AS u(digest, fence) ORDER BY %s) AS x, %s
WHERE r.digest = x.digest AND r.state <> %d AND r.fence <= x.fence AND %s`, table, toMarker, lockOrder("digest"), t.now(), stateMoved, t.inTime(3)),
	}
}

// toMarker is what of a row is set when it becomes a marker.
var toMarker = fmt.Sprintf("state = %d, key = '', attempt = '', fp = '', ended = '', outcome = NULL, outcome_digest = NULL, events = NULL", stateMoved)

const renewedEnd = "greatest(r.lease_end, least(t.us + x.lease, r.attempt_limit))"

// settle changes the rows of attempts that are in progress under their own fence; what it
// does not change is decided with the whole record. Rows are locked in the order of their
// digests, because the sorted batch is what the join begins with: the table can only be
// reached by a digest. Locking them first would write each twice. Parameters: digests, fences,
// attempts, until when each may act (11), one array for each further column, then the earliest
// time and the longest statement.
func (t texts) settle(table, further, set, guard, returned string) string {
	params, names := []string{"$1::bytea[]", "$2::int8[]", "$3::bytea[]", "$4::int8[]"}, []string{"digest", "fence", "attempt", "until"}
	for _, column := range strings.Split(further, ", ") {
		name, kind, _ := strings.Cut(column, " ")
		params = append(params, fmt.Sprintf("$%d::%s[]", len(params)+1, kind))
		names = append(names, name)
	}
	n := len(params)
	return fmt.Sprintf(`UPDATE %[1]s AS r SET %[2]s
FROM (SELECT * FROM unnest(%[3]s) AS u(%[4]s) ORDER BY %[10]s) AS x, %[5]s
WHERE r.digest = x.digest
  AND r.state = 1 AND r.fence = x.fence AND r.attempt = x.attempt AND r.released_with = 0
  AND (r.expires_at IS NULL OR t.us < r.expires_at)
  AND t.us >= $%[6]d::int8 AND t.running < t.us + $%[7]d::int8 AND %[11]s AND %[8]s
RETURNING r.digest, t.us, %[9]s`,
		table, set, strings.Join(params, ", "), strings.Join(names, ", "), t.now(), n+1, n+2, guard, returned, lockOrder("digest"),
		unless("old-namespace", "t.us < x.until"))
}

// update writes all columns of a row that the transaction has locked.
func (t texts) update(table string) string {
	params := rowParams("")
	set := make([]string, 0, len(params))
	for i, name := range rowColumns[1:] {
		set = append(set, name+" = "+params[i+1])
	}
	n := len(rowColumns)
	return fmt.Sprintf("UPDATE %s AS r SET %s FROM %s WHERE r.digest = $1 AND r.state <> %d AND %s",
		table, strings.Join(set, ", "), t.now(), stateMoved, t.inTime(n+1))
}
