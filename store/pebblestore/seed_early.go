//go:build seed_early_answer && !seed_nosync

package pebblestore

const (
	seedNoSync      = false
	seedEarlyAnswer = true
)
