package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// placements are checks of what [store.Placements] says. Those that carry records have two
// instances, as a move has.
var placements = []check{
	{"placements are kept", on(placementsKept)},
	{"placements that are refused", on(placementsRefused)},
	{"settings and placement are two things", on(placementsApart)},
	{"settings stay while a namespace moves", on(placementsSettingsStay)},
	{"an epoch that is not in force", on(placementsEpoch)},
	{"no repeat by the epoch before a flip", on(placementsFlip)},
	{"a move stops what changes a record", on(placementsStop)},
	{"records are carried as they are", placementsCarry},
	{"a namespace's past is carried", on(placementsHistory)},
	{"carried records are used as before", placementsUse},
	{"records of the limits' size are carried", placementsLargest},
	{"the higher fence stays", on(placementsFences)},
	{"refused imports store nothing", on(placementsImportRefused)},
	{"a thousand records in a call", on(placementsThousand)},
	{"imported records last as long as any", on(placementsLast)},
	{"forgetting leaves nothing and spares others", on(placementsForget)},
	{"forgetting keeps what is wanted", on(placementsKeep)},
	{"forgetting that is refused", on(placementsForgetRefused)},
}

// placement is one of the namespace in a rig: its next revision.
func (r *rig) placement(namespace string, epoch int64, phase store.MovePhase) store.Placement {
	p := store.Placement{Epoch: epoch, Revision: max(r.placed[namespace].Revision, epoch) + 1, Rule: "fixed eu"}
	if phase != 0 {
		p.Move = store.Move{To: "us", Phase: phase}
	}
	return p
}

// place places the namespace, and lets time pass until that is in force.
func (r *rig) place(namespace string, epoch int64, phase store.MovePhase) store.Placement {
	r.Helper()
	p := r.placement(namespace, epoch, phase)
	placed, err := r.PlaceNamespace(r.ctx, namespace, p)
	if err != nil {
		r.Fatalf("PlaceNamespace %q %+v: %v", namespace, p, err)
	}
	equal(r, "placement that was set", placed.Namespace.Placement, p)
	r.Clock.Advance(placed.InForce.Sub(placed.Now))
	r.placed[namespace] = p
	return p
}

func (r *rig) importRecords(namespace string, records ...store.Inspection) {
	r.Helper()
	if err := r.ImportRecords(r.ctx, namespace, r.placed[namespace].Revision, records); err != nil {
		r.Fatalf("ImportRecords of %d records: %v", len(records), err)
	}
}

func (r *rig) forget(namespace string) {
	r.Helper()
	if err := forgetAll(r.ctx, r.Backend, namespace, r.placed[namespace].Revision); err != nil {
		r.Fatalf("ForgetRecords of %q: %v", namespace, err)
	}
}

func (r *rig) placementOf(namespace string) store.Placement {
	r.Helper()
	ns, err := r.GetNamespace(r.ctx, namespace)
	if err != nil {
		r.Fatalf("GetNamespace %q: %v", namespace, err)
	}
	return ns.Placement
}

func placementsKept(r *rig) {
	equal(r, "placement of a new namespace", r.placementOf(hourTakeover), store.Placement{})
	for _, p := range []store.Placement{
		r.place(hourTakeover, 1, 0), r.place(hourTakeover, 1, store.MoveFrozen), r.place(hourTakeover, 1, store.MoveSealed),
		r.place(hourTakeover, 2, store.MoveFlipped), r.place(hourTakeover, 9, 0),
	} {
		// Each was in force before the next came, and the last one stays.
		if p.Revision < r.placed[hourTakeover].Revision {
			_, err := r.PlaceNamespace(r.ctx, hourTakeover, p)
			r.refusedAs("going back", err, store.ErrWrongRegion)
		}
	}
	want := r.placed[hourTakeover]
	for range 2 {
		equal(r, "placement", r.placementOf(hourTakeover), want)
		equal(r, "placement of another namespace", r.placementOf(hourHold), store.Placement{})
		list, err := r.ListNamespaces(r.ctx)
		i := slices.IndexFunc(list, func(ns store.Namespace) bool { return ns.Name == hourTakeover })
		if err != nil || i < 0 || list[i].Placement != want {
			r.Fatalf("namespaces are listed as %+v, %v; want one with %+v", list, err, want)
		}
		r.reopen()
	}
	again, err := r.PlaceNamespace(r.ctx, hourTakeover, want)
	if err != nil || again.Namespace.Placement != want || again.InForce.Before(again.Now) {
		r.Fatalf("placing the same again: %+v, %v", again, err)
	}
	longest := r.placement(hourHold, 1, store.MoveFrozen)
	longest.Rule, longest.Move.To = strings.Repeat("r", store.MaxRuleBytes), strings.Repeat("é", store.MaxEntityBytes/2)
	if _, err := r.PlaceNamespace(r.ctx, hourHold, longest); err != nil {
		r.Fatalf("the longest placement: %v", err)
	}
	r.reopen()
	equal(r, "the longest placement", r.placementOf(hourHold), longest)
}

