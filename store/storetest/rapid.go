package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/idemd/idemd/store"
)

// RunRapid drives a backend and the model with the same random operations and compares
// every answer, every refusal and every record with its events. Few keys, attempts and
// fingerprints and a clock that likes boundaries make the rare rows of the table common.
//
// The flags -rapid.checks and -rapid.steps (or RAPID_CHECKS and RAPID_STEPS) make it
// longer; -rapid.seed and -rapid.failfile repeat a failure.
func RunRapid(t testing.TB, factory Factory) { runMachine(t, factory, (*machine).step) }

func runMachine(t testing.TB, factory Factory, step func(*machine, *rapid.T)) {
	checkRuns(t, func(rt *rapid.T) {
		m := newMachine(rt, factory(perCheck{TB: t, rt: rt}))
		step := func(rt *rapid.T) { step(m, rt) }
		for range 3 { // three times the steps of one Repeat, still shrunk one by one
			rt.Repeat(map[string]func(*rapid.T){"step": step})
		}
		m.checkLists()
	})
}

// perCheck lets an instance live as long as one check.
type perCheck struct {
	testing.TB
	rt *rapid.T
}

func (p perCheck) Cleanup(f func()) { p.rt.Cleanup(f) }

// machine is a backend beside the model.
type machine struct {
	t     rapid.TB
	ctx   context.Context
	inst  *Instance
	model *model
	keys  []store.Key
	held  map[store.Key][]holder // who was ever granted the key, the latest first
	sent  []call                 // the latest first
	fresh int                    // attempts that churn has used up
}

type holder struct {
	attempt string
	fence   int64
}

const (
	hourTakeover = "hour-takeover"
	hourHold     = "hour-hold"
)

// machineSpaces are the namespaces of a machine: a short retention with tight limits,
// one that holds, and the defaults in another tier.
func machineSpaces() map[string]space {
	return map[string]space{
		hourTakeover: {retention: 2 * time.Minute, longest: time.Hour, lease: 10 * time.Second, maxLease: time.Minute,
			maxAttempt: time.Minute, maxOutcome: 1024},
		hourHold: {hold: true, retention: time.Hour, longest: time.Hour, lease: 30 * time.Second, maxLease: 10 * time.Minute,
			maxAttempt: 15 * time.Minute, maxOutcome: 2048},
		store.DefaultNamespace: {retention: 24 * time.Hour, longest: 24 * time.Hour, lease: 30 * time.Second, maxLease: 15 * time.Minute,
			maxAttempt: time.Hour, maxOutcome: 256 << 10},
	}
}

// namespace is ns as an operator sets it.
func (ns space) namespace(name string) store.Namespace {
	tier := store.TierHour
	if name == store.DefaultNamespace {
		tier = store.TierDay
	}
	return store.Namespace{Name: name, Tier: tier, Retention: ns.retention, LapsePolicy: policyOf(ns.hold), Lease: ns.lease,
		MaxLease: ns.maxLease, MaxAttempt: ns.maxAttempt, MaxOutcomeBytes: ns.maxOutcome, RecoveryFloor: ns.floor.time()}
}

func newMachine(t *rapid.T, inst *Instance) *machine {
	m := &machine{t: t, ctx: t.Context(), inst: inst, model: newModel(at(inst.Clock.Wall())), held: map[store.Key][]holder{},
		keys: []store.Key{
			{Namespace: hourTakeover, ID: "k"},
			{Namespace: hourHold, ID: "k"},
			{Namespace: hourTakeover, Scope: "s", ID: "k"},
			{Namespace: store.DefaultNamespace, ID: "k", Entity: "e"},
		}}
	m.model.spaces = machineSpaces()
	for name, ns := range m.model.spaces {
		if name == store.DefaultNamespace {
			continue
		}
		if _, err := inst.CreateNamespace(m.ctx, ns.namespace(name)); err != nil {
			t.Fatalf("CreateNamespace %q: %v", name, err)
		}
	}
	return m
}

// do applies one operation by the namespace's epoch.
func (m *machine) do(o call) reply {
	m.t.Helper()
	o.Epoch = m.model.spaces[o.Key.Namespace].placed.Epoch
	return m.ask(o)
}

// ask applies one operation to both sides and compares the answer and the record.
func (m *machine) ask(o call) reply {
	m.t.Helper()
	want := m.model.apply(o)
	got := o.perform(m.ctx, m.inst)
	m.compare(o, want, got)
	m.sent = append([]call{o}, m.sent[:min(len(m.sent), 7)]...)
	if want.Kind == "granted" {
		m.remember(o.Key, holder{o.AttemptID, want.Fence})
	}
	look := call{Kind: opInspect, Key: o.Key}
	m.compare(look, m.model.apply(look), look.perform(m.ctx, m.inst))
	return want
}

