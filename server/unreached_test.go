package server

import (
	"context"
	"maps"
	"testing"

	"google.golang.org/grpc"

	"github.com/idemd/idemd/store"
)

// lostHomes are regions none of which can be reached.
type lostHomes struct{ Regions }

func (lostHomes) Over(local store.Backend) store.Backend {
	return &hooked{local, func(context.Context, operation) error { return store.Refuse(store.ErrHomeUnreachable, "region us") }}
}
func (lostHomes) Register(grpc.ServiceRegistrar, store.Backend) {}
func (lostHomes) Drain()                                        {}

// What no home has answered is counted where it was asked.
func TestOperationsWithoutAHomeAreCounted(t *testing.T) {
	r := newRigOf(t, Config{Backend: newMemory(), Regions: lostHomes{}})
	everyOperation(t.Context(), r.top)
	want := map[string]float64{}
	for _, op := range []operation{opClaim, opRenew, opComplete, opRelease, opLookup} {
		want["answer=HOME_UNREACHABLE,namespace=default,operation="+op.String()] = 1
	}
	if got := r.samples("idemd_answers_total"); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}
