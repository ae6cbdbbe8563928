package storetest

import (
	"slices"
	"strings"
	"testing"

	"github.com/idemd/idemd/store/testdata"
)

// goldenConditions are all conditions that a key can be in, as far as the table tells them
// apart: each is a setup of that name in setups.txt.
var goldenConditions = []string{
	// An attempt holds the key. What came before it: nothing; an end without effect; a lapse.
	"running", "running-hold", "running-without-fingerprint", "running-again", "running-to-limit",
	"running-after-release", "unsettled-running", "unsettled-running-hold", "taken-over-after-unknown",
	// Its lease ran out.
	"lapsed-takeover", "lapsed-hold", "lapsed-at-limit", "lapsed-past-limit", "lapsed-hold-for-ever",
	"unsettled-lapsed", "unsettled-lapsed-hold",
	// It gave up. Only the first is RELEASED, the others are lapsed.
	"released-none", "released-none-unsettled", "released-none-unsettled-hold",
	"released-unknown", "released-unknown-hold", "released-unknown-past-limit",
	// It completed.
	"completed", "completed-without-fingerprint", "completed-late", "completed-after-unknown", "completed-after-takeover",
	// An operator ended it.
	"resolved-outcome", "resolved-nothing", "force-released-running", "force-released-hold",
	// There is no live record.
	"none", "expired-in-progress", "expired-released", "expired-completed",
}

// goldenVariants are, by script, all ways to ask for its operation, as far as the table
// tells them apart. The head of each script says what they mean.
var goldenVariants = map[string][]string{
	"claim.txt": slices.Concat(
		product([]string{"same", "other"}, []string{"equal", "different", "empty", "incomparable", "hold", "lease"}),
		product([]string{"ended"}, []string{"equal", "different"}),
		product([]string{"intent"}, []string{"oldest", "too-old", "newest", "future"}),
		product([]string{"floor"}, []string{"no-intent", "older-intent", "newer-intent"}),
		product([]string{"forgotten"}, []string{"same", "other"}),
	),
	"renew.txt":    append([]string{"default", "short", "long", "to-limit"}, wrongHolders...),
	"complete.txt": append([]string{"paid", "refused"}, wrongHolders...),
	"release.txt": append([]string{"none", "unknown"},
		product([]string{"none", "unknown"}, wrongHolders)...),
	"lookup.txt":        {"equal", "different", "empty", "incomparable"},
	"resolve.txt":       {"outcome", "nothing"},
	"force-release.txt": {"plain"},
}

// wrongHolders are the ways not to be the current attempt with the current fence.
var wrongHolders = []string{"lower-fence", "higher-fence", "wrong-attempt", "ended"}

// goldenExclusion says which combinations cannot be, and why. An empty list means all.
type goldenExclusion struct {
	conditions []string
	scripts    []string
	variants   func(string) bool
	why        string
}

var goldenExclusions = []goldenExclusion{
	{
		conditions: []string{"none"}, scripts: []string{"claim.txt"},
		variants: func(v string) bool { return strings.HasPrefix(v, "same-") || v == "forgotten-same" },
		why:      "no attempt has come yet, so none can come again",
	},
	{
		conditions: []string{
			"none", "running", "running-hold", "running-without-fingerprint", "running-again", "running-to-limit",
			"lapsed-takeover", "lapsed-hold", "lapsed-at-limit", "lapsed-past-limit", "lapsed-hold-for-ever",
			"released-none", "released-unknown", "released-unknown-hold", "released-unknown-past-limit",
			"completed", "completed-without-fingerprint", "completed-late", "completed-after-unknown",
			"resolved-outcome", "resolved-nothing", "force-released-running", "force-released-hold", "expired-in-progress",
		},
		variants: func(v string) bool {
			return v == "ended" || strings.HasSuffix(v, "-ended") || strings.HasPrefix(v, "ended-")
		},
		why: "only one attempt has come, so no earlier one has ended",
	},
	{
		conditions: withoutFingerprint,
		variants:   func(v string) bool { return v == "empty" || strings.HasSuffix(v, "-empty") },
		why:        "the empty fingerprint is the equal one",
	},
	{
		conditions: withoutFingerprint,
		scripts:    []string{"renew.txt", "complete.txt", "release.txt", "resolve.txt", "force-release.txt"},
		variants:   func(string) bool { return true },
		why:        "the operation knows no fingerprint: it is running or completed as any other",
	},
}

var withoutFingerprint = []string{"running-without-fingerprint", "completed-without-fingerprint"}

func product(first, second []string) []string {
	var all []string
	for _, a := range first {
		for _, b := range second {
			all = append(all, a+"-"+b)
		}
	}
	return all
}

func (e goldenExclusion) covers(script, condition, variant string) bool {
	return (e.scripts == nil || slices.Contains(e.scripts, script)) &&
		slices.Contains(e.conditions, condition) && e.variants(variant)
}

// goldenCombination is one cell of the table.
type goldenCombination struct{ script, condition, variant string }

// TestGoldenIsTotal checks that the scripts of the operations hold every combination of condition and
// operation once, but for the excluded ones, and no other.
func TestGoldenIsTotal(t *testing.T) {
	set, err := loadGolden(testdata.Golden)
	if err != nil {
		t.Fatal(err)
	}
	scripted := scriptedCombinations(t, set)
	excluded := make([]int, len(goldenExclusions))
	for script, variants := range goldenVariants {
		for _, condition := range goldenConditions {
			for _, variant := range variants {
				combination := goldenCombination{script, condition, variant}
				i := slices.IndexFunc(goldenExclusions, func(e goldenExclusion) bool { return e.covers(script, condition, variant) })
				pos, ok := scripted[combination]
				delete(scripted, combination)
				switch {
				case i < 0 && !ok:
					t.Errorf("store/testdata/%s: condition %s has no case %s", script, condition, variant)
				case i >= 0 && ok:
					t.Errorf("%s: condition %s, case %s is excluded: %s", pos, condition, variant, goldenExclusions[i].why)
				case i >= 0:
					excluded[i]++
				}
			}
		}
	}
	for combination, pos := range scripted {
		t.Errorf("%s: condition %s, case %s is not among the combinations", pos, combination.condition, combination.variant)
	}
	for i, n := range excluded {
		if n == 0 {
			t.Errorf("the exclusion %q excludes nothing", goldenExclusions[i].why)
		}
	}
}

func scriptedCombinations(t *testing.T, set *goldenSet) map[goldenCombination]goldenPos {
	scripted := map[goldenCombination]goldenPos{}
	for _, file := range set.files {
		if goldenVariants[file.name] == nil {
			continue // stories, with conditions and cases of their own
		}
		for _, section := range file.sections {
			for _, block := range section.blocks {
				for _, c := range block.cases {
					combination := goldenCombination{file.name, section.name, c.tag}
					if before, ok := scripted[combination]; ok {
						t.Errorf("%s: the case is at %s already", c.pos, before)
					}
					scripted[combination] = c.pos
				}
			}
		}
	}
	return scripted
}