func placementsRefused(r *rig) {
	r.place(hourTakeover, 3, 0)
	want := r.place(hourTakeover, 3, 0)
	_, err := r.PlaceNamespace(r.ctx, "nobody", want)
	r.refusedAs("placing a namespace that does not exist", err, store.ErrNamespaceUnknown)
	for what, change := range map[string]func(*store.Placement){
		"a lower revision":            func(p *store.Placement) { p.Revision-- },
		"another rule":                func(p *store.Placement) { p.Rule = "fixed us" },
		"another epoch":               func(p *store.Placement) { p.Epoch++ },
		"a move":                      func(p *store.Placement) { p.Move = store.Move{To: "us", Phase: store.MoveFrozen} },
		"a lower epoch":               func(p *store.Placement) { p.Epoch--; p.Revision++ },
		"an epoch of a lost revision": func(p *store.Placement) { p.Epoch++; p.Revision-- },
	} {
		p := want
		change(&p)
		_, err := r.PlaceNamespace(r.ctx, hourTakeover, p)
		r.refusedAs(what, err, store.ErrWrongRegion)
	}
	for what, change := range map[string]func(*store.Placement){
		"no epoch":             func(p *store.Placement) { p.Epoch = 0 },
		"revision below epoch": func(p *store.Placement) { p.Revision = p.Epoch - 1 },
		"no rule":              func(p *store.Placement) { p.Rule = "" },
		"long rule":            func(p *store.Placement) { p.Rule = strings.Repeat("r", store.MaxRuleBytes+1) },
		"a move to nowhere":    func(p *store.Placement) { p.Move.Phase = store.MoveSealed },
		"a move of no phase":   func(p *store.Placement) { p.Move.To = "us" },
		"an unknown phase":     func(p *store.Placement) { p.Move = store.Move{To: "us", Phase: store.MoveFlipped + 1} },
	} {
		p := r.placement(hourTakeover, 4, 0)
		change(&p)
		_, err := r.PlaceNamespace(r.ctx, hourTakeover, p)
		r.refusedAs(what, err, store.ErrInvalidArgument)
	}
	equal(r, "placement after all that", r.placementOf(hourTakeover), want)
}

// placementsApart: nobody who sets a namespace's settings changes its placement, or the other
// way round.
func placementsApart(r *rig) {
	before, err := r.GetNamespace(r.ctx, hourTakeover)
	if err != nil {
		r.Fatalf("GetNamespace: %v", err)
	}
	want := r.place(hourTakeover, 2, 0)
	changed := before
	changed.Lease, changed.Placement = 7*time.Second, store.Placement{Epoch: 9, Revision: 9, Rule: "else"}
	updated, err := r.UpdateNamespace(r.ctx, changed)
	if err != nil || updated.Placement != want {
		r.Fatalf("UpdateNamespace: %+v, %v; want the placement %+v", updated, err, want)
	}
	equal(r, "placement after an update", r.placementOf(hourTakeover), want)
	again, err := r.CreateNamespace(r.ctx, changed)
	if err != nil || again.Placement != want {
		r.Fatalf("creating it again: %+v, %v; want the placement %+v", again, err, want)
	}
	placed := r.place(hourTakeover, 2, 0)
	after, err := r.GetNamespace(r.ctx, hourTakeover)
	if err != nil || after.Lease != 7*time.Second || after.Placement != placed {
		r.Fatalf("after another placement: %+v, %v; want a lease of 7 s", after, err)
	}
	created := r.createNamespace(store.Namespace{Name: "new", Placement: want})
	equal(r, "placement of a namespace that is created with one", created.Placement, store.Placement{})
	equal(r, "and of it as it is kept", r.placementOf("new"), store.Placement{})
}

// placementsSettingsStay: the stores of a move keep the namespace alike until it has ended.
func placementsSettingsStay(r *rig) {
	before, err := r.GetNamespace(r.ctx, hourTakeover)
	if err != nil {
		r.Fatalf("GetNamespace: %v", err)
	}
	changed := before
	changed.LapsePolicy, changed.RecoveryFloor = store.Hold, r.Clock.Wall()
	for _, phase := range []store.MovePhase{store.MoveFlipped, store.MoveFrozen, store.MoveSealed, store.MoveFlipped} {
		r.place(hourTakeover, 1, phase)
		_, err := r.UpdateNamespace(r.ctx, changed)
		r.refusedAs(fmt.Sprint("other settings in phase ", phase), err, store.ErrNamespaceMoving)
		after, err := r.GetNamespace(r.ctx, hourTakeover)
		if err != nil || !before.SameSettings(after) || !after.RecoveryFloor.IsZero() {
			r.Fatalf("after settings were refused: %+v, %v; want those of %+v", after, err, before)
		}
	}
	r.place(hourTakeover, 1, 0)
	after, err := r.UpdateNamespace(r.ctx, changed)
	if err != nil || after.LapsePolicy != store.Hold {
		r.Fatalf("settings after the move: %+v, %v", after, err)
	}
}

