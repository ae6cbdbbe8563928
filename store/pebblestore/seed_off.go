//go:build !seed_nosync && !seed_early_answer

package pebblestore

// Faults that are built in on purpose, to show that the crash tests find them.
const (
	seedNoSync      = false // commits are not synced
	seedEarlyAnswer = false // answers leave before the sync
)
