package store_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// placedCase is a row of the table: an operation on a record, and whether it changes the record
// or its events.
type placedCase struct {
	name    string
	old     *store.Record
	ask     placedAsk
	refusal error // without a move
	changes bool
}

// placedAsk is a transition function with its request bound, but for the epoch.
type placedAsk func(old *store.Record, ns *store.Namespace, epoch int64) (answer any, change store.Change, err error)

// placedNow is when all is asked.
var placedNow = storetest.Start.Add(time.Minute)

var placedKey = store.Key{Namespace: "n", ID: "k"}

// heldRecord is one that attempt a was granted at Start.
func heldRecord(with func(*store.Record)) *store.Record {
	rec := &store.Record{
		Key: placedKey, State: store.StateInProgress, Fence: storetest.Start.UnixMicro(), AttemptID: "a", AttemptNumber: 1,
		GrantedAt: storetest.Start, LeaseEnd: storetest.Start.Add(2 * time.Minute), AttemptLimit: storetest.Start.Add(10 * time.Minute),
		ExpiresAt: storetest.Start.Add(62 * time.Minute), LapsePolicy: store.Takeover, Retention: time.Hour, Ended: []string{"ended"},
	}
	if with != nil {
		with(rec)
	}
	return rec
}

func lapsedRecord(with func(*store.Record)) *store.Record {
	return heldRecord(func(r *store.Record) {
		r.LeaseEnd, r.ExpiresAt = placedNow, placedNow.Add(time.Hour)
		if with != nil {
			with(r)
		}
	})
}

func underHold(r *store.Record) { r.LapsePolicy, r.ExpiresAt = store.Hold, time.Time{} }

func completedRecord() *store.Record {
	return heldRecord(func(r *store.Record) {
		r.State, r.EndedAt, r.ExpiresAt = store.StateCompleted, placedNow, placedNow.Add(time.Hour)
		r.Outcome = &store.Outcome{Body: []byte("done")}
		r.OutcomeDigest = r.Outcome.Digest()
	})
}

func releasedRecord() *store.Record {
	return heldRecord(func(r *store.Record) {
		r.State, r.EndedAt, r.ExpiresAt = store.StateReleased, placedNow, placedNow.Add(time.Hour)
		r.ReleasedWith, r.Ended = store.EffectNone, []string{"ended", "a"}
	})
}

func expiredRecord() *store.Record {
	rec := completedRecord()
	rec.ExpiresAt = placedNow
	return rec
}

func asksClaim(attempt string, with func(*store.ClaimRequest)) placedAsk {
	return func(old *store.Record, ns *store.Namespace, epoch int64) (any, store.Change, error) {
		req := store.ClaimRequest{Key: placedKey, AttemptID: attempt, Epoch: epoch}
		if with != nil {
			with(&req)
		}
		answer, change, err := store.DecideClaim(old, ns, req, placedNow, placedNow)
		return answer, change, err
	}
}

func asksRenew(attempt string, lease time.Duration) placedAsk {
	return func(old *store.Record, ns *store.Namespace, epoch int64) (any, store.Change, error) {
		req := store.RenewRequest{Key: placedKey, AttemptID: attempt, Fence: fenceOf(old), Lease: lease, Epoch: epoch}
		answer, change, err := store.DecideRenew(old, ns, req, placedNow)
		return answer, change, err
	}
}

func asksComplete(attempt, body string) placedAsk {
	return func(old *store.Record, ns *store.Namespace, epoch int64) (any, store.Change, error) {
		req := store.CompleteRequest{Key: placedKey, AttemptID: attempt, Fence: fenceOf(old), Outcome: &store.Outcome{Body: []byte(body)}, Epoch: epoch}
		answer, change, err := store.DecideComplete(old, ns, req, placedNow)
		return answer, change, err
	}
}

func asksRelease(attempt string, effect store.Effect) placedAsk {
	return func(old *store.Record, ns *store.Namespace, epoch int64) (any, store.Change, error) {
		req := store.ReleaseRequest{Key: placedKey, AttemptID: attempt, Fence: fenceOf(old), Effect: effect, Epoch: epoch}
		answer, change, err := store.DecideRelease(old, ns, req, placedNow)
		return answer, change, err
	}
}