// placementsHistory: a move carries the floor, what it is for, and the past retentions, and changes
// nothing else of the namespace.
func placementsHistory(r *rig) {
	before, err := r.GetNamespace(r.ctx, hourTakeover)
	if err != nil {
		r.Fatalf("GetNamespace: %v", err)
	}
	floor := r.Clock.Wall().UTC()
	minute, hour := store.PastRetention{Retention: time.Minute, Until: floor}, store.PastRetention{Retention: time.Hour, Until: floor.Add(time.Minute)}
	begun := store.RecoveryStep{At: floor, Kind: store.RecoveryBegun, Floor: floor, CompleteUntil: store.KnowsNothing, Actor: "omar", Reason: "lost"}
	lifted := store.RecoveryStep{At: floor, Kind: store.RecoveryLifted, Floor: floor, Actor: "omar", Reason: "settled"}
	theirs := func(floor time.Time, steps []store.RecoveryStep, past ...store.PastRetention) store.Namespace {
		return store.Namespace{Name: hourTakeover, RecoveryFloor: floor, Recovery: steps, PastRetentions: past}
	}
	taken := func(floor time.Time, steps []store.RecoveryStep, past ...store.PastRetention) {
		r.Helper()
		r.reopen()
		after, err := r.GetNamespace(r.ctx, hourTakeover)
		if err != nil {
			r.Fatalf("GetNamespace: %v", err)
		}
		equal(r, "floor", after.RecoveryFloor, floor)
		equal(r, "steps", fmt.Sprintf("%+v", after.Recovery), fmt.Sprintf("%+v", steps))
		equal(r, "past retentions", fmt.Sprintf("%+v", after.PastRetentions), fmt.Sprintf("%+v", past))
		equal(r, "placement", after.Placement, r.placed[hourTakeover])
		after.RecoveryFloor, after.Recovery, after.PastRetentions, after.Placement = before.RecoveryFloor, before.Recovery, before.PastRetentions, before.Placement
		equal(r, "all else", fmt.Sprintf("%+v", after), fmt.Sprintf("%+v", before))
	}
	for _, phase := range []store.MovePhase{0, store.MoveFrozen} {
		p := r.place(hourTakeover, 1, phase)
		r.refusedAs(fmt.Sprint("a floor in phase ", phase), r.TakeHistory(r.ctx, p.Revision, theirs(floor, nil)), store.ErrWrongRegion)
	}
	revision := r.place(hourTakeover, 1, store.MoveSealed).Revision
	r.refusedAs("a floor of another revision", r.TakeHistory(r.ctx, revision-1, theirs(floor, nil)), store.ErrWrongRegion)
	r.refusedAs("a floor of no namespace", r.TakeHistory(r.ctx, revision, store.Namespace{Name: "nobody", RecoveryFloor: floor}), store.ErrNamespaceUnknown)
	taken(time.Time{}, nil)
	take := func(from store.Namespace) {
		r.Helper()
		if err := r.TakeHistory(r.ctx, revision, from); err != nil {
			r.Fatalf("TakeHistory of %+v: %v", from, err)
		}
	}
	carried := func(step store.RecoveryStep) store.RecoveryStep {
		step.Kind = store.RecoveryCarried
		return step
	}
	take(theirs(time.Time{}, []store.RecoveryStep{begun, lifted}, minute)) // a floor that stands no more concerns nobody
	taken(time.Time{}, nil, minute)
	steps := []store.RecoveryStep{carried(begun)} // no floor before it has moved
	for _, f := range []time.Time{floor, floor.Add(-time.Hour), {}, floor} {
		take(theirs(f, []store.RecoveryStep{lifted, begun}, minute, hour, store.PastRetention{Retention: time.Minute, Until: floor.Add(-time.Second)}))
		if f.IsZero() {
			take(theirs(f, nil))
		}
		taken(time.Time{}, steps, minute, hour)
	}
	minute.Until = floor.Add(time.Second)
	take(theirs(time.Time{}, nil, minute))
	taken(time.Time{}, steps, minute, hour)
	r.place(hourTakeover, 1, store.MoveFlipped) // it is abandoned
	taken(time.Time{}, nil, minute, hour)
	r.place(hourTakeover, 1, store.MoveFrozen)
	revision = r.place(hourTakeover, 1, store.MoveSealed).Revision
	take(theirs(floor, []store.RecoveryStep{begun}))
	revision = r.place(hourTakeover, 2, store.MoveFlipped).Revision
	taken(floor, []store.RecoveryStep{begun}, minute, hour)
	later := begun // while it was sealed
	later.At, later.Floor = floor.Add(time.Second), floor.Add(time.Second)
	for range 2 {
		take(theirs(later.Floor, []store.RecoveryStep{begun, later}))
		taken(later.Floor, []store.RecoveryStep{begun, later}, minute, hour)
	}
	r.place(hourTakeover, 2, 0)
	r.refuse(claim(takeoverKey, "a"), store.ErrUnknownHistory)
}

// placedKey is in a namespace in which things last for longer than it takes until a placement
// is in force, as far as [rig.grantLong] grants them.
var placedKey = store.Key{Namespace: store.DefaultNamespace, Scope: "s", ID: "k", Entity: "e"}

func (r *rig) grantLong(key store.Key, attempt string) holder {
	r.Helper()
	c := claim(key, attempt)
	c.Lease = store.MaxLease
	return holder{attempt, r.do(c, "granted").Fence}
}

// everyCall is one call of each operation that would be answered.
func everyCall(r *rig) (calls []call) {
	held, lapsed := placedKey, placedKey
	held.ID, lapsed.ID = "held", "lapsed"
	l := r.grant(lapsed, "a")
	r.lapse(lapsed)
	h := r.grantLong(held, "a")
	fresh := claim(placedKey, "b")
	fresh.Key.ID = "fresh"
	return []call{
		fresh, claim(held, "a"), claim(lapsed, "b"), lookup(held), renew(held, h), release(held, h, store.EffectNone), complete(held, h, done),
		complete(lapsed, l, done), complete(held, holder{"nobody", h.fence}, done), resolve(lapsed, nil), force(held),
	}
}

