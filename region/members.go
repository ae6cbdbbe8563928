package region

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// A region is known by its store: by the id that was made with it. The others keep the first one
// that they see where its servers are, and neither ask nor believe another one that answers as
// that region: it has forgotten, or never knew, what the keys there were used for. Only an
// operator's word puts one store in the place of another; see [Region.AcceptStore].
//
// A store is no key's home before all other regions have said that they know it, which is kept:
// it is so once and for all, whoever can be reached later. A recovery takes it back.

// member is what this region's store knows of itself and of the others.
func (r *Region) member() *store.Membership { return r.membership.Load() }

// changeMembership changes what the store knows, and remembers it.
func (r *Region) changeMembership(ctx context.Context, change func(store.Membership) (store.Membership, error)) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	r.membering.Lock()
	defer r.membering.Unlock()
	for {
		old, err := r.config.Store.Membership(ctx)
		if err != nil {
			return err
		}
		next, err := change(old.Clone())
		if err != nil {
			return err
		}
		if !next.Equal(old) {
			err = r.config.Store.SetMembership(ctx, old, next)
		}
		if err == nil {
			r.remember(next)
			return nil
		}
		if again, failed := r.config.Store.Membership(ctx); failed != nil || again.Equal(old) {
			return err // it was not another process that changed it
		}
	}
}

// readMemberships follows what other processes have done to the stores.
func (r *Region) readMemberships(ctx context.Context) error {
	for _, s := range r.standIns {
		s.read(ctx)
	}
	return r.changeMembership(ctx, func(m store.Membership) (store.Membership, error) { return m, nil })
}

func (r *Region) remember(m store.Membership) {
	if old := r.member(); old != nil && old.Joined && !m.Joined {
		r.logger.Warn("the store is home to no keys until all other regions know it", "region", r.config.Name, "store_id", m.StoreID)
	}
	r.membership.Store(&m)
	r.config.Observer.Joined(m.Joined)
}

// ErrOtherRegion says that a region is to be served over another one's store, where it would be a
// second home to that one's keys.
var ErrOtherRegion = errors.New("the store is another region's")

// belong makes the store this region's, unless it is another one's.
func (r *Region) belong(ctx context.Context) error {
	name := r.config.Name
	return r.changeMembership(ctx, func(m store.Membership) (store.Membership, error) {
		if m.Region != "" && m.Region != name {
			return m, fmt.Errorf("%w: it is that of region %q, and the server is started as one of region %q: name the store's own region, or give this one a store of its own", ErrOtherRegion, m.Region, name)
		}
		m.Region = name
		return m, nil
	})
}

// stranger is the error of a region with another store than the one that is known.
type stranger struct{ region, known, shown string }

func (e *stranger) Error() string {
	return fmt.Sprintf("its store has the id %s, and the one that is known as that of region %q has %s: the region has lost its store, or another server takes itself for it; "+
		"it is not asked, and not believed. %s", e.shown, e.region, e.known, howToAccept(e.region, e.shown))
}

func howToAccept(region, id string) string {
	return fmt.Sprintf("Bring the old store back, or restore a backup of it; if both are lost, accept the new one: idemd region accept %s --store-id %s --reason WHY, at a server of another region. "+
		"All keys that the old one had are forgotten then, and claims that may be of one are refused with UNKNOWN_HISTORY until an operator lifts the recovery floor", region, id)
}

// recognise refuses a region that has another store than the one that is known. The first one
// that is seen is kept.
func (p *peer) recognise(ctx context.Context, id string) error {
	if id == "" {
		return errors.New("it does not say which store it has; is its server older than this one?")
	}
	var err error
	if p.region.member().Peers[p.name].StoreID != id {
		err = p.region.changeMembership(ctx, func(m store.Membership) (store.Membership, error) {
			switch known := m.Peers[p.name].StoreID; known {
			case id: // another process has seen it
				return m, nil
			case "":
				return m.WithPeer(p.name, store.PeerStore{StoreID: id}), nil
			default:
				return m, &stranger{region: p.name, known: known, shown: id}
			}
		})
	}
	p.noteShown(id, err)
	return err
}

// noteShown keeps which store the region has, and says it aloud, once, if it is not the known one.
func (p *peer) noteShown(id string, err error) {
	var other *stranger
	strange := errors.As(err, &other)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown == id && p.strange == strange {
		return
	}
	p.shown, p.strange = id, strange
	p.region.config.Observer.Stranger(p.name, strange)
	if strange {
		p.region.logger.Error("a region has another store than the one that is known", "region", p.name, "address", p.place.PeerAddress, "error", err)
	}
}

