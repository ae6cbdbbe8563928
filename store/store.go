package store

import (
	"context"
	"time"
)

// Store is the five operations on keys, and the contract of every backend, of the
// router and of the client.
//
// Expected answers (in progress and completed included) are values. A refusal is an
// [*Error] that unwraps to one of the sentinels of this package. The table in the
// package documentation says which answer comes when; an implementation adds only
// ErrUnavailable, ErrHomeUnreachable, ErrNoHome, ErrOverloaded, ErrQuota, ErrRecordCorrupt and the
// context's error.
//
// An operation that returned without an error is durable: neither kill -9 nor power
// loss undoes it, and no answer is derived from state that could still be lost. After
// ErrUnavailable or the context's error the operation may or may not have taken
// effect; sending it again with the same attempt id gives the same result (L2).
//
// The store's own clock decides everything. Methods may be called by any number of
// goroutines. Requests are not kept after return except for the Outcome, which nobody
// may change any more; answers may share memory and are read only.
type Store interface {
	// Claim asks for the right to act. See [ClaimRequest] and [ClaimAnswer].
	Claim(ctx context.Context, req ClaimRequest) (ClaimAnswer, error)
	// Renew extends a lease that has not lapsed.
	Renew(ctx context.Context, req RenewRequest) (RenewAnswer, error)
	// Complete stores the outcome. Repeating it with the same outcome is OK.
	Complete(ctx context.Context, req CompleteRequest) (CompleteAnswer, error)
	// Release gives a key up. Repeating it with the same effect is OK.
	Release(ctx context.Context, req ReleaseRequest) (ReleaseAnswer, error)
	// Lookup is linearizable and changes nothing.
	Lookup(ctx context.Context, req LookupRequest) (LookupAnswer, error)
}

// Records is the operator's view. Errors and durability are as for [Store].
type Records interface {
	// ListRecords lists live records. It may leave out a damaged one, unless the namespace is
	// sealed: then it is ErrRecordCorrupt, so that no move loses it. One call looks at a bounded part of the store: a page
	// may be empty and still have a next page.
	ListRecords(ctx context.Context, req ListRequest) (RecordPage, error)
	// InspectRecord returns a live record with its events, or ErrKeyNotFound.
	InspectRecord(ctx context.Context, key Key) (Inspection, error)
	// Resolve settles a lapsed key; ErrNotLapsed if it is not lapsed, ErrStaleFence if its
	// fence is not the expected one.
	Resolve(ctx context.Context, req ResolveRequest) (*Record, error)
	// ForceRelease ends the attempt that holds a key; ErrNotHeld if none does, ErrStaleFence
	// if its fence is not the expected one.
	ForceRelease(ctx context.Context, req ForceReleaseRequest) (*Record, error)
	// ImportOutcome says what became of a key of which the store knows nothing, or that was
	// released no later than a recovery floor. One that is known is not changed.
	ImportOutcome(ctx context.Context, req ImportRequest) (ImportAnswer, error)
}

// Namespaces keeps the namespaces. DefaultNamespace always exists.
type Namespaces interface {
	// CreateNamespace stores ns with defaults filled in and returns it;
	// ErrNamespaceExists if there is one of that name with other settings.
	CreateNamespace(ctx context.Context, ns Namespace) (Namespace, error)
	// GetNamespace returns a namespace, or ErrNamespaceUnknown.
	GetNamespace(ctx context.Context, name string) (Namespace, error)
	// ListNamespaces returns all of them, by name.
	ListNamespaces(ctx context.Context) ([]Namespace, error)
	// UpdateNamespace replaces the settings of a namespace. Its tier cannot change. Of what somebody
	// else has changed meanwhile see [Namespace].IfUpdatedAt.
	UpdateNamespace(ctx context.Context, ns Namespace) (Namespace, error)
}

// Bucket is one time slice of the key store.
type Bucket struct {
	Tier       Tier
	Start, End time.Time // rows granted in [Start, End)
	DropAfter  time.Time // when nothing in it can be live but what maintenance moves on
}

// Maintenance says what one run of maintenance did.
type Maintenance struct {
	Dropped []Bucket
	Moved   int // live records moved forward out of dropped buckets
}

// Maintainer keeps the buckets. A store that is served runs Maintain by itself;
// operators and tests may call it at any time.
type Maintainer interface {
	// Buckets lists the buckets that exist, by tier and start.
	Buckets(ctx context.Context) ([]Bucket, error)
	// Maintain drops the buckets in which nothing can be live any more, after
	// moving forward what still is.
	Maintain(ctx context.Context) (Maintenance, error)
}

// Backend is a whole store: what an engine implements and a server is built over.
type Backend interface {
	Store
	Records
	Namespaces
	Recovery
	Placements
	Members
	Maintainer
}
