package store_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

func placement(epoch, revision int64, with ...func(*store.Placement)) store.Placement {
	p := store.Placement{Epoch: epoch, Revision: revision, Rule: "fixed eu"}
	for _, change := range with {
		change(&p)
	}
	return p
}

func moves(to string, phase store.MovePhase) func(*store.Placement) {
	return func(p *store.Placement) { p.Move = store.Move{To: to, Phase: phase} }
}

func rule(text string) func(*store.Placement) {
	return func(p *store.Placement) { p.Rule = text }
}

func TestPlacementLimits(t *testing.T) {
	for name, p := range map[string]store.Placement{
		"zero":                  {},
		"no epoch":              placement(0, 1),
		"negative epoch":        placement(-1, 1),
		"revision below epoch":  placement(2, 1),
		"no rule":               placement(1, 1, rule("")),
		"long rule":             placement(1, 1, rule(strings.Repeat("r", store.MaxRuleBytes+1))),
		"rule of two lines":     placement(1, 1, rule("fixed\neu")),
		"rule that is no UTF-8": placement(1, 1, rule("fixed \xff")),
		"unknown phase":         placement(1, 1, moves("us", store.MoveFlipped+1)),
		"phase to nowhere":      placement(1, 1, moves("", store.MoveSealed)),
		"region without phase":  placement(1, 1, moves("us", 0)),
		"long region":           placement(1, 1, moves(strings.Repeat("r", store.MaxEntityBytes+1), store.MoveSealed)),
		"region of two lines":   placement(1, 1, moves("u\ns", store.MoveSealed)),
	} {
		if err := p.Validate(); !errors.Is(err, store.ErrInvalidArgument) {
			t.Errorf("%s: %v, want INVALID_ARGUMENT", name, err)
		}
		if ns, err := (store.Namespace{Name: "n"}).Place(p); !errors.Is(err, store.ErrInvalidArgument) || !ns.SameSettings(store.Namespace{}) {
			t.Errorf("%s: Place gives %+v, %v; want INVALID_ARGUMENT alone", name, ns, err)
		}
	}
	for name, p := range map[string]store.Placement{
		"first":        placement(1, 1),
		"longest rule": placement(1, 1, rule(strings.Repeat("r", store.MaxRuleBytes))),
		"flipped":      placement(7, 9, moves(strings.Repeat("r", store.MaxEntityBytes), store.MoveFlipped)),
	} {
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPlace(t *testing.T) {
	stored := placement(3, 8)
	for name, test := range map[string]struct {
		old, next store.Placement
		want      error
	}{
		"the first one":                  {store.Placement{}, placement(1, 1), nil},
		"a first one of another's":       {store.Placement{}, placement(5, 9), nil},
		"the same":                       {stored, stored, nil},
		"the next":                       {stored, placement(3, 9), nil},
		"a later one":                    {stored, placement(9, 90), nil},
		"a move":                         {stored, placement(3, 9, moves("us", store.MoveFrozen)), nil},
		"a move given up":                {placement(3, 9, moves("us", store.MoveSealed)), placement(3, 10), nil},
		"an older one":                   {stored, placement(3, 7), store.ErrWrongRegion},
		"its revision, another rule":     {stored, placement(3, 8, rule("fixed us")), store.ErrWrongRegion},
		"its revision, another epoch":    {stored, placement(4, 8), store.ErrWrongRegion},
		"its revision, another move":     {stored, placement(3, 8, moves("us", store.MoveFrozen)), store.ErrWrongRegion},
		"an older epoch, a new revision": {stored, placement(2, 9), store.ErrWrongRegion},
		"a newer epoch, an old revision": {stored, placement(4, 7), store.ErrWrongRegion},
	} {
		old := store.Namespace{Name: "n", Retention: time.Hour, Placement: test.old}.WithDefaults()
		next, err := old.Place(test.next)
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
		if err == nil && (next.Placement != test.next || !next.SameSettings(old)) {
			t.Errorf("%s: %+v; want %+v and nothing else changed", name, next, test.next)
		}
		if old.Placement != test.old {
			t.Errorf("%s: the old namespace was changed", name)
		}
	}
}

func TestCheckMove(t *testing.T) {
	for name, test := range map[string]struct {
		stored store.Placement
		phases []store.MovePhase
		want   error
	}{
		"sealed":               {placement(1, 5, moves("us", store.MoveSealed)), []store.MovePhase{store.MoveSealed}, nil},
		"one of two":           {placement(1, 5, moves("us", store.MoveFlipped)), []store.MovePhase{store.MoveSealed, store.MoveFlipped}, nil},
		"frozen only":          {placement(1, 5, moves("us", store.MoveFrozen)), []store.MovePhase{store.MoveSealed, store.MoveFlipped}, store.ErrWrongRegion},
		"flipped already":      {placement(2, 5, moves("us", store.MoveFlipped)), []store.MovePhase{store.MoveSealed}, store.ErrWrongRegion},
		"no move":              {placement(1, 5), []store.MovePhase{store.MoveSealed, store.MoveFlipped}, store.ErrWrongRegion},
		"an earlier revision":  {placement(1, 4, moves("us", store.MoveSealed)), []store.MovePhase{store.MoveSealed}, store.ErrWrongRegion},
		"another mover's move": {placement(1, 6, moves("us", store.MoveSealed)), []store.MovePhase{store.MoveSealed}, store.ErrWrongRegion},
		"never placed":         {store.Placement{}, []store.MovePhase{store.MoveSealed}, store.ErrWrongRegion},
	} {
		ns := store.Namespace{Name: "n", Placement: test.stored}
		if err := ns.CheckMove(5, test.phases...); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

// importedInspection is a record that a store keeps, with one event of each kind.
func importedInspection() store.Inspection {
	late := &store.Outcome{Body: []byte("late")}
	return store.Inspection{
		Record: heldRecord(func(r *store.Record) { r.PreviousFence, r.AttemptNumber, r.UnsettledSince = 1, 2, storetest.Start }),
		Events: []store.Event{
			{At: storetest.Start, Kind: store.EventTakeover, Fence: 1, AttemptNumber: 1, NewFence: 2},
			{At: storetest.Start, Kind: store.EventLateOutcome, Fence: 1, Outcome: late, OutcomeDigest: late.Digest(), OutcomeSize: late.Size()},
			{At: storetest.Start, Kind: store.EventResolved, Fence: 1, Actor: "a", Reason: "r"},
			{At: storetest.Start, Kind: store.EventForceReleased, Fence: 1, Actor: "a", Reason: "r"},
		},
	}
}

func TestCheckImportTakesWhatStoresKeep(t *testing.T) {
	ns := placedNamespace(1, store.MoveSealed)
	for name, rec := range map[string]*store.Record{
		"held": heldRecord(nil), "lapsed": lapsedRecord(nil), "held by HOLD": heldRecord(underHold), "completed": completedRecord(),
		"released": releasedRecord(), "expired": expiredRecord(),
		"ended by an operator": lapsedRecord(func(r *store.Record) { r.AttemptID, r.UnsettledSince = "", store.LongAgo }),
	} {
		if err := ns.CheckImport(store.Inspection{Record: rec}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ns.CheckImport(importedInspection()); err != nil {
		t.Errorf("with events: %v", err)
	}
	if err := ns.CheckImport(); err != nil {
		t.Errorf("nothing: %v", err)
	}
	if err := ns.CheckImport(slices.Repeat([]store.Inspection{importedInspection()}, store.MaxPageSize)...); err != nil {
		t.Errorf("as many as are allowed: %v", err)
	}
}

func TestCheckImportRefuses(t *testing.T) {
	record := func(change func(*store.Record)) func(*store.Inspection) {
		return func(in *store.Inspection) { change(in.Record) }
	}
	event := func(i int, change func(*store.Event)) func(*store.Inspection) {
		return func(in *store.Inspection) { change(&in.Events[i]) }
	}
	bad := map[string]func(*store.Inspection){
		"no record":                   func(in *store.Inspection) { in.Record = nil },
		"another namespace":           record(func(r *store.Record) { r.Key.Namespace = "m" }),
		"long id":                     record(func(r *store.Record) { r.Key.ID = strings.Repeat("i", store.MaxIDBytes+1) }),
		"no state":                    record(func(r *store.Record) { r.State = 0 }),
		"unknown state":               record(func(r *store.Record) { r.State = store.StateReleased + 1 }),
		"no fence":                    record(func(r *store.Record) { r.Fence = 0 }),
		"previous fence as high":      record(func(r *store.Record) { r.PreviousFence = r.Fence }),
		"negative previous fence":     record(func(r *store.Record) { r.PreviousFence = -1 }),
		"no attempt number":           record(func(r *store.Record) { r.AttemptNumber = 0 }),
		"long attempt":                record(func(r *store.Record) { r.AttemptID = strings.Repeat("a", store.MaxAttemptIDBytes+1) }),
		"nine ended attempts":         record(func(r *store.Record) { r.Ended = slices.Repeat([]string{"e"}, store.MaxEndedAttempts+1) }),
		"empty ended attempt":         record(func(r *store.Record) { r.Ended = []string{""} }),
		"long fingerprint":            record(func(r *store.Record) { r.Fingerprint.Digest = strings.Repeat("f", 65) }),
		"no lapse policy":             record(func(r *store.Record) { r.LapsePolicy = 0 }),
		"unknown lapse policy":        record(func(r *store.Record) { r.LapsePolicy = store.Hold + 1 }),
		"unknown effect":              record(func(r *store.Record) { r.ReleasedWith = store.EffectUnknown + 1 }),
		"no grant":                    record(func(r *store.Record) { r.GrantedAt = time.Time{} }),
		"no lease":                    record(func(r *store.Record) { r.LeaseEnd = time.Time{} }),
		"lease beyond the limit":      record(func(r *store.Record) { r.LeaseEnd = r.AttemptLimit.Add(time.Microsecond) }),
		"no retention":                record(func(r *store.Record) { r.Retention = 0 }),
		"unsettled since nanoseconds": record(func(r *store.Record) { r.UnsettledSince = r.UnsettledSince.Add(1) }),
		"nanoseconds":                 record(func(r *store.Record) { r.GrantedAt = r.GrantedAt.Add(1) }),
		"a year beyond all":           record(func(r *store.Record) { r.ExpiresAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }),
		"held, but ended":             record(func(r *store.Record) { r.EndedAt = r.GrantedAt }),
		"held, and never expires":     record(func(r *store.Record) { r.ExpiresAt = time.Time{} }),
		"under HOLD, but expires":     record(func(r *store.Record) { r.LapsePolicy = store.Hold }),
		"held, with an outcome":       record(func(r *store.Record) { r.Outcome = &store.Outcome{}; r.OutcomeDigest = r.Outcome.Digest() }),
		"completed, without outcome":  record(func(r *store.Record) { *r = *completedRecord(); r.Outcome = nil }),
		"completed, never ended":      record(func(r *store.Record) { *r = *completedRecord(); r.EndedAt = time.Time{} }),
		"completed, never expires":    record(func(r *store.Record) { *r = *completedRecord(); r.ExpiresAt = time.Time{} }),
		"event of no kind":            event(0, func(e *store.Event) { e.Kind = 0 }),
		"event of an unknown kind":    event(0, func(e *store.Event) { e.Kind = store.EventImported + 1 }),
		"event at no time":            event(0, func(e *store.Event) { e.At = time.Time{} }),
		"event of a negative attempt": event(0, func(e *store.Event) { e.AttemptNumber = -1 }),
		"takeover with an outcome":    event(0, func(e *store.Event) { e.Outcome = &store.Outcome{} }),
		"late outcome without one":    event(1, func(e *store.Event) { e.Outcome = nil }),
		"more evidence than is kept":  event(1, func(e *store.Event) { e.Outcome = &store.Outcome{Body: make([]byte, store.MaxEvidenceBytes+1)} }),
		"more evidence than was sent": event(1, func(e *store.Event) { e.OutcomeSize = 1 }),
		"33 takeovers": func(in *store.Inspection) {
			in.Events = slices.Repeat(in.Events[:1], store.MaxEvents+1)
		},
	}
	ns := placedNamespace(1, store.MoveSealed)
	for name, change := range bad {
		in := importedInspection()
		change(&in)
		if err := ns.CheckImport(importedInspection(), in); !errors.Is(err, store.ErrInvalidArgument) {
			t.Errorf("%s: %v, want INVALID_ARGUMENT", name, err)
		}
	}
	if err := ns.CheckImport(slices.Repeat([]store.Inspection{importedInspection()}, store.MaxPageSize+1)...); !errors.Is(err, store.ErrInvalidArgument) {
		t.Errorf("too many records: %v, want INVALID_ARGUMENT", err)
	}
	for name, test := range map[string]struct {
		change func(*store.Record)
		want   error
	}{
		"no id":          {func(r *store.Record) { r.Key.ID = "" }, store.ErrKeyRequired},
		"another digest": {func(r *store.Record) { r.OutcomeDigest[0]++ }, store.ErrRecordCorrupt},
		"too large outcome": {func(r *store.Record) {
			r.Outcome = &store.Outcome{Body: make([]byte, store.MaxOutcomeBytes+1)}
			r.OutcomeDigest = r.Outcome.Digest()
		}, store.ErrOutcomeTooLarge},
	} {
		rec := completedRecord()
		test.change(rec)
		if err := ns.CheckImport(store.Inspection{Record: rec}); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}
