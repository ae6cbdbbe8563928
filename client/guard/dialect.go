package guard

import (
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// Dialect is the kind of a database.
type Dialect int

// The dialects.
const (
	PostgreSQL  Dialect = iota // 12 or later
	CockroachDB                // 22.2 or later
	SQLite                     // 3.35 or later
)

// Tx lets guards use a transaction of database/sql, with any driver for the dialect's database.
func (d Dialect) Tx(tx *sql.Tx) Tx { return sqlTx{tx, d} }

// statement puts quoted names into a statement of this package, which has parameters $1, $2….
func (d Dialect) statement(format string, names ...any) string {
	if d == SQLite {
		format = strings.ReplaceAll(format, "$", "?")
	}
	return fmt.Sprintf(format, names...)
}

// bytes is the type of a column of bytes.
func (d Dialect) bytes() string {
	if d == SQLite {
		return "BLOB"
	}
	return "BYTEA"
}

// sqliteTime is a text that sorts as the time does, in every version of SQLite.
const sqliteTime = `strftime('%Y-%m-%dT%H:%M:%fZ', 'now'`

// recordedAt is the column of when a row was written, by the database's clock.
func (d Dialect) recordedAt() string {
	if d == SQLite {
		return "recorded_at TEXT NOT NULL DEFAULT (" + sqliteTime + "))"
	}
	return "recorded_at TIMESTAMPTZ NOT NULL DEFAULT now()"
}

// before is the condition that a row was recorded longer ago than the duration of parameter $2, and that parameter.
func (d Dialect) before(age time.Duration) (condition string, arg any) {
	if d == SQLite {
		return "recorded_at < " + sqliteTime + ", ?2)", fmt.Sprintf("-%.3f seconds", age.Seconds())
	}
	return "recorded_at < now() - CAST($2 AS INT8) * INTERVAL '1 microsecond'", age.Microseconds()
}

// ageIndex has rows of keys found by their age. It is part of CREATE TABLE: on PostgreSQL a CREATE INDEX IF NOT EXISTS
// waits for all who write to the table, and has all others wait behind it, also if the index is there.
func (d Dialect) ageIndex() string {
	switch d {
	case CockroachDB:
		// By hash, as it would write all new entries of an index by time into one range.
		// https://www.cockroachlabs.com/docs/v25.4/hash-sharded-indexes
		return "INDEX (name, recorded_at) USING HASH"
	case PostgreSQL:
		// It is deferrable so that two who enter a key in one microsecond meet at the primary key alone: a violation of that
		// is no error, by ON CONFLICT, and of this it would be.
		return "UNIQUE (name, recorded_at, key) DEFERRABLE"
	default:
		return "UNIQUE (name, recorded_at, key)"
	}
}