// noteKnown keeps what the region knows of this one's store.
func (p *peer) noteKnown(ctx context.Context, m *pb.PingResponse) {
	r := p.region
	p.mu.Lock()
	p.joined = m.GetJoined()
	p.knows = store.PeerStore{StoreID: m.GetKnownStoreId(), Actor: m.GetAcceptedBy(), Reason: m.GetAcceptedReason()}
	knows := p.knows
	p.mu.Unlock()
	own := r.member()
	switch {
	case own.Joined && knows.StoreID != own.StoreID && knows.Reason != "":
		r.replaced(ctx, p.name, knows)
	case !own.Joined:
		select {
		case r.joinSoon <- struct{}{}:
		default:
		}
	}
}

// replaced has the store be no home any more: an operator has accepted another one in its place.
func (r *Region) replaced(ctx context.Context, by string, other store.PeerStore) {
	r.logger.Error("another store was accepted in the place of this one, which serves no key any more", "region", r.config.Name,
		"told_by", by, "store_id", other.StoreID, "actor", other.Actor, "reason", other.Reason)
	err := r.changeMembership(ctx, func(m store.Membership) (store.Membership, error) {
		m.Joined = false
		return m, nil
	})
	if err != nil {
		r.logger.Error("that could not be stored; it is tried again", "error", err)
	}
}

// keepJoining joins once the other regions know the store.
func (r *Region) keepJoining() {
	told := ""
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.joinSoon:
		}
		if err := r.join(r.ctx); err != nil && r.ctx.Err() == nil && err.Error() != told {
			told = err.Error()
			r.logger.Warn("the store could not join the others; it is tried again", "error", err)
		}
	}
}

// join makes the store a home if nothing is missing. It has then heard the placements that all
// regions know, and, if it is in the place of another, refuses what that one may have known.
func (r *Region) join(ctx context.Context) error {
	r.joining.Lock()
	defer r.joining.Unlock()
	if r.member().Joined || r.missingToJoin() != "" {
		return nil
	}
	if err := r.hearAll(ctx); err != nil {
		return err
	}
	if accepted, ok := r.accepted(); ok {
		begun, err := r.config.Store.BeginRecovery(ctx, store.BeginRecoveryRequest{CompleteUntil: time.Unix(0, 0), Actor: accepted.Actor, Reason: accepted.Reason}) // it knew no key ever
		if err != nil {
			return err
		}
		if err := sleep(ctx, begun.InForce.Sub(begun.Now)); err != nil {
			return err
		}
	}
	err := r.changeMembership(ctx, func(m store.Membership) (store.Membership, error) {
		m.Joined = r.missingToJoin() == ""
		return m, nil
	})
	if err == nil && r.member().Joined {
		r.logger.Info("the store has joined the other regions", "region", r.config.Name, "store_id", r.member().StoreID)
	}
	return errors.Join(err, r.refresh(ctx))
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// accepted is who accepted this region's store in the place of another, if somebody had to.
func (r *Region) accepted() (store.PeerStore, bool) {
	for p := range r.others() {
		if knows := p.knowsHere(); knows.Reason != "" {
			return knows, true
		}
	}
	return store.PeerStore{}, false
}

func (p *peer) knowsHere() store.PeerStore {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.knows
}

// missingToJoin says why the store is not a home yet; empty if all other regions know it.
func (r *Region) missingToJoin() string {
	id := r.member().StoreID
	for p := range r.others() {
		knows := p.knowsHere().StoreID
		switch {
		case p.current.Load() == nil:
			return fmt.Sprintf("region %q, which must know it, cannot be reached: %s", p.name, p.why())
		case knows == "":
			return fmt.Sprintf("region %q has not come to know it yet", p.name)
		case knows != id:
			return fmt.Sprintf("region %q knows the store %s as that of region %q. %s", p.name, knows, r.config.Name, howToAccept(r.config.Name, id))
		}
	}
	return ""
}

// isStranger reports whether another region believes another store to be this one's.
func (r *Region) isStranger() bool {
	id := r.member().StoreID
	for _, p := range r.peers {
		if knows := p.knowsHere().StoreID; knows != "" && knows != id {
			return !r.member().Joined
		}
	}
	return false
}

// atHome refuses what lives here while the store is no home.
func (r *Region) atHome() error {
	m := r.member()
	if m.Joined {
		return nil
	}
	missing := r.missingToJoin()
	if missing == "" {
		missing = "it is joining; send it again"
	}
	return &store.Error{
		Sentinel: store.ErrUnavailable, RetryAfter: time.Second,
		Detail: fmt.Sprintf("the store of region %q (id %s) is home to no keys yet: %s", r.config.Name, m.StoreID, missing),
	}
}
