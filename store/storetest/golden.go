package storetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/testdata"
)

// RunGolden replays the golden scripts of store/testdata over instances made by the
// factory, through the public interfaces only. A sub-test is named after the file, the
// section and the case; a failure tells the file and line, what the script says and what
// the store did.
//
// # Scripts
//
// A script is a text file of sections. A line that starts with # is a comment, one that
// ends in \ goes on in the next.
//
//	outcome NAME [status=] [body=] [body-bytes=N] [type=] [omitted] [header=NAME:VALUE]... [trailer=NAME:VALUE]...
//	setup NAME       steps that bring a key into a condition; used by name
//	story NAME       steps that are a test by themselves
//	condition NAME   cases, each of which begins with the setup of that name on a fresh key
//
// A step is a command; behind one that operates on the key follow its answer and what
// became of the record. A case line is a tag and commands, of which the last operates.
// Case lines that follow each other share the answer behind them: each alone gives it.
//
//	case TAG: COMMAND; COMMAND
//	-> ANSWER
//	record RECORD    the whole record afterwards; without this line it must be untouched
//	event EVENT      what was added to the events; without such a line nothing may be
//
// The commands, ID being an attempt id. Each operation can be given other parts of the
// key with ns=, scope=, id= and entity=.
//
//	namespace [retention=] [tier=] [policy=] [lease=] [max-lease=] [max-attempt=] [max-outcome=] [entity=] [floor=]
//	update-namespace (the same; floor=none lifts it)
//	at TIME          lets time pass until then
//	wall DURATION    puts the wall clock that far ahead of the store's; until it is put back
//	                 no time may pass
//	use SETUP        runs a setup of setups.txt, or of this file, that is defined before
//	claim ID fp= [lease=] [hold] [intent=]
//	renew ID fence= [lease=]
//	complete ID fence= outcome=
//	release ID fence= effect=NONE|UNKNOWN
//	lookup fp=
//	resolve [fence=] [outcome=] [actor=] reason=
//	force-release [fence=] [actor=] reason=
//	place epoch= revision= [rule=] [phase=FROZEN|SEALED|FLIPPED] [to=]
//	export NAME      remembers the record and its events
//	import NAME [revision=]
//	forget [revision=]
//
// Once the namespace is placed, operations are sent by its epoch, or by the one in epoch=, and
// carried records at its revision. A placement is in force a minute after it was set.
//
// A TIME is +30s, counted from the start of the case, or now-30s. A fence is written as
// the instant whose microseconds it is, so that +40s is the fence of a first grant then and
// +40.000001s the next one, or as a bare number. A fingerprint is VERSION:DIGEST, or - for
// the empty one. A value may be quoted, and a quoted one repeated: "x"*256. An event says
// what was kept of a late outcome and, if that is not all, of= which.
//
// What the table does not name stays as it was. In answers and records, what is zero or
// false is left out; past=2 says that the record remembers two ended attempts, whose ids do
// not cross the wire. Hints (retry after, held for) have no exact value and are not shown.
func RunGolden(t *testing.T, factory Factory) {
	set, err := loadGolden(testdata.Golden)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range set.files {
		t.Run(file.name, func(t *testing.T) {
			for _, section := range file.sections {
				if section.kind == goldenOutcome {
					continue
				}
				t.Run(string(section.kind)+" "+section.name, func(t *testing.T) {
					inst := factory(t)
					if inst.Unplaced && set.places(section) {
						t.Skip(unplaced)
					}
					runGoldenSection(t, set, section, inst)
				})
			}
		})
	}
}

// goldenSet is all scripts together: what they refer to by name is defined in any of them.
type goldenSet struct {
	files    []*goldenFile
	setups   map[string]*goldenSection
	outcomes map[string]*store.Outcome
}

func loadGolden(dir fs.FS) (*goldenSet, error) {
	names, err := fs.Glob(dir, "*.txt")
	if err != nil {
		return nil, err
	}
	set := &goldenSet{setups: map[string]*goldenSection{}, outcomes: map[string]*store.Outcome{}}
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		file, err := parseGolden(name, string(text))
		if err != nil {
			return nil, err
		}
		set.files = append(set.files, file)
	}
	return set, set.link()
}