func placementsEpoch(r *rig) {
	calls := everyCall(r)
	before := []recordView{r.record(calls[1].Key), r.record(calls[2].Key)}
	unchanged := func(after string) {
		r.Helper()
		for _, view := range before {
			r.unchanged(view.Key, view, after)
			equal(r, "events", len(r.events(view.Key, store.EventLateOutcome)), 0)
		}
	}
	astray := func(epochs ...int64) {
		r.Helper()
		for _, c := range calls {
			for _, c.Epoch = range epochs {
				equal(r, fmt.Sprintf("%s by epoch %d", c.Kind, c.Epoch), c.perform(r.ctx, r.Backend).Refusal, store.ErrWrongRegion)
			}
		}
		unchanged("operations by another epoch")
	}
	astray(1, -1)
	for _, phase := range []store.MovePhase{0, store.MoveFrozen, store.MoveSealed, store.MoveFlipped} {
		r.place(store.DefaultNamespace, 5, phase)
		astray(0, 4, 6)
	}
	r.reopen()
	astray(0, 4, 6)
	c := calls[0]
	c.Key.Namespace, c.Epoch = hourHold, 5
	r.refuse(c, store.ErrWrongRegion) // that one has no placement
	c.Key.ID = ""
	r.refuse(c, store.ErrKeyRequired)
	r.do(claim(calls[1].Key, "a"), "granted")
}

// placementsFlip: once a flip is in force, the epoch before gives not even what never changes.
func placementsFlip(r *rig) {
	h := r.completed(placedKey, "a", done)
	for epoch := int64(1); epoch < 5; epoch++ {
		r.place(store.DefaultNamespace, epoch, store.MoveFlipped)
		for _, c := range []call{claim(placedKey, "b"), complete(placedKey, h, done), lookup(placedKey)} {
			c.Epoch = epoch - 1
			equal(r, string(c.Kind)+" by the epoch before", c.perform(r.ctx, r.Backend).Refusal, store.ErrWrongRegion)
		}
		r.do(claim(placedKey, "b"), "completed")
		r.do(complete(placedKey, h, done), "recorded")
	}
}

func placementsStop(r *rig) {
	calls := everyCall(r)
	before := []recordView{r.record(calls[1].Key), r.record(calls[2].Key)}
	ended := placedKey
	ended.ID = "completed"
	e := r.completed(ended, "a", done)
	r.place(store.DefaultNamespace, 1, store.MoveSealed)
	for _, c := range append(calls, lookup(calls[0].Key), lookup(calls[2].Key)) {
		equal(r, string(c.Kind)+" while it is sealed", r.send(c).Refusal, store.ErrNamespaceMoving)
	}
	// What is completed never changes, so it is answered also by a home that was cut off.
	r.do(lookup(ended), "found")
	r.do(claim(ended, "b"), "completed")
	r.do(complete(ended, e, done), "recorded")
	r.refuse(renew(ended, e), store.ErrAlreadyCompleted)
	for _, view := range before {
		r.unchanged(view.Key, view, "operations while it is sealed")
		equal(r, "evidence", len(r.events(view.Key, store.EventLateOutcome)), 0)
	}
	r.place(store.DefaultNamespace, 1, store.MoveFrozen)
	r.refuse(lookup(calls[0].Key), store.ErrKeyNotFound)
	r.do(lookup(calls[2].Key), "found")
	for _, c := range []call{calls[0], calls[2]} {
		r.refuse(c, store.ErrNamespaceMoving)
	}
	r.do(calls[4], "renewed")
	r.do(calls[6], "recorded")
	r.do(resolve(calls[2].Key, nil), "changed")
	r.place(store.DefaultNamespace, 1, 0)
	r.do(calls[0], "granted")
	r.do(calls[2], "granted")
}

// pair is a move's two stores.
type pair struct{ from, to *rig }

func newPair(t testing.TB, factory Factory) pair {
	return pair{from: newRig(t, factory), to: newRig(t, factory)}
}

// advance lets time pass for both.
func (p pair) advance(d time.Duration) {
	p.from.Clock.Advance(d)
	p.to.Clock.Advance(d)
}

// move carries the namespace, and puts it in force at its new home.
func (p pair) move(namespace string) {
	p.from.Helper()
	p.seal(namespace)
	p.carry(namespace)
	p.to.place(namespace, p.from.placed[namespace].Epoch+1, 0)
}

func (p pair) seal(namespace string) {
	p.from.Helper()
	p.from.place(namespace, 1, store.MoveSealed)
	p.to.place(namespace, 1, store.MoveSealed)
}

func (p pair) carry(namespace string) {
	p.from.Helper()
	records, err := exportAll(p.from.ctx, p.from.Backend, namespace)
	if err != nil {
		p.from.Fatalf("export: %v", err)
	}
	for range 2 { // sent again, it changes nothing
		p.to.importRecords(namespace, records...)
	}
	p.to.upkeep()
}

