package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// listing is a backend that counts how often it was asked for all namespaces, and may refuse that.
type listing struct {
	store.Backend
	asked  atomic.Int32
	broken atomic.Bool
}

func (l *listing) ListNamespaces(ctx context.Context) ([]store.Namespace, error) {
	l.asked.Add(1)
	if l.broken.Load() {
		return nil, errors.New("not now")
	}
	return l.Backend.ListNamespaces(ctx)
}

// floorsRig is a server over a store that has such namespaces beside the default one.
func floorsRig(t *testing.T, config Config, names ...string) (*rig, *listing) {
	t.Helper()
	backend := &listing{Backend: newMemory()}
	for _, name := range names {
		if _, err := backend.CreateNamespace(t.Context(), store.Namespace{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	config.Backend = backend
	return newRigOf(t, config), backend
}

func begin(t *testing.T, backend store.Recovery, namespace, actor, reason string) {
	t.Helper()
	req := store.BeginRecoveryRequest{CompleteUntil: storetest.Start, Namespace: namespace, Actor: actor, Reason: reason}
	if _, err := backend.BeginRecovery(t.Context(), req); err != nil {
		t.Fatal(err)
	}
}

// looked waits until the server has looked for floors again.
func looked() {
	time.Sleep(probeInterval)
	synctest.Wait()
}

const floorMetric = "idemd_recovery_floor_seconds"

// A floor that stands is in /healthz and in the metrics until it is lifted, and takes no server out
// of rotation. No call pays for that.
func TestRecoveryFloorsThatStand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, backend := floorsRig(t, Config{}, "shop")
		defer r.close()
		looked()
		if code, body := r.healthz(); code != http.StatusOK || body.Notice != "" || len(r.samples(floorMetric)) != 0 {
			t.Errorf("without a floor: %d %+v, %v", code, body, r.samples(floorMetric))
		}
		begin(t, backend, "", "alice", "failed over")
		looked()
		ns, err := backend.GetNamespace(t.Context(), "shop")
		if err != nil {
			t.Fatal(err)
		}
		at := ns.RecoveryFloor
		want := fmt.Sprintf(`recovery since %s by alice for "failed over": unknown keys without an intent time after %s are refused in namespaces default, shop: import what is known (idemd recovery import), then idemd recovery lift`,
			at.Format(time.RFC3339), at.Add(time.Minute).Format(time.RFC3339Nano))
		if code, body := r.healthz(); code != http.StatusOK || body != (healthBody{Status: "serving", Notice: want}) {
			t.Errorf("%d %+v, want %q", code, body, want)
		}
		if got := r.samples(floorMetric); len(got) != 2 || got["namespace=shop"] != float64(at.UnixMicro())/1e6 || got["namespace=default"] != got["namespace=shop"] {
			t.Errorf("%v", got)
		}

		backend.broken.Store(true) // what was seen last stays
		looked()
		if _, body := r.healthz(); body.Notice != want {
			t.Errorf("%+v", body)
		}
		backend.broken.Store(false)
		if _, err := backend.LiftRecovery(t.Context(), store.LiftRecoveryRequest{Namespace: "default", LeasesEnded: true, Actor: "a", Reason: "r"}); err != nil {
			t.Fatal(err)
		}
		looked()
		if _, body := r.healthz(); !strings.Contains(body.Notice, "in namespace shop:") || strings.Contains(body.Notice, "default") {
			t.Errorf("%+v", body)
		}
		if got := r.samples(floorMetric); len(got) != 1 || got["namespace=shop"] == 0 {
			t.Errorf("%v", got)
		}
		if _, err := backend.LiftRecovery(t.Context(), store.LiftRecoveryRequest{Namespace: "shop", LeasesEnded: true, Actor: "a", Reason: "r"}); err != nil {
			t.Fatal(err)
		}
		looked()
		if _, body := r.healthz(); body.Notice != "" || len(r.samples(floorMetric)) != 0 {
			t.Errorf("after the lift: %+v, %v", body, r.samples(floorMetric))
		}

		before := backend.asked.Load()
		c := r.client()
		for i := range 100 {
			grant(t, c, store.Key{Namespace: "shop", ID: fmt.Sprint(i)}, "a")
			r.healthz()
		}
		if backend.asked.Load() != before {
			t.Errorf("it was asked %d times for 100 calls", backend.asked.Load()-before)
		}
	})
}

// A server that starts on a store in which a floor stands says so at once.
func TestRecoveryFloorsThatStandAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := newMemory()
		begin(t, backend, "", "idemd", "first start on a restored backup")
		r := newRig(t, backend)
		defer r.close()
		synctest.Wait()
		if _, body := r.healthz(); !strings.Contains(body.Notice, "first start on a restored backup") {
			t.Errorf("%+v", body)
		}
	})
}

// However many namespaces, reasons and long names there are, the notice is short. One that was set
// by hand is told as well.
func TestTheNoticeOfManyRecoveryFloors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for i := range 300 {
			names = append(names, fmt.Sprintf("tenant-%03d", i))
		}
		r, backend := floorsRig(t, Config{}, names...)
		defer r.close()
		begin(t, backend, "", "alice", "all")
		looked()
		_, body := r.healthz()
		if !strings.Contains(body.Notice, "in namespaces default, tenant-000, tenant-001, tenant-002, tenant-003 and 296 more:") || len(body.Notice) > 500 {
			t.Errorf("%d bytes: %q", len(body.Notice), body.Notice)
		}
		for i, name := range names[:50] {
			begin(t, backend, name, strings.Repeat("ä", 100), fmt.Sprint(i, strings.Repeat("ö", 400)))
		}
		looked()
		if _, body = r.healthz(); len(body.Notice) > 2000 || !strings.Contains(body.Notice, "; and of 48 more namespaces (idemd recovery status): import") || !strings.Contains(body.Notice, "in namespaces default, tenant-050,") {
			t.Errorf("%d bytes: %q", len(body.Notice), body.Notice)
		}
		if got := len(r.samples(floorMetric)); got != 301 {
			t.Errorf("%d", got)
		}

		r2, set := floorsRig(t, Config{})
		defer r2.close()
		ns, _ := set.GetNamespace(t.Context(), "default")
		ns.RecoveryFloor = storetest.Start.Add(time.Second)
		if _, err := set.UpdateNamespace(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
		looked()
		if _, body := r2.healthz(); !strings.HasPrefix(body.Notice, "recovery floor at 2026-01-01T00:00:01Z: unknown keys") {
			t.Errorf("%+v", body)
		}
	})
}

// Where callers are told apart, /healthz, which is for anybody, does not say who began a recovery.
func TestTheNoticeOfRecoveryFloorsNamesNobodyToStrangers(t *testing.T) {
	s := newSecured(t)
	begin(t, s.config.Backend, "", "alice", "the ledger is lost")
	s.health.floors.look(t.Context())
	_, body := s.healthz()
	if !strings.Contains(body.Notice, "in 3 namespaces (idemd recovery status names them):") {
		t.Errorf("%+v", body)
	}
	for _, hidden := range []string{"alice", "ledger", "default", "other", "payments"} {
		if strings.Contains(body.Notice, hidden) {
			t.Errorf("anybody is told %q: %+v", hidden, body)
		}
	}
}
