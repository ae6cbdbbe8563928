package pebblestore_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// clockKeys are a key that lapses, one that completes and expires, one never claimed, and
// one that is completed still.
var clockKeys = []store.Key{
	{Namespace: "default", ID: "lapses"},
	{Namespace: "default", ID: "expires"},
	{Namespace: "default", ID: "too old to be new"},
	{Namespace: "week", ID: "completed"},
}

// clockSetup are the calls at the start.
var clockSetup = []any{
	store.ClaimRequest{Key: clockKeys[0], AttemptID: "one"},
	store.ClaimRequest{Key: clockKeys[1], AttemptID: "one"},
	store.CompleteRequest{Key: clockKeys[1], AttemptID: "one", Fence: gateFence, Outcome: gateOutcome},
	store.ClaimRequest{Key: clockKeys[3], AttemptID: "one"},
	store.CompleteRequest{Key: clockKeys[3], AttemptID: "one", Fence: gateFence, Outcome: gateOutcome},
}

// clockDecisions are calls a day later that change nothing and whose answers come from the
// clock.
var clockDecisions = []any{
	store.LookupRequest{Key: clockKeys[0]},
	store.RenewRequest{Key: clockKeys[0], AttemptID: "one", Fence: gateFence},
	store.LookupRequest{Key: clockKeys[1]},
	store.ClaimRequest{Key: clockKeys[2], AttemptID: "one", IntentTime: storetest.Start},
	store.ClaimRequest{Key: clockKeys[3], AttemptID: "two"},
	inspectRequest{clockKeys[3]},
}

// What was told to have ended, only by reading, stays ended after a restart at which the
// wall clock is behind; fences grow on.
func TestClockFloorOutlivesTheProcess(t *testing.T) {
	for _, crashed := range []bool{true, false} {
		for _, behind := range []time.Duration{0, time.Minute, time.Hour, 26 * time.Hour} {
			for i, decision := range clockDecisions {
				name := fmt.Sprintf("crashed %t, %v behind, decision %d", crashed, behind, i)
				t.Run(name, func(t *testing.T) { clockFloor(t, crashed, behind, decision) })
			}
		}
	}
}

func clockFloor(t *testing.T, crashed bool, behind time.Duration, decision any) {
	clock := storetest.NewClock()
	c := newCrasher(vfs.NewCrashableMem(), clock, 1, 0)
	s := mustOpen(t, c.fs(), clock)
	r := newRig(t, s, clock)
	r.history.keys = clockKeys
	for _, req := range clockSetup {
		r.call(t, 0, req)
	}
	r.endRound(t)

	clock.Advance(24*time.Hour + time.Second)                      // nothing but the decision may ask for the time
	r.history = r.history.next(r.history.base, clock.Wall().UTC()) // the default retention: the second key has expired
	r.call(t, 0, decision)
	c.record(r.history)
	c.crashNow("after a decision by the clock", 0)
	last := c.take()[0]
	mustClose(t, s)
	if !crashed {
		last.fs, last.where = c.disk, "restart after a decision by the clock"
	}
	last.wall = last.wall.Add(-behind)
	h := last.verifyOn(t, last.fs, func(*history) {})
	if h == nil {
		return
	}
	if ahead := h.now.Sub(clock.Wall()); ahead > 100*time.Millisecond {
		t.Errorf("a restart put the clock %v ahead: leases would end early", ahead)
	}
}

// Decisions by the clock are made again after restarts, word for word, and after several.
func TestClockDecisionsStandAfterRestart(t *testing.T) {
	clock := storetest.NewClock()
	disk := vfs.NewCrashableMem()
	s := mustOpen(t, disk, clock)
	newNamespaces(t, s)
	for _, req := range clockSetup {
		mustAnswer(t, s, req)
	}
	clock.Advance(24 * time.Hour)
	want := []string{
		`{"State":1,"Lapsed":true`,
		render(nil, store.Refuse(store.ErrLeaseExpired, "")),
		render(nil, store.Refuse(store.ErrKeyNotFound, "")),
		render(nil, store.Refuse(store.ErrKeyExpired, "")),
		`{"Granted":null,"InProgress":null,"Completed":{`,
		`{"Record":{`,
	}
	check := func(b store.Backend, when string) {
		for i, req := range clockDecisions {
			if got := send(t.Context(), b, req); len(got) < len(want[i]) || got[:len(want[i])] != want[i] {
				t.Errorf("%s: %T is answered %s, want %s", when, req, got, want[i])
			}
		}
	}
	clock.Advance(time.Second)
	check(s, "before the crash")
	clone := disk.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	for _, behind := range []time.Duration{time.Minute, time.Hour, 25 * time.Hour} {
		restarted := mustOpen(t, clone, clockAt(clock.Wall().Add(-behind)))
		check(restarted, fmt.Sprintf("restarted %v behind", behind))
		mustClose(t, restarted)
	}
}