// populate makes keys of the namespace in every condition that a live one can be in. What has
// lapsed, has lapsed a moment ago.
func populate(r *rig, namespace string) (keys []store.Key) {
	key := func(id string) store.Key {
		k := store.Key{Namespace: namespace, Scope: "s", ID: id, Entity: "e"}
		keys = append(keys, k)
		return k
	}
	for _, id := range []string{"lapsed", "lapsed-late", "taken-over", "taken-over-completed", "forced", "resolved", "resolved-outcome"} {
		r.grant(key(id), "a")
	}
	r.Clock.Advance(30 * time.Second)
	late := r.grant(keys[2], "b")
	r.refuse(complete(keys[2], holder{"a", late.fence - 1}, other), store.ErrStaleFence)
	r.completed(keys[3], "b", done)
	r.do(force(keys[4]), "changed")
	r.do(resolve(keys[5], nil), "changed")
	r.do(resolve(keys[6], done), "changed")
	many := key("many-attempts")
	for _, attempt := range attemptNames(store.MaxEndedAttempts + 1) {
		r.do(release(many, r.grant(many, attempt), store.EffectNone), "released")
	}
	r.grant(many, "last")
	unknown := key("released-unknown")
	r.do(release(unknown, r.grant(unknown, "a"), store.EffectUnknown), "released")
	released := key("released")
	r.do(release(released, r.grant(released, "a"), store.EffectNone), "released")
	r.grant(key("held"), "a")
	r.completed(key("completed"), "a", &store.Outcome{Status: []byte{8, 5}, Body: []byte{0, 255}, BodyType: "t",
		Header: []store.MetadataEntry{{Name: "h", Value: []byte{0}}, {Name: "h"}}, Trailer: []store.MetadataEntry{{Name: "t", Value: []byte("v")}}})
	r.completed(key("omitted"), "a", &store.Outcome{BodyOmitted: true})
	hold := claim(key("held-for-ever"), "a")
	hold.Hold = true
	r.do(hold, "granted")
	bare := claim(store.Key{Namespace: namespace, ID: "bare"}, "\x00\xff")
	bare.Fingerprint = store.Fingerprint{}
	r.do(bare, "granted")
	return append(keys, bare.Key)
}

func placementsCarry(t testing.TB, factory Factory) {
	for _, namespace := range []string{hourTakeover, store.DefaultNamespace} {
		p := newPair(t, factory)
		keys := populate(p.from, namespace)
		p.to.Clock.Advance(p.from.Clock.Wall().Sub(p.to.Clock.Wall()))
		p.seal(namespace)
		p.carry(namespace)
		want := make([]reply, len(keys))
		for i, key := range keys {
			want[i] = p.from.do(inspect(key), "inspected")
			got := p.to.do(inspect(key), "inspected")
			if want[i].Now, got.Now = 0, 0; got != want[i] {
				t.Fatalf("%s was carried as something else:%s", key.ID, difference(want[i], got))
			}
		}
		listed, err := listAll(p.to.ctx, p.to.Backend, store.ListRequest{Namespace: namespace})
		if err != nil || len(listed) != len(keys) {
			t.Fatalf("%d records are listed, %v; want %d", len(listed), err, len(keys))
		}
		p.from.forget(namespace)
		for _, key := range keys {
			p.from.refuse(inspect(key), store.ErrKeyNotFound)
		}
	}
}

// placementsUse: every right and every refusal comes along.
func placementsUse(t testing.TB, factory Factory) {
	p := newPair(t, factory)
	p.advance(time.Minute)
	const ns = store.DefaultNamespace // TAKEOVER
	key := func(id string) store.Key { return store.Key{Namespace: ns, ID: id} }
	grant := func(id string) holder { return p.from.grant(key(id), "a") }
	lapsed, late, strict := grant("lapsed"), grant("late"), claim(key("strict"), "a")
	strict.Hold = true
	strictly := holder{"a", p.from.do(strict, "granted").Fence}
	p.advance(store.DefaultLease)
	held, completed, ended := p.from.grantLong(key("held"), "a"), p.from.completed(key("completed"), "a", done), grant("ended")
	p.from.do(release(key("ended"), ended, store.EffectNone), "released")
	p.from.do(claim(key("ended"), "b"), "granted")
	unknown := grant("unknown")
	p.from.do(release(key("unknown"), unknown, store.EffectUnknown), "released")
	released := grant("released")
	p.from.do(release(key("released"), released, store.EffectNone), "released")
	before, unsettled := p.from.record(key("held")), p.from.record(key("lapsed"))
	p.move(ns)
	r := p.to

	r.do(claim(key("completed"), "b"), "completed")
	equal(r, "outcome", r.do(lookup(key("completed")), "found").Outcome, outcomeText(done))
	r.do(complete(key("completed"), completed, done), "recorded")
	r.refuse(complete(key("completed"), completed, other), store.ErrAlreadyCompleted)
	r.refuse(call{Kind: opClaim, Key: key("completed"), AttemptID: "b", Fingerprint: fingerprintG}, store.ErrFingerprintMismatch)

	r.do(claim(key("held"), "b"), "in progress")
	equal(r, "fence of a Claim sent again", r.do(claim(key("held"), "a"), "granted").Fence, held.fence)
	r.do(renew(key("held"), held), "renewed")
	equal(r, "limit", r.record(key("held")).Limit, before.Limit)
	r.do(complete(key("held"), held, done), "recorded")

	r.do(complete(key("late"), late, done), "recorded")
	taken := r.do(claim(key("lapsed"), "b"), "granted")
	equal(r, "number", taken.Number, 2)
	equal(r, "unsettled", taken.Unsettled, true)
	equal(r, "unsettled since", taken.UnsettledSince, unsettled.GrantedAt)
	equal(r, "previous fence", taken.Previous, lapsed.fence)
	r.grew(taken.Fence, lapsed.fence)
	r.refuse(complete(key("lapsed"), lapsed, done), store.ErrStaleFence)
	r.refuse(claim(key("lapsed"), "a"), store.ErrStaleAttempt)
	equal(r, "evidence", len(r.events(key("lapsed"), store.EventLateOutcome)), 1)

	r.do(claim(key("strict"), "b"), "unresolved")
	r.do(complete(key("strict"), strictly, done), "recorded")
	r.refuse(claim(key("ended"), "a"), store.ErrStaleAttempt)
	r.refuse(claim(key("unknown"), "a"), store.ErrStaleAttempt)
	equal(r, "unsettled after UNKNOWN", r.do(claim(key("unknown"), "b"), "granted").Unsettled, true)
	again := r.do(claim(key("released"), "b"), "granted")
	equal(r, "number after a release", again.Number, 2)
	r.grew(again.Fence, released.fence)
	forced := r.do(force(key("released")), "changed").Record
	r.grew(forced.Fence, again.Fence)
	r.do(claim(key("new"), "b"), "granted")
}

