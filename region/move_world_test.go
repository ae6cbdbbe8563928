package region

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

const (
	movedNamespace = "orders"
	worldRetention = 2 * time.Minute
)

// moveWorld is three regions with stores in memory, whose clocks are apart and go at one pace,
// in which movers and callers take turns: one step of one of them at a time, chosen by chance.
type moveWorld struct {
	t       *testing.T
	rand    *rand.Rand
	stores  map[string]*storetest.Memory
	clocks  map[string]*storetest.Clock
	offset  map[string]time.Duration
	elapsed time.Duration // true time since the start
	ghosts  []func()      // requests that arrive once more, later
	history map[store.Key]*keyHistory
}

var worldRegions = []string{"ap", "eu", "us"}

// newMoveWorld places the namespace by the rule. Chance decides how far the clocks are apart, up
// to apart.
func newMoveWorld(t *testing.T, seed uint64, rule string, apart time.Duration) *moveWorld {
	w := &moveWorld{
		t: t, rand: rand.New(rand.NewPCG(seed, 1)), history: map[store.Key]*keyHistory{},
		stores: map[string]*storetest.Memory{}, clocks: map[string]*storetest.Clock{}, offset: map[string]time.Duration{},
	}
	for _, name := range worldRegions {
		offset := time.Duration(0)
		if apart > 0 {
			offset = time.Duration(w.rand.Int64N(int64(apart))).Truncate(time.Microsecond)
		}
		clock := storetest.NewClock()
		clock.Advance(offset)
		w.clocks[name], w.offset[name], w.stores[name] = clock, offset, storetest.NewMemory(clock)
		ns := store.Namespace{Name: movedNamespace, Tier: store.TierHour, Retention: worldRetention, Lease: 5 * time.Second, MaxAttempt: 30 * time.Second}
		if _, err := w.stores[name].CreateNamespace(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
		if _, err := w.stores[name].PlaceNamespace(t.Context(), movedNamespace, store.Placement{Epoch: 1, Revision: 1, Rule: rule}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *moveWorld) advance(d time.Duration) {
	w.elapsed += d
	for _, clock := range w.clocks {
		clock.Advance(d)
	}
}

// trueTime is what a region's clock says, as time since the start.
func (w *moveWorld) trueTime(region string, t time.Time) time.Duration {
	return t.Sub(storetest.Start) - w.offset[region]
}

func (w *moveWorld) placementIn(region string) store.Placement {
	ns, err := w.stores[region].GetNamespace(w.t.Context(), movedNamespace)
	if err != nil {
		w.t.Fatal(err)
	}
	return ns.Placement
}

// mover is one in the region; step is called before each request to a store, and after it,
// and ends the mover if it returns an error.
func (w *moveWorld) mover(here string, step func() error) *Mover {
	m := &Mover{
		Here: here, Local: &steppedStore{w.stores[here], w, step}, Peers: map[string]Party{}, Logger: slog.New(slog.DiscardHandler),
		Sleep: func(_ context.Context, d time.Duration) error {
			w.advance(d)
			return step()
		},
	}
	for _, name := range worldRegions {
		if name != here {
			m.Peers[name] = &localParty{&steppedStore{w.stores[name], w, step}, name}
		}
	}
	return m
}

// awayParty is a region that cannot be reached.
type awayParty struct{}

var errAway = store.Refuse(store.ErrHomeUnreachable, "it did not answer")

func (awayParty) Namespace(context.Context, string) (store.Namespace, error) {
	return store.Namespace{}, errAway
}

func (awayParty) Place(context.Context, string, store.Placement) (store.Placed, error) {
	return store.Placed{}, errAway
}

func (awayParty) Held(context.Context, string, int64) (Held, error) { return Held{}, errAway }

func (awayParty) Export(context.Context, string, int64, string) (Exported, error) {
	return Exported{}, errAway
}

func (awayParty) Forget(context.Context, string, int64) (bool, error) { return false, errAway }

// steppedStore makes every change of a store a step of its own, which may arrive once more.
type steppedStore struct {
	*storetest.Memory
	w    *moveWorld
	step func() error
}

func (s *steppedStore) around(call func() error) error {
	if err := s.step(); err != nil {
		return err
	}
	if s.w.rand.IntN(4) == 0 {
		s.w.ghosts = append(s.w.ghosts, func() { _ = call() })
	}
	err := call()
	if err := s.step(); err != nil {
		return err
	}
	return err
}

func (s *steppedStore) PlaceNamespace(ctx context.Context, namespace string, p store.Placement) (placed store.Placed, err error) {
	answered := false
	err = s.around(func() error {
		again, err := s.Memory.PlaceNamespace(ctx, namespace, p)
		if !answered {
			placed, answered = again, true
		}
		return err
	})
	return placed, err
}

func (s *steppedStore) ImportRecords(ctx context.Context, namespace string, revision int64, records []store.Inspection) error {
	return s.around(func() error { return s.Memory.ImportRecords(ctx, namespace, revision, records) })
}

func (s *steppedStore) ForgetRecords(ctx context.Context, namespace string, revision int64, keep func(store.Key) bool) (more bool, err error) {
	err = s.around(func() error {
		_, err := s.Memory.ForgetRecords(ctx, namespace, revision, keep)
		return err
	})
	return false, err
}

// checkGrants fails if two regions grant one key.
func (w *moveWorld) checkGrants() {
	for _, key := range worldKeys {
		var grant []string
		for _, name := range worldRegions {
			p := w.placementIn(name)
			rule, err := placement.ParseRule(p.Rule)
			if err != nil {
				w.t.Fatal(err)
			}
			stopped := p.Move.Phase == store.MoveFrozen || p.Move.Phase == store.MoveSealed
			if rule.Home(key) == name && !stopped {
				grant = append(grant, fmt.Sprintf("%s: %+v", name, p))
			}
		}
		if len(grant) > 1 {
			w.t.Fatalf("two regions grant %v: %q", key, grant)
		}
	}
}

var worldKeys = func() (keys []store.Key) {
	for _, entity := range []string{"a-1", "a-2", "b-1", ""} {
		for _, id := range []string{"1", "2"} {
			keys = append(keys, store.Key{Namespace: movedNamespace, ID: id, Entity: entity})
		}
	}
	return keys
}()

// keyHistory is what callers were told of a key, times in true time since the start.
type keyHistory struct {
	fence     int64 // the highest that was granted
	attempt   attempt
	holders   []attempt // all attempts that were granted
	completed string    // the outcome
	until     time.Duration
}

type attempt struct {
	id       string
	fence    int64
	leaseEnd time.Duration
	over     bool          // it said itself that it has ended
	released bool          // and that nothing happened
	gone     time.Duration // when its record expires
}

// router is a server's way to a home, with a map that may be of yesterday.
type router struct {
	w    *moveWorld
	map_ store.Placement
}

func (r *router) learn() {
	p := r.w.placementIn(worldRegions[r.w.rand.IntN(len(worldRegions))])
	if p.Revision > r.map_.Revision {
		r.map_ = p
	}
}

func (r *router) home(key store.Key) (string, *storetest.Memory) {
	rule, err := placement.ParseRule(r.map_.Rule)
	if err != nil {
		r.w.t.Fatal(err)
	}
	home := rule.Home(key)
	return home, r.w.stores[home]
}

// act does something on a key, and checks the answer against what callers were told before.
func (r *router) act(serial int) {
	w := r.w
	if w.rand.IntN(3) == 0 {
		r.learn()
	}
	key := worldKeys[w.rand.IntN(len(worldKeys))]
	h := w.history[key]
	if h == nil {
		h = &keyHistory{}
		w.history[key] = h
	}
	var err error
	switch n := w.rand.IntN(10); {
	case n < 5:
		err = r.claim(key, h, fmt.Sprintf("attempt-%d", serial))
	case n < 7:
		err = r.complete(key, h, fmt.Sprintf("outcome-%d", serial))
	case n < 8:
		err = r.renew(key, h)
	case n < 9:
		err = r.release(key, h)
	default:
		err = r.lookup(key, h)
	}
	switch {
	case err == nil, errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrNamespaceMoving), errors.Is(err, store.ErrStaleFence), errors.Is(err, store.ErrLeaseExpired),
		errors.Is(err, store.ErrKeyNotFound), errors.Is(err, store.ErrAlreadyCompleted), errors.Is(err, store.ErrStaleAttempt), errors.Is(err, store.ErrAttemptTooLong):
	case errors.Is(err, store.ErrWrongRegion):
		r.learn()
	default:
		w.t.Fatalf("%v: %v", key, err)
	}
}

func (r *router) claim(key store.Key, h *keyHistory, id string) error {
	w := r.w
	region, home := r.home(key)
	if w.rand.IntN(4) == 0 && h.attempt.id != "" {
		id = h.attempt.id // sent again
	}
	answer, err := home.Claim(w.t.Context(), store.ClaimRequest{Key: key, AttemptID: id, Epoch: r.map_.Epoch})
	known := h.completed != "" && w.elapsed < h.until
	switch {
	case err != nil:
		return err
	case answer.Completed != nil:
		if known && string(answer.Completed.Outcome.Body) != h.completed {
			w.t.Fatalf("%v: the outcome was %q and is %q", key, h.completed, answer.Completed.Outcome.Body)
		}
	case known:
		w.t.Fatalf("%v was completed with %q until %v, and at %v a claim is answered %+v", key, h.completed, h.until, w.elapsed, answer)
	case answer.Granted != nil:
		w.granted(region, key, h, id, answer.Granted)
	}
	return nil
}

func (w *moveWorld) granted(region string, key store.Key, h *keyHistory, id string, g *store.Granted) {
	end := w.trueTime(region, g.LeaseExpiresAt)
	gone := end + worldRetention
	if id == h.attempt.id && w.elapsed < h.attempt.gone {
		if g.Fence != h.attempt.fence {
			w.t.Fatalf("%v: %s is granted again under fence %d, and had %d", key, id, g.Fence, h.attempt.fence)
		}
		h.attempt.leaseEnd, h.attempt.gone, h.attempt.over = end, gone, false
		return
	}
	if g.Fence <= h.fence {
		w.t.Fatalf("%v: fence %d follows %d", key, g.Fence, h.fence)
	}
	old := h.attempt
	if old.id != "" && !old.over && w.elapsed < old.leaseEnd {
		w.t.Fatalf("%v: granted to %s at %v, and %s has it until %v", key, id, w.elapsed, old.id, old.leaseEnd)
	}
	if old.id != "" && h.completed == "" && !old.released && w.elapsed < old.gone && !g.Unsettled {
		w.t.Fatalf("%v: granted to %s, though what %s did is not known, without saying so", key, id, old.id)
	}
	h.fence, h.completed = g.Fence, ""
	h.attempt = attempt{id: id, fence: g.Fence, leaseEnd: end, gone: gone}
	h.holders = append(h.holders, h.attempt)
}

func (r *router) complete(key store.Key, h *keyHistory, body string) error {
	holder := h.attempt
	if holder.id == "" {
		return nil
	}
	if r.w.rand.IntN(4) == 0 {
		holder = h.holders[r.w.rand.IntN(len(h.holders))]
	}
	region, home := r.home(key)
	answer, err := home.Complete(r.w.t.Context(), store.CompleteRequest{
		Key: key, AttemptID: holder.id, Fence: holder.fence, Epoch: r.map_.Epoch, Outcome: &store.Outcome{Body: []byte(body)},
	})
	if err != nil {
		return err
	}
	if holder.fence != h.fence || h.completed != "" {
		r.w.t.Fatalf("%v: completed by fence %d, and %d was granted; outcome %q", key, holder.fence, h.fence, h.completed)
	}
	h.completed, h.until, h.attempt.over = body, r.w.trueTime(region, answer.ExpiresAt), true
	h.attempt.gone = h.until
	return nil
}

func (r *router) renew(key store.Key, h *keyHistory) error {
	if h.attempt.id == "" {
		return nil
	}
	region, home := r.home(key)
	answer, err := home.Renew(r.w.t.Context(), store.RenewRequest{Key: key, AttemptID: h.attempt.id, Fence: h.attempt.fence, Epoch: r.map_.Epoch})
	if err == nil {
		h.attempt.leaseEnd = r.w.trueTime(region, answer.LeaseExpiresAt)
		h.attempt.gone = h.attempt.leaseEnd + worldRetention
	}
	return err
}

func (r *router) release(key store.Key, h *keyHistory) error {
	if h.attempt.id == "" {
		return nil
	}
	_, home := r.home(key)
	answer, err := home.Release(r.w.t.Context(), store.ReleaseRequest{
		Key: key, AttemptID: h.attempt.id, Fence: h.attempt.fence, Effect: store.EffectNone, Epoch: r.map_.Epoch,
	})
	if err == nil {
		if answer.State == store.StateReleased && !h.attempt.released {
			h.attempt.released, h.attempt.gone = true, r.w.elapsed+worldRetention
		}
		h.attempt.over = true
	}
	return err
}

func (r *router) lookup(key store.Key, h *keyHistory) error {
	_, home := r.home(key)
	answer, err := home.Lookup(r.w.t.Context(), store.LookupRequest{Key: key, Epoch: r.map_.Epoch})
	known := h.completed != "" && r.w.elapsed < h.until
	if known && !errors.Is(err, store.ErrWrongRegion) && (err != nil || answer.State != store.StateCompleted || string(answer.Outcome.Body) != h.completed) {
		r.w.t.Fatalf("%v was completed with %q until %v, and at %v a lookup says %+v, %v", key, h.completed, h.until, r.w.elapsed, answer, err)
	}
	return err
}

// actor runs in turns that [turns] gives it.
type actor struct {
	turn, yielded chan struct{}
}

func (a *actor) wait() {
	a.yielded <- struct{}{}
	<-a.turn
}

// turns runs the actors, one step of one of them at a time, until all have ended.
func (w *moveWorld) turns(after func(), actors ...func(a *actor)) {
	running := map[int]*actor{}
	for i, run := range actors {
		a := &actor{turn: make(chan struct{}), yielded: make(chan struct{})}
		running[i] = a
		go func() {
			<-a.turn
			run(a)
			close(a.yielded)
		}()
	}
	for len(running) > 0 {
		ids := slices.Sorted(maps.Keys(running))
		i := ids[w.rand.IntN(len(ids))]
		running[i].turn <- struct{}{}
		if _, alive := <-running[i].yielded; !alive {
			delete(running, i)
		}
		after()
	}
}

func quiet(Step) error { return nil }
