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
// operator's word puts one store in the place of another; see [Region.AcceptStore]. Each such
// acceptance has a number, higher than all before it: of two that are known the later one holds,
// and spreads from region to region by pings. The store itself keeps the last one that it has
// acted on, so that one that was replaced and is accepted again takes nothing for known that
// was done in between, and a region that was restored and knows an old one only does no harm.
//
// A store is no key's home before all other regions have said that they know it, which is kept:
// it is so once and for all, whoever can be reached later. A recovery takes it back, and an
// acceptance that the store has not acted on.

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

// recognise refuses a region that has another store than the one that is known. The first one
// that is seen is kept, and one that was accepted later than what is known here.
func (p *peer) recognise(ctx context.Context, shown store.PeerStore) error {
	if shown.StoreID == "" {
		return errors.New("it does not say which store it has; is its server older than this one?")
	}
	known, err := p.region.learnStore(ctx, p.name, shown)
	if err == nil && known.StoreID != shown.StoreID {
		err = p.region.strange(p.name, shown.StoreID)
	}
	p.noteShown(shown.StoreID, err)
	return err
}

// unseen notes that no store answers, unless it does and is refused. The caller holds mu.
func (p *peer) unseen(err error) {
	var other *stranger
	if !errors.As(err, &other) {
		p.shown = ""
	}
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

// noteKnown keeps which stores the region knows, and has this one heed what is news.
func (p *peer) noteKnown(ctx context.Context, m *pb.PingResponse) error {
	r := p.region
	knows := make(map[string]store.PeerStore, len(m.GetKnownStores()))
	for _, k := range m.GetKnownStores() {
		knows[k.GetRegion()] = knownFromProto(k)
	}
	p.mu.Lock()
	p.joined, p.knows, p.replaced = m.GetJoined(), knows, timeIn(m.GetAskerReplacedAt())
	p.mu.Unlock()
	for region, told := range knows {
		if told.Number == 0 || r.peers[region] == nil {
			continue // each region sees for itself which store is there first
		}
		if _, err := r.learnStore(ctx, region, told); err != nil {
			return err
		}
	}
	return p.heeded(ctx, knows[r.config.Name])
}

// known is the store that is known as the region's.
func (p *peer) known() store.PeerStore { return p.region.member().Peers[p.name] }

// heeded has this region heed what the other one knows of its store, whichever of the two asked.
func (p *peer) heeded(ctx context.Context, known store.PeerStore) error {
	if err := p.region.heed(ctx, p.name, known); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.met = true
	return nil
}

// heed has the store be no home any more if it was accepted later than it has acted on, or
// another one was: what is done with its keys may be known elsewhere. An older acceptance, which
// a region that was restored may know, is nothing to it.
func (r *Region) heed(ctx context.Context, by string, known store.PeerStore) error {
	replaced := false
	if own := r.member(); own.Joined && known.Number > own.Accepted.Number {
		err := r.changeMembership(ctx, func(m store.Membership) (store.Membership, error) {
			if replaced = m.Joined && known.Number > m.Accepted.Number; replaced {
				m.Joined = false
			}
			return m, nil
		})
		if err != nil {
			return err
		}
	}
	if replaced && known.StoreID != r.member().StoreID {
		r.logger.Error("another store was accepted in the place of this one, which serves no key any more", "region", r.config.Name,
			"told_by", by, "store_id", known.StoreID, "number", known.Number, "actor", known.Actor, "reason", known.Reason)
	}
	if !r.member().Joined {
		select {
		case r.joinSoon <- struct{}{}:
		default:
		}
	}
	return nil
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
// regions know, and, if it is in the place of another, refuses what that one may have known. One
// that was restored refuses what may have been done elsewhere until now.
func (r *Region) join(ctx context.Context) error {
	r.joining.Lock()
	defer r.joining.Unlock()
	if r.member().Joined || r.missingToJoin(true) != "" {
		return nil
	}
	if err := r.hearAll(ctx); err != nil {
		return err
	}
	var err error
	if last := r.acceptance(); last.Number > r.member().Accepted.Number {
		err = r.forget(ctx, last)
	} else {
		err = r.raiseFloors(ctx)
	}
	if err != nil {
		return err
	}
	err = r.changeMembership(ctx, func(m store.Membership) (store.Membership, error) {
		m.Joined = r.missingToJoin(true) == "" && r.acceptance().Number <= m.Accepted.Number
		return m, nil
	})
	if err == nil && r.member().Joined {
		r.logger.Info("the store has joined the other regions", "region", r.config.Name, "store_id", r.member().StoreID)
	}
	return errors.Join(err, r.refresh(ctx))
}

// forget has the store refuse what the one may have known that was the region's before it was
// accepted, and notes that it does.
func (r *Region) forget(ctx context.Context, accepted store.Acceptance) error {
	begun, err := r.config.Store.BeginRecovery(ctx, store.BeginRecoveryRequest{CompleteUntil: store.KnowsNothing, Actor: accepted.Actor, Reason: accepted.Reason})
	if err == nil {
		err = sleep(ctx, begun.InForce.Sub(begun.Now))
	}
	if err != nil {
		return err
	}
	return r.changeMembership(ctx, func(m store.Membership) (store.Membership, error) {
		if accepted.Number > m.Accepted.Number {
			m.Accepted = accepted
		}
		return m, nil
	})
}

// raiseFloors has what a store that recovers may have forgotten go up to now: until it joins, keys may
// be used elsewhere by a placement that is forgotten too.
func (r *Region) raiseFloors(ctx context.Context) error {
	list, err := r.config.Store.ListNamespaces(ctx)
	if err != nil {
		return err
	}
	var longest time.Duration
	for _, ns := range list {
		wait, err := r.raiseFloor(ctx, &ns)
		if err != nil {
			return err
		}
		longest = max(longest, wait)
	}
	return sleep(ctx, longest)
}

// raiseFloor begins again what a namespace's floor stands for last, and what the one stands for that
// namespaces to come begin with. It is all in force after what is returned.
func (r *Region) raiseFloor(ctx context.Context, ns *store.Namespace) (wait time.Duration, err error) {
	last, recovers := ns.Recovering()
	if !recovers {
		return 0, nil
	}
	for _, step := range ns.Begun() {
		if step != last && !step.ForNew {
			continue
		}
		begun, err := r.config.Store.BeginRecovery(ctx, store.BeginRecoveryRequest{
			Namespace: ns.Name, CompleteUntil: step.CompleteUntil, Actor: step.Actor, Reason: step.Reason,
		})
		if err != nil {
			return 0, err
		}
		wait = max(wait, begun.InForce.Sub(begun.Now))
	}
	return wait, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// acceptance is the last one that the other regions know of a store of this region.
func (r *Region) acceptance() (last store.Acceptance) {
	for _, p := range r.peers {
		if knows := p.knowsOf(r.config.Name); knows.Number > last.Number {
			last = knows.Acceptance
		}
	}
	return last
}

// knowsOf is the store that the region knows as that of another.
func (p *peer) knowsOf(region string) store.PeerStore {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.knows[region]
}

// missingToJoin says why the store is not a home yet; empty if all other regions know it, and none
// has decided where keys live otherwise than this one knows. It names a namespace only if it may.
func (r *Region) missingToJoin(named bool) string {
	id := r.member().StoreID
	for p := range r.others() {
		knows := p.knowsOf(r.config.Name).StoreID
		switch {
		case p.current.Load() == nil:
			return fmt.Sprintf("region %q, which must know it, cannot be reached: %s", p.name, p.why())
		case knows == "":
			return fmt.Sprintf("region %q has not come to know it yet", p.name)
		case knows != id:
			return p.otherThan(id)
		}
	}
	for _, k := range r.atlas.Load().list {
		switch {
		case k.crossed && named:
			return fmt.Sprintf("where namespace %q lives is disputed: %s", k.ns.Name, k.dispute)
		case k.crossed:
			return fmt.Sprintf("where a namespace lives is disputed: %s", k.dispute)
		}
	}
	return ""
}

// isStranger reports whether the store is no home because another region knows another one.
func (r *Region) isStranger() bool {
	own := r.member()
	for _, p := range r.peers {
		if knows := p.knowsOf(r.config.Name).StoreID; knows != "" && knows != own.StoreID {
			return !own.Joined
		}
	}
	return false
}

// startTime is how long a store that has joined waits, when its server was just started, for what
// the other regions know of it: another one may have been accepted in its place. Who cannot be
// reached longer than that is not waited for, or an outage there would be one here.
const startTime = 2 * time.Second

// unheard is a region that is still waited for; empty if there is none.
func (r *Region) unheard() string {
	if r.begun.Load() {
		return ""
	}
	if time.Since(r.started) < startTime {
		for p := range r.others() {
			if !p.hasBeenMet() {
				return p.name
			}
		}
	}
	r.begun.Store(true)
	return ""
}

func (p *peer) hasBeenMet() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.met
}

// atHome refuses what lives here while the store is no home.
func (r *Region) atHome() error { return r.notHome(true) }

// notHome is why the store is no home; nil if it is one. It names a namespace only if it may.
func (r *Region) notHome(named bool) error {
	starting := r.atStart() // first: who has just been heard may have said that the store was replaced
	m := r.member()
	if m.Joined {
		return starting
	}
	missing := r.missingToJoin(named)
	if missing == "" {
		missing = "it is joining; send it again"
	}
	return &store.Error{
		Sentinel: store.ErrNoHome, RetryAfter: time.Second,
		Detail: fmt.Sprintf("the store of region %q (id %s) is home to no keys yet: %s", r.config.Name, m.StoreID, missing),
	}
}

// atStart refuses what lives here just after the start.
func (r *Region) atStart() error {
	name := r.unheard()
	if name == "" {
		return nil
	}
	return &store.Error{
		Sentinel: store.ErrNoHome, RetryAfter: pingInterval,
		Detail: fmt.Sprintf("the server of region %q was just started, and waits %v at most to hear from region %q that its store was not replaced; send it again", r.config.Name, startTime, name),
	}
}
