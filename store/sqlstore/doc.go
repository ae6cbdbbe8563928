// Package sqlstore keeps keys in CockroachDB or PostgreSQL (15 or later), shared by any
// number of idemd processes. It satisfies [store.Backend].
//
// # Tour
//
//   - store.go, options.go: opening and closing; what can be set.
//   - bucket.go, plan.go, plans.go: buckets, their tables, and every statement on them.
//   - perform.go: how an operation goes: quick statement, reading, transaction; turns.go: one
//     writer of a key at a time.
//   - claim.go, settle.go, batches.go: the operations and their batches; coalesce.go gathers
//     batches; records.go: what operators do.
//   - find.go: reading; write.go: the transaction; move.go: rows that move forward; codec.go:
//     rows and records.
//   - placement.go, import.go, forget.go: namespaces that move between regions.
//   - home.go, seal.go, clock.go: which bucket a grant goes into, and when it may.
//   - catalog.go: this process's copy of the registry and the namespaces; namespaces.go.
//   - ahead.go, columns.go: buckets made; maintain.go, retire.go, kept.go: buckets emptied and dropped.
//   - dialect.go, postgres.go, cockroach.go: what differs between the databases, connections.
//   - migrate.go, migrations: the tables beside the buckets.
//   - errors.go: what an error of the database means.
//
// # Where meaning lives
//
// The table in package store does. A few statements carry out the common path of an
// operation (a first grant; Renew, Complete and Release by the attempt that holds the key)
// under guards that say that it is the common path. Whatever they do not do is read, decided
// by the transition functions, and, if that changes something, decided again on the locked row
// and written, in one transaction.
//
// # Buckets
//
// One table holds the rows of one region, tier and time slice (bucket), under the SHA-256 of
// the key. A row is put into the bucket of its grant's time (home). A bucket is dropped whole
// once nothing in it can be live; what still is has been moved forward by then. A row that
// moved leaves a marker (MOVED), which is never an answer. At most one row of a key, over all
// buckets, is not a marker.
//
// # The protocol
//
// Uniqueness within a bucket is the primary key's. Across a bucket's end it is not: two
// claims, one on each side, would each see nothing and both insert, at every isolation level.
// D is the longest that a statement may run (statement_timeout), G = 2 D + clock offset.
//
//  1. A grant goes into home, by the database's clock, if no older bucket has the key. The
//     statement refuses when its time is not in home, or was taken longer than D ago.
//  2. Later than G after home's start the claim statement goes alone.
//  3. Before, it goes in a transaction behind a second insert, which puts a marker for the key
//     into the previous bucket. A claim that still takes that bucket for its home meets the
//     marker, or the marker's insert meets it; then the claim statement sees its row.
//  4. Rows are read from all buckets in one statement, the next one included, into which a
//     clock that is ahead may have put them. Bucket by bucket a row that moves is missed.
//  5. An operation that finds things changed begins again, at most eight times.
//  6. A key with a row in an older bucket is granted by a transaction: the row becomes a marker,
//     the new one is inserted under the guards of 1, and a marker goes where 3 asks for one.
//  7. Whoever holds a key changes its row under fence and attempt, in the bucket in which the
//     fence lies as a time. If nothing is changed there, the row is read from all buckets: a
//     fence that had to be one more than the last can lie in the next bucket.
//  8. Locks are taken bucket by bucket, oldest first, and in the order of the digests: a batch
//     is sorted in the statement, and its rows are met in that order.
//  9. On PostgreSQL statement_timeout does not cover COMMIT, so one could still be waiting after
//     G, for a replica say. Therefore 3 goes on until all transactions from before G have ended,
//     and nothing is granted if those from before the previous bucket's have not.
//  10. The database's clock decides. A replica's own only chooses which statement to send. The
//     database is told the newest time that it has shown (idem_clock), and no statement acts at
//     a time further back than clocks may be apart: whoever sends it, and however long that one
//     has heard nothing. A grant, and a mark for 9, comes only after the time has been told up to
//     the start of its bucket, or with a marker beside it up to the previous one's. So however far the
//     clock steps back, nobody grants again before what was granted.
//  11. Nothing is granted by a copy of the catalog, and nothing at all is decided by one of a
//     namespace, that is older than copyLag by the database's clock: the clock of a machine that
//     slept may not have counted that, and an operation may have waited for longer.
//
// # Placements
//
// A change of a namespace's placement is in force copyLag + G after a reading of the catalog
// that came behind its commit (24.5 s by default): by 11 no statement begins by an older copy from copyLag on, and
// G is for those that run. Only a COMMIT may take longer (9). It matters when records are to be
// copied: of a sealed namespace a listing is made behind all transactions that had a number
// when it was asked for.
//
// Statements of the common path ask no transition function, so they are not sent for what that
// would refuse: another epoch, and what a holder sends while the namespace is sealed. Each
// operation of a batch has the limit of the copy that it was prepared with.
//
// Records are imported and forgotten under a lock on the namespace, so a change of the
// placement comes before that or after it, and needs no time to be in force for them. An
// imported record goes where a grant would, under 1, 3 and 6, although nothing is granted
// meanwhile: buckets end and are retired all the same, two may import at once, and what is put
// into an older bucket could be dropped with it. A listing goes through the buckets as rows
// move, oldest first, so what maintenance moves meanwhile is met once more and not missed.
//
// The namespaces of a database are those of all regions in it; buckets, clocks' readings and the
// key of maintenance are each region's own.
//
// Not covered: a clock that is put forward. What it passes over is expired, and when it is put
// right everything is refused until it has caught up. If it steps past G between a statement's
// look at it and its insert, and all of 9 and 10 as well, that statement is not met. While
// the clock is far from this machine's (maxApart) that is logged, and nothing is dropped.
//
// # What the tests leave out
//
// Each guard has a name under which a build with the tag "seeded" leaves it out, and a test that
// must notice (.ci/seeded-sql). Most are not found by chance: the test holds a statement at the
// one moment that matters.
//
//	guard          what is left out                            noticed by
//	claim-marker   the marker in front of a claim (3)          TestRaceAtBucketEnd, TestProtocolStraddlerMeetsMarker
//	move-marker    the marker beside a move (6)                TestProtocolReleasedKeyMovesPastStraddler
//	older-buckets  a claim looks into older buckets (1)        TestProtocolOlderBucketsAreSearched
//	time-in-home   a claim's time is in home (1)               TestProtocolReplicaClockOff
//	running        ... and not longer than D ago (1)           TestProtocolStraddlerJumpsTwoBuckets
//	window         G is more than 2 D (3)                      TestProtocolWindowCoversTheLongestTransaction
//	seal           old transactions have ended (9)             TestProtocolSealOfIdleTransaction, TestProtocolSealOfWaitingCommit
//	snapshot       ... before the snapshot is taken (9)        TestProtocolSealAndSnapshotAtStricterLevels
//	next-bucket    a reading looks into the next bucket (4)    TestProtocolNextBucketIsSearched
//	searched       ... and into all up to its own time (4)     TestProtocolReplicaClockOff
//	decide-again   a write decides on the locked row (5)       TestProtocolDecidedAgainOnTheLockedRow
//	one-row        a move inserts, or nothing is moved (6)     TestProtocolMoveIsWholeOrNothing
//	attempt-limit  Complete ends at the attempt's limit (7)    TestProtocolLateCompleteThenDrop
//	lock-order     rows are locked in one order (8)            TestProtocolLocksInOneOrder
//	clock-floor    a clock that stepped back (10)              TestProtocolDatabaseClockStepsBack
//	barred         ... by what the database was told (10)      TestProtocolStepBackUnheard
//	told           which comes before the grant (10)           TestProtocolStepBackUnheard
//	old-copy       a machine that slept (11)                   TestOldCopyAfterSleep
//	move-live      what is live leaves a bucket before a drop  TestProtocolLiveRowsMoveBeforeDrop
//	old-namespace  an operation that waited, or slept (11)     TestProtocolCompleteOnItsWayToTheSeal, TestProtocolLookupOnItsWayAtTheFlip
//	direct         the common path is not for all              TestOtherEpochIsRefused, TestMoveStopsChanges
//	placement-lag  G, until a placement is in force            TestProtocolSealCoversTheLongestStatement
//	commits        a listing of what is sealed waits for them  TestProtocolListingOfSealedAwaitsCommits
//	move-locked    the namespace stays while records come      TestProtocolPlacementWaitsForImport
//	import-marker  the marker beside an import (3)             TestProtocolImportMeetsMarker
//	import-next    an import looks into the next bucket (4)    TestProtocolImportMeetsRowInNextBucket
//	import-whole   a record comes, or nothing makes way (6)    TestProtocolImportIsWholeOrNothing
package sqlstore