func (r *rig) grew(fence, previous int64) {
	r.Helper()
	if fence <= previous {
		r.Fatalf("the fence after %d is %d", previous, fence)
	}
}

// placementsLargest: a key with all that it can have.
func placementsLargest(t testing.TB, factory Factory) {
	p := newPair(t, factory)
	key := store.Key{Namespace: store.DefaultNamespace, Scope: strings.Repeat("s", store.MaxScopeBytes),
		ID: strings.Repeat("i", store.MaxIDBytes), Entity: strings.Repeat("e", store.MaxEntityBytes)}
	longest := claim(key, strings.Repeat("\xff", store.MaxAttemptIDBytes))
	longest.Fingerprint = store.Fingerprint{Version: 1<<32 - 1, Digest: strings.Repeat("\x00", store.MaxFingerprintBytes)}
	h := holder{longest.AttemptID, p.from.do(longest, "granted").Fence}
	for i := range store.MaxEvents {
		late := &store.Outcome{Body: append(make([]byte, store.MaxEvidenceBytes-1), byte(i))}
		p.from.refuse(complete(key, holder{"other", h.fence}, late), store.ErrStaleFence)
	}
	p.from.do(complete(key, h, &store.Outcome{Body: make([]byte, store.MaxOutcomeBytes)}), "recorded")
	p.seal(key.Namespace)
	p.carry(key.Namespace)
	want, got := p.from.do(inspect(key), "inspected"), p.to.do(inspect(key), "inspected")
	if want.Now, got.Now = 0, 0; got != want {
		t.Fatalf("it was carried as something else:%s", difference(want, got))
	}
}

// madeRecord is one that was granted, completed and expires at these instants.
func madeRecord(key store.Key, granted, completed, expires time.Time, outcome *store.Outcome) store.Inspection {
	return store.Inspection{Record: &store.Record{
		Key: key, State: store.StateCompleted, Fence: granted.UnixMicro(), AttemptID: "a", AttemptNumber: 1, Fingerprint: fingerprintF,
		GrantedAt: granted, LeaseEnd: granted.Add(10 * time.Second), AttemptLimit: granted.Add(time.Minute), EndedAt: completed, ExpiresAt: expires,
		LapsePolicy: store.Takeover, Retention: expires.Sub(completed), Outcome: outcome, OutcomeDigest: outcome.Digest(),
	}}
}

// heldRecord is one that lapsed under HOLD.
func heldRecord(key store.Key, granted time.Time) store.Inspection {
	in := madeRecord(key, granted, granted, granted.Add(time.Hour), done)
	in.Record.State, in.Record.LapsePolicy, in.Record.EndedAt, in.Record.ExpiresAt = store.StateInProgress, store.Hold, time.Time{}, time.Time{}
	in.Record.Outcome, in.Record.OutcomeDigest = nil, store.OutcomeDigest{}
	return in
}

// placementsFences: a record takes the place of one with a lower or the same fence, never of
// one with a higher.
func placementsFences(r *rig) {
	now := r.Clock.Wall()
	first, same := heldRecord(takeoverKey, now), madeRecord(takeoverKey, now, now, now.Add(time.Hour), done)
	r.place(hourTakeover, 1, store.MoveSealed)
	states := func(want store.State) {
		r.Helper()
		for range 2 {
			equal(r, "state", r.record(takeoverKey).State, want)
			listed, err := listAll(r.ctx, r.Backend, store.ListRequest{Namespace: hourTakeover})
			if err != nil || len(listed) != 1 {
				r.Fatalf("%d records are listed, %v; want one", len(listed), err)
			}
			r.reopen()
		}
	}
	r.importRecords(hourTakeover, first)
	states(store.StateInProgress)
	r.importRecords(hourTakeover, same)
	states(store.StateCompleted)
	higher := *first.Record
	higher.Fence, higher.AttemptID, higher.AttemptNumber, higher.PreviousFence = higher.Fence+1, "b", 2, higher.Fence
	r.importRecords(hourTakeover, store.Inspection{Record: &higher})
	states(store.StateInProgress)
	r.importRecords(hourTakeover, same, first)
	states(store.StateInProgress)
	equal(r, "fence", r.record(takeoverKey).Fence, higher.Fence)
}