func (m *machine) remember(key store.Key, h holder) {
	if held := m.held[key]; len(held) == 0 || held[0] != h {
		m.held[key] = append([]holder{h}, held...)
	}
}

func (m *machine) compare(o call, want, got reply) {
	m.t.Helper()
	if m.inst.AttemptsHidden && o.Kind != opInspect {
		want, got = want.withoutAttempts(), got.withoutAttempts()
	}
	if want != got {
		m.t.Fatalf("at %v: %+v\nmodel and backend differ:%s", m.model.now, o, difference(want, got))
	}
}

// step is one random action, likelier ones listed more often.
func (m *machine) step(t *rapid.T) {
	m.t = t
	key := rapid.SampledFrom(m.keys).Draw(t, "key")
	actions := map[string]func(*rapid.T, store.Key){
		"claim": m.claim, "settle": m.settle, "time": m.time, "again": m.again, "look": m.look,
		"operator": m.operator, "flaw": m.flaw, "policy": m.policy, "churn": m.churn, "upkeep": m.upkeep, "wall": m.wall, "import": m.importing,
	}
	action := rapid.SampledFrom([]string{
		"claim", "claim", "claim", "claim", "claim", "settle", "settle", "settle", "settle", "time", "time", "time",
		"again", "look", "operator", "flaw", "policy", "churn", "upkeep", "wall", "import",
	}).Draw(t, "action")
	actions[action](t, key)
}

var (
	leases       = rapid.SampledFrom([]time.Duration{0, time.Second, 20 * time.Second, time.Minute})
	attempts     = rapid.SampledFrom([]string{"a", "b", "c", "a", "b", "c", "d", "e", "\x00\xff"})
	fingerprints = rapid.SampledFrom([]store.Fingerprint{
		{Version: 1, Digest: "f"}, {Version: 1, Digest: "f"}, {Version: 1, Digest: "f"},
		{}, {Version: 1, Digest: "g"}, {Version: 2, Digest: "f"}, {Digest: "f"},
	})
	outcomes = rapid.SampledFrom([]*store.Outcome{
		{},
		{Body: []byte("done"), BodyType: "t"},
		{Body: []byte("done"), BodyType: "t", Header: []store.MetadataEntry{{Name: "n", Value: []byte{0, 0xff}}}},
		{Status: []byte{8, 5}, BodyOmitted: true, Trailer: []store.MetadataEntry{{Name: "n"}, {Name: "n", Value: []byte("v")}}},
		{Status: []byte{8, 9, 18, 1, 'm'}, Body: make([]byte, modelEvidence-5)}, // as large as evidence is kept whole
		{Status: []byte{8, 9, 18, 1, 'm'}, Body: make([]byte, modelEvidence-4)},
	})
	microseconds = rapid.SampledFrom([]time.Duration{0, time.Microsecond, -time.Microsecond})
)

func (m *machine) claim(t *rapid.T, key store.Key) {
	o := call{Kind: opClaim, Key: key, AttemptID: attempts.Draw(t, "attempt"), Fingerprint: fingerprints.Draw(t, "fingerprint"),
		Lease: leases.Draw(t, "lease"), Hold: rapid.IntRange(0, 9).Draw(t, "hold") == 9}
	o.Intent = m.intent(t, m.model.spaces[key.Namespace])
	m.do(o)
}

// intent draws an intent time, most often none, else at one of the bounds of the table.
func (m *machine) intent(t *rapid.T, ns space) instant {
	bounds := []instant{0, 0, 0, 0, m.model.now, m.model.now.add(ns.skew()), m.model.now.add(ns.skew() - ns.retention)}
	if ns.floor != 0 {
		bounds = append(bounds, ns.floor.add(ns.skew()))
	}
	for _, past := range ns.past {
		bounds = append(bounds, past.until.add(ns.skew()), m.model.now.add(ns.skew()-past.retention))
	}
	bound := rapid.SampledFrom(bounds).Draw(t, "intent")
	if bound == 0 {
		return 0
	}
	return bound.add(microseconds.Draw(t, "off"))
}

