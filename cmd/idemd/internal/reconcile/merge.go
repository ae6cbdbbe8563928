package reconcile

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"github.com/idemd/idemd/store"
)

// A group is the effects and records that belong together.
type group struct {
	digest  [sha256.Size]byte
	effects []Effect // the first MaxShown
	more    int
	last    Effect
	keys    int  // how many different ones the effects have
	inside  int  // how many effects lie in the time that is judged
	known   bool // whether one of these is so new that it has a record, if it was guarded
	records []Record
}

// each calls do with one group after the other.
func (r *reconciling) each(s *sorter, do func(*group) error) error {
	var g *group
	for b, err := range s.sorted() {
		if err == nil {
			err = r.ctx.Err()
		}
		if err != nil {
			return err
		}
		digest, w, err := decode(b)
		if err != nil {
			return err
		}
		if g == nil || g.digest != digest {
			if g != nil {
				if err := do(g); err != nil {
					return err
				}
			}
			g = &group{digest: digest}
		}
		if err := r.put(g, w, s == &r.byKey); err != nil {
			return err
		}
	}
	if g == nil {
		return nil
	}
	return do(g)
}

// put adds a row to its group; an effect without a key to none, and it is reported at once.
func (r *reconciling) put(g *group, w row, byKey bool) error {
	if w.Record != nil {
		r.putRecord(g, *w.Record)
		return nil
	}
	if byKey {
		if err := r.addIntent(g, w.Effect); err != nil {
			return err
		}
	}
	switch e := *w.Effect; {
	case byKey && e.Key == "":
		return r.withoutKey(e)
	case !r.again(g, e):
		r.putEffect(g, e, byKey)
	case byKey:
		*r.counts.EffectsRepeated++ // there is a column effect, or it would have no id
	}
	return nil
}

// again reports whether an effect is the last one of its group, which is twice in the file.
func (r *reconciling) again(g *group, e Effect) bool {
	return e.ID != "" && g.last.ID == e.ID && r.sameKey(g, e)
}

// sameKey reports whether an effect has the key of the last one of its group.
func (r *reconciling) sameKey(g *group, e Effect) bool {
	return len(g.effects) > 0 && g.last.Key == e.Key && r.keyGroup(g.last.Scope, g.last.Key, g.last.Entity) == r.keyGroup(e.Scope, e.Key, e.Entity)
}

// putEffect adds an effect. It is counted once, when effects are by key.
func (r *reconciling) putEffect(g *group, e Effect, byKey bool) {
	if !r.sameKey(g, e) {
		g.keys++
	}
	g.last = e
	if len(g.effects) < MaxShown {
		g.effects = append(g.effects, e)
	} else {
		g.more++
	}
	inside := r.inWindow(e.At)
	if inside {
		g.inside++
	}
	g.known = g.known || inside && e.At.After(r.counts.Before)
	if byKey {
		r.countEffect(inside, len(g.records) > 0)
	}
}

func (r *reconciling) countEffect(inside, recorded bool) {
	if recorded {
		r.counts.EffectsRecorded++
	}
	if inside {
		r.counts.EffectsJudged++
	} else {
		r.counts.EffectsOutside++
	}
}

// withoutKey is about an effect of which the file has no key.
func (r *reconciling) withoutKey(e Effect) error {
	if !r.inWindow(e.At) {
		r.counts.EffectsOutside++
		return nil
	}
	r.counts.EffectsJudged++
	return r.found(Finding{Kind: EffectWithoutKey, Effects: []Effect{e}})
}

// addIntent notes what an effect was for. Records come before effects: so of a derived key it is
// known by now of which record it is, and the effect is told so.
func (r *reconciling) addIntent(g *group, e *Effect) error {
	intent := digest("intent", e.Scope, e.Entity, e.Intent) // a charge and a receipt of one order are two
	if r.Step != "" && len(g.records) > 0 {
		of := &g.records[0]
		e.RecordKey, e.Scope, e.Entity = of.Key, of.Scope, of.Entity
	}
	if e.Intent == "" {
		intent = digest("entity", e.Scope, e.Entity)
	}
	if e.Intent == "" && (!r.OnePerEntity || e.Entity == "") {
		return nil
	}
	b, err := row{Effect: e}.encode(intent, string(g.digest[:]), e.ID)
	if err != nil {
		return err
	}
	return r.byIntent.add(b)
}

// putRecord adds a record. One that was listed twice, as it changed meanwhile, counts as it is now.
func (r *reconciling) putRecord(g *group, rec Record) {
	if n := len(g.records); n > 0 && g.records[n-1].Scope == rec.Scope && g.records[n-1].Entity == rec.Entity {
		g.records[n-1] = rec
		r.counts.Records--
		return
	}
	g.records = append(g.records, rec)
}

func (r *reconciling) inWindow(t time.Time) bool {
	return !t.Before(r.counts.Since) && !t.After(r.counts.Until)
}

// found counts and reports a finding.
func (r *reconciling) found(f Finding) error {
	r.counts.Findings[f.Kind]++
	slices.SortFunc(f.Effects, func(a, b Effect) int { return cmp.Or(a.At.Compare(b.At), a.Line-b.Line) })
	return r.report(f)
}

func (g *group) finding(kind Kind) Finding {
	f := Finding{Kind: kind, Effects: g.effects, More: g.more}
	if len(g.records) > 0 {
		f.Record = &g.records[0]
	}
	return f
}

