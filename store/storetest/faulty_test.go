package storetest

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// faulty is a Memory with one fault, seeded through hooks around its operations. A hook
// that is nil changes nothing.
type faulty struct {
	*Memory
	fault  fault
	looked store.LookupAnswer // the answer to the last Lookup
}

// fault is one mistake that a backend could make. The checks whose names start with the
// catchers must find it, and so must the model, unless it cannot show there: the model
// knows no overlapping calls, no steps of the wall clock and few keys and outcomes.
type fault struct {
	name      string
	catchers  []string
	unmodeled bool

	key      func(store.Key) store.Key
	claim    func(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error)
	renew    func(f *faulty, req store.RenewRequest, next renewFunc) (store.RenewAnswer, error)
	complete func(f *faulty, req store.CompleteRequest, next completeFunc) (store.CompleteAnswer, error)
	release  func(f *faulty, req store.ReleaseRequest, next releaseFunc) (store.ReleaseAnswer, error)
	lookup   func(f *faulty, req store.LookupRequest, next lookupFunc) (store.LookupAnswer, error)
	maintain func(f *faulty)
	source   func(*Clock) store.ClockSource
	unfenced bool // ForceRelease leaves fence and attempt as they are
	amnesia  bool // a restart forgets the latest time that it acted on
}

type (
	claimFunc    = func(store.ClaimRequest) (store.ClaimAnswer, error)
	renewFunc    = func(store.RenewRequest) (store.RenewAnswer, error)
	completeFunc = func(store.CompleteRequest) (store.CompleteAnswer, error)
	releaseFunc  = func(store.ReleaseRequest) (store.ReleaseAnswer, error)
	lookupFunc   = func(store.LookupRequest) (store.LookupAnswer, error)
)

// factory makes instances that have the fault.
func (ft fault) factory(testing.TB) *Instance {
	clock := NewClock()
	source := store.ClockSource(clock)
	if ft.source != nil {
		source = ft.source(clock)
	}
	if ft.key == nil {
		ft.key = func(key store.Key) store.Key { return key }
	}
	f := &faulty{Memory: NewMemory(source), fault: ft}
	reopen := func() {
		floor := f.clock.Now()
		if ft.amnesia {
			floor = time.Time{}
		}
		f.clock = store.NewSteadyClock(source, floor)
	}
	return &Instance{Backend: f, Clock: clock, Reopen: reopen}
}

func (f *faulty) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	req.Key = f.fault.key(req.Key)
	next := func(req store.ClaimRequest) (store.ClaimAnswer, error) { return f.Memory.Claim(ctx, req) }
	if f.fault.claim == nil {
		return next(req)
	}
	return f.fault.claim(f, req, next)
}

func (f *faulty) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	req.Key = f.fault.key(req.Key)
	next := func(req store.RenewRequest) (store.RenewAnswer, error) { return f.Memory.Renew(ctx, req) }
	if f.fault.renew == nil {
		return next(req)
	}
	return f.fault.renew(f, req, next)
}

func (f *faulty) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	req.Key = f.fault.key(req.Key)
	next := func(req store.CompleteRequest) (store.CompleteAnswer, error) { return f.Memory.Complete(ctx, req) }
	if f.fault.complete == nil {
		return next(req)
	}
	return f.fault.complete(f, req, next)
}

func (f *faulty) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	req.Key = f.fault.key(req.Key)
	next := func(req store.ReleaseRequest) (store.ReleaseAnswer, error) { return f.Memory.Release(ctx, req) }
	if f.fault.release == nil {
		return next(req)
	}
	return f.fault.release(f, req, next)
}

func (f *faulty) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	req.Key = f.fault.key(req.Key)
	next := func(req store.LookupRequest) (store.LookupAnswer, error) { return f.Memory.Lookup(ctx, req) }
	if f.fault.lookup == nil {
		return next(req)
	}
	return f.fault.lookup(f, req, next)
}

func (f *faulty) InspectRecord(ctx context.Context, key store.Key) (store.Inspection, error) {
	return f.Memory.InspectRecord(ctx, f.fault.key(key))
}

func (f *faulty) ForceRelease(ctx context.Context, req store.ForceReleaseRequest) (*store.Record, error) {
	before := f.peek(req.Key)
	rec, err := f.Memory.ForceRelease(ctx, req)
	if err == nil && f.fault.unfenced {
		f.poke(req.Key, func(rec *store.Record) { rec.Fence, rec.AttemptID = before.Fence, before.AttemptID })
		rec = f.peek(req.Key)
	}
	return rec, err
}

