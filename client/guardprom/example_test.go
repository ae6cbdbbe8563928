package guardprom_test

import (
	"context"
	"fmt"
	"log"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/guardprom"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// A guard and Do count into one registry.
func Example() {
	registry := prometheus.NewRegistry()
	metrics, err := guardprom.New(registry)
	if err != nil {
		log.Fatal(err)
	}
	s := storetest.NewMemory(store.SystemClock{}) // elsewhere: client.Dial
	_ = client.NewGuard(s, client.NoOwner(), client.OnEvent(metrics.Count))
	key := store.Key{Namespace: "default", Scope: "charge", ID: "order-1001"}
	for range 2 {
		_, err = client.Do(context.Background(), s, key, nil,
			func(context.Context, *client.Attempt) (string, error) { return "receipt 7", nil },
			client.OnEvent(metrics.Count))
		if err != nil {
			log.Fatal(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range families[0].GetMetric() {
		fmt.Println(families[0].GetName(), m.GetLabel()[0].GetValue(), m.GetCounter().GetValue())
	}
	// Output:
	// idemd_guard_events_total granted 1
	// idemd_guard_events_total recorded 1
	// idemd_guard_events_total replayed 1
}