func (r *reconciling) mergeIntents() error {
	return r.each(&r.byIntent, func(g *group) error {
		if g.keys < 2 || g.inside == 0 {
			return nil
		}
		return r.found(g.finding(TwoEffectsForIntent))
	})
}

func (r *reconciling) mergeKeys() error {
	return r.each(&r.byKey, func(g *group) error {
		if len(g.effects) == 0 {
			return r.withoutEffect(g.records)
		}
		r.countRecords(g.records)
		if len(g.effects)+g.more > 1 && g.inside > 0 {
			if err := r.found(g.finding(TwoEffectsForKey)); err != nil {
				return err
			}
		}
		switch {
		case g.inside == 0:
			return nil
		case len(g.records) == 0:
			return r.withoutRecord(g)
		}
		return r.withRecords(g)
	})
}

// withRecords is about effects of keys that have a record. Of several, which the file does not tell
// apart, one that may well have had them is enough.
func (r *reconciling) withRecords(g *group) error {
	denied := Finding{Effects: g.effects, More: g.more}
	for _, listed := range g.records {
		kind, rec, err := r.denies(listed)
		if kind == "" || err != nil {
			return err
		}
		if slices.Index(Kinds, kind) > slices.Index(Kinds, denied.Kind) {
			denied.Kind, denied.Record = kind, &rec
		}
	}
	return r.found(denied)
}

// denies says what is wrong with an effect of a record, as the record is now: that has no outcome in
// a listing, and may have been settled since.
func (r *reconciling) denies(listed Record) (Kind, Record, error) {
	now, err := r.inspect(listed)
	if errors.Is(err, store.ErrKeyNotFound) { // its retention ended meanwhile
		return "", listed, nil
	}
	if err != nil {
		return "", listed, err
	}
	rec := recordOf(now.Record, now.Now)
	switch {
	case rec.State == released:
		return EffectOfReleasedKey, rec, nil
	case rec.State == lapsed:
		return EffectOfUnsettledKey, rec, nil
	case hasFailed(now.Record):
		return EffectOfFailedKey, rec, nil
	}
	return "", rec, nil
}

// hasFailed reports whether an error is the outcome.
func hasFailed(rec *store.Record) bool { return rec.Outcome != nil && len(rec.Outcome.Status) > 0 }

// withoutRecord is about effects of a key that was not listed: if it was claimed or changed
// meanwhile it is there all the same. From a derived key nobody can tell which that is; it was claimed
// before the file was read.
func (r *reconciling) withoutRecord(g *group) error {
	if !g.known {
		r.counts.EffectsTooOld += g.inside
		r.counts.EffectsJudged -= g.inside
		return nil
	}
	if r.Step != "" {
		return r.found(g.finding(EffectWithoutKey))
	}
	e := g.effects[0]
	_, err := r.inspect(Record{Scope: e.Scope, Key: e.Key, Entity: e.Entity})
	if errors.Is(err, store.ErrKeyNotFound) {
		return r.found(g.finding(EffectWithoutKey))
	}
	return err
}

// withoutEffect is about records of which the file has no effect.
func (r *reconciling) withoutEffect(records []Record) error {
	r.countRecords(records)
	for _, rec := range records {
		if rec.State != completed || !r.judges(rec) {
			continue
		}
		now, err := r.inspect(rec)
		switch {
		case errors.Is(err, store.ErrKeyNotFound): // its retention ended meanwhile
			continue
		case err != nil:
			return err
		case hasFailed(now.Record):
			r.counts.RecordsFailed++
			continue
		case r.begunBefore(now.Events):
			r.counts.RecordsJudged--
			r.counts.RecordsOutside++
			continue
		}
		if err := r.found(Finding{Kind: KeyWithoutEffect, Record: &rec}); err != nil {
			return err
		}
	}
	return nil
}

// begunBefore reports whether a key has had an attempt, before the one that completed it, that was
// granted before the time that is judged: that one may have acted at once, and the last have found it.
// One that gave the key up with no effect left no event. A fence is no less than the µs of its grant.
func (r *reconciling) begunBefore(events []store.Event) bool {
	return slices.ContainsFunc(events, func(e store.Event) bool {
		return e.Fence > 0 && time.UnixMicro(e.Fence).Before(r.counts.Since)
	})
}

// judges reports whether what a record stands for lies in the time that is judged: the effect
// came after the grant and before the end.
func (r *reconciling) judges(rec Record) bool {
	return r.inWindow(rec.GrantedAt) && r.inWindow(rec.EndedAt)
}

func (r *reconciling) countRecords(records []Record) {
	for _, rec := range records {
		switch {
		case rec.State == inProgress || rec.State == lapsed:
			r.counts.RecordsUnsettled++
		case rec.State == released:
			r.counts.RecordsReleased++
		case r.judges(rec):
			r.counts.RecordsJudged++
		default:
			r.counts.RecordsOutside++
		}
	}
}

// inspect looks at a record as it is now. What the file does not say of the key the options may.
func (r *reconciling) inspect(rec Record) (store.Inspection, error) {
	key := store.Key{Namespace: r.Namespace, Scope: rec.Scope, ID: rec.Key, Entity: rec.Entity}
	if key.Scope == "" {
		key.Scope = r.Scope
	}
	if key.Entity == "" {
		key.Entity = r.Entity
	}
	return r.source.InspectRecord(r.ctx, key)
}
