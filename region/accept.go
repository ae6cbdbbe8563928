package region

import (
	"context"
	"errors"
	"fmt"
	"strings"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// AcceptStore has all regions, but the one that it is about, know a store as that region's from
// now on. Doing it again makes up for what was missed.
func (r *Region) AcceptStore(ctx context.Context, req store.AcceptStoreRequest) error {
	if err := r.accept(ctx, req); err != nil {
		return err
	}
	missed, err := r.tellOthers(ctx, req.Region, func(p *peer, l *link) error {
		_, err := l.client.AcceptPeerStore(ctx, &pb.AcceptPeerStoreRequest{
			Region: p.name, FromRegion: r.config.Name, FromStoreId: r.member().StoreID, Caller: r.config.Caller(ctx),
			Accept: &pb.AcceptStoreRequest{Region: req.Region, StoreId: req.StoreID, Actor: req.Actor, Reason: req.Reason},
		})
		if err != nil {
			_, err = p.failed(ctx, err)
		}
		return err
	})
	return notEverywhere(ctx, "a region's store is accepted once all others know it, and this was missed", missed, err)
}

// accept has this region know a store as that of another one.
func (r *Region) accept(ctx context.Context, req store.AcceptStoreRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	req.StoreID = strings.ToLower(req.StoreID)
	p := r.peers[req.Region]
	switch {
	case req.Region == r.config.Name:
		return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("this is a server of region %q itself; its store is accepted by the others: ask a server of another region", req.Region))
	case p == nil:
		return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("the topology of region %q names no region %q", r.config.Name, req.Region))
	}
	if l := p.current.Load(); l != nil {
		_ = p.ping(ctx, l) // the store may have been another one a moment ago
	}
	if shown := p.shownStore(); shown != "" && shown != req.StoreID {
		return store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("the store that answers as region %q has the id %s, and not %s", req.Region, shown, req.StoreID))
	}
	before := ""
	err := r.changeMembership(ctx, func(m store.Membership) (store.Membership, error) {
		if before = m.Peers[req.Region].StoreID; before == req.StoreID {
			return m, nil
		}
		return m.WithPeer(req.Region, store.PeerStore{StoreID: req.StoreID, Actor: req.Actor, Reason: req.Reason}), nil
	})
	if err == nil && before != req.StoreID {
		r.logger.Warn("a region's store was accepted in the place of another", "region", req.Region, "store_id", req.StoreID, "before", before,
			"actor", req.Actor, "reason", req.Reason)
	}
	return err
}

// unseen notes that no store answers, unless it does and is refused. The caller holds mu.
func (p *peer) unseen(err error) {
	var other *stranger
	if !errors.As(err, &other) {
		p.shown = ""
	}
}

// shownStore is the id of the store that answers as the region; empty if none does.
func (p *peer) shownStore() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shown
}

// AcceptPeerStore implements the PeerService.
func (s *service) AcceptPeerStore(ctx context.Context, m *pb.AcceptPeerStoreRequest) (*pb.AcceptPeerStoreResponse, error) {
	_, err := s.believed(ctx, m)
	if err == nil {
		err = s.authorize(ctx, m.GetCaller(), pb.AdminService_AcceptStore_FullMethodName, "")
	}
	if err == nil {
		a := m.GetAccept()
		err = s.region.accept(ctx, store.AcceptStoreRequest{Region: a.GetRegion(), StoreID: a.GetStoreId(), Actor: a.GetActor(), Reason: a.GetReason()})
	}
	if err != nil {
		return nil, wire(err)
	}
	return &pb.AcceptPeerStoreResponse{}, nil
}
