package region

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// moveCallTime is how long another region has for one step of a move.
const moveCallTime = 30 * time.Second

// MoveNamespace gives the keys of a namespace another home, and tells of each step. See [Mover].
func (r *Region) MoveNamespace(ctx context.Context, m *pb.MoveNamespaceRequest, tell func(*pb.MoveNamespaceResponse) error) error {
	req := MoveRequest{Namespace: m.GetNamespace(), To: m.GetToRegion(), Abandon: m.GetAbandon(), Actor: m.GetActor()}
	if p := m.GetPatience(); p != nil {
		if p.CheckValid() != nil || p.AsDuration() < 0 {
			return store.Refuse(store.ErrInvalidArgument, "the patience is no duration, or negative")
		}
		req.Patience = p.AsDuration()
	}
	if err := r.atHome(); err != nil { // or what it has could be moved in the place of what is known
		return err
	}
	if k := r.atlas.Load().byName[req.Namespace]; k != nil && k.dispute != "" {
		return disputed(k)
	}
	if !req.Abandon {
		if err := r.placedSoon(ctx, req.Namespace); err != nil {
			return err
		}
	}
	return r.mover(ctx).Move(ctx, req, func(s Step) error {
		return tell(&pb.MoveNamespaceResponse{Step: s.Name, Detail: s.Detail, Count: s.Count, Placement: storepb.PlacementToProto(s.Placement)})
	})
}

// placedSoon waits for the first placement of a namespace, which may have been created a moment
// ago, and says what it lacks if that does not come.
func (r *Region) placedSoon(ctx context.Context, namespace string) error {
	bounded, cancel := context.WithTimeout(ctx, learnTime)
	defer cancel()
	for {
		_, err := r.find(ctx, namespace)
		if !errors.Is(err, store.ErrUnavailable) || sleep(bounded, settleInterval) != nil {
			return err
		}
	}
}

// mover moves in the name of the one who calls.
func (r *Region) mover(ctx context.Context) *Mover {
	m := &Mover{Here: r.config.Name, Local: &movedStore{r.config.Store, r}, Peers: map[string]Party{}, Logger: r.logger}
	for name, p := range r.peers {
		m.Peers[name] = &remoteParty{ask: p.ask, region: name, here: r.config.Name, storeID: r.member().StoreID, caller: r.config.Caller(ctx)}
		if standIn := r.standIns[name]; standIn.standsFor(r.member().Peers[name]) && p.current.Load() == nil { // so a lost region's keys can leave it
			m.Peers[name] = &localParty{standIn.Backend, name}
		}
	}
	return m
}

// ask makes one call. A region whose store is no home does not take part, as one that is away.
func (p *peer) ask(ctx context.Context, call func(context.Context, pb.PeerServiceClient) error) error {
	l := p.current.Load()
	if l == nil {
		return p.notMoved()
	}
	if !p.hasJoined() && (p.ping(ctx, l) != nil || !p.hasJoined()) { // it may just have
		refused := p.notMoved()
		refused.Detail = fmt.Sprintf("the store of region %q is home to no keys yet, and so takes no step of a move; nothing is lost: see what it lacks (idemd region list), "+
			"and run the move again, or abandon it", p.name)
		return refused
	}
	bounded, cancel := context.WithTimeout(ctx, moveCallTime)
	defer cancel()
	err := call(bounded, l.client)
	if err == nil || fromIdemd(err) || ctx.Err() != nil {
		return storepb.FromStatus(err)
	}
	refused := p.notMoved()
	refused.Cause = err
	return refused
}

func (p *peer) hasJoined() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.joined
}

// notMoved is the refusal of a step of a move that the region did not answer.
func (p *peer) notMoved() *store.Error {
	why := p.why()
	if why != "" {
		why = " (" + why + ")"
	}
	return &store.Error{
		Sentinel: store.ErrHomeUnreachable, RetryAfter: time.Second,
		Detail: fmt.Sprintf("region %q did not answer%s; nothing is lost: run the move again once it does, or abandon it", p.name, why),
	}
}

// movedStore is this region's store, of whose placements this process learns at once.
type movedStore struct {
	store.Backend
	region *Region
}

// PlaceNamespace implements [store.Placements]. A store that is no home decides nothing.
func (s *movedStore) PlaceNamespace(ctx context.Context, namespace string, p store.Placement) (store.Placed, error) {
	if err := s.region.atHome(); err != nil {
		return store.Placed{}, err
	}
	own, err := s.GetNamespace(ctx, namespace)
	if err != nil {
		return store.Placed{}, err
	}
	if !s.region.mayAdopt(own, p) {
		return store.Placed{}, &store.Error{Sentinel: store.ErrUnavailable, Detail: fmt.Sprintf(
			"region %q has records of namespace %q of its own, from before it was one of these regions; they would be forgotten: serve it with an empty store", s.region.config.Name, namespace)}
	}
	if err := s.region.noteMissed(ctx, own, p); err != nil {
		return store.Placed{}, err
	}
	placed, err := s.Backend.PlaceNamespace(ctx, namespace, p)
	if err != nil {
		return store.Placed{}, err
	}
	return placed, s.region.refresh(ctx)
}
