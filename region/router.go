package region

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// Router is a [store.Backend] over all regions: what is at home here goes to the local backend,
// the rest to its home, by one call.
type Router struct {
	region *Region
	local  store.Backend
}

var _ store.Backend = (*Router)(nil)

// Over returns a Router over what answers for this region's own keys.
func (r *Region) Over(local store.Backend) store.Backend { return &Router{region: r, local: local} }

// Claim implements [store.Store].
func (r *Router) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	return route(ctx, r, claiming, req)
}

// Renew implements [store.Store].
func (r *Router) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	return route(ctx, r, renewing, req)
}

// Complete implements [store.Store].
func (r *Router) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	return route(ctx, r, completing, req)
}

// Release implements [store.Store].
func (r *Router) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	return route(ctx, r, releasing, req)
}

// Lookup implements [store.Store].
func (r *Router) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	return route(ctx, r, lookingUp, req)
}

// maxDecisions is how often it is decided where an operation goes, when it turns out that the
// decision was made by yesterday's placement.
const maxDecisions = 3

// route asks the home of the key.
func route[R, A any](ctx context.Context, r *Router, op *operation[R, A], req R) (A, error) {
	var none A
	if err := op.validate(req); err != nil {
		return none, err
	}
	key := op.key(req)
	began, waited := time.Now(), time.Duration(0) // in regions that were not the home any more
	for decision := 1; ; decision++ {
		k, err := r.region.find(ctx, key.Namespace)
		if err != nil {
			return none, err
		}
		if op.grants && k.dispute != "" {
			return none, disputed(k)
		}
		home, epoch := k.rule.Home(key), k.ns.Placement.Epoch
		answer, err := askAfter(ctx, r, op, op.by(req, epoch), home, epoch, waited)
		if err == nil || !errors.Is(err, store.ErrWrongRegion) {
			return answer, err
		}
		if decision == maxDecisions || !r.region.hasNews(ctx, key.Namespace, home, epoch) {
			return none, undecided(key.Namespace, home, err)
		}
		waited = time.Since(began)
	}
}

// hasNews learns what placement the home has, which was wrong for a key, and reports whether
// there is a newer one than was decided by.
func (r *Region) hasNews(ctx context.Context, namespace, home string, epoch int64) bool {
	if p := r.peers[home]; p != nil {
		if p.learn(ctx) != nil {
			return false
		}
	} else if r.refresh(ctx) != nil {
		return false
	}
	k := r.atlas.Load().byName[namespace]
	return k != nil && k.ns.Placement.Epoch != epoch
}

func disputed(k *known) error {
	return &store.Error{
		Sentinel: store.ErrNoHome, RetryAfter: time.Second,
		Detail: fmt.Sprintf("where namespace %q lives is disputed, so nothing of it is granted: %s", k.ns.Name, k.dispute),
	}
}

// undecided is the refusal of what two regions do not agree on. Nothing was done.
func undecided(namespace, home string, cause error) error {
	return &store.Error{
		Sentinel: store.ErrNoHome, RetryAfter: pingInterval,
		Detail: fmt.Sprintf("region %q does not yet know namespace %q to live where it does here; nothing was done; send it again", home, namespace),
		Cause:  cause,
	}
}

// askAfter is ask where the request may have waited in another region before.
func askAfter[R, A any](ctx context.Context, r *Router, op *operation[R, A], req R, home string, epoch int64, waited time.Duration) (A, error) {
	if op.after == nil || waited == 0 {
		return ask(ctx, r, op, req, home, epoch)
	}
	answer, err := ask(ctx, r, op, op.after(req, waited), home, epoch)
	return op.answered(answer, waited), err
}

// ask carries out an operation in one region.
func ask[R, A any](ctx context.Context, r *Router, op *operation[R, A], req R, home string, epoch int64) (A, error) {
	served := store.Served{Home: home, Epoch: epoch}
	backend := r.local
	var none A
	if home == r.region.config.Name {
		if err := r.region.atHome(); err != nil {
			return none, err
		}
	} else {
		l, standIn, err := r.region.way(home)
		if err != nil {
			return none, err
		}
		if l != nil {
			served.Forwarded = true
			answer, err := forward(ctx, r.region, l, op, req, home, epoch)
			return tell(op, answer, err, served), err
		}
		r.region.config.Observer.StoodIn(home)
		backend = standIn
	}
	answer, err := op.perform(backend, ctx, req)
	return tell(op, answer, err, served), err
}

func tell[R, A any](op *operation[R, A], answer A, err error, served store.Served) A {
	if err != nil || op.told == nil {
		return answer
	}
	return op.told(answer, served)
}

// way is how another region is asked: by its servers, or by its store if they cannot be reached
// and this process has it open.
func (r *Region) way(home string) (*link, store.Backend, error) {
	p := r.peers[home]
	if p == nil {
		return nil, nil, homeUnreachable(home, fmt.Sprintf("the topology of region %q does not name it", r.config.Name))
	}
	if l := p.current.Load(); l != nil {
		return l, nil, nil
	}
	if s := r.standIns[home]; s.standsFor(r.member().Peers[home]) {
		return nil, s, nil
	}
	r.config.Observer.Forwarded(home, ForwardUnsent)
	return nil, nil, p.unreachable()
}

// forward sends an operation to its home and waits for the answer.
func forward[R, A any](ctx context.Context, r *Region, l *link, op *operation[R, A], req R, home string, epoch int64) (A, error) {
	m := &pb.ForwardRequest{Region: home, FromRegion: r.config.Name, FromStoreId: r.member().StoreID, Epoch: epoch, Caller: r.config.Caller(ctx)}
	op.write(m, req)
	if m.GetClaim().GetWait() != nil {
		undrained, stop := r.untilDrain(ctx)
		defer stop()
		ctx = undrained
	}
	var answer A
	response, err := l.client.Forward(ctx, m)
	result := ForwardAnswered
	if err != nil {
		result, err = r.peers[home].failed(ctx, err)
		err = r.disagreed(home, err)
	} else {
		answer, err = op.answer(response)
	}
	r.config.Observer.Forwarded(home, result)
	return answer, err
}

// disagreed says of a refusal by a key's home that this region would not have refused it: callers
// who may not use a namespace are told that there is none.
func (r *Region) disagreed(home string, err error) error {
	if errors.Is(err, store.ErrPermissionDenied) || errors.Is(err, store.ErrNamespaceUnknown) {
		return also(err, fmt.Sprintf("region %q, where it lives, refuses what region %q allows: either it lets other callers use the namespace, by its --policy or --tokens file, or it lacks it, and then %s",
			home, r.config.Name, howToComplete))
	}
	return err
}

var errDraining = &store.Error{
	Sentinel: store.ErrUnavailable,
	Detail:   "the server is about to stop, and waits no longer for the key's home; send it again with the same attempt id",
}

// untilDrain is ctx, but ends when the server is about to stop: a claim may wait for minutes.
func (r *Region) untilDrain(ctx context.Context) (context.Context, func()) {
	bounded, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.draining, func() { cancel(errDraining) })
	return bounded, func() { stop(); cancel(nil) }
}
