package region

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// GetNamespace implements [store.Namespaces], by this region's store.
func (r *Router) GetNamespace(ctx context.Context, name string) (store.Namespace, error) {
	ns, err := r.local.GetNamespace(ctx, name)
	if errors.Is(err, store.ErrNamespaceUnknown) {
		return ns, r.region.unknownHere(name)
	}
	return ns, err
}

// ListNamespaces implements [store.Namespaces], by this region's store.
func (r *Router) ListNamespaces(ctx context.Context) ([]store.Namespace, error) {
	return r.local.ListNamespaces(ctx)
}

// CreateNamespace implements [store.Namespaces], in all regions, which must be reachable. Nothing
// is created where one of them has it with other settings. If it breaks off, doing it again makes
// up for what is missing.
func (r *Router) CreateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	if _, ok := r.region.config.Topology.rule(ns.Name); !ok {
		return store.Namespace{}, store.Refuse(store.ErrInvalidArgument, fmt.Sprintf(
			"no rule of the topology says where the keys of namespace %q live; add it to placements, or \"*\", in every region", ns.Name))
	}
	if err := r.region.listenToAll(ctx); err != nil {
		return store.Namespace{}, err
	}
	if err := r.region.mayCreate(ctx, ns); err != nil {
		return store.Namespace{}, err
	}
	ns.PastRetentions, ns.Placement = r.region.pastRetentions(ns.Name), r.region.placedElsewhere(ns.Name)
	created, err := r.region.createHere(ctx, r.local, ns)
	if err != nil {
		return store.Namespace{}, err
	}
	theirs := created
	theirs.Placement = newer(created.Placement, ns.Placement)
	theirs.RecoveryFloor = ns.RecoveryFloor // of this region's own only if it was asked for
	err = r.region.everywhere(ctx, func(p *peer, l *link) error { return p.put(ctx, l, theirs, false) })
	if err != nil {
		return store.Namespace{}, err
	}
	placed, err := r.placed(ctx, created)
	if err != nil {
		return store.Namespace{}, err
	}
	return placed, r.region.awaitHomes(ctx)
}

// awaitHomes returns once the stores of all regions are homes, so that what was created can be
// used: when all regions are new, they have come to know each other just now.
func (r *Region) awaitHomes(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, learnTime)
	defer cancel()
	for {
		name := r.noHome()
		if name == "" {
			return nil
		}
		if sleep(bounded, r.config.pingEvery/10) == nil {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &store.Error{Sentinel: store.ErrUnavailable, RetryAfter: time.Second, Detail: fmt.Sprintf(
			"it was created, but the store of region %q is home to no keys yet; create it once more, or see idemd region list", name)}
	}
}

// noHome is a region whose store is no home; empty if there is none.
func (r *Region) noHome() string {
	for _, name := range r.config.Topology.names() {
		if _, joined := r.storeOf(name); !joined {
			return name
		}
	}
	return ""
}

// placed waits for the first placement of a namespace that all regions have. If they do not
// agree, callers are told so.
func (r *Router) placed(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	if ns.Placement != (store.Placement{}) {
		return ns, r.region.refresh(ctx)
	}
	if err := r.region.settle(ctx); err != nil && ctx.Err() != nil {
		return store.Namespace{}, ctx.Err()
	}
	return r.region.config.Store.GetNamespace(ctx, ns.Name)
}

// UpdateNamespace implements [store.Namespaces], in all regions, which must be reachable; those
// that lack it create it. Where one would refuse it, nothing is changed. This region's own store
// comes last: if it breaks off, what an operator reads here is what was there before, and doing it
// again, which writes all settings everywhere, makes up for what was missed. A recovery floor goes to other regions only if it is raised: otherwise it is this region's own
// matter, as it is a region's store that was restored.
func (r *Router) UpdateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	if err := r.region.listenToAll(ctx); err != nil {
		return store.Namespace{}, err
	}
	old, err := r.GetNamespace(ctx, ns.Name)
	if err != nil {
		return store.Namespace{}, err
	}
	theirs, err := r.region.mayUpdate(old, ns)
	if err != nil {
		return store.Namespace{}, err
	}
	if !theirs.RecoveryFloor.After(old.RecoveryFloor) {
		theirs.RecoveryFloor = time.Time{}
	}
	err = r.region.everywhere(ctx, func(p *peer, l *link) error { return p.put(ctx, l, theirs, p.said(ns.Name).exists) })
	if err != nil {
		return store.Namespace{}, err
	}
	updated, err := r.local.UpdateNamespace(ctx, ns)
	if errors.Is(err, store.ErrNamespaceChanged) {
		return store.Namespace{}, store.Refuse(store.ErrNamespaceChanged, fmt.Sprintf(
			"namespace %q was updated in region %q while the other regions were told: read it again and set what is to change of that, which writes all settings to every region", ns.Name, r.region.config.Name))
	}
	if err != nil {
		return store.Namespace{}, err
	}
	return updated, r.region.refresh(ctx)
}

