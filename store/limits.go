package store

import "time"

// The limits and defaults. Namespaces can lower them, never raise them.
const (
	MaxIDBytes          = 255
	MaxScopeBytes       = 255
	MaxEntityBytes      = 255
	MaxAttemptIDBytes   = 64
	MaxFingerprintBytes = 64
	MaxOutcomeBytes     = 256 << 10
	MinOutcomeBytes     = 1 << 10 // the lowest that a namespace can set: how an attempt ended always fits
	MaxMetadataEntries  = 256     // in an outcome's header, and in its trailer
	MaxReasonBytes      = 1024
	MaxActorBytes       = 255

	MinLease     = time.Second
	MaxLease     = 15 * time.Minute
	DefaultLease = 30 * time.Second

	MinRetention     = time.Minute
	DefaultRetention = 24 * time.Hour

	DefaultMaxAttempt = time.Hour

	// MaxWallAhead is how far a wall clock ahead of the store's is believed about intent
	// times. It bounds how long a wrong one can make records last.
	MaxWallAhead = 35 * 24 * time.Hour

	// MaxWait bounds ClaimRequest.Wait.
	MaxWait = 5 * time.Minute

	// MaxRecoverySteps is how many steps of recoveries a namespace remembers, the last.
	MaxRecoverySteps = 16

	// MaxPastRetentions is how many retentions a namespace remembers that were in force.
	MaxPastRetentions = 16

	MaxPageSize     = 1000
	DefaultPageSize = 100

	// MaxEvents is how many events of each kind a store keeps for one key, the newest. Each
	// kind has a quota of its own, so that what anybody can cause (late outcomes, takeovers)
	// never pushes out what operators did.
	MaxEvents = 32
	// MaxEvidenceBytes is how large a late outcome is kept whole. With MaxEvents it bounds
	// the evidence for one key to 256 KiB, as much as its outcome: events move with their
	// record, so whoever sends late outcomes would else make that as slow as he likes.
	MaxEvidenceBytes = 8 << 10
)