// runGoldenSection runs a story or setup, or every case of a condition, on one instance.
func runGoldenSection(t *testing.T, set *goldenSet, section *goldenSection, inst *Instance) {
	if section.kind != goldenCondition {
		newGoldenRun(t, set, inst, 0).steps(section)
		return
	}
	n := 0
	for _, block := range section.blocks {
		for _, c := range block.cases {
			n++
			t.Run(fmt.Sprintf("%s@%d", c.tag, c.pos.line), func(t *testing.T) {
				run := newGoldenRun(t, set, inst, n)
				run.steps(set.setups[section.name])
				run.play(c, block.expect)
			})
		}
	}
}

// goldenRun is one case being run: a key in a namespace of its own.
type goldenRun struct {
	t    *testing.T
	set  *goldenSet
	inst *Instance
	key  store.Key
	base time.Time // what +0s means

	wallAhead time.Duration // the wall clock is that far ahead of the store's
	placed    store.Placement
	exported  map[string]store.Inspection
}

func newGoldenRun(t *testing.T, set *goldenSet, inst *Instance, n int) *goldenRun {
	return &goldenRun{
		t: t, set: set, inst: inst,
		key:  store.Key{Namespace: fmt.Sprintf("golden-%d", n), Scope: "/shop.Pay/Charge", ID: "order-1"},
		base: inst.Clock.Wall(), exported: map[string]store.Inspection{},
	}
}

func (r *goldenRun) steps(section *goldenSection) {
	r.t.Helper()
	for _, block := range section.blocks {
		r.play(block.cases[0], block.expect)
	}
}

// play runs the commands of a case; the answer is that of the last.
func (r *goldenRun) play(c goldenCase, expect *goldenExpect) {
	r.t.Helper()
	for i, cmd := range c.commands {
		switch {
		case !cmd.operates():
			r.prepare(cmd)
		case i < len(c.commands)-1:
			if answer := r.operate(r.keyOf(cmd), cmd); isReason(answer) {
				r.t.Fatalf("%s: %s was refused: %s", cmd.pos, cmd.verb, answer)
			}
		default:
			r.check(cmd, expect)
		}
	}
}

// check operates and compares what the store did with the script.
func (r *goldenRun) check(cmd goldenCommand, expect *goldenExpect) {
	r.t.Helper()
	if diff := r.compare(cmd, expect); diff != "" {
		r.t.Fatalf("%s: %s\n(- the script at line %d, + the store)\n%s", cmd.pos, cmd, expect.pos.line, diff)
	}
}

// compare operates and returns how the answer, the record and the events differ from the
// script; nothing if they do not. Nor may the operation touch the key of the case if it
// is about another.
func (r *goldenRun) compare(cmd goldenCommand, expect *goldenExpect) string {
	r.t.Helper()
	key := r.keyOf(cmd)
	before, bystander := r.inspect(key), r.inspect(r.key)
	answer := r.operate(key, cmd)
	after := r.inspect(key)

	want := []string{"-> " + expect.answer}
	got := []string{"-> " + answer}
	if expect.record != "" {
		want = append(want, "record "+expect.record)
		got = append(got, "record "+r.recordText(after.Record))
	} else {
		want = append(want, "record as before: "+r.wholeRecordText(before.Record))
		got = append(got, "record as before: "+r.wholeRecordText(after.Record))
	}
	want = append(want, r.eventTexts(before.Events)...)
	for _, event := range expect.events {
		want = append(want, "event "+event)
	}
	got = append(got, r.eventTexts(after.Events)...)
	if key != r.key {
		want = append(want, "key of the case as before: "+r.wholeRecordText(bystander.Record))
		got = append(got, "key of the case as before: "+r.wholeRecordText(r.inspect(r.key).Record))
	}
	return diffLines(want, got)
}

// inspect returns what the store knows of the key; nothing if there is no live record.
func (r *goldenRun) inspect(key store.Key) store.Inspection {
	r.t.Helper()
	found, err := r.inst.InspectRecord(r.t.Context(), key)
	if err != nil {
		switch reasonOf(err) {
		case "KEY_NOT_FOUND", "NAMESPACE_UNKNOWN", "INVALID_ARGUMENT", "KEY_REQUIRED":
			return store.Inspection{}
		}
		r.t.Fatalf("InspectRecord: %v", err)
	}
	if found.Record.Key != key {
		r.t.Fatalf("InspectRecord returned the record of %q, want %q", found.Record.Key, key)
	}
	if now := r.now(); !found.Now.Equal(now) {
		r.t.Fatalf("InspectRecord says that it is %v, want %v", found.Now, now)
	}
	return found
}

