//go:build seed_nosync

package pebblestore

const (
	seedNoSync      = true
	seedEarlyAnswer = false
)