// listenToAll refuses unless all regions can be asked what they know.
func (r *Region) listenToAll(ctx context.Context) error {
	missed, err := r.tellOthers(ctx, "", func(p *peer, l *link) error { return p.learnBy(ctx, l) })
	return notEverywhere(ctx, "namespaces are the same in all regions, and not all can be reached, so nothing was done", "do it once they can", missed, err)
}

// put has another region create or update a namespace.
func (p *peer) put(ctx context.Context, l *link, ns store.Namespace, update bool) error {
	_, err := l.client.PutNamespace(ctx, &pb.PutNamespaceRequest{
		Region: p.name, FromRegion: p.region.config.Name, FromStoreId: p.region.member().StoreID, Caller: p.region.config.Caller(ctx),
		Namespace: storepb.NamespaceToProto(ns), Update: update,
	})
	if err != nil {
		err = p.missed(ctx, err)
	}
	return err
}

// everywhere does something to namespaces in all other regions at once, and says which missed it.
func (r *Region) everywhere(ctx context.Context, do func(*peer, *link) error) error {
	missed, err := r.tellOthers(ctx, "", do)
	return notEverywhere(ctx, "namespaces are the same in all regions, and this was missed", doAgain, missed, err)
}

// tellOthers does something in all other regions at once, save one. It returns which missed it,
// and one of the errors.
func (r *Region) tellOthers(ctx context.Context, save string, do func(*peer, *link) error) (missed []string, first error) {
	var (
		asked sync.WaitGroup
		mu    sync.Mutex
	)
	for name, p := range r.peers {
		if name == save {
			continue
		}
		asked.Go(func() {
			var err error = store.Refuse(store.ErrUnavailable, "it cannot be reached: "+p.why())
			if l := p.current.Load(); l != nil {
				err = do(p, l)
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				missed = append(missed, fmt.Sprintf("region %q: %v", name, err))
				first = err
			}
		})
	}
	asked.Wait()
	slices.Sort(missed)
	return missed, first
}

// doAgain is what to do after something was done in some regions only.
const doAgain = "do it again, which makes up for it"

// notEverywhere keeps a refusal of one region, and makes of an outage one that says what to do.
func notEverywhere(ctx context.Context, what, advice string, missed []string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	text := what + ": " + strings.Join(missed, "; ") + "; " + advice
	var refused *store.Error
	if !errors.As(err, &refused) || isOutage(refused) {
		return &store.Error{Sentinel: store.ErrUnavailable, RetryAfter: time.Second, Detail: text, Cause: err}
	}
	return &store.Error{Sentinel: refused.Sentinel, Detail: text, Cause: err}
}

func isOutage(err error) bool {
	return errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrHomeUnreachable) || errors.Is(err, store.ErrInternal)
}

// PlaceNamespace implements [store.Placements], in this region's store.
func (r *Router) PlaceNamespace(ctx context.Context, namespace string, p store.Placement) (store.Placed, error) {
	placed, err := r.local.PlaceNamespace(ctx, namespace, p)
	if err != nil {
		return placed, err
	}
	return placed, r.region.refresh(ctx)
}

// ImportRecords implements [store.Placements], in this region's store.
func (r *Router) ImportRecords(ctx context.Context, namespace string, revision int64, records []store.Inspection) error {
	return r.local.ImportRecords(ctx, namespace, revision, records)
}

// TakeHistory implements [store.Placements], in this region's store.
func (r *Router) TakeHistory(ctx context.Context, revision int64, from store.Namespace) error {
	return r.local.TakeHistory(ctx, revision, from)
}

// ForgetRecords implements [store.Placements], in this region's store.
func (r *Router) ForgetRecords(ctx context.Context, namespace string, revision int64, keep func(store.Key) bool) (bool, error) {
	return r.local.ForgetRecords(ctx, namespace, revision, keep)
}