func (r *goldenRun) now() time.Time { return r.inst.Clock.Wall().Add(-r.wallAhead) }

func (r *goldenRun) stepWall(ahead time.Duration) {
	r.inst.Clock.StepWall(ahead - r.wallAhead)
	r.wallAhead = ahead
}

// prepare runs a command that only sets the scene.
func (r *goldenRun) prepare(cmd goldenCommand) {
	r.t.Helper()
	var err error
	switch cmd.verb {
	case "use":
		r.steps(r.set.setups[cmd.text("setup")])
	case "at":
		until := r.time(cmd, "time")
		if until.Before(r.now()) {
			r.t.Fatalf("%s: it is %s already", cmd.pos, r.timeText(r.now()))
		}
		if r.wallAhead != 0 {
			r.t.Fatalf("%s: the wall clock is off, and the store's would follow it", cmd.pos)
		}
		r.inst.Clock.Advance(until.Sub(r.now()))
	case "wall":
		r.inspect(r.key) // has the store read its clock, which would follow for the time since
		r.stepWall(duration(cmd, "ahead"))
		r.t.Cleanup(func() { r.stepWall(0) })
	case "export":
		r.exported[cmd.text("name")] = r.inspect(r.key)
	case "namespace":
		_, err = r.inst.CreateNamespace(r.t.Context(), r.namespace(cmd, store.Namespace{Name: r.key.Namespace}))
	case "update-namespace":
		err = r.updateNamespace(r.t.Context(), cmd)
	}
	if err != nil {
		r.t.Fatalf("%s: %s: %v", cmd.pos, cmd.verb, err)
	}
}

func (r *goldenRun) updateNamespace(ctx context.Context, cmd goldenCommand) error {
	old, err := r.inst.GetNamespace(ctx, r.key.Namespace)
	if err != nil {
		return err
	}
	return setNamespace(ctx, r.inst, r.namespace(cmd, old))
}

// link checks that every name that a script refers to is defined.
func (s *goldenSet) link() error {
	var errs []error
	for _, file := range s.files {
		for _, section := range file.sections {
			errs = append(errs, s.define(section))
		}
	}
	for _, file := range s.files {
		for _, section := range file.sections {
			errs = append(errs, s.resolve(section)...)
		}
	}
	return errors.Join(errs...)
}

func (s *goldenSet) define(section *goldenSection) error {
	switch section.kind {
	case goldenOutcome:
		if s.outcomes[section.name] != nil {
			return section.pos.errorf("outcome %s is defined twice", section.name)
		}
		s.outcomes[section.name] = section.outcome()
	case goldenSetup:
		if s.setups[section.name] != nil {
			return section.pos.errorf("setup %s is defined twice", section.name)
		}
		s.setups[section.name] = section
	}
	return nil
}

func (s *goldenSet) resolve(section *goldenSection) (errs []error) {
	if section.kind == goldenCondition && s.setups[section.name] == nil {
		errs = append(errs, section.pos.errorf("condition %s has no setup of that name", section.name))
	}
	for cmd := range section.commands() {
		if name := cmd.text("outcome"); name != "" && s.outcomes[name] == nil {
			errs = append(errs, cmd.pos.errorf("outcome %s is not defined", name))
		}
		if cmd.verb != "use" {
			continue
		}
		used := s.setups[cmd.text("setup")]
		if used == nil || !used.pos.before(section.pos) {
			errs = append(errs, cmd.pos.errorf("setup %s is not defined before this line", cmd.text("setup")))
		}
	}
	return errs
}

// diffLines shows two lists of lines, those that differ one below the other; nothing if
// none does.
func diffLines(want, got []string) string {
	if slices.Equal(want, got) {
		return ""
	}
	var b strings.Builder
	for i := range max(len(want), len(got)) {
		if i < len(want) && i < len(got) && want[i] == got[i] {
			fmt.Fprintf(&b, "  %s\n", want[i])
			continue
		}
		if i < len(want) {
			fmt.Fprintf(&b, "- %s\n", want[i])
		}
		if i < len(got) {
			fmt.Fprintf(&b, "+ %s\n", got[i])
		}
	}
	return b.String()
}
