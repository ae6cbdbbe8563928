package pebblestore_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// testNamespaces are what the tests of this kit create beside the default namespace.
var testNamespaces = []store.Namespace{
	{Name: "hold", Retention: 30 * time.Minute, LapsePolicy: store.Hold, Lease: 5 * time.Second},
	{Name: "week", Retention: 7 * 24 * time.Hour, Lease: 2 * time.Second, MaxAttempt: time.Minute},
}

// testKeys are few, so that calls meet, and lie in several namespaces and so tiers.
var testKeys = []store.Key{
	{Namespace: "default", Scope: "/pay.v1.Pay/Charge", ID: "a"},
	{Namespace: "default", Scope: "/pay.v1.Pay/Charge", ID: "b", Entity: "acct-1"},
	{Namespace: "default", ID: "c"},
	{Namespace: "hold", ID: "a", Entity: "acct-1"},
	{Namespace: "week", ID: "a"},
}

// rig is a store under test with what it was told and what it answered.
type rig struct {
	backend store.Backend
	clock   *storetest.Clock
	history *history
	holders *holders
	// onAnswer is called with the number of answers that callers have got.
	onAnswer func(int)
	answers  atomic.Int64
}

// newNamespaces creates the test namespaces and returns all namespaces by name.
func newNamespaces(t testing.TB, b store.Backend) map[string]*store.Namespace {
	t.Helper()
	for _, ns := range testNamespaces {
		if _, err := b.CreateNamespace(t.Context(), ns); err != nil {
			t.Fatalf("create namespace %q: %v", ns.Name, err)
		}
	}
	return namespacesOf(t, b)
}

func namespacesOf(t testing.TB, b store.Backend) map[string]*store.Namespace {
	t.Helper()
	list, err := b.ListNamespaces(t.Context())
	if err != nil {
		t.Fatalf("list namespaces: %v", err)
	}
	byName := map[string]*store.Namespace{}
	for _, ns := range list {
		byName[ns.Name] = &ns
	}
	return byName
}

// newRig prepares a freshly opened store.
func newRig(t testing.TB, b store.Backend, clock *storetest.Clock) *rig {
	namespaces := newNamespaces(t, b)
	return &rig{
		backend:  b,
		clock:    clock,
		history:  &history{namespaces: namespaces, keys: testKeys, base: map[store.Key]row{}, now: storeNow(t, b)},
		onAnswer: func(int) {},
		holders:  &holders{grants: map[store.Key][]grant{}},
	}
}

// round lets clients call the store at one instant of its clock, checks their answers,
// and starts a new history at what is stored then.
func (r *rig) round(t testing.TB, seed uint64, clients, calls int) {
	t.Helper()
	r.burst(t, seed, clients, calls)
	r.endRound(t)
}

// burst lets clients call the store until each has made so many calls or has got no answer.
func (r *rig) burst(t testing.TB, seed uint64, clients, calls int) {
	var wg sync.WaitGroup
	for client := range clients {
		rng := rand.New(rand.NewPCG(seed, uint64(client)))
		wg.Go(func() {
			for range calls {
				req := r.holders.request(rng, r.history.keys, r.history.now)
				if r.call(t, client, req) == answerUnknown {
					return
				}
			}
		})
	}
	wg.Wait()
}

// call sends one request and remembers a grant.
func (r *rig) call(t testing.TB, client int, req any) string {
	answer := r.history.send(t.Context(), r.backend, client, req)
	r.holders.learn(req, answer)
	r.onAnswer(int(r.answers.Add(1)))
	return answer
}

// endRound checks the round and starts the next one.
func (r *rig) endRound(t testing.TB) {
	t.Helper()
	rows := r.history.settled(t.Context(), r.backend)
	r.history.check(t, "no crash")
	r.nextRound(t, rows)
}

// nextRound starts a history at the given rows and the store's time.
func (r *rig) nextRound(t testing.TB, rows map[store.Key]row) {
	t.Helper()
	now := storeNow(t, r.backend)
	if now.Before(r.history.now) {
		t.Errorf("the store's clock went back from %v to %v", r.history.now, now)
	}
	r.history = r.history.next(rows, now)
}

// advance lets time pass between two rounds.
func (r *rig) advance(t testing.TB, d time.Duration) {
	t.Helper()
	r.clock.Advance(d)
	r.nextRound(t, r.history.base)
}

// grant is the right to act that somebody was given.
type grant struct {
	attempt string
	fence   int64
}

// holders knows who was granted what, so that calls are made that matter.
type holders struct {
	mu     sync.Mutex
	grants map[store.Key][]grant // oldest first
	made   int
}

