package regiontest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

var checkedKey = store.Key{Namespace: "payments", ID: "k"}

// ms is an instant of a made-up history.
func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// at makes the times of a call in a made-up history.
func at(sent, answered int, c call) call {
	c.Key, c.Sent, c.Answered = checkedKey, ms(sent), ms(answered)
	return c
}

func grantOf(sent, answered int, attempt string, t answer) call {
	t.Kind, t.Number = granted, max(t.Number, 1)
	t.GrantedAt = instant(answered)
	if t.LeaseEnd.IsZero() {
		t.LeaseEnd, t.Deadline = t.GrantedAt.Add(time.Hour), ms(sent)+time.Hour
	}
	return at(sent, answered, call{Op: opClaim, Attempt: attempt, Lease: LongLease, Told: t})
}

func instant(n int) time.Time { return time.UnixMilli(int64(n)).UTC() }

func completeOf(sent, answered int, attempt string, fence int64, outcome string, err error) call {
	c := at(sent, answered, call{Op: opComplete, Attempt: attempt, Fence: fence, Outcome: outcome, Err: err})
	if err == nil {
		c.Told = answer{Kind: recorded}
	}
	return c
}

func releaseOf(sent, answered int, attempt string, fence int64, effect store.Effect, err error) call {
	c := at(sent, answered, call{Op: opRelease, Attempt: attempt, Fence: fence, Effect: effect, Err: err})
	if err == nil {
		c.Told = answer{Kind: released}
	}
	return c
}

func lookupOf(sent, answered int, t answer) call {
	t.Kind, t.Number = found, max(t.Number, 1)
	return at(sent, answered, call{Op: opLookup, Told: t})
}

// served gives an answer a home.
func served(c call, home string, epoch int64) call {
	c.Told.Served = store.Served{Home: home, Epoch: epoch}
	return c
}

// Each history breaks one promise, and the check must say which. The empty ones keep all.
func TestTheCheckFindsWhatIsBroken(t *testing.T) {
	none, unknownEffect := store.EffectNone, store.EffectUnknown
	shortLease := answer{Fence: 5, LeaseEnd: instant(100), Deadline: ms(100)}
	for name, test := range map[string]struct {
		calls []call
		want  string
	}{
		"one after the other": {want: "", calls: []call{
			grantOf(0, 10, "a", answer{Fence: 5}), releaseOf(20, 30, "a", 5, none, nil),
			grantOf(40, 50, "b", answer{Fence: 6, Previous: 5, Number: 2}), completeOf(60, 70, "b", 6, "x", nil),
			lookupOf(80, 90, answer{Fence: 6, Number: 2, State: store.StateCompleted, Outcome: "x"}),
		}},
		"a lost answer": {want: "", calls: []call{
			at(0, 10, call{Op: opClaim, Attempt: "a", Lease: LongLease, Err: store.ErrUnavailable}),
			at(20, 30, call{Op: opClaim, Attempt: "b", Lease: LongLease, Told: answer{Kind: inProgress}}),
			grantOf(40, 50, "a", answer{Fence: 5}),
			releaseOf(60, 70, "a", 5, none, store.ErrHomeUnreachable),
			grantOf(80, 90, "b", answer{Fence: 7, Previous: 5, Number: 2}),
			releaseOf(91, 99, "a", 5, none, store.ErrStaleFence),
		}},
		"two hold it": {want: "S1", calls: []call{
			grantOf(0, 10, "a", answer{Fence: 5}), grantOf(20, 30, "b", answer{Fence: 6, Previous: 5, Number: 2, Unsettled: true}),
		}},
		"two hold it at once": {want: "S1", calls: []call{grantOf(0, 50, "a", answer{Fence: 5}), grantOf(10, 30, "b", answer{Fence: 6})}},
		"early by the test's clock": {want: "before the holder", calls: []call{
			grantOf(0, 10, "a", answer{Fence: 5, LeaseEnd: instant(15), Deadline: ms(1000)}),
			grantOf(80, 90, "b", answer{Fence: 6, Previous: 5, Number: 2, Unsettled: true}),
		}},
		"after the lease": {want: "linear", calls: []call{ // which does not know that leases end
			grantOf(0, 10, "a", shortLease), grantOf(120, 130, "b", answer{Fence: 6, Previous: 5, Number: 2, Unsettled: true}),
		}},
		"after the lease, unmarked": {want: "S10", calls: []call{
			grantOf(0, 10, "a", shortLease), grantOf(120, 130, "b", answer{Fence: 6, Previous: 5, Number: 2}),
		}},
		"unsettled since later than it is": {want: "S10", calls: []call{
			grantOf(0, 10, "a", shortLease), grantOf(120, 130, "b", answer{Fence: 6, Previous: 5, Number: 2, Unsettled: true, Since: instant(11)}),
		}},
		"one fence twice": {want: "S2", calls: []call{
			grantOf(0, 10, "a", answer{Fence: 5}), releaseOf(20, 30, "a", 5, none, nil), grantOf(40, 50, "b", answer{Fence: 5}),
		}},
		"fences fall": {want: "S2", calls: []call{
			grantOf(0, 10, "a", answer{Fence: 5}), releaseOf(20, 30, "a", 5, none, nil), grantOf(40, 50, "b", answer{Fence: 4}),
		}},
		"another fence for one attempt": {want: "S2", calls: []call{grantOf(0, 10, "a", answer{Fence: 5}), grantOf(20, 30, "a", answer{Fence: 6})}},
		"a wrong fence": {want: "S3", calls: []call{
			grantOf(0, 10, "a", answer{Fence: 5}), completeOf(20, 30, "a", 4, "x", nil),
		}},
		"a stranger": {want: "S3", calls: []call{grantOf(0, 10, "a", answer{Fence: 5}), completeOf(20, 30, "z", 5, "x", nil)}},
		"two outcomes": {want: "S4", calls: []call{
			grantOf(0, 10, "a", answer{Fence: 5}), completeOf(20, 30, "a", 5, "x", nil), completeOf(40, 50, "a", 5, "y", nil),
		}},
		"an outcome of nobody's": {want: "S5", calls: []call{
			grantOf(0, 10, "a", answer{Fence: 5}), lookupOf(20, 30, answer{Fence: 5, State: store.StateCompleted, Outcome: "x"}),
		}},
		"granted again": {want: "S4", calls: []call{
			grantOf(0, 10, "a", answer{Fence: 5}), completeOf(20, 30, "a", 5, "x", nil), grantOf(40, 50, "b", answer{Fence: 6, Unsettled: true}),
		}},
		"forgotten": {want: "S4", calls: []call{
			grantOf(0, 10, "a", answer{Fence: 5}), completeOf(20, 30, "a", 5, "x", nil), at(40, 50, call{Op: opLookup, Err: store.ErrKeyNotFound}),
		}},
		"an old view": {want: "S11", calls: []call{
			grantOf(0, 10, "a", answer{Fence: 5}), releaseOf(20, 30, "a", 5, none, nil),
			grantOf(40, 50, "b", answer{Fence: 6, Previous: 5, Number: 2}), lookupOf(60, 70, answer{Fence: 5, State: store.StateReleased}),
		}},
		"a lost release": {want: "linear", calls: []call{
			grantOf(0, 10, "a", answer{Fence: 5}), releaseOf(20, 30, "a", 5, unknownEffect, nil),
			lookupOf(40, 50, answer{Fence: 5, State: store.StateInProgress}),
		}},
		"a lookup that goes back": {want: "linear", calls: []call{
			grantOf(0, 10, "a", answer{Fence: 5}), releaseOf(20, 99, "a", 5, none, nil),
			lookupOf(30, 40, answer{Fence: 5, State: store.StateReleased}), lookupOf(50, 60, answer{Fence: 5, State: store.StateInProgress}),
		}},
		"refused though it holds it": {want: "linear", calls: []call{
			grantOf(0, 10, "a", answer{Fence: 5}), completeOf(20, 30, "a", 5, "x", store.ErrStaleFence),
		}},
		"two homes": {want: "home", calls: []call{
			served(grantOf(0, 10, "a", answer{Fence: 5}), "eu", 1),
			served(lookupOf(20, 30, answer{Fence: 5, State: store.StateInProgress}), "us", 1),
		}},
		"yesterday's map": {want: "home", calls: []call{
			served(grantOf(0, 10, "a", answer{Fence: 5}), "us", 2),
			served(lookupOf(20, 30, answer{Fence: 5, State: store.StateInProgress}), "eu", 1),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewHistory()
			h.calls = test.calls
			faults := h.Check()
			switch {
			case test.want == "" && len(faults) > 0:
				t.Errorf("there is no fault, but it says: %v", faults)
			case test.want != "" && (len(faults) != 1 || !strings.Contains(faults[0].Error(), test.want)):
				t.Errorf("it says %v; want one about %q", faults, test.want)
			}
		})
	}
}