// A clock that restarted behind what it had reached goes on from there: leases still end.
func TestClockGoesOnAfterRestartBehind(t *testing.T) {
	clock := storetest.NewClock()
	disk := vfs.NewCrashableMem()
	clock.Advance(time.Hour)
	mustClose(t, mustOpen(t, disk, clock))
	behind := clockAt(storetest.Start)
	s := mustOpen(t, disk, behind)
	defer mustClose(t, s)
	claim := store.ClaimRequest{Key: clockKeys[0], AttemptID: "one", Lease: 10 * time.Second}
	mustAnswer(t, s, claim)
	behind.Advance(9 * time.Second)
	if lapsed(t, s) {
		t.Error("the lease ended early")
	}
	behind.Advance(2 * time.Second)
	if !lapsed(t, s) {
		t.Error("the lease has not ended 1 s after its end")
	}
}

// A step of the wall clock shortens no lease and expires nothing, while the store runs
// and over a restart in which it follows the wall again.
func TestClockStepsExpireNothingEarly(t *testing.T) {
	clock := storetest.NewClock()
	disk := vfs.NewCrashableMem()
	s := mustOpen(t, disk, clock)
	claim := store.ClaimRequest{Key: clockKeys[0], AttemptID: "one", Lease: 30 * time.Second}
	mustAnswer(t, s, claim)

	clock.StepWall(-time.Minute)
	renewed := leaseEndAfterRenew(t, s)
	if want := storetest.Start.Add(30 * time.Second); renewed.Before(want) {
		t.Errorf("a step back shortened the lease to %v", renewed.Sub(storetest.Start))
	}
	clock.StepWall(time.Hour)
	clock.Advance(29 * time.Second)
	if lapsed(t, s) {
		t.Error("a step ahead ended the lease early")
	}
	if again := leaseEndAfterRenew(t, s); again.Before(renewed) {
		t.Errorf("a Renew moved the lease's end back from %v to %v", renewed, again)
	}
	clock.Advance(31 * time.Second)
	if !lapsed(t, s) {
		t.Error("the lease does not end")
	}

	before := storeNow(t, s)
	clock.StepWall(-2 * time.Hour)
	clone := disk.CrashClone(vfs.CrashCloneCfg{})
	mustClose(t, s)
	restarted := mustOpen(t, clone, clockAt(clock.Wall()))
	defer mustClose(t, restarted)
	if now := storeNow(t, restarted); now.Before(before) {
		t.Errorf("the clock went back from %v to %v", before, now)
	}
	if !lapsed(t, restarted) {
		t.Error("a lease that had ended is held again")
	}
}

// mustAnswer sends a request that is not to be refused.
func mustAnswer(t testing.TB, b store.Backend, req any) {
	t.Helper()
	if answer := send(t.Context(), b, req); !json.Valid([]byte(answer)) {
		t.Fatalf("%T: %s", req, answer)
	}
}

// lapsed reports whether the first clock key is lapsed.
func lapsed(t testing.TB, b store.Store) bool {
	t.Helper()
	answer, err := b.Lookup(t.Context(), store.LookupRequest{Key: clockKeys[0]})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Lapsed
}

func leaseEndAfterRenew(t testing.TB, b store.Store) time.Time {
	t.Helper()
	answer, err := b.Renew(t.Context(), store.RenewRequest{Key: clockKeys[0], AttemptID: "one", Fence: gateFence, Lease: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return answer.LeaseExpiresAt
}