func asksLookup(old *store.Record, ns *store.Namespace, epoch int64) (any, store.Change, error) {
	answer, err := store.DecideLookup(old, ns, store.LookupRequest{Key: placedKey, Epoch: epoch}, placedNow)
	return answer, store.Change{}, err
}

func asksResolve(fence int64) placedAsk {
	return func(old *store.Record, ns *store.Namespace, epoch int64) (any, store.Change, error) {
		change, err := store.DecideResolve(old, ns, store.ResolveRequest{Key: placedKey, Fence: fence, AnyFence: fence == 0, Reason: "r", Epoch: epoch}, placedNow)
		return nil, change, err
	}
}

func asksForce(fence int64) placedAsk {
	return func(old *store.Record, ns *store.Namespace, epoch int64) (any, store.Change, error) {
		change, err := store.DecideForceRelease(old, ns, store.ForceReleaseRequest{Key: placedKey, Fence: fence, AnyFence: fence == 0, Reason: "r", Epoch: epoch}, placedNow)
		return nil, change, err
	}
}

func asksImport(old *store.Record, ns *store.Namespace, epoch int64) (any, store.Change, error) {
	req := store.ImportRequest{Key: placedKey, AnyFingerprint: true, Reason: "r", Epoch: epoch}
	answer, change, err := store.DecideImport(old, ns, req, placedNow)
	return answer, change, err
}

func fenceOf(rec *store.Record) int64 {
	if rec == nil {
		return 1
	}
	return rec.Fence
}

// claimCases are the rows of Claim, by the number they have in the table.
var claimCases = []placedCase{
	{"1 intent in the future", nil, asksClaim("b", func(r *store.ClaimRequest) { r.IntentTime = placedNow.Add(time.Hour) }), store.ErrInvalidArgument, false},
	{"1 lease beyond the namespace's", nil, asksClaim("b", func(r *store.ClaimRequest) { r.Lease = 10 * time.Minute }), store.ErrInvalidArgument, false},
	{"2 ended attempt", heldRecord(nil), asksClaim("ended", nil), store.ErrStaleAttempt, false},
	{"3 other fingerprint", heldRecord(nil), asksClaim("b", func(r *store.ClaimRequest) { r.Fingerprint.Digest = "x" }), store.ErrFingerprintMismatch, false},
	{"4 completed", completedRecord(), asksClaim("b", nil), nil, false},
	{"5 again, held", heldRecord(nil), asksClaim("a", nil), nil, false},
	{"5 again, lapsed", lapsedRecord(nil), asksClaim("a", nil), nil, true},
	{"5 again, used up", lapsedRecord(func(r *store.Record) { r.AttemptLimit = placedNow }), asksClaim("a", nil), store.ErrAttemptTooLong, false},
	{"6 held by another", heldRecord(nil), asksClaim("b", nil), nil, false},
	{"7 lapsed under HOLD", lapsedRecord(underHold), asksClaim("b", nil), nil, false},
	{"8 lapsed under TAKEOVER", lapsedRecord(nil), asksClaim("b", nil), nil, true},
	{"9 released", releasedRecord(), asksClaim("b", nil), nil, true},
	{"10 no record", nil, asksClaim("b", nil), nil, true},
	{"10 expired record", expiredRecord(), asksClaim("b", nil), nil, true},
	{"10 too old", nil, asksClaim("b", func(r *store.ClaimRequest) { r.IntentTime = placedNow.Add(-24 * time.Hour) }), store.ErrKeyExpired, false},
}