// What one store answers to several callers is a history without a fault; what two answer, of
// which each takes itself for the home, is not.
func TestStoresAndTheirHistories(t *testing.T) {
	for name, test := range map[string]struct{ homes, faults int }{"one home": {1, 0}, "two homes": {2, 3}} {
		t.Run(name, func(t *testing.T) {
			h := NewHistory()
			load := NewLoad(h, 1, store.DefaultNamespace)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var homes []store.Store
			for range test.homes {
				homes = append(homes, newHome(t))
			}
			var workers sync.WaitGroup
			for i := range 6 {
				s := &lossy{Store: homes[i%len(homes)]}
				workers.Go(func() { load.Work(ctx, fmt.Sprint("worker-", i), h.Record("here", i < 3, s)) })
			}
			workers.Wait()
			faults := h.Check()
			if test.faults == 0 && len(faults) > 0 || len(faults) < test.faults {
				t.Errorf("%d faults, want %d or more: %v", len(faults), test.faults, faults)
			}
			for _, kind := range []string{"granted", "in progress", "completed", "found", "unknown"} {
				if h.Count(kind) < 10 {
					t.Errorf("too few answers %q to say anything: %s", kind, h.Summary())
				}
			}
			if open := load.Open(); len(open) > 0 {
				t.Errorf("not settled: %q", open)
			}
			t.Log(h.Summary())
		})
	}
}

func newHome(t *testing.T) store.Store {
	t.Helper()
	s, err := pebblestore.Open(t.TempDir(), pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// lossy loses answers to claims and to ends of attempts.
type lossy struct {
	store.Store
	calls int
}

func (l *lossy) lose(err error) error {
	l.calls++
	if err == nil && l.calls%7 == 0 {
		return store.ErrUnavailable
	}
	return err
}

func (l *lossy) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	got, err := l.Store.Claim(ctx, req)
	if err = l.lose(err); err != nil {
		return store.ClaimAnswer{}, err
	}
	return got, nil
}

func (l *lossy) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	got, err := l.Store.Complete(ctx, req)
	return got, l.lose(err)
}

func (l *lossy) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	got, err := l.Store.Release(ctx, req)
	return got, l.lose(err)
}
