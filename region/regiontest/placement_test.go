package regiontest

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/idemd/idemd/store"
)

// spreadHome is the home by `spread`, from the text of package placement alone.
func spreadHome(key store.Key, regions ...string) string {
	word := key.Entity
	if word == "" {
		word = key.ID
	}
	home, heaviest := "", uint64(0)
	for _, region := range regions {
		var b []byte
		for _, s := range []string{"idemd.spread.v1", region, word} {
			b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
		}
		sum := sha256.Sum256(b)
		weight := binary.BigEndian.Uint64(sum[:8])
		if home == "" || weight > heaviest || weight == heaviest && region < home {
			home, heaviest = region, weight
		}
	}
	return home
}

// ordersHome is the home by the rule of namespace orders, "prefix eu-=eu us-=us *=eu".
func ordersHome(key store.Key) string {
	if strings.HasPrefix(key.Entity, "us-") {
		return "us"
	}
	return "eu"
}

func TestKeysLiveWhereTheirRuleSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Plan{Placements: threeHomes()})
	w.create("eu", "orders", homeOf("ap"))
	w.placed("orders", homeOf("ap"), store.DefaultNamespace)
	entities := []string{"", "eu-1", "us-1", "us", "ap-7", "us-üß", strings.Repeat("u", 255)}
	seen := map[string]map[string]int{}
	for i := range 105 {
		key := store.Key{ID: fmt.Sprint("id-", i), Entity: entities[i%len(entities)]}
		for namespace, home := range map[string]string{
			"orders": ordersHome(key), homeOf("ap"): "ap", store.DefaultNamespace: spreadHome(key, allRegions...),
		} {
			key.Namespace = namespace
			from := allRegions[i%len(allRegions)]
			got, _, err := w.claim(w.bare[from], key, "a")
			if err != nil || got.Granted == nil {
				t.Fatalf("claim of %+v from %s: %+v, %v; want granted", key, from, got, err)
			}
			if s := got.Served; s.Home != home || s.Forwarded != (from != home) || s.Epoch < 1 {
				t.Errorf("claim of %+v from %s was served by %+v, want %s", key, from, s, home)
			}
			if seen[namespace] == nil {
				seen[namespace] = map[string]int{}
			}
			seen[namespace][got.Served.Home]++
		}
	}
	if spread := seen[store.DefaultNamespace]; len(spread) != 3 || len(seen["orders"]) != 2 {
		t.Errorf("homes: %v; want that all regions of a rule are used", seen)
	}
}