// otherCases are the rows of all other operations.
var otherCases = []placedCase{
	{"Renew of nothing", nil, asksRenew("a", 0), store.ErrKeyNotFound, false},
	{"Renew by another", heldRecord(nil), asksRenew("b", 0), store.ErrStaleFence, false},
	{"Renew of a completed one", completedRecord(), asksRenew("a", 0), store.ErrAlreadyCompleted, false},
	{"Renew of a released one", releasedRecord(), asksRenew("a", 0), store.ErrStaleAttempt, false},
	{"Renew of a lapsed one", lapsedRecord(nil), asksRenew("a", 0), store.ErrLeaseExpired, false},
	{"Renew", heldRecord(nil), asksRenew("a", 5*time.Minute), nil, true},
	{"Renew that is not longer", heldRecord(nil), asksRenew("a", time.Second), nil, true},
	{"Renew beyond the namespace's longest", heldRecord(nil), asksRenew("a", 10*time.Minute), store.ErrInvalidArgument, false},

	{"Complete of nothing", nil, asksComplete("a", "done"), store.ErrKeyNotFound, false},
	{"Complete by another", heldRecord(nil), asksComplete("b", "done"), store.ErrStaleFence, true}, // evidence
	{"Complete again", completedRecord(), asksComplete("a", "done"), nil, false},
	{"Complete otherwise", completedRecord(), asksComplete("a", "else"), store.ErrAlreadyCompleted, false},
	{"Complete of a released one", releasedRecord(), asksComplete("a", "done"), store.ErrStaleAttempt, true},
	{"Complete of a lapsed one", lapsedRecord(nil), asksComplete("a", "done"), nil, true},
	{"Complete of one used up", lapsedRecord(func(r *store.Record) { r.AttemptLimit = placedNow.Add(-1) }), asksComplete("a", "done"), store.ErrAttemptTooLong, true},
	{"Complete", heldRecord(nil), asksComplete("a", "done"), nil, true},
	{"Complete with too much", heldRecord(nil), asksComplete("a", string(make([]byte, 2000))), store.ErrOutcomeTooLarge, false},

	{"Release of nothing", nil, asksRelease("a", store.EffectNone), store.ErrKeyNotFound, false},
	{"Release by another", heldRecord(nil), asksRelease("b", store.EffectNone), store.ErrStaleFence, false},
	{"Release of a completed one", completedRecord(), asksRelease("a", store.EffectNone), store.ErrAlreadyCompleted, false},
	{"Release again", releasedRecord(), asksRelease("a", store.EffectNone), nil, false},
	{"Release otherwise", releasedRecord(), asksRelease("a", store.EffectUnknown), store.ErrStaleAttempt, false},
	{"Release, NONE", heldRecord(nil), asksRelease("a", store.EffectNone), nil, true},
	{"Release, UNKNOWN", heldRecord(nil), asksRelease("a", store.EffectUnknown), nil, true},
	{"Release of a lapsed one", lapsedRecord(nil), asksRelease("a", store.EffectUnknown), nil, true},

	{"Lookup of nothing", nil, asksLookup, store.ErrKeyNotFound, false},
	{"Lookup", completedRecord(), asksLookup, nil, false},
	{"Lookup of a held one", heldRecord(nil), asksLookup, nil, false},
	{"Lookup of a lapsed one", lapsedRecord(nil), asksLookup, nil, false},
	{"Lookup of a released one", releasedRecord(), asksLookup, nil, false},
	{"Lookup of an expired one", expiredRecord(), asksLookup, store.ErrKeyNotFound, false},

	{"Resolve of nothing", nil, asksResolve(0), store.ErrKeyNotFound, false},
	{"Resolve of another fence", lapsedRecord(nil), asksResolve(1), store.ErrStaleFence, false},
	{"Resolve of a held one", heldRecord(nil), asksResolve(0), store.ErrNotLapsed, false},
	{"Resolve", lapsedRecord(underHold), asksResolve(0), nil, true},

	{"ForceRelease of nothing", nil, asksForce(0), store.ErrKeyNotFound, false},
	{"ForceRelease of another fence", heldRecord(nil), asksForce(1), store.ErrStaleFence, false},
	{"ForceRelease of a completed one", completedRecord(), asksForce(0), store.ErrNotHeld, false},
	{"ForceRelease", heldRecord(nil), asksForce(0), nil, true},

	{"Import of a forgotten key", nil, asksImport, nil, true},
	{"Import of a known key", completedRecord(), asksImport, nil, false},
}

func placedNamespace(epoch int64, phase store.MovePhase) *store.Namespace {
	ns := store.Namespace{Name: "n", Retention: time.Hour, MaxAttempt: 10 * time.Minute, MaxLease: 5 * time.Minute, MaxOutcomeBytes: 1024}.WithDefaults()
	if epoch != 0 {
		ns.Placement = store.Placement{Epoch: epoch, Revision: epoch + 7, Rule: "fixed eu"}
	}
	if phase != 0 {
		ns.Placement.Move = store.Move{To: "us", Phase: phase}
	}
	return &ns
}

