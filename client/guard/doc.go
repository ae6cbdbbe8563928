// Package guard makes an effect in your own database happen once: by a row that commits
// with it, in one transaction. For PostgreSQL, CockroachDB and SQLite, over database/sql; package
// guardpgx is for transactions of pgx.
//
// idemd's own record ends at its own boundary: an attempt that died may have acted, and the
// next one is told so but cannot know. Where the effect is rows of a database, a guard of
// that database can tell, as its row is there if and only if the effect is.
//
//	guard        asks                                            answers
//	[Inbox]      was this key carried out here?                  first, or repeat with the stored outcome
//	[Once]       was this done to the entity, under any key?     first, or already with the stored outcome, and by which key
//	[Transition] is the row where the step begins?               applied, already there, or an error: [Conflict], [ErrAbsent]
//	[Sequence]   is this newer than what was applied?            newer, same (a repeat), older
//	[Fence]      has a later attempt been here?                  passes, or an error: [StaleFence]
//
// What is expected is a value: what a guard knows to be a repeat is no error. What must not go on is an error: a
// conflict is never taken for success by one who looks at the error alone. No answer, and no
// error of this package, breaks the transaction; an error of the database does, on PostgreSQL.
//
// Transition knows where the row is, and of no repeat: one that comes after the next step is a Conflict, and one that
// comes when the row is back where the step begins is applied again. Where a state can come back, or a repeat so late,
// put an Inbox around it.
//
// Guards know of no tenants: a key or an entity that is one of a tenant's must have the tenant's name in it.
//
// # The transaction
//
// A guard runs in your transaction, which you begin and end. Commit if all went well, roll
// back on any error, and do not answer before Commit has returned nil: if it returned an error, whether
// it was committed is unknown, and the guard answers that on the next try.
//
// Two transactions that ask the same at once: the second waits for the first, and then is a
// repeat, or the first if that one rolled back. All of this holds at READ COMMITTED, REPEATABLE
// READ and SERIALIZABLE. At the latter two what is not there ([ErrAbsent], Lookup's false) is not there
// as of the transaction's snapshot.
//
// At the latter two, and always on CockroachDB, the second may instead be
// told to run again (SQLSTATE 40001). At READ COMMITTED a transaction may be, too: 40P01 if two ask for two
// things, each in another order, and 40001 if a row of a partitioned table has moved. Then run the *whole* transaction again,
// from BEGIN, as its snapshot is from before. On CockroachDB crdb.ExecuteTx of cockroach-go does
// so; do not use that on PostgreSQL, where it can lose what fails at COMMIT: there begin a new
// transaction by hand. What a function does besides its transaction, it does again.
//
// # A process that is paused
//
// Who waits for a transaction waits until that ends. One whose process is paused, or whose machine is lost, does not end by
// itself: its key or entity would wait for it without limit. Have the database end what is idle within a transaction for as long
// as a lease, idemd's default being 30 seconds, for the role or in the connection string:
//
//	ALTER ROLE shop SET idle_in_transaction_session_timeout = '30s'
//	postgres://localhost/shop?idle_in_transaction_session_timeout=30s
//
// PostgreSQL and CockroachDB then roll it back, and the next one goes on; a process that wakes up gets an error, at COMMIT at
// the latest. (PgBouncer refuses the setting in the connection string: give it to the role.) What waits for
// another company within the transaction is idle there for as long. A statement that runs is not idle: that is
// what statement_timeout is for, and on a PostgreSQL that sends much to a machine that is lost tcp_user_timeout.
//
// SQLite has no such setting: while a process is paused within a transaction, nobody else writes to the file, and all others
// get SQLITE_BUSY. The lock goes when the process ends.
//
// # SQLite
//
// SQLite has one writer at a time. Begin with BEGIN IMMEDIATE and wait for the lock (for
// modernc.org/sqlite _txlock=immediate and _pragma=busy_timeout(5000) in the file's name): a transaction that
// began by reading and then writes is refused with SQLITE_BUSY if another wrote meanwhile, and must be
// run again.
//
// # Tables
//
// All but Transition keep a table of their own, which may be shared: Name tells guards of one kind apart
// in it. Their DDL methods give the statements for your migrations; see [Inbox.DDL] for repeating them. A table's name
// may have a schema, "payments.inbox", and is quoted, so letters count as written.
//
// What is kept is kept until you delete it. [Inbox.Forget] deletes what is older than any repeat can be.
// The others have no such age: a row of Once, Sequence or Fence stands for an entity that lives, and
// without it an old event is new again. Their Forget deletes it, in the transaction that deletes the entity,
// and no sooner than the last event or attempt for it can have come.
//
// # Map
//
// dialect.go is what differs between databases; tx.go the transaction; table.go names; entry.go what Inbox and Once have in
// common, number.go Sequence and Fence; and each guard is in a file of its own.
package guard
