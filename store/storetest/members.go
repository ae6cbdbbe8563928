package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/idemd/idemd/store"
)

var members = []check{
	{"what a store knows of others is kept", on(membersAreKept)},
	{"it is changed only by who knows it", on(membersCompared)},
	{"many change it at once", on(membersAtOnce)},
	{"a recovery takes it out of the regions", on(membersRecover)},
}

func (r *rig) membership() store.Membership {
	r.Helper()
	m, err := r.Membership(r.ctx)
	if err != nil {
		r.Fatalf("Membership: %v", err)
	}
	return m
}

func (r *rig) setMembership(old, next store.Membership) {
	r.Helper()
	if err := r.SetMembership(r.ctx, old, next); err != nil {
		r.Fatalf("SetMembership: %v", err)
	}
}

func (r *rig) sameMembership(what string, got, want store.Membership) {
	r.Helper()
	if !got.Equal(want) {
		r.Fatalf("%s: want %+v, got %+v", what, want, got)
	}
}

func membersAreKept(r *rig) {
	first := r.membership()
	if accept := (store.AcceptStoreRequest{Region: "eu", StoreID: first.StoreID, Reason: "r"}); accept.Validate() != nil {
		r.Fatalf("the id of a new store is %q", first.StoreID)
	}
	r.sameMembership("of a new store", first, store.Membership{StoreID: first.StoreID})
	next := first.WithPeer("us", store.PeerStore{StoreID: "one"}).WithPeer("ap", store.PeerStore{
		StoreID: "two", Acceptance: store.Acceptance{Number: 7, Actor: "omar", Reason: "the disk is gone"},
	})
	next = next.WithAccepted("ap", store.PeerStore{StoreID: "three", Acceptance: store.Acceptance{Number: 8, Reason: "r"}}, Start)
	next.Region, next.Joined, next.Accepted = "eu", true, store.Acceptance{Number: 3, Actor: "alice", Reason: "the rack burned"}
	r.setMembership(first, next)
	r.sameMembership("stored", r.membership(), next)
	r.reopen()
	r.sameMembership("after a restart", r.membership(), next)
	if at := r.membership().ReplacedAt("ap", "two"); !at.Equal(Start) {
		r.Fatalf("what was replaced at %v is kept with %v", Start, at)
	}
	next.Peers["us"] = store.PeerStore{StoreID: "changed by its reader"}
	if r.membership().Peers["us"].StoreID != "one" {
		r.Fatalf("a reader has changed what is stored")
	}
}

func membersCompared(r *rig) {
	first := r.membership()
	next := first
	next.Region = "eu"
	r.setMembership(first, next)
	other := first
	other.Region = "us"
	if err := r.SetMembership(r.ctx, first, other); !errors.Is(err, store.ErrUnavailable) {
		r.Fatalf("by who does not know the last change: %v", err)
	}
	other = next
	other.StoreID = store.NewStoreID()
	if err := r.SetMembership(r.ctx, next, other); !errors.Is(err, store.ErrInvalidArgument) {
		r.Fatalf("with another id: %v", err)
	}
	r.sameMembership("stored", r.membership(), next)
}

func membersAtOnce(r *rig) {
	const each = 5
	var (
		all    sync.WaitGroup
		failed atomic.Value
	)
	for i := range 4 {
		all.Go(func() {
			for n := 0; n < each; {
				old, err := r.Membership(r.ctx)
				if err == nil {
					err = r.SetMembership(r.ctx, old, old.WithPeer(fmt.Sprintf("region-%d-%d", i, n), store.PeerStore{StoreID: "s"}))
				}
				switch {
				case err == nil:
					n++
				case !errors.Is(err, store.ErrUnavailable):
					failed.Store(err)
					return
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		r.Fatalf("%v", err)
	}
	equal(r, "changes that were kept", len(r.membership().Peers), 4*each)
}

func membersRecover(r *rig) {
	first := r.membership()
	next := first.WithPeer("us", store.PeerStore{StoreID: "one"})
	next.Region, next.Joined, next.Accepted = "eu", true, store.Acceptance{Number: 3, Reason: "r"}
	r.setMembership(first, next)
	if _, err := r.BeginRecovery(r.ctx, store.BeginRecoveryRequest{Namespace: hourTakeover, CompleteUntil: store.KnowsNothing, Reason: "lost"}); err != nil {
		r.Fatalf("BeginRecovery: %v", err)
	}
	r.sameMembership("after a recovery of one namespace has begun", r.membership(), next)
	beginning(r, r.Clock.Wall().UTC())
	next.Joined = false
	r.sameMembership("after a recovery has begun", r.membership(), next)
}
