package pebblestore_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// No answer leaves before the sync of all that it saw, also one that only read.
func TestCrashAnswersWaitForSync(t *testing.T) {
	for _, write := range gatedWrites {
		t.Run(write.name, func(t *testing.T) {
			var crashes []crash
			inBubble(t, func(t *testing.T) { crashes = crashesWhileSyncIsHeld(t, write) })
			verifyAll(t, crashes)
		})
	}
}

// gatedWrite is a change, with the calls that lead up to it.
type gatedWrite struct {
	name   string
	before []any
	pause  time.Duration
	change any
}

var (
	gateKey     = testKeys[0]
	gateFence   = storetest.Start.UnixMicro()
	gateOutcome = &store.Outcome{Body: []byte("done")}
	gateClaim   = store.ClaimRequest{Key: gateKey, AttemptID: "one", Fingerprint: fingerprintOf(gateKey), Lease: 10 * time.Second}
	gateOther   = store.ClaimRequest{Key: gateKey, AttemptID: "two", Fingerprint: fingerprintOf(gateKey), Lease: 10 * time.Second}
	gateDone    = store.CompleteRequest{Key: gateKey, AttemptID: "one", Fence: gateFence, Outcome: gateOutcome}
	gateFree    = store.ReleaseRequest{Key: gateKey, AttemptID: "one", Fence: gateFence, Effect: store.EffectNone}
	gateUnknown = store.ReleaseRequest{Key: gateKey, AttemptID: "one", Fence: gateFence, Effect: store.EffectUnknown}
	gateRenew   = store.RenewRequest{Key: gateKey, AttemptID: "one", Fence: gateFence, Lease: time.Minute}
	gateForce   = store.ForceReleaseRequest{Key: gateKey, AnyFence: true, Actor: "operator", Reason: "stuck"}
	gateSettle  = store.ResolveRequest{Key: gateKey, AnyFence: true, Actor: "operator", Reason: "checked", Outcome: gateOutcome}
)

var gatedWrites = []gatedWrite{
	{name: "claim", change: gateClaim},
	{name: "renew", before: []any{gateClaim}, change: gateRenew},
	{name: "complete", before: []any{gateClaim}, change: gateDone},
	{name: "release", before: []any{gateClaim}, change: gateFree},
	{name: "release as unknown", before: []any{gateClaim}, change: gateUnknown},
	{name: "takeover", before: []any{gateClaim}, pause: time.Minute, change: gateOther},
	{name: "claim of a released key", before: []any{gateClaim, gateFree}, change: gateOther},
	{name: "claim of an expired key", before: []any{gateClaim, gateDone}, pause: 25 * time.Hour, change: gateOther},
	{name: "late complete", before: []any{gateClaim}, pause: time.Minute, change: gateDone},
	{name: "evidence of a late outcome", before: []any{gateClaim, gateFree, gateOther}, change: gateDone},
	{name: "force release", before: []any{gateClaim}, change: gateForce},
	{name: "resolve", before: []any{gateClaim, gateUnknown}, change: gateSettle},
}

// gateReads are calls that see a change without making one of their own, mostly.
var gateReads = []any{
	store.LookupRequest{Key: gateKey, Fingerprint: fingerprintOf(gateKey)},
	inspectRequest{gateKey},
	listRequest{gateKey},
	gateClaim,
	store.ClaimRequest{Key: gateKey, AttemptID: "three", Fingerprint: fingerprintOf(gateKey)},
	store.ClaimRequest{Key: gateKey, AttemptID: "four", Fingerprint: store.Fingerprint{Digest: "another"}},
	store.RenewRequest{Key: gateKey, AttemptID: "nobody", Fence: 1},
	gateDone,
	gateFree,
}

// crashesWhileSyncIsHeld makes a change whose sync does not end, then calls that would see
// the change, and loses the disk.
func crashesWhileSyncIsHeld(t *testing.T, write gatedWrite) []crash {
	clock := storetest.NewClock()
	c := newCrasher(vfs.NewCrashableMem(), clock, 1, 0, 0)
	var gate gate
	c.beforeEach(func(op errorfs.Op) error {
		if isSync(op) && isWAL(op) {
			gate.pass()
		}
		return nil
	})
	s := mustOpen(t, c.fs(), clock)
	r := newRig(t, s, clock)
	for _, req := range write.before {
		r.call(t, 0, req)
	}
	r.endRound(t)
	r.advance(t, write.pause)
	c.record(r.history)

	gate.close()
	var callers sync.WaitGroup
	callers.Go(func() { r.call(t, 1, write.change) })
	synctest.Wait()
	for i, req := range gateReads {
		callers.Go(func() { r.call(t, 2+i, req) })
		synctest.Wait()
	}
	if answer := r.history.calls[0].answer; answer != "" {
		t.Errorf("answered before its sync: %s", answer)
	}
	c.crashNow("while the sync is held", 0)
	gate.open()
	callers.Wait()
	r.endRound(t)
	mustClose(t, s)
	return c.take()
}

// gate holds back whoever passes it while it is closed.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // nil while open
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = make(chan struct{})
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shut)
	g.shut = nil
}

func (g *gate) pass() {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		<-shut
	}
}