// learn remembers a grant.
func (h *holders) learn(req any, answer string) {
	claim, ok := req.(store.ClaimRequest)
	var got store.ClaimAnswer
	if !ok || json.Unmarshal([]byte(answer), &got) != nil || got.Granted == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.grants[claim.Key] = append(h.grants[claim.Key], grant{claim.AttemptID, got.Granted.Fence})
}

// request makes a request at random: mostly by the latest holder, sometimes by an older
// one, a repeat, a newcomer or an operator.
func (h *holders) request(rng *rand.Rand, keys []store.Key, now time.Time) any {
	key := keys[rng.IntN(len(keys))]
	holder, known := h.pick(rng, key)
	dice := rng.IntN(100)
	switch {
	case dice < 20 || !known:
		return h.newcomer(rng, key, now)
	case dice < 30:
		return store.ClaimRequest{Key: key, AttemptID: holder.attempt, Fingerprint: fingerprintOf(key), Lease: leaseOf(rng)}
	case dice < 42:
		return store.CompleteRequest{Key: key, AttemptID: holder.attempt, Fence: holder.fence, Outcome: outcomeOf(rng, holder)}
	case dice < 52:
		return store.RenewRequest{Key: key, AttemptID: holder.attempt, Fence: holder.fence, Lease: leaseOf(rng)}
	case dice < 68:
		effect := store.EffectNone + store.Effect(rng.IntN(2))
		return store.ReleaseRequest{Key: key, AttemptID: holder.attempt, Fence: holder.fence, Effect: effect}
	case dice < 78:
		return store.LookupRequest{Key: key, Fingerprint: fingerprintOf(key)}
	case dice < 84:
		return inspectRequest{key}
	case dice < 92:
		force := store.ForceReleaseRequest{Key: key, Actor: "operator", Reason: fmt.Sprintf("stuck %d", rng.IntN(3))}
		force.Fence, force.AnyFence = expected(rng, holder)
		return force
	}
	resolve := store.ResolveRequest{Key: key, Actor: "operator", Reason: "checked by hand"}
	resolve.Fence, resolve.AnyFence = expected(rng, holder)
	if rng.IntN(3) == 0 {
		resolve.Outcome = outcomeOf(rng, holder)
	}
	return resolve
}

// expected is the fence that an operator expects: the holder's, or any.
func expected(rng *rand.Rand, holder grant) (fence int64, any bool) {
	if rng.IntN(2) == 0 {
		return 0, true
	}
	return holder.fence, false
}

// newcomer makes a Claim by an attempt nobody has seen; a few are of another request or
// of an intent too old to be answered as new.
func (h *holders) newcomer(rng *rand.Rand, key store.Key, now time.Time) store.ClaimRequest {
	h.mu.Lock()
	h.made++
	claim := store.ClaimRequest{Key: key, AttemptID: fmt.Sprintf("attempt-%d", h.made), Fingerprint: fingerprintOf(key), Lease: leaseOf(rng)}
	h.mu.Unlock()
	switch rng.IntN(10) {
	case 0:
		claim.Fingerprint.Digest = "another request"
	case 1:
		claim.IntentTime = now.Add(-8 * 24 * time.Hour)
	case 2:
		claim.Hold = true
	}
	return claim
}

// pick returns the latest holder of a key, or one of the two before.
func (h *holders) pick(rng *rand.Rand, key store.Key) (grant, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	grants := h.grants[key]
	if len(grants) == 0 {
		return grant{}, false
	}
	back := 0
	if rng.IntN(4) == 0 {
		back = rng.IntN(min(len(grants), 3))
	}
	return grants[len(grants)-1-back], true
}

func fingerprintOf(key store.Key) store.Fingerprint {
	return store.Fingerprint{Version: 1, Digest: "request of " + key.ID}
}

func leaseOf(rng *rand.Rand) time.Duration {
	return time.Duration(1+rng.IntN(40)) * time.Second
}

// outcomeOf makes an outcome. Now and then it is large, so that logs and tables grow.
func outcomeOf(rng *rand.Rand, holder grant) *store.Outcome {
	size := 10 + rng.IntN(50)
	if rng.IntN(4) == 0 {
		size = 6000
	}
	return &store.Outcome{
		Status:   []byte{8, 0},
		BodyType: "pay.v1.Receipt",
		Body:     bytes.Repeat([]byte(holder.attempt+"."), size/len(holder.attempt)+1),
		Trailer:  []store.MetadataEntry{{Name: "receipt", Value: []byte{byte(rng.IntN(256))}}},
	}
}
