package storetest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/idemd/idemd/store"
)

// goldenVerb says what a command takes.
type goldenVerb struct {
	operates   bool   // it has an answer
	positional string // the argument that is written without a name; empty if none
	required   []string
	args       goldenArgs
}

// goldenArgs maps the name of an argument to a check of its text.
type goldenArgs map[string]func(string) error

// goldenFlags are the arguments that are written without a value.
var goldenFlags = []string{"hold", "omitted"}

var goldenKeyArgs = goldenArgs{"ns": isText, "scope": isText, "id": isText, "entity": isText, "epoch": isNumber}

var goldenNamespaceArgs = goldenArgs{
	"retention": isDuration, "tier": oneOf(goldenTiers), "policy": oneOf(goldenPolicies), "lease": isDuration,
	"max-lease": isDuration, "max-attempt": isDuration, "max-outcome": isNumber, "entity": oneOf(goldenEntityRules), "floor": isFloor,
}

var goldenOutcomeArgs = goldenArgs{
	"status": isText, "body": isText, "body-bytes": isNumber, "type": isText, "omitted": isText,
	"header": isMetadata, "trailer": isMetadata,
}

var goldenVerbs = map[string]goldenVerb{
	"namespace":        {args: goldenNamespaceArgs},
	"update-namespace": {args: goldenNamespaceArgs},
	"at":               {positional: "time", required: []string{"time"}, args: goldenArgs{"time": isTime}},
	"wall":             {positional: "ahead", required: []string{"ahead"}, args: goldenArgs{"ahead": isDuration}},
	"use":              {positional: "setup", required: []string{"setup"}, args: goldenArgs{"setup": isText}},
	"claim": operation("attempt", []string{"attempt", "fp"}, goldenArgs{
		"attempt": isText, "fp": isFingerprint, "lease": isDuration, "hold": isText, "intent": isTime,
	}),
	"renew":    operation("attempt", []string{"attempt", "fence"}, goldenArgs{"attempt": isText, "fence": isFence, "lease": isDuration}),
	"complete": operation("attempt", []string{"attempt", "fence"}, goldenArgs{"attempt": isText, "fence": isFence, "outcome": isText}),
	"release": operation("attempt", []string{"attempt", "fence"}, goldenArgs{
		"attempt": isText, "fence": isFence, "effect": oneOf(goldenEffects),
	}),
	"import-outcome": operation("", nil, goldenArgs{
		"fp": isFingerprint, "outcome": isText, "completed": isTime, "actor": isText, "reason": isText,
	}),
	"lookup":        operation("", []string{"fp"}, goldenArgs{"fp": isFingerprint}),
	"resolve":       operation("", nil, goldenArgs{"fence": isFence, "outcome": isText, "actor": isText, "reason": isText}),
	"force-release": operation("", nil, goldenArgs{"fence": isFence, "actor": isText, "reason": isText}),
	"place":         operation("", []string{"epoch", "revision"}, goldenArgs{"revision": isNumber, "rule": isText, "phase": oneOf(goldenPhases), "to": isText}),
	"export":        {positional: "name", required: []string{"name"}, args: goldenArgs{"name": isText}},
	"import":        operation("name", []string{"name"}, goldenArgs{"name": isText, "revision": isNumber}),
	"forget":        operation("", nil, goldenArgs{"revision": isNumber}),
}

// placingVerbs are those that a store without Placements cannot play.
var placingVerbs = []string{"place", "export", "import", "forget"}

func operation(positional string, required []string, args goldenArgs) goldenVerb {
	maps.Copy(args, goldenKeyArgs)
	return goldenVerb{operates: true, positional: positional, required: required, args: args}
}

