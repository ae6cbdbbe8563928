package region

import (
	"context"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// routed makes instances that are asked through the router of eu.
func routed(rules string, names ...string) storetest.Factory {
	return func(t testing.TB) *storetest.Instance {
		w := build(t, rules, names...)
		w.prepare = func(_ *site, c *Config) { c.pingEvery = 5 * time.Millisecond } // there are hundreds
		w.startAll()
		return &storetest.Instance{Backend: everyStore{w.eu().router, w}, Clock: w.clock, AttemptsHidden: len(names) > 1, Unplaced: true}
	}
}

// everyStore maintains and recovers the stores of all regions: a router does so for its own only.
type everyStore struct {
	store.Backend
	world *world
}

// Maintain implements [store.Maintainer].
func (e everyStore) Maintain(ctx context.Context) (done store.Maintenance, err error) {
	for _, s := range e.world.sites {
		if _, err := s.store.Maintain(ctx); err != nil {
			return done, err
		}
	}
	return e.Backend.Maintain(ctx)
}

// BeginRecovery implements [store.Recovery].
func (e everyStore) BeginRecovery(ctx context.Context, req store.BeginRecoveryRequest) (begun store.BegunRecovery, err error) {
	for _, s := range e.world.sites {
		if s.name == "eu" {
			continue
		}
		if begun, err = s.router.BeginRecovery(ctx, req); err != nil {
			return begun, err
		}
	}
	return e.Backend.BeginRecovery(ctx, req)
}

// LiftRecovery implements [store.Recovery].
func (e everyStore) LiftRecovery(ctx context.Context, req store.LiftRecoveryRequest) (ns store.Namespace, err error) {
	for _, s := range e.world.sites {
		if s.name == "eu" {
			continue
		}
		if ns, err = s.router.LiftRecovery(ctx, req); err != nil {
			return ns, err
		}
	}
	return e.Backend.LiftRecovery(ctx, req)
}

func TestConformanceAtHome(t *testing.T) {
	storetest.Run(t, storetest.Brief(t, 20, routed(`"*": fixed eu`, "eu")))
}

func TestConformanceWithTheHomeAtAPeer(t *testing.T) {
	storetest.Run(t, storetest.Brief(t, 20, routed(`"*": fixed us`, "eu", "us")))
}

func TestConformanceSpreadOverRegions(t *testing.T) {
	storetest.Run(t, storetest.Brief(t, 60, routed(everythingSpread, "eu", "us", "ap")))
}