// wall claims with an intent time from a wall clock that has stepped. No time passes for the
// store's clock meanwhile, for that would follow.
func (m *machine) wall(t *rapid.T, key store.Key) {
	m.do(call{Kind: opInspect, Key: key})
	m.model.ahead = rapid.SampledFrom([]time.Duration{time.Minute, 2 * time.Hour, 36 * 24 * time.Hour, -2 * time.Hour}).Draw(t, "wall")
	m.inst.Clock.StepWall(m.model.ahead)
	skew := m.model.spaces[key.Namespace].skew()
	o := call{Kind: opClaim, Key: key, AttemptID: attempts.Draw(t, "attempt"), Fingerprint: fingerprints.Draw(t, "fingerprint")}
	o.Intent = rapid.SampledFrom([]instant{
		m.model.now.add(m.model.ahead), m.model.now.add(m.model.ahead + skew), m.model.now.add(modelAhead + skew), m.model.now.add(skew),
	}).Draw(t, "intent").add(microseconds.Draw(t, "off"))
	m.do(o)
	m.inst.Clock.StepWall(-m.model.ahead)
	m.model.ahead = 0
}

// settle renews, completes or releases, most often as the holder.
func (m *machine) settle(t *rapid.T, key store.Key) {
	h := m.someHolder(t, key)
	o := call{Key: key, AttemptID: h.attempt, Fence: h.fence}
	o.Kind = rapid.SampledFrom([]opKind{opRenew, opComplete, opRelease}).Draw(t, "kind")
	switch o.Kind {
	case opRenew:
		o.Lease = leases.Draw(t, "lease")
	case opComplete:
		o.Outcome = outcomes.Draw(t, "outcome")
	case opRelease:
		o.Effect = rapid.SampledFrom([]store.Effect{store.EffectNone, store.EffectUnknown}).Draw(t, "effect")
	}
	m.do(o)
}

func (m *machine) someHolder(t *rapid.T, key store.Key) holder {
	held := m.held[key]
	if len(held) == 0 {
		return holder{attempts.Draw(t, "attempt"), m.model.now.micros()}
	}
	h := held[min(rapid.SampledFrom([]int{0, 0, 0, 0, 0, 1, 2}).Draw(t, "holder"), len(held)-1)]
	switch rapid.IntRange(0, 11).Draw(t, "wrong") {
	case 9:
		h.fence--
	case 10:
		h.fence = m.currentFence(key, h.fence)
	case 11:
		h.attempt = attempts.Draw(t, "attempt")
	}
	return h
}

func (m *machine) currentFence(key store.Key, otherwise int64) int64 {
	if e := m.model.entries[key]; e != nil {
		return e.fence
	}
	return otherwise
}

// time lets some pass: to where something ends, give or take a microsecond, or by widths
// of buckets.
func (m *machine) time(t *rapid.T, key store.Key) {
	target := m.model.now.add(rapid.SampledFrom([]time.Duration{
		time.Microsecond, time.Second, time.Minute, 15 * time.Minute, 6 * time.Hour, 36*time.Hour + time.Microsecond,
	}).Draw(t, "duration"))
	mark := rapid.SampledFrom([]string{"lease end", "limit", "expiry", "lease end", "limit", "expiry", "duration"}).Draw(t, "until")
	if e := m.model.entries[key]; e != nil && mark != "duration" {
		ends := map[string]instant{"lease end": e.leaseEnd, "limit": e.limit, "expiry": e.expires}
		if end := ends[mark].add(microseconds.Draw(t, "off")); end > m.model.now {
			target = end
		}
	}
	m.inst.Clock.Advance(target.since(m.model.now))
	m.model.now = target
}

// again sends an earlier operation once more, as it was, its epoch included.
func (m *machine) again(t *rapid.T, _ store.Key) {
	if len(m.sent) > 0 {
		m.ask(rapid.SampledFrom(m.sent).Draw(t, "again"))
	}
}

func (m *machine) look(t *rapid.T, key store.Key) {
	m.do(call{Kind: opLookup, Key: key, Fingerprint: fingerprints.Draw(t, "fingerprint")})
}

func (m *machine) operator(t *rapid.T, key store.Key) {
	o := call{Key: key, Actor: "operator", Reason: "because"}
	o.Kind = rapid.SampledFrom([]opKind{opResolve, opForce}).Draw(t, "kind")
	if rapid.Bool().Draw(t, "with fence") {
		o.Fence = m.someHolder(t, key).fence
	}
	if o.Kind == opResolve && rapid.Bool().Draw(t, "with outcome") {
		o.Outcome = outcomes.Draw(t, "outcome")
	}
	m.do(o)
}