// The names of enums in scripts.
var (
	goldenStates      = map[string]store.State{"IN_PROGRESS": store.StateInProgress, "COMPLETED": store.StateCompleted, "RELEASED": store.StateReleased}
	goldenPolicies    = map[string]store.LapsePolicy{"TAKEOVER": store.Takeover, "HOLD": store.Hold}
	goldenEffects     = map[string]store.Effect{"NONE": store.EffectNone, "UNKNOWN": store.EffectUnknown}
	goldenTiers       = map[string]store.Tier{"HOUR": store.TierHour, "DAY": store.TierDay, "WEEK": store.TierWeek, "MONTH": store.TierMonth}
	goldenEntityRules = map[string]store.EntityRule{"OPTIONAL": store.EntityOptional, "REQUIRED": store.EntityRequired, "FORBIDDEN": store.EntityForbidden}
	goldenPhases      = map[string]store.MovePhase{"FROZEN": store.MoveFrozen, "SEALED": store.MoveSealed, "FLIPPED": store.MoveFlipped}
	goldenEventKinds  = map[string]store.EventKind{
		"takeover": store.EventTakeover, "late-outcome": store.EventLateOutcome,
		"resolved": store.EventResolved, "force-released": store.EventForceReleased,
		"imported": store.EventImported,
	}
)

func (c goldenCommand) operates() bool { return goldenVerbs[c.verb].operates }

func parseCommand(pos goldenPos, words []string) (goldenCommand, error) {
	if len(words) == 0 {
		return goldenCommand{}, pos.errorf("a command is missing")
	}
	verb, ok := goldenVerbs[words[0]]
	if !ok {
		return goldenCommand{}, pos.errorf("%q is no command; there are %s", words[0], nameList(goldenVerbs))
	}
	args, err := parseArgs(verb.args, verb.positional, words[1:])
	if err != nil {
		return goldenCommand{}, pos.errorf("%s: %v", words[0], err)
	}
	for _, name := range verb.required {
		if !slices.ContainsFunc(args, func(a goldenArg) bool { return a.name == name }) {
			return goldenCommand{}, pos.errorf("%s needs %s", words[0], name)
		}
	}
	return goldenCommand{pos: pos, verb: words[0], args: args}, nil
}

func parseArgs(known goldenArgs, positional string, words []string) ([]goldenArg, error) {
	var args []goldenArg
	for i, word := range words {
		arg := goldenArg{name: positional, bare: true, raw: word}
		if name, value, ok := strings.Cut(word, "="); ok && !strings.Contains(name, `"`) {
			arg = goldenArg{name: name, raw: value}
		} else if i > 0 || positional == "" {
			arg.name = word
		}
		check, ok := known[arg.name]
		if flag := slices.Contains(goldenFlags, arg.name); !ok || arg.bare != (flag || arg.bare && i == 0 && arg.name == positional) {
			return nil, fmt.Errorf("%q is not among its arguments: %s", word, nameList(known))
		}
		if repeatable := arg.name == "header" || arg.name == "trailer"; !repeatable &&
			slices.ContainsFunc(args, func(a goldenArg) bool { return a.name == arg.name }) {
			return nil, fmt.Errorf("%s is there twice", arg.name)
		}
		text, err := unquote(arg.raw)
		if err == nil {
			err = check(text)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", arg.name, err)
		}
		args = append(args, arg)
	}
	return args, nil
}

// unquote returns the text of a value: as it is, "quoted", or "quoted"*N.
func unquote(raw string) (string, error) {
	if !strings.HasPrefix(raw, `"`) {
		if strings.ContainsAny(raw, `"`) {
			return "", fmt.Errorf("%s has a quote in the middle", raw)
		}
		return raw, nil
	}
	quoted, err := strconv.QuotedPrefix(raw)
	if err != nil {
		return "", fmt.Errorf("%s is badly quoted", raw)
	}
	text, err := strconv.Unquote(quoted)
	if err != nil {
		return "", fmt.Errorf("%s is badly quoted", raw)
	}
	if len(raw) == len(quoted) {
		return text, nil
	}
	n, err := strconv.Atoi(strings.TrimPrefix(raw[len(quoted):], "*"))
	if err != nil || raw[len(quoted)] != '*' || n < 0 || n > 1<<10 {
		return "", fmt.Errorf("%s: behind a quoted value only *N may follow, N at most 1024", raw)
	}
	return strings.Repeat(text, n), nil
}

