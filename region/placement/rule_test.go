package placement

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/idemd/idemd/store"
)

func parse(t testing.TB, text string) Rule {
	t.Helper()
	rule, err := ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return rule
}

var longest = "a-9" + strings.Repeat("x", 28) // the longest name of a region

func TestRulesHaveOneForm(t *testing.T) {
	for text, want := range map[string]string{
		" fixed\teu ":                   "fixed eu",
		"spread us  eu ap":              "spread ap eu us",
		"prefix *=eu us-=us us-east=ap": "prefix us-east=ap us-=us *=eu",
		"prefix b=eu a=us *=ap":         "prefix a=us b=eu *=ap",
		"prefix a=b=eu *=us":            "prefix a=b=eu *=us",
		"prefix **=eu *=us":             "prefix **=eu *=us",
		"fixed " + longest:              "fixed " + longest,
	} {
		got, err := ParseRule(text)
		if err != nil || got.String() != want {
			t.Errorf("%q is %q, %v; want %q", text, got, err, want)
		}
	}
}

func TestWhatIsNoRuleIsRefused(t *testing.T) {
	for text, says := range map[string]string{
		"":                                  "empty",
		"  ":                                "empty",
		"eu":                                "must begin with",
		"Fixed eu":                          "must begin with",
		"fixed":                             "one region",
		"fixed eu us":                       "one region",
		"fixed EU":                          `region "EU"`,
		"fixed 1eu":                         `region "1eu"`,
		"fixed *":                           `region "*"`,
		"spread":                            "two regions",
		"spread eu":                         "write fixed",
		"spread eu us eu":                   `"eu" is named twice`,
		"spread eu e_u":                     `region "e_u"`,
		"prefix":                            "*=REGION is missing",
		"prefix eu-=eu":                     "*=REGION is missing",
		"prefix *=eu":                       "write fixed",
		"prefix eu- *=eu":                   `"eu-" is not PREFIX=REGION`,
		"prefix =eu *=eu":                   `"=eu" is not PREFIX=REGION`,
		"prefix a=eu a=us *=eu":             `prefix "a" is given twice`,
		"prefix a=eu *=eu *=us":             `prefix "*" is given twice`,
		"prefix a= *=eu":                    `region ""`,
		"spread " + strings.Repeat("a ", 2): "named twice",
		"prefix " + strings.Repeat("x", store.MaxRuleBytes) + "=eu *=eu": "at most 4096",
	} {
		if _, err := ParseRule(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.60q: %v; want that %s", text, err, says)
		}
	}
}

func TestTheLongestPrefixCounts(t *testing.T) {
	rule := parse(t, "prefix eu-=eu eu-west-=ap us-=us *=sa")
	for entity, want := range map[string]string{
		"eu-1": "eu", "eu-": "eu", "eu": "sa", "eu-west-1": "ap", "eu-west": "eu", "us-eu-": "us", "": "sa", "EU-1": "sa", "*": "sa",
	} {
		if got := rule.Home(store.Key{ID: "eu-west-9", Entity: entity}); got != want {
			t.Errorf("%q lives in %s, want %s", entity, got, want)
		}
	}
	if got := rule.Regions(); !slices.Equal(got, []string{"ap", "eu", "sa", "us"}) {
		t.Errorf("Regions: %v", got)
	}
	if got := (Rule{}).Home(store.Key{ID: "x"}); got != "" {
		t.Errorf("the zero rule gives the home %q", got)
	}
}

func TestAPrefixRuleFindsWhatASearchFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab]{1,4}`)
		prefixes := rapid.MapOfN(word, rapid.SampledFrom([]string{"eu", "us", "ap"}), 1, 8).Draw(t, "prefixes")
		text := "prefix *=other"
		for prefix, region := range prefixes {
			text += " " + prefix + "=" + region
		}
		rule, err := ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		entity := rapid.StringMatching(`[ab]{0,6}`).Draw(t, "entity")
		want := "other"
		for n := len(entity); n > 0; n-- {
			if region, ok := prefixes[entity[:n]]; ok {
				want = region
				break
			}
		}
		if got := rule.Home(store.Key{ID: "x", Entity: entity}); got != want {
			t.Fatalf("%q by %q lives in %s, want %s", entity, text, got, want)
		}
		again, err := ParseRule(rule.String())
		if err != nil || again.String() != rule.String() {
			t.Fatalf("%q is read as %q, %v", rule, again, err)
		}
	})
}