// importing says what became of a key, as an operator does after a restore.
func (m *machine) importing(t *rapid.T, key store.Key) {
	o := call{Kind: opImport, Key: key, Actor: "operator", Reason: "because"}
	o.Fingerprint = rapid.SampledFrom([]store.Fingerprint{{Version: 1, Digest: "f"}, {}, store.UnknownFingerprint}).Draw(t, "fingerprint")
	if rapid.Bool().Draw(t, "with outcome") {
		o.Outcome = outcomes.Draw(t, "outcome")
		bound := rapid.SampledFrom([]instant{0, m.model.now, m.model.now.add(-m.model.spaces[key.Namespace].retention)}).Draw(t, "done")
		if bound != 0 {
			o.Done = bound.add(microseconds.Draw(t, "off"))
		}
	}
	m.do(o)
}

// flaw sends an operation with one thing wrong.
func (m *machine) flaw(t *rapid.T, key store.Key) {
	flaws := map[string]func(*call){
		"empty id":             func(o *call) { o.Key.ID = "" },
		"unknown namespace":    func(o *call) { o.Key.Namespace = "nobody" },
		"empty attempt":        func(o *call) { o.AttemptID = "" },
		"short lease":          func(o *call) { o.Lease = time.Second - 1 },
		"long lease":           func(o *call) { o.Lease = m.model.spaces[key.Namespace].maxLease + 1 },
		"versioned no digest":  func(o *call) { o.Fingerprint = store.Fingerprint{Version: 1} },
		"no fence":             func(o *call) { o.Fence = 0 },
		"bad fence":            func(o *call) { o.Fence = -1 },
		"no effect":            func(o *call) { o.Effect = 0 },
		"no reason":            func(o *call) { o.Reason = "" },
		"outcome over a limit": func(o *call) { o.Outcome = &store.Outcome{Body: make([]byte, 256<<10+1)} },
	}
	byKind := map[opKind][]string{
		opClaim:    {"empty id", "unknown namespace", "empty attempt", "short lease", "long lease", "versioned no digest"},
		opRenew:    {"empty id", "unknown namespace", "empty attempt", "short lease", "long lease", "no fence"},
		opComplete: {"empty id", "unknown namespace", "empty attempt", "no fence", "outcome over a limit"},
		opRelease:  {"empty id", "unknown namespace", "empty attempt", "no fence", "no effect"},
		opLookup:   {"empty id", "unknown namespace", "versioned no digest"},
		opResolve:  {"empty id", "unknown namespace", "no reason", "bad fence", "outcome over a limit"},
		opForce:    {"empty id", "unknown namespace", "no reason", "bad fence"},
		opInspect:  {"empty id", "unknown namespace"},
		opImport:   {"empty id", "unknown namespace", "no reason", "versioned no digest", "outcome over a limit"},
	}
	kind := rapid.SampledFrom([]opKind{opClaim, opRenew, opComplete, opRelease, opLookup, opResolve, opForce, opInspect, opImport}).Draw(t, "kind")
	h := holder{"a", 1}
	if held := m.held[key]; len(held) > 0 {
		h = held[0]
	}
	o := call{Kind: kind, Key: key, AttemptID: h.attempt, Fence: h.fence, Effect: store.EffectNone, Reason: "because"}
	if kind == opResolve || kind == opForce || kind == opImport {
		o.Fence = 0 // any
	}
	if kind == opComplete {
		o.Outcome = &store.Outcome{}
	}
	flaws[rapid.SampledFrom(byKind[kind]).Draw(t, "flaw")](&o)
	m.do(o)
}

// policy changes a namespace. What was granted keeps what its grant stamped.
func (m *machine) policy(t *rapid.T, key store.Key) {
	name := key.Namespace
	ns := m.model.spaces[name]
	switch rapid.SampledFrom([]string{"retention", "hold", "floor", "limits"}).Draw(t, "policy") {
	case "retention":
		retention := rapid.SampledFrom([]time.Duration{2 * time.Minute, 10 * time.Minute, time.Hour}).Draw(t, "retention")
		ns = ns.setRetention(retention, m.model.now.add(m.inst.RetentionLag))
	case "hold":
		ns.hold = !ns.hold
	case "floor":
		ns.floor = rapid.SampledFrom([]instant{0, 0, m.model.now}).Draw(t, "floor")
	case "limits":
		ns.maxAttempt = rapid.SampledFrom([]time.Duration{time.Minute, 90 * time.Second, 10 * time.Minute}).Draw(t, "max attempt")
		ns.maxLease = min(ns.maxLease, ns.maxAttempt)
	}
	if ns.placed.Move.Phase != 0 {
		if _, err := m.inst.UpdateNamespace(m.ctx, ns.namespace(name)); !errors.Is(err, store.ErrNamespaceMoving) {
			t.Fatalf("UpdateNamespace %+v while it moves: %v", ns, err)
		}
		return
	}
	if err := setNamespace(m.ctx, m.inst, ns.namespace(name)); err != nil {
		t.Fatalf("UpdateNamespace %+v: %v", ns, err)
	}
	m.model.spaces[name] = ns
}

