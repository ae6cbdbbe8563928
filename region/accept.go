package region

import (
	"context"
	"fmt"
	"strings"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// AcceptStore has all regions, but the one that it is about, know a store as that region's from
// now on. Only a store that answers is accepted: an id that nobody has would stop the region, and
// a store that does not run would not hear what was accepted before it. Doing it again makes up
// for what was missed.
func (r *Region) AcceptStore(ctx context.Context, req store.AcceptStoreRequest) error {
	req.StoreID = strings.ToLower(req.StoreID)
	shown, err := r.answering(ctx, req)
	if err != nil {
		return err
	}
	// Who cannot be asked misses it, and is named below.
	_, _ = r.tellOthers(ctx, req.Region, func(p *peer, l *link) error { return p.ping(ctx, l) })
	accepted := r.word(req, shown)
	// The store itself comes first: it must know that it has forgotten before others ask it.
	if _, err := r.peers[req.Region].shows(ctx, accepted); err != nil {
		return notAnswering(req.Region, err)
	}
	if err := r.take(ctx, req.Region, accepted); err != nil {
		return err
	}
	missed, err := r.tellOthers(ctx, req.Region, func(p *peer, l *link) error {
		if accepted.Number == 0 {
			return nil // it is the first one that all have seen
		}
		_, err := l.client.AcceptPeerStore(ctx, &pb.AcceptPeerStoreRequest{
			Region: p.name, FromRegion: r.config.Name, FromStoreId: r.member().StoreID, Caller: r.config.Caller(ctx),
			Accepted: knownToProto(req.Region, accepted),
		})
		if err != nil {
			err = p.missed(ctx, err)
		}
		return err
	})
	return notEverywhere(ctx, "a region's store is accepted once all others know it, and this was missed", doAgain, missed, err)
}

// answering is the store that answers as the region, if it is the one that is to be accepted.
func (r *Region) answering(ctx context.Context, req store.AcceptStoreRequest) (store.PeerStore, error) {
	if err := req.Validate(); err != nil {
		return store.PeerStore{}, err
	}
	p := r.peers[req.Region]
	switch {
	case req.Region == r.config.Name:
		return store.PeerStore{}, store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("this is a server of region %q itself; its store is accepted by the others: ask a server of another region", req.Region))
	case p == nil:
		return store.PeerStore{}, r.unnamed(req.Region)
	}
	shown, err := p.shows(ctx, p.known())
	switch {
	case ctx.Err() != nil:
		return shown, ctx.Err()
	case err != nil:
		return shown, notAnswering(req.Region, err)
	case shown.StoreID != req.StoreID:
		return shown, store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("the store that answers as region %q has the id %s, and not %s", req.Region, shown.StoreID, req.StoreID))
	case shown.StoreID != p.known().StoreID && !req.Again && !r.member().ReplacedAt(req.Region, req.StoreID).IsZero():
		return shown, store.Refuse(store.ErrInvalidArgument, r.strange(req.Region, req.StoreID).Error()+"; accepted again (--again), it makes the regions forget what was done since")
	}
	return shown, nil
}

func notAnswering(region string, err error) error {
	return &store.Error{Sentinel: store.ErrUnavailable, Cause: err, Detail: fmt.Sprintf(
		"only a store that answers is accepted, and none answers as region %q: %s; start the region's servers on it first", region, reasonOf(err))}
}

func (r *Region) unnamed(region string) error {
	return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("the topology of region %q names no region %q", r.config.Name, region))
}

// shows asks the region which store it has, over a connection of its own, and tells it which one
// it is known by.
func (p *peer) shows(ctx context.Context, known store.PeerStore) (store.PeerStore, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	l, err := p.newLink()
	if err != nil {
		return store.PeerStore{}, err
	}
	defer func() { _ = l.conn.Close() }() // nobody else has used it
	if err := l.connect(ctx); err != nil {
		return store.PeerStore{}, err
	}
	m, err := p.askPing(ctx, l, known)
	return shownIn(m), err
}

