package guardprom_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/guardprom"
)

// Scopes that hold a path are as many as callers like: they must not be as many series.
func TestManyScopes(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	m, err := guardprom.New(registry)
	if err != nil {
		t.Fatal(err)
	}
	const most, others = 500, 700
	var all sync.WaitGroup
	for i := range most + others {
		e := client.Event{Kind: client.EventReplayed, Namespace: "pay", Scope: fmt.Sprint("POST / /orders/", i), Age: time.Minute, Retention: time.Hour}
		all.Go(func() { m.Count(e); m.Count(e) })
	}
	all.Wait()
	m.Count(client.Event{Kind: client.EventNoKey, Namespace: "other", Scope: "late"})
	for _, name := range []string{"idemd_guard_events_total", "idemd_guard_repeat_age_seconds", "idemd_guard_repeat_age_ratio"} {
		want := most + 1
		if name == "idemd_guard_events_total" {
			want++ // in the other namespace
		}
		if got, err := testutil.GatherAndCount(registry, name); got != want || err != nil {
			t.Errorf("%s: %d series, want %d: %v", name, got, want, err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted, other := 0.0, 0.0
	for _, f := range families {
		for _, series := range f.GetMetric() {
			counted += series.GetCounter().GetValue()
			if f.GetName() == "idemd_guard_events_total" && series.GetLabel()[3].GetValue() == "other" {
				other += series.GetCounter().GetValue()
			}
		}
	}
	if counted != 2*(most+others)+1 || other != 2*others+1 {
		t.Errorf("counted %v, of them %v as other", counted, other)
	}
}