// text returns an argument's text, empty if it is not there.
func (c goldenCommand) text(name string) string {
	for _, arg := range c.args {
		if arg.name == name {
			return arg.text()
		}
	}
	return ""
}

func (c goldenCommand) has(name string) bool {
	return slices.ContainsFunc(c.args, func(a goldenArg) bool { return a.name == name })
}

func (a goldenArg) text() string {
	text, err := unquote(a.raw)
	if err != nil {
		panic(err) // the parser has checked it
	}
	return text
}

// outcome builds what an outcome section defines.
func (s *goldenSection) outcome() *store.Outcome {
	o := &store.Outcome{}
	for _, arg := range s.args {
		text := arg.text()
		switch arg.name {
		case "status":
			o.Status = []byte(text)
		case "body":
			o.Body = []byte(text)
		case "body-bytes":
			n, _ := strconv.Atoi(text)
			o.Body = make([]byte, n)
		case "type":
			o.BodyType = text
		case "omitted":
			o.BodyOmitted = true
		case "header":
			o.Header = append(o.Header, metadataOf(text))
		case "trailer":
			o.Trailer = append(o.Trailer, metadataOf(text))
		}
	}
	return o
}

func metadataOf(text string) store.MetadataEntry {
	name, value, _ := strings.Cut(text, ":")
	return store.MetadataEntry{Name: name, Value: []byte(value)}
}

func fingerprintOf(text string) store.Fingerprint {
	if text == "-" {
		return store.Fingerprint{}
	}
	version, digest, _ := strings.Cut(text, ":")
	n, _ := strconv.ParseUint(version, 10, 32)
	return store.Fingerprint{Version: uint32(n), Digest: digest}
}

func isText(string) error { return nil }

func isNumber(s string) error {
	if n, err := strconv.Atoi(s); err != nil || n < 0 || n > 1<<20 {
		return fmt.Errorf("%q is not a number from 0 to %d", s, 1<<20)
	}
	return nil
}

func isDuration(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is not a duration like 1m30s", s)
	}
	if d%time.Microsecond != 0 {
		return fmt.Errorf("%q is not in whole microseconds", s)
	}
	return nil
}

func isTime(s string) error {
	rest := strings.TrimPrefix(s, "now")
	if rest == "" && s != "" {
		return nil
	}
	if rest == "" || rest[0] != '+' && rest[0] != '-' {
		return fmt.Errorf("%q is not a time like +30s or now-1m", s)
	}
	return isDuration(rest)
}

func isFloor(s string) error {
	if s == "none" {
		return nil
	}
	return isTime(s)
}

func isFence(s string) error {
	if _, err := strconv.ParseInt(s, 10, 64); err == nil && s[0] != '+' {
		return nil
	}
	if strings.HasPrefix(s, "now") || isTime(s) != nil {
		return fmt.Errorf("%q is not a fence like +30s, or a number", s)
	}
	return nil
}

func isFingerprint(s string) error {
	version, _, ok := strings.Cut(s, ":")
	if s == "-" {
		return nil
	}
	if _, err := strconv.ParseUint(version, 10, 32); !ok || err != nil {
		return fmt.Errorf("%q is not a fingerprint like 1:x, or - for the empty one", s)
	}
	return nil
}

func isMetadata(s string) error {
	if !strings.Contains(s, ":") {
		return fmt.Errorf("%q is not like NAME:VALUE", s)
	}
	return nil
}

func oneOf[T any](names map[string]T) func(string) error {
	return func(s string) error {
		if _, ok := names[s]; !ok {
			return fmt.Errorf("%q is not one of %s", s, nameList(names))
		}
		return nil
	}
}

func nameList[T any](names map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}