// word is what is to be known of the region's store: what all know already, or else a later
// acceptance than any of them knows who could be asked. Who could not may know of another store that
// was accepted since: then this one must forget.
func (r *Region) word(req store.AcceptStoreRequest, shown store.PeerStore) store.PeerStore {
	known := r.member().Peers[req.Region]
	agreed, last := known.StoreID == req.StoreID, max(known.Number, shown.Number)
	for p := range r.others() {
		if p.name == req.Region {
			continue
		}
		theirs := p.knowsOf(req.Region)
		agreed = agreed && theirs.StoreID != "" && (theirs.StoreID == req.StoreID || known.Supersedes(theirs))
		last = max(last, theirs.Number)
	}
	if agreed {
		return known
	}
	return store.PeerStore{StoreID: req.StoreID, Acceptance: store.Acceptance{Number: last + 1, Actor: req.Actor, Reason: req.Reason}}
}

// take knows a store as that of another region, unless something else is known that holds
// against it.
func (r *Region) take(ctx context.Context, region string, told store.PeerStore) error {
	if r.peers[region] == nil {
		return r.unnamed(region)
	}
	known, err := r.learnStore(ctx, region, told)
	if err == nil && !known.Same(told) {
		err = &store.Error{Sentinel: store.ErrUnavailable, RetryAfter: time.Second, Detail: fmt.Sprintf(
			"region %q knows the store %s as that of region %q, by acceptance %d, against which acceptance %d does not hold", r.config.Name, known.StoreID, region, known.Number, told.Number)}
	}
	return err
}

// learnStore keeps which store another region has, if the word holds against what was known. It
// returns what is known.
func (r *Region) learnStore(ctx context.Context, region string, told store.PeerStore) (store.PeerStore, error) {
	known := r.member().Peers[region]
	if !told.Supersedes(known) {
		return known, nil
	}
	err := r.changeMembership(ctx, func(m store.Membership) (store.Membership, error) {
		if known = m.Peers[region]; told.Supersedes(known) { // or another process has learned it
			m = m.WithAccepted(region, told, time.Now())
		}
		return m, nil
	})
	if err != nil || !told.Supersedes(known) {
		return known, err
	}
	if known.StoreID != "" && known.StoreID != told.StoreID {
		r.logger.Warn("a region's store was accepted in the place of another", "region", region, "store_id", told.StoreID, "before", known.StoreID,
			"number", told.Number, "actor", told.Actor, "reason", told.Reason)
	}
	return told, nil
}

// AcceptPeerStore implements the PeerService.
func (s *service) AcceptPeerStore(ctx context.Context, m *pb.AcceptPeerStoreRequest) (*pb.AcceptPeerStoreResponse, error) {
	_, err := s.believed(ctx, m)
	if err == nil {
		err = s.authorize(ctx, m.GetCaller(), pb.AdminService_AcceptStore_FullMethodName, "")
	}
	if err == nil && (m.GetAccepted().GetStoreId() == "" || m.GetAccepted().GetAccepted().GetNumber() < 1) {
		err = store.Refuse(store.ErrInvalidArgument, "what is accepted has no id or no number")
	}
	if err == nil {
		err = s.region.take(ctx, m.GetAccepted().GetRegion(), knownFromProto(m.GetAccepted()))
	}
	if err != nil {
		return nil, wire(err)
	}
	return &pb.AcceptPeerStoreResponse{}, nil
}

func knownToProto(region string, s store.PeerStore) *pb.KnownStore {
	return &pb.KnownStore{Region: region, StoreId: s.StoreID, Accepted: acceptanceToProto(s.Acceptance)}
}

func knownFromProto(m *pb.KnownStore) store.PeerStore {
	return store.PeerStore{StoreID: m.GetStoreId(), Acceptance: acceptanceFromProto(m.GetAccepted())}
}

// shownIn is the store that a region says it has.
func shownIn(m *pb.PingResponse) store.PeerStore {
	return store.PeerStore{StoreID: m.GetStoreId(), Acceptance: acceptanceFromProto(m.GetAccepted())}
}

func acceptanceToProto(a store.Acceptance) *pb.Acceptance {
	if a.Number == 0 {
		return nil
	}
	return &pb.Acceptance{Number: a.Number, Actor: a.Actor, Reason: a.Reason}
}

func acceptanceFromProto(m *pb.Acceptance) store.Acceptance {
	return store.Acceptance{Number: m.GetNumber(), Actor: m.GetActor(), Reason: m.GetReason()}
}
