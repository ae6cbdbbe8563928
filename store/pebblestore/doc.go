// Package pebblestore is the embedded store: a [store.Backend] in one directory, for one
// process, over Pebble.
//
// # Tour
//
//   - store.go, open.go, lock*.go, identity.go, options.go: the directory, its lock,
//     creation and the checks at open; [Open] and [Store.Close].
//   - ops.go, records.go, namespaces.go, op.go: the operations. Each becomes an op, which
//     waits in the intake (intake.go) until the loop takes it.
//   - loop.go, turn.go, events.go, cache.go, buckets.go, filter.go: the one writer and what
//     it keeps in memory.
//   - settled.go: completed keys, whose repeats are answered without the loop.
//   - reading.go, readers.go: what operators read past the loop, one of them at a time.
//   - layout.go, codec.go, wire.go: what is stored.
//   - chain.go, mark.go, clock.go: integrity and time across restarts.
//   - maintain.go: dropping buckets.
//   - placement*.go: where a namespace's keys live, and carrying its records to another store.
//   - pebble.go, spare.go: how Pebble is set up. seed_*.go: faults built in for tests.
//
// # One writer
//
// One goroutine, the loop, decides all operations in order, by the transition functions of
// package store. It takes what is queued as one batch: what settles keys first, claims
// after it, in turn over the namespaces, so that nobody is held up by one who is greedy. It
// hands the batch to Pebble, waits for the sync and then answers, so no answer leaves before
// all that it is derived from is on disk. What comes meanwhile is the next batch: so batches
// grow with the load, and a lone operation waits for nothing but its own sync. (With a second
// commit on its way during the sync of the first, batches were half as large, and cost more
// than was won.) Only what repeats a completed key that is in memory and on disk is answered
// past the loop: such a record does not change until it expires, unless its namespace moves
// away, which takes it back. What operators read of many rows or of a key's events comes from
// an iterator, and is answered once all that it can have seen is synced. One of them reads at a time, so
// that it takes but one core, in turn over the namespaces; whoever looks at one key waits for no listing.
//
// # Layout
//
// A row lives under tier, bucket, SHA-256 of its key, in the bucket of its latest grant, and
// moves forward when it is granted again. At most six buckets of a tier hold live rows (and
// for a while those that wait for maintenance); a filter in memory for each says which keys
// are certainly not there, so that a claim of a new key costs no look-up. The filters of
// what a store holds when it is opened are read in the background; until then Pebble is
// asked. A bucket in which nothing is live any more is removed by one range deletion; what
// is held or was settled late moves forward before.
//
// Every value is sealed with a checksum over its key and itself, and an outcome is compared
// with its digest when it is read. What does not pass is answered ErrRecordCorrupt and left
// alone; it is never taken for absent.
//
// # What a damaged store does
//
// Pebble finds most damage by itself. Two additions find what it cannot: each commit adds
// an entry to a chain of sequence numbers, which has a gap if a log or the record of a
// flushed table is lost, and the file MARK, synced apart after each commit (under load at
// most every two milliseconds), says how far the chain must reach. [Open] refuses a store
// that fails a check with ErrDamaged. A failed write or sync stops the store: nothing is
// answered any more but ErrUnavailable, and the process should end, see [Options]. So does
// damage that Pebble meets when it merges tables, since it could not go on for long.
//
// # Clock
//
// The clock is a [store.SteadyClock]. Each commit records it, and how far it may go before
// the next commit is needed: answers that change nothing, but depend on the time, need a
// commit only when that is used up. Across a restart the clock therefore never goes back
// behind any answer. It trusts the wall clock beyond that: a wall clock set forward while
// the store was closed expires what it expires. After a crash the clock stands still for
// up to 50 ms, until the wall clock has caught up; that is the most by which anything can
// expire early.
package pebblestore
