package guardprom_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/guardprom"
	"github.com/idemd/idemd/store"
)

func TestCount(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	m, err := guardprom.New(registry)
	if err != nil {
		t.Fatal(err)
	}
	m.Count(client.Event{Kind: client.EventGranted, Namespace: "pay", Scope: "/pay.v1.Pay/Charge"})
	for range 2 {
		m.Count(client.Event{
			Kind: client.EventReplayed, Namespace: "pay", Scope: "/pay.v1.Pay/Charge", Observed: true,
			Age: 30 * time.Minute, Retention: time.Hour,
		})
	}
	m.Count(client.Event{Kind: client.EventNoKey, Namespace: "pay", Scope: "/pay.v1.Pay/Charge"})
	m.Count(client.Event{Kind: client.EventNoKey, Namespace: "pay", Scope: "/pay.v1.Pay/Charge", Err: store.ErrKeyRequired})
	want := `
# HELP idemd_guard_events_total What became of guarded calls.
# TYPE idemd_guard_events_total counter
idemd_guard_events_total{event="granted",namespace="pay",observed="false",scope="/pay.v1.Pay/Charge"} 1
idemd_guard_events_total{event="no_key",namespace="pay",observed="false",scope="/pay.v1.Pay/Charge"} 1
idemd_guard_events_total{event="no_key_refused",namespace="pay",observed="false",scope="/pay.v1.Pay/Charge"} 1
idemd_guard_events_total{event="replayed",namespace="pay",observed="true",scope="/pay.v1.Pay/Charge"} 2
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "idemd_guard_events_total"); err != nil {
		t.Error(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, f := range families {
		if h := f.GetMetric()[0].GetHistogram(); h != nil {
			sums[f.GetName()] = h.GetSampleSum()
		}
	}
	if sums["idemd_guard_repeat_age_seconds"] != 3600 || sums["idemd_guard_repeat_age_ratio"] != 1 {
		t.Errorf("%v", sums)
	}
	if _, err := guardprom.New(registry); err == nil {
		t.Error("registered twice")
	}
}