func (f *faulty) Maintain(ctx context.Context) (store.Maintenance, error) {
	if f.fault.maintain != nil {
		f.fault.maintain(f)
	}
	return f.Memory.Maintain(ctx)
}

// peek returns what is stored, or nil.
func (f *faulty) peek(key store.Key) *store.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	if row := f.rows[key.Digest()]; row != nil {
		return row.record
	}
	return nil
}

// poke changes what is stored, if anything is.
func (f *faulty) poke(key store.Key, change func(*store.Record)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if row := f.rows[key.Digest()]; row != nil {
		changed := *row.record
		change(&changed)
		row.record = &changed
	}
}

// liftFloor takes the recovery floor off a namespace, if there is such a one.
func (f *faulty) liftFloor(namespace string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ns, ok := f.namespaces[namespace]; ok {
		ns.RecoveryFloor = time.Time{}
		f.namespaces[namespace] = ns
	}
}

// forget removes all events of one kind.
func (f *faulty) forget(key store.Key, kind store.EventKind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	row := f.rows[key.Digest()]
	if row == nil {
		return
	}
	var kept []store.Event
	for _, e := range row.events {
		if e.Kind != kind {
			kept = append(kept, e)
		}
	}
	row.events = kept
}

// recorder is a [testing.TB] that keeps failures to itself.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

// failuresOf runs a check and returns what it found wrong.
func failuresOf(t testing.TB, run func(testing.TB)) []string {
	rec := &recorder{TB: t}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(rec)
	}()
	<-ended
	for _, cleanup := range rec.cleanups {
		cleanup()
	}
	return rec.failures
}

func (r *recorder) fail(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, text)
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0
}

func (r *recorder) Fail()                             { r.fail("failed") }
func (r *recorder) FailNow()                          { r.Fail(); runtime.Goexit() }
func (r *recorder) Error(args ...any)                 { r.fail(fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.fail(fmt.Sprintf(format, args...)) }
func (r *recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }
func (r *recorder) Log(...any)                        {}
func (r *recorder) Logf(string, ...any)               {}
func (r *recorder) Cleanup(f func())                  { r.cleanups = append(r.cleanups, f) }

// TestNoFault shows that what wraps the faults has none itself.
func TestNoFault(t *testing.T) {
	sound := fault{}
	t.Run("Model", func(t *testing.T) { RunRapid(t, sound.factory) })
	for _, list := range [][]check{promises, cases, contract} {
		runChecks(t, list, sound.factory)
	}
}

// TestSeededFaults shows that the suite can fail.
func TestSeededFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("with -short, rapid tries too few operations to find every fault")
	}
	for name, value := range map[string]string{
		"rapid.seed": "1", "rapid.checks": "500", "rapid.nofailfile": "true", "rapid.shrinktime": "0s",
	} {
		setFlag(t, name, value)
	}
	for _, ft := range faults {
		t.Run(ft.name, func(t *testing.T) {
			for _, prefix := range ft.catchers {
				catcher := checkNamed(t, prefix)
				mustFind(t, catcher.name, func(t testing.TB) { catcher.run(t, ft.factory) })
			}
			if !ft.unmodeled {
				mustFind(t, "the model", func(t testing.TB) { RunRapid(t, ft.factory) })
			}
		})
	}
}

func mustFind(t *testing.T, name string, run func(testing.TB)) {
	failures := failuresOf(t, run)
	if len(failures) == 0 {
		t.Errorf("%s does not find it", name)
		return
	}
	t.Logf("%s: %s", name, shorten(failures[0]))
}

// setFlag sets a flag of the test binary until the test ends.
func setFlag(t *testing.T, name, value string) {
	f := flag.Lookup(name)
	before := f.Value.String()
	if err := f.Value.Set(value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Value.Set(before) })
}

// checkNamed finds the one check whose name starts so.
func checkNamed(t *testing.T, prefix string) check {
	t.Helper()
	for _, list := range [][]check{promises, cases, contract} {
		for _, c := range list {
			if strings.HasPrefix(c.name, prefix) {
				return c
			}
		}
	}
	t.Fatalf("no check is named %q", prefix)
	return check{}
}
