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
	MaxMetadataEntries  = 256 // in an outcome's header, and in its trailer
	MaxReasonBytes      = 1024
	MaxActorBytes       = 255

	MinLease     = time.Second
	MaxLease     = 15 * time.Minute
	DefaultLease = 30 * time.Second

	MinRetention     = time.Minute
	DefaultRetention = 24 * time.Hour

	DefaultMaxAttempt = time.Hour

	// MaxWait bounds ClaimRequest.Wait.
	MaxWait = 5 * time.Minute

	MaxPageSize     = 1000
	DefaultPageSize = 100

	// MaxEvents is how many events a store keeps for one key, the newest.
	MaxEvents = 32
)