func placementsImportRefused(r *rig) {
	now := r.Clock.Wall()
	good := madeRecord(takeoverKey, now, now, now.Add(time.Hour), done)
	foreign := madeRecord(holdKey, now, now, now.Add(time.Hour), done)
	damaged := madeRecord(takeoverKey, now, now, now.Add(time.Hour), done)
	damaged.Record.OutcomeDigest[0]++
	stateless := madeRecord(takeoverKey, now, now, now.Add(time.Hour), done)
	stateless.Record.State = 0
	refused := func(what string, revision int64, want error, records ...store.Inspection) {
		r.Helper()
		r.refusedAs(what, r.ImportRecords(r.ctx, hourTakeover, revision, records), want)
		r.refuse(inspect(takeoverKey), store.ErrKeyNotFound)
	}
	refused("an import into a namespace without placement", 0, store.ErrWrongRegion, good)
	for _, phase := range []store.MovePhase{0, store.MoveFrozen, store.MoveFlipped} {
		p := r.place(hourTakeover, 1, phase)
		refused(fmt.Sprint("an import in phase ", phase), p.Revision, store.ErrWrongRegion, good)
	}
	revision := r.place(hourTakeover, 1, store.MoveSealed).Revision
	for _, other := range []int64{revision - 1, revision + 1} {
		refused("an import at another revision", other, store.ErrWrongRegion, good)
		refused("an import of nothing at another revision", other, store.ErrWrongRegion)
	}
	refused("a record of another namespace", revision, store.ErrInvalidArgument, good, foreign)
	refused("no record", revision, store.ErrInvalidArgument, good, store.Inspection{})
	refused("a record in no state", revision, store.ErrInvalidArgument, good, stateless)
	refused("a record whose outcome is damaged", revision, store.ErrRecordCorrupt, good, damaged)
	refused("too many records", revision, store.ErrInvalidArgument, slices.Repeat([]store.Inspection{good}, store.MaxPageSize+1)...)
	r.refuse(inspect(holdKey), store.ErrKeyNotFound)
	r.refusedAs("an import into no namespace", r.ImportRecords(r.ctx, "nobody", revision, nil), store.ErrNamespaceUnknown)
	r.importRecords(hourTakeover)
	r.importRecords(hourTakeover, good)
	r.do(inspect(takeoverKey), "inspected")
}

func placementsThousand(r *rig) {
	now := r.Clock.Wall()
	r.place(hourHold, 1, store.MoveSealed)
	var records []store.Inspection
	for i := range store.MaxPageSize {
		key := holdKey
		key.ID = fmt.Sprint(i)
		records = append(records, madeRecord(key, now, now, now.Add(time.Hour), &store.Outcome{Body: []byte(key.ID)}))
	}
	r.importRecords(hourHold, records...)
	r.upkeep()
	listed, err := listAll(r.ctx, r.Backend, store.ListRequest{Namespace: hourHold, PageSize: store.MaxPageSize})
	if err != nil || len(listed) != len(records) {
		r.Fatalf("%d records are listed, %v; want %d", len(listed), err, len(records))
	}
	for _, i := range []int{0, 1, 499, 998, 999} {
		equal(r, "outcome", r.do(claim(records[i].Record.Key, "b"), "completed").Outcome, outcomeText(records[i].Record.Outcome))
	}
	r.forget(hourHold)
	listed, err = listAll(r.ctx, r.Backend, store.ListRequest{Namespace: hourHold})
	if err != nil || len(listed) != 0 {
		r.Fatalf("%d records are left, %v", len(listed), err)
	}
}

// placementsLast: whenever they were granted, imported records live until they expire, and not
// for longer.
func placementsLast(r *rig) {
	r.Clock.Advance(50 * time.Hour)
	r.place(hourHold, 1, store.MoveSealed)
	now := r.Clock.Wall()
	key := func(id string) store.Key { return store.Key{Namespace: hourHold, ID: id} }
	r.importRecords(hourHold,
		madeRecord(key("nearly over"), now.Add(-time.Hour), now.Add(-59*time.Minute), now.Add(time.Second), done),
		madeRecord(key("settled late"), now.Add(-48*time.Hour), now, now.Add(time.Hour), done),
		madeRecord(key("over"), now.Add(-2*time.Hour), now.Add(-time.Hour), now, done),
		madeRecord(key("by a clock ahead"), now.Add(time.Second), now.Add(time.Second), now.Add(time.Hour+time.Second), done),
		heldRecord(key("held"), now.Add(-time.Minute)),
		heldRecord(key("held for long"), now.Add(-49*time.Hour)),
	)
	live := func(ids ...string) {
		r.Helper()
		listed, err := listAll(r.ctx, r.Backend, store.ListRequest{Namespace: hourHold})
		if err != nil {
			r.Fatalf("ListRecords: %v", err)
		}
		var got []string
		for _, rec := range listed {
			got = append(got, rec.Key.ID)
			r.do(inspect(rec.Key), "inspected")
		}
		slices.Sort(got)
		slices.Sort(ids)
		equal(r, "live records", fmt.Sprint(got), fmt.Sprint(ids))
	}
	live("nearly over", "settled late", "by a clock ahead", "held", "held for long")
	r.upkeep()
	r.Clock.Advance(time.Second - time.Microsecond)
	live("nearly over", "settled late", "by a clock ahead", "held", "held for long")
	r.Clock.Advance(time.Microsecond)
	live("settled late", "by a clock ahead", "held", "held for long")
	r.place(hourHold, 2, 0)
	for _, id := range []string{"over", "nearly over"} {
		equal(r, "number of a new life", r.do(claim(key(id), "b"), "granted").Number, 1)
	}
	r.Clock.Advance(59*time.Minute + 56*time.Second - r.Clock.Wall().Sub(now))
	r.maintain()
	r.do(claim(key("settled late"), "b"), "completed")
	r.do(claim(key("by a clock ahead"), "b"), "completed")
	for range 4 {
		r.Clock.Advance(40 * time.Minute)
		r.upkeep()
	}
	r.do(claim(key("held"), "b"), "unresolved")
	r.do(claim(key("held for long"), "b"), "unresolved")
	equal(r, "number of a new life", r.do(claim(key("settled late"), "b"), "granted").Number, 1)
	r.do(complete(key("held"), holder{"a", now.Add(-time.Minute).UnixMicro()}, done), "refused") // used up
	r.do(resolve(key("held"), done), "changed")
	r.do(claim(key("held"), "b"), "completed")
}

