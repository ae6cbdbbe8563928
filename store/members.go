package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Membership is what a store knows of itself and of the stores of the other regions. A region
// whose store was lost, or put in the place of another, has another store: keys that the old one
// knew would be granted again.
type Membership struct {
	// StoreID is made with the store and never changes. Another store has another one.
	StoreID string `json:"store_id"`
	// Region is the one that it belongs to. Empty: it was never served with a topology.
	Region string `json:"region,omitempty"`
	// Joined says that all other regions knew the store when they were last asked. Before, it is
	// no key's home. It is taken back when a recovery begins: what was decided since the store's
	// last word may be known elsewhere only.
	Joined bool `json:"joined,omitempty"`
	// Accepted is the last acceptance of this store that it has acted on: it has begun a recovery
	// for it.
	Accepted Acceptance `json:"accepted,omitzero"`
	// Peers are the stores of the other regions, by region.
	Peers map[string]PeerStore `json:"peers,omitempty"`
	// Replaced are stores of other regions in whose place another one was accepted, the latest
	// last, at most MaxReplaced.
	Replaced []Replaced `json:"replaced,omitempty"`
}

// MaxReplaced bounds Membership.Replaced. What is not remembered any more passes for a new store.
const MaxReplaced = 64

// Replaced is a store in whose place another one was accepted. It is not empty, as a new one
// would be: what was granted by it is known to it, and what was since then is not.
type Replaced struct {
	Region  string    `json:"region"`
	StoreID string    `json:"store_id"`
	At      time.Time `json:"at"` // when it was heard
}

// PeerStore is the one store that is believed to be that of another region.
type PeerStore struct {
	StoreID string `json:"store_id"`
	Acceptance
}

// Acceptance is an operator's word that a region has this store and no other.
type Acceptance struct {
	// Number counts the acceptances of the region's stores: of two the higher one holds. Zero:
	// nobody had to accept the store; it was the first one that was seen.
	Number int64  `json:"number,omitempty"`
	Actor  string `json:"actor,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Supersedes reports whether the word holds against what was known before, which may be nothing.
func (p PeerStore) Supersedes(known PeerStore) bool {
	return known.StoreID == "" || p.Number > known.Number
}

// Same reports whether both are the same word.
func (p PeerStore) Same(o PeerStore) bool { return p.StoreID == o.StoreID && p.Number == o.Number }

// Members keeps the membership. Errors and durability are as for [Store].
type Members interface {
	// Membership returns what is stored.
	Membership(ctx context.Context) (Membership, error)
	// SetMembership replaces old, which is what is stored, or else it is refused with
	// ErrUnavailable: read it again. The StoreID stays.
	SetMembership(ctx context.Context, old, next Membership) error
}

// NewStoreID makes the id of a new store.
func NewStoreID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// Equal reports whether both say the same.
func (m Membership) Equal(o Membership) bool {
	return m.StoreID == o.StoreID && m.Region == o.Region && m.Joined == o.Joined && m.Accepted == o.Accepted && maps.Equal(m.Peers, o.Peers) &&
		slices.EqualFunc(m.Replaced, o.Replaced, Replaced.Equal)
}

// Equal reports whether both say the same.
func (r Replaced) Equal(o Replaced) bool {
	return r.Region == o.Region && r.StoreID == o.StoreID && r.At.Equal(o.At)
}

// Replace returns next, if old is what is stored.
func (m Membership) Replace(old, next Membership) (Membership, error) {
	switch {
	case !m.Equal(old):
		return m, Refuse(ErrUnavailable, "what the store knows of the regions' stores was changed meanwhile; read it again")
	case next.StoreID != m.StoreID:
		return m, invalid("the id of a store does not change")
	}
	return next.Clone(), nil
}

// Clone returns one that can be changed.
func (m Membership) Clone() Membership {
	m.Peers, m.Replaced = maps.Clone(m.Peers), slices.Clone(m.Replaced)
	return m
}

// WithPeer returns the membership with the store of another region.
func (m Membership) WithPeer(region string, peer PeerStore) Membership {
	m = m.Clone()
	if m.Peers == nil {
		m.Peers = map[string]PeerStore{}
	}
	m.Peers[region] = peer
	return m
}

// WithAccepted is WithPeer where the store may be in the place of another one, which is remembered.
func (m Membership) WithAccepted(region string, peer PeerStore, at time.Time) Membership {
	before := m.Peers[region].StoreID
	m = m.WithPeer(region, peer)
	m.Replaced = slices.DeleteFunc(m.Replaced, func(r Replaced) bool {
		return r.Region == region && (r.StoreID == peer.StoreID || r.StoreID == before)
	})
	if before != "" && before != peer.StoreID {
		m.Replaced = append(m.Replaced, Replaced{region, before, at.UTC().Truncate(time.Microsecond)})
	}
	m.Replaced = m.Replaced[max(0, len(m.Replaced)-MaxReplaced):]
	return m
}

// ReplacedAt is when another store was accepted in the place of the region's store, as far as is
// remembered; zero: it was not.
func (m Membership) ReplacedAt(region, storeID string) time.Time {
	for _, r := range m.Replaced {
		if r.Region == region && r.StoreID == storeID {
			return r.At
		}
	}
	return time.Time{}
}

// AcceptStoreRequest says that a region has another store from now on.
type AcceptStoreRequest struct {
	Region  string
	StoreID string
	Actor   string
	Reason  string // 1 to 1024 bytes
	// Again says that the store may be one that was replaced.
	Again bool
}

// Validate checks the request.
func (r *AcceptStoreRequest) Validate() error {
	if id, err := hex.DecodeString(r.StoreID); err != nil || len(id) != 16 {
		return invalid("a store's id is 32 hexadecimal digits, as idemd region list shows it at another region, not %q", fmt.Sprintf("%.40s", r.StoreID))
	}
	return firstError(validateText("region", r.Region, MaxEntityBytes), validateForced(r.Actor, r.Reason))
}