// setNamespace changes a namespace. A floor that is to be lower is lifted first.
func setNamespace(ctx context.Context, b store.Backend, ns store.Namespace) error {
	old, err := b.GetNamespace(ctx, ns.Name)
	if err == nil && ns.RecoveryFloor.Before(old.RecoveryFloor) {
		_, err = b.LiftRecovery(ctx, store.LiftRecoveryRequest{Namespace: ns.Name, LeasesEnded: true, Actor: "operator", Reason: "because"})
	}
	if err != nil {
		return err
	}
	_, err = b.UpdateNamespace(ctx, ns)
	return err
}

// churn has many attempts end, so that lists reach their limits.
func (m *machine) churn(t *rapid.T, key store.Key) {
	effect := rapid.SampledFrom([]store.Effect{store.EffectUnknown, store.EffectNone}).Draw(t, "effect")
	for range rapid.SampledFrom([]int{1, 7, 8, 9, 33}).Draw(t, "rounds") {
		m.fresh++
		claim := call{Kind: opClaim, Key: key, AttemptID: fmt.Sprint("fresh", m.fresh), Fingerprint: store.Fingerprint{Version: 1, Digest: "f"}}
		granted := m.do(claim)
		if granted.Kind != "granted" {
			return
		}
		m.do(call{Kind: opRelease, Key: key, AttemptID: claim.AttemptID, Fence: granted.Fence, Effect: effect})
	}
}

// upkeep must change nothing that anybody can see.
func (m *machine) upkeep(t *rapid.T, _ store.Key) {
	if m.inst.Reopen != nil && rapid.Bool().Draw(t, "reopen") {
		m.inst.Reopen()
	} else if _, err := m.inst.Maintain(m.ctx); err != nil {
		t.Fatalf("Maintain: %v", err)
	}
	for _, key := range m.keys {
		look := call{Kind: opInspect, Key: key}
		m.compare(look, m.model.apply(look), look.perform(m.ctx, m.inst))
	}
}

// checkLists compares every kind of listing with the model.
func (m *machine) checkLists() {
	for name := range m.model.spaces {
		for _, filter := range []store.Filter{
			{}, {Lapsed: true}, {State: store.StateInProgress}, {State: store.StateCompleted}, {State: store.StateReleased},
		} {
			m.checkList(name, filter)
		}
	}
}

func (m *machine) checkList(name string, filter store.Filter) {
	var want, got []recordView
	for _, key := range m.keys {
		e := m.model.live(key)
		if key.Namespace == name && e != nil && (filter.State == 0 || filter.State == e.state) && (!filter.Lapsed || m.model.lapsed(e)) {
			want = append(want, m.listed(e.view(key)))
		}
	}
	records, err := listAll(m.ctx, m.inst, store.ListRequest{Namespace: name, Filter: filter, PageSize: 1})
	if err != nil {
		m.t.Fatalf("ListRecords %q %+v: %v", name, filter, err)
	}
	for _, r := range records {
		if r.Outcome != nil {
			m.t.Fatalf("ListRecords %q %+v: a listed record carries its outcome", name, filter)
		}
		got = append(got, m.listed(viewRecord(r)))
	}
	byKey := func(a, b recordView) int { return cmp.Compare(a.Key.Scope, b.Key.Scope) }
	slices.SortFunc(want, byKey)
	slices.SortFunc(got, byKey)
	if !slices.Equal(want, got) {
		m.t.Fatalf("ListRecords %q %+v:\nwant %+v\ngot  %+v", name, filter, want, got)
	}
}

// listed leaves out what a listing does not show.
func (m *machine) listed(v recordView) recordView {
	v.Outcome, v.Digest = "", store.OutcomeDigest{}
	if m.inst.AttemptsHidden {
		v = v.withoutAttempts()
	}
	return v
}

// listAll reads all pages of a listing.
func listAll(ctx context.Context, b store.Backend, req store.ListRequest) ([]*store.Record, error) {
	var all []*store.Record
	for {
		page, err := b.ListRecords(ctx, req)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Records...)
		if page.NextPageToken == "" {
			return all, nil
		}
		req.PageToken = page.NextPageToken
	}
}
