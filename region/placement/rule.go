package placement

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/idemd/idemd/store"
)

// Rule says which region is the home of which key. Make it with [ParseRule].
type Rule struct {
	prefixes []prefix // the longest first
	rest     []string // where the others live; one region, or several that they are spread over
}

// prefix is where the entities live that begin with it.
type prefix struct{ text, region string }

const (
	wordFixed  = "fixed"
	wordPrefix = "prefix"
	wordSpread = "spread"
	wordOthers = "*"
)

var regionName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

// CheckRegion refuses what cannot be the name of a region.
func CheckRegion(name string) error {
	if !regionName.MatchString(name) {
		return fmt.Errorf("region %q: it must be 1 to 31 of a-z, 0-9 and '-', and begin with a letter", name)
	}
	return nil
}

// ParseRule reads a rule. Errors say what is wrong and what is allowed.
func ParseRule(text string) (Rule, error) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return Rule{}, errors.New("the rule is empty: give one that begins with fixed, prefix or spread")
	}
	var rule Rule
	var err error
	switch kind, words := words[0], words[1:]; kind {
	case wordFixed:
		rule, err = parseFixed(words)
	case wordPrefix:
		rule, err = parsePrefix(words)
	case wordSpread:
		rule, err = parseSpread(words)
	default:
		err = fmt.Errorf("it begins with %q, and must begin with fixed, prefix or spread", kind)
	}
	if err != nil {
		return Rule{}, fmt.Errorf("rule %q: %w", text, err)
	}
	if n := len(rule.String()); n > store.MaxRuleBytes {
		return Rule{}, fmt.Errorf("the rule has %d bytes, at most %d are allowed", n, store.MaxRuleBytes)
	}
	return rule, nil
}

func parseFixed(words []string) (Rule, error) {
	if len(words) != 1 {
		return Rule{}, fmt.Errorf("fixed is followed by one region, not by %d", len(words))
	}
	return Rule{rest: words}, CheckRegion(words[0])
}

func parseSpread(words []string) (Rule, error) {
	if len(words) < 2 {
		return Rule{}, errors.New("spread is followed by two regions or more; for one write fixed")
	}
	regions := slices.Sorted(slices.Values(words))
	for i, name := range regions {
		if err := CheckRegion(name); err != nil {
			return Rule{}, err
		}
		if i > 0 && name == regions[i-1] {
			return Rule{}, fmt.Errorf("region %q is named twice", name)
		}
	}
	return Rule{rest: regions}, nil
}

func parsePrefix(words []string) (Rule, error) {
	var rule Rule
	seen := map[string]bool{}
	for _, word := range words {
		at := strings.LastIndexByte(word, '=')
		if at < 1 {
			return Rule{}, fmt.Errorf("%q is not PREFIX=REGION; for all other entities write *=REGION", word)
		}
		text, region := word[:at], word[at+1:]
		if err := CheckRegion(region); err != nil {
			return Rule{}, err
		}
		if seen[text] {
			return Rule{}, fmt.Errorf("prefix %q is given twice", text)
		}
		seen[text] = true
		if text == wordOthers {
			rule.rest = []string{region}
			continue
		}
		rule.prefixes = append(rule.prefixes, prefix{text, region})
	}
	if rule.rest == nil {
		return Rule{}, errors.New("*=REGION is missing: it says where all other entities live, and keys without one")
	}
	if rule.prefixes == nil {
		return Rule{}, errors.New("it has no prefix; for one region write fixed")
	}
	slices.SortFunc(rule.prefixes, func(a, b prefix) int {
		return cmp.Or(cmp.Compare(len(b.text), len(a.text)), strings.Compare(a.text, b.text))
	})
	return rule, nil
}

// Fixed is the rule by which all keys live in one region, in its canonical form.
func Fixed(region string) string { return wordFixed + " " + region }

// String is the rule in its one canonical form, which ParseRule reads.
func (r Rule) String() string {
	switch {
	case len(r.prefixes) > 0:
		words := []string{wordPrefix}
		for _, p := range r.prefixes {
			words = append(words, p.text+"="+p.region)
		}
		return strings.Join(append(words, wordOthers+"="+r.rest[0]), " ")
	case len(r.rest) == 1:
		return Fixed(r.rest[0])
	case len(r.rest) > 1:
		return wordSpread + " " + strings.Join(r.rest, " ")
	}
	return ""
}

// Regions are all homes that the rule gives, by name.
func (r Rule) Regions() []string {
	names := slices.Clone(r.rest)
	for _, p := range r.prefixes {
		names = append(names, p.region)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Home is the region in which the key lives; "" for the zero Rule.
func (r Rule) Home(key store.Key) string {
	for _, p := range r.prefixes {
		if strings.HasPrefix(key.Entity, p.text) {
			return p.region
		}
	}
	switch len(r.rest) {
	case 0:
		return ""
	case 1:
		return r.rest[0]
	}
	return heaviest(r.rest, cmp.Or(key.Entity, key.ID))
}
