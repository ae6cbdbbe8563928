package region

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/store"
)

// Two regions of which each takes the other for the home of a key, and never learns: whatever
// they are asked goes from one to the other a few times, and not round and round, because who is
// asked by a region asks none. The same where each has the other's address lead to itself.
func TestTwoRegionsThatNameEachOther(t *testing.T) {
	for name, test := range map[string]struct {
		euEpoch, usEpoch int64
		toItself         bool
		says             error
	}{
		"by one revision":    {1, 1, false, store.ErrUnavailable},
		"by two revisions":   {7, 9, false, store.ErrUnavailable},
		"by their addresses": {1, 1, true, store.ErrHomeUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := build(t, `"*": fixed us`, "eu", "us")
				frozen := map[string]store.Placement{
					"eu": {Epoch: test.euEpoch, Revision: test.euEpoch, Rule: "fixed us"},
					"us": {Epoch: test.usEpoch, Revision: test.usEpoch, Rule: "fixed eu"},
				}
				w.prepare = func(s *site, c *Config) {
					c.Store = &frozenPlacement{c.Store, frozen[s.name]}
					if test.toItself {
						c.Dial = func(ctx context.Context, _ string) (net.Conn, error) { return w.dial(ctx, s.name, s.addr) }
					}
				}
				w.eu().start()
				w.us().start()
				time.Sleep(10 * time.Second)
				for _, s := range []*site{w.eu(), w.us()} {
					for op, ask := range s.everyOperation() {
						before, began := w.forwards(), time.Now()
						if err := ask(); !errors.Is(err, test.says) {
							t.Errorf("%s, %s: %v, want %v", s.name, op, err, test.says)
						}
						if sent := w.forwards() - before; sent > maxDecisions || sent == 0 && op == "lookup" && !test.toItself {
							t.Errorf("%s, %s: it was sent %d times", s.name, op, sent)
						}
						if took := time.Since(began); took > time.Second {
							t.Errorf("%s, %s: it took %v", s.name, op, took)
						}
					}
				}
				for name, s := range w.sites {
					if _, err := s.store.InspectRecord(t.Context(), anyKey); !errors.Is(err, store.ErrKeyNotFound) {
						t.Errorf("%s has it: %v", name, err)
					}
				}
				w.stop()
			})
		})
	}
}

// everyOperation is each of the five, of one key.
func (s *site) everyOperation() map[string]func() error {
	ctx, r := s.world.Context(), s.router
	return map[string]func() error{
		"claim": func() error {
			_, err := r.Claim(ctx, store.ClaimRequest{Key: anyKey, AttemptID: "a"})
			return err
		},
		"renew": func() error {
			_, err := r.Renew(ctx, store.RenewRequest{Key: anyKey, AttemptID: "a", Fence: 1})
			return err
		},
		"complete": func() error {
			_, err := r.Complete(ctx, store.CompleteRequest{Key: anyKey, AttemptID: "a", Fence: 1, Outcome: &store.Outcome{}})
			return err
		},
		"release": func() error {
			_, err := r.Release(ctx, store.ReleaseRequest{Key: anyKey, AttemptID: "a", Fence: 1, Effect: store.EffectNone})
			return err
		},
		"lookup": func() error {
			_, err := r.Lookup(ctx, store.LookupRequest{Key: anyKey})
			return err
		},
	}
}

// forwards is how many operations any region sent to any other.
func (w *world) forwards() int {
	sum := 0
	for _, s := range w.sites {
		s.events.holds(func() bool {
			for _, n := range s.events.forwarded {
				sum += n
			}
			return true
		})
	}
	return sum
}
