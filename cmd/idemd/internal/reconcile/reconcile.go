// Package reconcile holds what happened against what is recorded: the effects of a source of
// truth, such as a ledger, against the records of a namespace.
//
// Both are put in order on disk and merged, so that memory is bounded however many there
// are: reconcile.go, the whole; merge.go, what is found; effects.go, the file; sorter.go, the
// order.
package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/idemd/idemd/client/key"
	"github.com/idemd/idemd/store"
)

// Source is where the records are: a client of a server, or a store.
type Source interface {
	ListRecords(ctx context.Context, req store.ListRequest) (store.RecordPage, error)
	InspectRecord(ctx context.Context, key store.Key) (store.Inspection, error)
	GetNamespace(ctx context.Context, name string) (store.Namespace, error)
}

// Options say what is compared.
type Options struct {
	Namespace     string
	Scope, Entity string // only these; empty: all
	// Since and Until bound what is judged. Zero: from the oldest effect of the file, to the newest.
	Since, Until time.Time
	// OnePerEntity says that an entity is an intent: there should be one effect of it in each scope.
	OnePerEntity bool
	// Step says that the file has the keys that were derived from those of the records for this
	// step, see [key.Downstream]; empty: it has the ids of the records' keys.
	Step string
	// Dir is for temporary files, that of the system if empty; Memory for how many bytes of rows are
	// not in them.
	Dir    string
	Memory int
}

// Kind says what a finding is.
type Kind string

// The kinds of findings.
const (
	EffectWithoutKey     Kind = "effect_without_key"      // it happened, and no key is known under which it did
	KeyWithoutEffect     Kind = "key_without_effect"      // completed with success, and nothing happened
	TwoEffectsForKey     Kind = "two_effects_for_key"     // the key did not guard it
	TwoEffectsForIntent  Kind = "two_effects_for_intent"  // of one scope and entity, under different keys: a retry made a new one
	EffectOfReleasedKey  Kind = "effect_of_released_key"  // its holder said that nothing happened
	EffectOfFailedKey    Kind = "effect_of_failed_key"    // completed with an error, which every repeat is told
	EffectOfUnsettledKey Kind = "effect_of_unsettled_key" // lapsed: nobody has said that it happened
)

// Kinds are all of them.
var Kinds = []Kind{EffectWithoutKey, KeyWithoutEffect, TwoEffectsForKey, TwoEffectsForIntent, EffectOfReleasedKey, EffectOfFailedKey, EffectOfUnsettledKey}

// Finding is one thing that is not as it should be.
type Finding struct {
	Kind    Kind     `json:"finding"`
	Effects []Effect `json:"effects,omitempty"` // by time; of more than [MaxShown] some
	More    int      `json:"more_effects,omitempty"`
	Record  *Record  `json:"record,omitempty"`
}

// MaxShown is how many effects a finding shows.
const MaxShown = 20