// Whatever the operation and the record, what was sent by another epoch gets no other answer.
func TestAnotherEpochIsRefusedBeforeAllElse(t *testing.T) {
	for _, c := range slices.Concat(claimCases, otherCases) {
		for _, phase := range []store.MovePhase{0, store.MoveFrozen, store.MoveSealed, store.MoveFlipped} {
			for _, epochs := range [][2]int64{{0, 1}, {3, 0}, {3, 2}, {3, 4}} { // stored and sent
				if phase != 0 && epochs[0] == 0 {
					continue // what is not placed does not move
				}
				answer, change, err := c.ask(c.old, placedNamespace(epochs[0], phase), epochs[1])
				if !errors.Is(err, store.ErrWrongRegion) || change != (store.Change{}) || !isZero(answer) {
					t.Errorf("%s in phase %d by epoch %d, placed by %d: %+v, change %+v, %v; want WRONG_REGION alone",
						c.name, phase, epochs[1], epochs[0], answer, change, err)
				}
			}
		}
	}
}

// A move refuses what would change something, and, once sealed, what is said of a key that is not
// completed: a home that is cut off then cannot know what has become of it elsewhere.
func TestMoveRefusesChanges(t *testing.T) {
	stops := func(c placedCase, phase store.MovePhase, frozen bool) bool {
		fault := errors.Is(c.refusal, store.ErrInvalidArgument) || errors.Is(c.refusal, store.ErrOutcomeTooLarge)
		completed := c.old != nil && c.old.State == store.StateCompleted && c.old.ExpiresAt.After(placedNow)
		switch phase {
		case store.MoveFrozen:
			return frozen && c.changes
		case store.MoveSealed:
			return c.changes || !completed && !fault
		}
		return false
	}
	run := func(c placedCase, frozen bool) {
		answer, change, err := c.ask(c.old, placedNamespace(3, 0), 3)
		if !errors.Is(err, c.refusal) || (change != store.Change{}) != c.changes {
			t.Errorf("%s: change %+v, %v; want %v, a change: %t", c.name, change, err, c.refusal, c.changes)
		}
		for _, phase := range []store.MovePhase{store.MoveFrozen, store.MoveSealed, store.MoveFlipped} {
			moving, moved, refusal := c.ask(c.old, placedNamespace(3, phase), 3)
			if !stops(c, phase, frozen) {
				if !reflect.DeepEqual(moving, answer) || !reflect.DeepEqual(moved, change) || !errors.Is(refusal, c.refusal) || (refusal == nil) != (err == nil) {
					t.Errorf("%s in phase %d: %+v, change %+v, %v; want all as without a move", c.name, phase, moving, moved, refusal)
				}
				continue
			}
			var hinted *store.Error
			if !errors.Is(refusal, store.ErrNamespaceMoving) || !errors.As(refusal, &hinted) || hinted.RetryAfter <= 0 {
				t.Errorf("%s in phase %d: %v; want NAMESPACE_MOVING with a hint", c.name, phase, refusal)
			}
			if moved != (store.Change{}) || !isZero(moving) {
				t.Errorf("%s in phase %d: %+v, change %+v; want neither", c.name, phase, moving, moved)
			}
		}
	}
	for _, c := range claimCases {
		run(c, true)
	}
	for _, c := range otherCases {
		run(c, false)
	}
}

// A holder that sends its Claim again while the namespace moves, and may have been forgotten
// since, cannot be told so: that would be a change.
func TestMoveRefusesToMarkAsUnsettled(t *testing.T) {
	for phase, want := range map[store.MovePhase]error{0: nil, store.MoveFrozen: store.ErrNamespaceMoving, store.MoveSealed: store.ErrNamespaceMoving} {
		ns := placedNamespace(3, phase)
		ns.RecoveryFloor = placedNow
		if _, _, err := asksClaim("a", nil)(heldRecord(nil), ns, 3); !errors.Is(err, want) {
			t.Errorf("phase %d: %v, want %v", phase, err, want)
		}
	}
}

func isZero(v any) bool { return v == nil || reflect.ValueOf(v).IsZero() }
