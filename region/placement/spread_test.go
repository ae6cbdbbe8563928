package placement

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/idemd/idemd/store"
)

// The vectors were computed with Python's hashlib: testdata/vectors.py.
func TestSpreadVectors(t *testing.T) {
	f, err := os.Open("testdata/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	count := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Split(lines.Text(), "\t")
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		var entity, id string
		entity, err1 := strconv.Unquote(fields[1])
		id, err2 := strconv.Unquote(fields[2])
		if err1 != nil || err2 != nil || len(fields) != 5 {
			t.Fatalf("%q is no vector", lines.Text())
		}
		count++
		rule := parse(t, fields[0])
		key := store.Key{Namespace: "any", Scope: "any", ID: id, Entity: entity}
		if got := rule.Home(key); got != fields[3] {
			t.Errorf("%s: %q %q lives in %s, want %s", fields[0], entity, id, got, fields[3])
		}
		word := entity
		if word == "" {
			word = id
		}
		if got := fmt.Sprintf("%016x", weight(fields[3], word)); got != fields[4] {
			t.Errorf("%s: the weight of %s for %q is %s, want %s", fields[0], fields[3], word, got, fields[4])
		}
	}
	if count < 20 {
		t.Errorf("only %d vectors", count)
	}
}

func TestOnlyTheEntityCounts(t *testing.T) {
	rule := parse(t, "spread eu us ap")
	rapid.Check(t, func(t *rapid.T) {
		entity := rapid.StringN(1, 40, 255).Draw(t, "entity")
		any := func(name string) string { return rapid.StringN(1, 40, 255).Draw(t, name) }
		one := rule.Home(store.Key{Namespace: any("n"), Scope: any("s"), ID: any("id"), Entity: entity})
		two := rule.Home(store.Key{Namespace: any("m"), ID: any("other"), Entity: entity})
		three := rule.Home(store.Key{ID: entity})
		if one != two || one != three {
			t.Fatalf("%q lives in %s, %s and %s", entity, one, two, three)
		}
	})
}

// A region that is added takes keys from the others, and moves none between them.
func TestAnotherRegionMovesNothingBetweenTheOthers(t *testing.T) {
	before, after := parse(t, "spread eu us ap"), parse(t, "spread eu us ap sa")
	moved, total := 0, 40_000
	for i := range total {
		key := store.Key{ID: fmt.Sprint("order-", i)}
		was, is := before.Home(key), after.Home(key)
		if was == is {
			continue
		}
		if moved++; is != "sa" {
			t.Fatalf("%s moved from %s to %s", key.ID, was, is)
		}
	}
	if share := float64(moved) / float64(total); share < 0.24 || share > 0.26 {
		t.Errorf("%.3f of the keys moved, want a quarter", share)
	}
}

func TestKeysAreSpreadEvenly(t *testing.T) {
	for _, text := range []string{"spread eu us", "spread a b c", "spread r1 r2 r3 r4 r5 r6 r7"} {
		rule := parse(t, text)
		counts, total := map[string]int{}, 70_000
		for i := range total {
			counts[rule.Home(store.Key{ID: "x", Entity: fmt.Sprint("acct-", i)})]++
		}
		for region, n := range counts {
			even := float64(total) / float64(len(rule.Regions()))
			if float64(n) < 0.97*even || float64(n) > 1.03*even {
				t.Errorf("%s: %s has %d keys, an even share is %.0f", text, region, n, even)
			}
		}
		if len(counts) != len(rule.Regions()) {
			t.Errorf("%s: %v", text, counts)
		}
	}
}

func BenchmarkHome(b *testing.B) {
	rule := parse(b, "spread eu us ap")
	key := store.Key{ID: "order-1001", Entity: "acct-7"}
	b.ReportAllocs()
	for b.Loop() {
		rule.Home(key)
	}
}