// Record is what matters here of a store's.
type Record struct {
	Scope     string    `json:"scope,omitempty"`
	Key       string    `json:"key"`
	Entity    string    `json:"entity,omitempty"`
	State     string    `json:"state"` // completed, released, in progress or lapsed
	Fence     int64     `json:"fence"`
	GrantedAt time.Time `json:"granted_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
}

// The states of a [Record].
const (
	completed  = "completed"
	released   = "released"
	inProgress = "in progress"
	lapsed     = "lapsed"
)

// Counts say what was compared. Each effect and record is counted as read, and once more as
// what became of it (EffectsRecorded and RecordsFailed beside that).
type Counts struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Before is until when effects' records may have expired, or been forgotten.
	Before time.Time `json:"judged_after"`

	BadLines int `json:"bad_lines"`

	Effects         int  `json:"effects"`
	EffectsJudged   int  `json:"effects_judged"`
	EffectsOutside  int  `json:"effects_outside"`            // of since to until
	EffectsTooOld   int  `json:"effects_too_old"`            // and without a record, which may have expired
	EffectsRepeated *int `json:"effects_repeated,omitempty"` // nil: not compared
	EffectsRecorded int  `json:"effects_recorded"`           // under a key that has a record, judged or not

	Records          int `json:"records"`
	RecordsJudged    int `json:"records_judged"`
	RecordsOutside   int `json:"records_outside"`
	RecordsUnsettled int `json:"records_unsettled"` // nobody has said yet what they did
	RecordsFailed    int `json:"records_failed"`    // completed with an error, and no effect
	RecordsReleased  int `json:"records_released"`

	Findings map[Kind]int `json:"findings"`

	// NotCompared says of what is not compared which column the file lacks for it: a kind of findings, effects_repeated,
	// or a part of keys.
	NotCompared map[string]string `json:"not_compared,omitempty"`
	// UnknownColumns are columns of the file that are left alone.
	UnknownColumns []string `json:"unknown_columns,omitempty"`
}

// What is not compared, beside kinds of findings.
const (
	EffectsRepeated = "effects_repeated"
	KeyScope        = "scope"
	KeyEntity       = "entity"
)

// Found is how many findings there are.
func (c *Counts) Found() (n int) {
	for _, found := range c.Findings {
		n += found
	}
	return n
}

// Judged is how many effects and records were found right or wrong.
func (c *Counts) Judged() int { return c.EffectsJudged + c.RecordsJudged }

// ErrNoWindow is that of a file without effects, if no times are given.
var ErrNoWindow = errors.New("there are no effects in it, so that it does not say which time it is about")

// ErrBackwards is that of a time in which nothing can lie.
var ErrBackwards = errors.New("the time to judge ends before it begins")

// Run compares. It reports each line that it cannot use and each finding as it comes; an error
// of theirs ends it. Other errors are about the file, the source or the disk.
func Run(ctx context.Context, source Source, file io.Reader, o Options, bad func(*LineError) error, report func(Finding) error) (Counts, error) {
	r := &reconciling{
		Options: o, ctx: ctx, source: source, report: report,
		counts:   Counts{Findings: map[Kind]int{}, Since: o.Since, Until: o.Until},
		byKey:    sorter{dir: o.Dir, limit: o.Memory / 2},
		byIntent: sorter{dir: o.Dir, limit: o.Memory / 2},
	}
	defer r.byKey.close()
	defer r.byIntent.close()
	for _, step := range []func() error{
		r.checkWindow,
		func() error { return r.readEffects(file, bad) },
		r.readRecords,
		r.mergeKeys,
		r.mergeIntents,
	} {
		if err := step(); err != nil {
			return r.counts, err
		}
	}
	return r.counts, nil
}

type reconciling struct {
	Options
	ctx    context.Context
	source Source
	report func(Finding) error
	counts Counts

	scope, entity   bool // whether the file has these parts of keys
	byKey, byIntent sorter
}

// A row is an effect or a record, behind what it is put in order by.
type row struct {
	Effect *Effect `json:"e,omitempty"`
	Record *Record `json:"r,omitempty"`
}

// encode makes a row: a digest by which rows belong together, what orders them then, and the row.
func (w row) encode(group [sha256.Size]byte, order ...string) ([]byte, error) {
	b := group[:]
	for _, part := range order {
		b = append(append(b, part...), 0)
	}
	n := len(b)
	text, err := json.Marshal(w)
	return binary.BigEndian.AppendUint16(append(b, text...), uint16(n)), err
}

func decode(b []byte) (group [sha256.Size]byte, w row, err error) {
	n := int(binary.BigEndian.Uint16(b[len(b)-2:]))
	return [sha256.Size]byte(b[:sha256.Size]), w, json.Unmarshal(b[n:len(b)-2], &w)
}

// digest stands for texts, of which no two lists have the same.
func digest(parts ...string) [sha256.Size]byte {
	var b []byte
	for _, part := range parts {
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(part))), part...)
	}
	return sha256.Sum256(b)
}

// keyGroup is the same for an effect and a record of one key, as far as the file says.
func (r *reconciling) keyGroup(scope, id, entity string) [sha256.Size]byte {
	if !r.scope || r.Step != "" { // a derived key has both in it
		scope = ""
	}
	if !r.entity || r.Step != "" {
		entity = ""
	}
	return digest(scope, id, entity)
}

// recordGroup is that of the effects of a record.
func (r *reconciling) recordGroup(of store.Key) [sha256.Size]byte {
	if r.Step != "" {
		return r.keyGroup("", key.Downstream(of, r.Step), "")
	}
	return r.keyGroup(of.Scope, of.ID, of.Entity)
}

func (r *reconciling) readEffects(file io.Reader, bad func(*LineError) error) error {
	in, err := newReader(file)
	if err != nil {
		return err
	}
	r.scope, r.entity = in.parts()
	r.counts.UnknownColumns, r.counts.NotCompared = in.unknown, r.notCompared(in)
	if in.has(columnEffect) {
		r.counts.EffectsRepeated = new(int)
	}
	if r.OnePerEntity && !r.entity && r.Step == "" {
		return fmt.Errorf("there is no column %q, of which each is to have one effect", columnEntity)
	}
	var oldest, newest time.Time
	for {
		effect, err := in.next()
		var wrong *LineError
		switch {
		case errors.Is(err, io.EOF):
			return r.window(oldest, newest)
		case errors.As(err, &wrong):
			r.counts.BadLines++
			err = bad(wrong)
		case err == nil:
			if oldest.IsZero() || effect.At.Before(oldest) {
				oldest = effect.At
			}
			if effect.At.After(newest) {
				newest = effect.At
			}
			err = r.addEffect(effect)
		}
		if err != nil {
			return err
		}
	}
}

// notCompared says of what is not compared which column the file lacks for it. What it does not say of keys the options
// may, and a derived key has in it.
func (r *reconciling) notCompared(in *reader) map[string]string {
	not := map[string]string{}
	for _, part := range []struct {
		what, column string
		otherwise    bool // whether it is compared without the column
	}{
		{string(TwoEffectsForIntent), columnIntent, r.OnePerEntity},
		{EffectsRepeated, columnEffect, false},
		{KeyScope, columnScope, r.Scope != "" || r.Step != ""},
		{KeyEntity, columnEntity, r.Entity != "" || r.Step != ""},
	} {
		if !in.has(part.column) && !part.otherwise {
			not[part.what] = "no column " + part.column
		}
	}
	return not
}

// window sets which time is judged, as far as the caller has not.
func (r *reconciling) window(oldest, newest time.Time) error {
	if r.counts.Since.IsZero() {
		r.counts.Since = oldest
	}
	if r.counts.Until.IsZero() {
		r.counts.Until = newest
	}
	if r.counts.Until.IsZero() || r.counts.Since.IsZero() {
		return ErrNoWindow
	}
	return r.checkWindow()
}

// checkWindow refuses times of which nobody could tell that nothing was judged.
func (r *reconciling) checkWindow() error {
	since, until := r.counts.Since, r.counts.Until
	if !since.IsZero() && !until.IsZero() && until.Before(since) {
		return fmt.Errorf("%w: from %s to %s", ErrBackwards, since.Format(time.RFC3339Nano), until.Format(time.RFC3339Nano))
	}
	return nil
}

func (r *reconciling) addEffect(e Effect) error {
	r.counts.Effects++
	if r.scope && e.Scope == "" {
		e.Scope = r.Scope
	}
	if r.entity && e.Entity == "" {
		e.Entity = r.Entity
	}
	if r.Scope != "" && r.scope && e.Scope != r.Scope || r.Entity != "" && r.entity && e.Entity != r.Entity {
		r.counts.EffectsOutside++
		return nil
	}
	b, err := row{Effect: &e}.encode(r.keyGroup(e.Scope, e.Key, e.Entity), "effect", e.ID)
	if err != nil {
		return err
	}
	return r.byKey.add(b)
}

func (r *reconciling) readRecords() error {
	ns, err := r.source.GetNamespace(r.ctx, r.Namespace)
	if err != nil {
		return err
	}
	req := store.ListRequest{Namespace: r.Namespace, PageSize: store.MaxPageSize, Filter: store.Filter{Scope: r.Scope, Entity: r.Entity}}
	for {
		page, err := r.source.ListRecords(r.ctx, req)
		switch {
		case err != nil:
			return err
		case page.Missing != "":
			return store.Refuse(store.ErrHomeUnreachable, "not all records can be read; missing is "+page.Missing)
		}
		for _, rec := range page.Records {
			if err := r.addRecord(rec, page.Now); err != nil {
				return err
			}
		}
		if page.NextPageToken == "" {
			r.counts.Before = knownAfter(ns, page.Now)
			return nil
		}
		req.PageToken = page.NextPageToken
	}
}

// knownAfter is after when every effect of a guarded call has a record: what happened before
// may have expired by now, or have been forgotten when the store was restored. A record can be older
// than its effect: by as long as an attempt goes on (it may record first, then act), and by what the
// two clocks differ.
func knownAfter(ns store.Namespace, now time.Time) time.Time {
	retention := ns.Retention
	for _, past := range ns.PastRetentions {
		retention = min(retention, past.Retention)
	}
	older := store.MaxSkew + ns.MaxAttempt
	after := now.Add(min(older, retention/2) - retention) // half of a short retention is judged all the same
	if floor := ns.RecoveryFloor.Add(older); floor.After(after) {
		return floor
	}
	return after
}

func (r *reconciling) addRecord(rec *store.Record, now time.Time) error {
	r.counts.Records++
	w := recordOf(rec, now)
	whole := digest(w.Scope, w.Key, w.Entity)
	b, err := row{Record: &w}.encode(r.recordGroup(rec.Key), "", string(whole[:]), fmt.Sprintf("%019d", w.Fence))
	if err != nil {
		return err
	}
	return r.byKey.add(b)
}

func recordOf(rec *store.Record, now time.Time) Record {
	w := Record{
		Scope: rec.Key.Scope, Key: rec.Key.ID, Entity: rec.Key.Entity, Fence: rec.Fence,
		GrantedAt: rec.GrantedAt, EndedAt: rec.EndedAt, State: inProgress,
	}
	switch {
	case rec.Lapsed(now):
		w.State = lapsed
	case rec.State == store.StateCompleted:
		w.State = completed
	case rec.State == store.StateReleased:
		w.State = released
	}
	return w
}