func placementsForget(r *rig) {
	var others []recordView
	for _, key := range []store.Key{holdKey, {Namespace: store.DefaultNamespace, ID: "k"}} {
		r.completed(key, "a", done)
		others = append(others, r.record(key))
	}
	key := func(i int) store.Key { return store.Key{Namespace: hourTakeover, ID: fmt.Sprint(i)} }
	const keys = 300
	var fences []int64
	for i := range keys {
		if i == keys/2 {
			r.Clock.Advance(20 * time.Minute) // those before expire
		}
		h := r.grant(key(i), "a")
		fences = append(fences, h.fence)
		if i%3 > 0 {
			r.do(complete(key(i), h, done), "recorded")
		}
		if i%3 > 1 {
			r.do(claim(key(i), "b"), "completed") // as who asks often has it
			r.refuse(complete(key(i), holder{"nobody", h.fence}, done), store.ErrStaleFence)
		}
	}
	for _, phase := range []store.MovePhase{store.MoveSealed, store.MoveFlipped} {
		r.place(hourTakeover, 1, phase)
		for range 2 { // the second time there is nothing
			r.forget(hourTakeover)
			for i := range keys {
				r.refuse(inspect(key(i)), store.ErrKeyNotFound)
			}
			r.upkeep()
		}
		for _, view := range others {
			r.unchanged(view.Key, view, "another namespace was forgotten")
		}
	}
	r.place(hourTakeover, 2, 0)
	r.Clock.Advance(time.Microsecond) // fences are forgotten too: from here on the clock's are higher
	for i := range keys {
		got := r.do(claim(key(i), "a"), "granted")
		equal(r, "number of a new life", got.Number, 1)
		equal(r, "previous fence of a new life", got.Previous, 0)
		r.grew(got.Fence, fences[i])
		equal(r, "events of a new life", r.do(inspect(key(i)), "inspected").Events, "")
	}
}

// placementsKeep: of one namespace some keys are forgotten and others stay, while callers use them.
func placementsKeep(r *rig) {
	key := func(i int) store.Key { return store.Key{Namespace: hourTakeover, ID: fmt.Sprint(i)} }
	kept := func(k store.Key) bool { return strings.HasSuffix(k.ID, "7") }
	const keys = 200
	before := map[int]recordView{}
	for i := range keys {
		r.completed(key(i), "a", done)
		before[i] = r.record(key(i))
	}
	p := r.place(hourTakeover, 1, store.MoveFlipped)
	for more := true; more; {
		var err error
		if more, err = r.ForgetRecords(r.ctx, hourTakeover, p.Revision, kept); err != nil {
			r.Fatalf("ForgetRecords: %v", err)
		}
	}
	for range 2 {
		for i := range keys {
			if kept(key(i)) {
				r.unchanged(key(i), before[i], "others were forgotten")
				r.do(claim(key(i), "b"), "completed")
			} else {
				r.refuse(inspect(key(i)), store.ErrKeyNotFound)
			}
		}
		r.reopen()
	}
	fresh := r.grant(key(keys), "a")
	r.do(complete(key(keys), fresh, done), "recorded")
}

func placementsForgetRefused(r *rig) {
	r.completed(takeoverKey, "a", done)
	before := r.record(takeoverKey)
	refused := func(what string, revision int64) {
		r.Helper()
		_, err := r.ForgetRecords(r.ctx, hourTakeover, revision, nil)
		r.refusedAs(what, err, store.ErrWrongRegion)
		r.unchanged(takeoverKey, before, what)
	}
	refused("forgetting a namespace without placement", 0)
	for _, phase := range []store.MovePhase{0, store.MoveFrozen} {
		refused(fmt.Sprint("forgetting in phase ", phase), r.place(hourTakeover, 1, phase).Revision)
	}
	revision := r.place(hourTakeover, 1, store.MoveSealed).Revision
	refused("forgetting at an earlier revision", revision-1)
	refused("forgetting at a later revision", revision+1)
	_, err := r.ForgetRecords(r.ctx, "nobody", revision, nil)
	r.refusedAs("forgetting no namespace", err, store.ErrNamespaceUnknown)
}
