package storetest

import (
	"context"
	"io/fs"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/testdata"
)

// A script that is wrong says where and what to write instead.
func TestGoldenParseErrors(t *testing.T) {
	for _, test := range []struct{ script, want string }{
		{"claim a fp=1:x", `:1: "claim" is outside a section`},
		{"story", ":1: story needs a name"},
		{"story Big", ":1: story needs a name"},
		{"story s more", `:1: "more" is too much behind the name`},
		{"story s\nsteal a", `:2: "steal" is no command; there are at, claim,`},
		{"story s\n# x\n\nclaim a fp=1:x\nat +1s\n-> ok", ":4: claim has no answer"},
		{"story s\nclaim a fp=1:x", ":2: claim has no answer"},
		{"story s\nclaim a fp=1:x\nstory t", ":2: claim has no answer"},
		{"story s\nat +1s\n-> ok", ":3: at has no answer"},
		{"story s\n-> ok", ":2: an answer belongs behind an operation"},
		{"story s\nlookup fp=-\n-> ok\n-> ok", ":4: an answer belongs behind an operation"},
		{"story s\nlookup fp=-\n->", ":3: the answer is missing"},
		{"story s\nlookup fp=-\nrecord x\n-> ok", ":3: a record belongs behind an answer"},
		{"story s\nlookup fp=-\n-> ok\nevent e\nrecord r", ":5: a record belongs behind an answer, once and before its events"},
		{"story s\nlookup fp=-\n-> ok\nrecord", ":4: the record is missing"},
		{"story s\nevent e", ":2: an event belongs behind an answer"},
		{"story s\nlookup fp=-\n-> ok\nevent", ":4: the event is missing"},
		{"story s\ncase a: lookup fp=-", ":2: a case belongs into a condition"},
		{"condition c\nlookup fp=-", ":2: a condition holds cases; write: case TAG: lookup fp=-"},
		{"condition c\ncase lookup fp=-", ":2: a case is written: case TAG: COMMAND"},
		{"condition c\ncase a:", ":2: a command is missing"},
		{"condition c\ncase a: lookup fp=-; at +1s", ":2: the last command of a case must operate"},
		{"story s\nclaim fp=1:x", ":2: claim needs attempt"},
		{"story s\nclaim a", ":2: claim needs fp"},
		{"story s\nclaim a b fp=-", `:2: claim: "b" is not among its arguments`},
		{"story s\nclaim a fp=- hold=yes", `:2: claim: "hold=yes" is not among its arguments`},
		{"story s\nclaim a fp=- lease", `:2: claim: "lease" is not among its arguments`},
		{"story s\nclaim a fp=- fence=+1s", `:2: claim: "fence=+1s" is not among its arguments`},
		{"story s\nclaim a fp=- fp=-", ":2: claim: fp is there twice"},
		{"story s\nclaim a fp=x", `:2: claim: fp: "x" is not a fingerprint like 1:x`},
		{"story s\nclaim a fp=- lease=30", `:2: claim: lease: "30" is not a duration like 1m30s`},
		{"story s\nclaim a fp=- lease=1ns", `:2: claim: lease: "1ns" is not in whole microseconds`},
		{"story s\nclaim a fp=- intent=12:00", `:2: claim: intent: "12:00" is not a time like +30s or now-1m`},
		{"story s\nrenew a fence=now", `:2: renew: fence: "now" is not a fence like +30s, or a number`},
		{"story s\nrelease a fence=+1s effect=SOME", `:2: release: effect: "SOME" is not one of NONE, UNKNOWN`},
		{`story s` + "\n" + `claim "a fp=-`, ":2: a quote is not closed"},
		{`story s` + "\n" + `claim "a"x fp=-`, ":2: claim: attempt: \"a\"x: behind a quoted value only *N may follow"},
		{`story s` + "\n" + `claim a"b" fp=-`, `:2: claim: attempt: a"b" has a quote in the middle`},
		{`outcome o body=a body=b`, ":1: body is there twice"},
		{`outcome o header=x`, `:1: header: "x" is not like NAME:VALUE`},
		{`outcome o body-bytes=-1`, `:1: body-bytes: "-1" is not a number from 0`},
		{"story s\nat +1s \\", `:2: the script ends behind a \`},
		{"story s\nat \xff", ":2: the line is not UTF-8"},
		{"setup a\nsetup a", ":2: setup a is defined twice"},
		{"outcome a\noutcome a", ":2: outcome a is defined twice"},
		{"condition a", ":1: condition a has no setup of that name"},
		{"setup a\nuse a", ":2: setup a is not defined before this line"},
		{"setup a\nuse b\nsetup b", ":2: setup b is not defined before this line"},
		{"story s\ncomplete a fence=+1s outcome=o\n-> ok", ":2: outcome o is not defined"},
	} {
		_, err := loadGolden(fstest.MapFS{"x.txt": {Data: []byte(test.script)}})
		if err == nil || !strings.HasPrefix(err.Error(), "store/testdata/x.txt"+test.want) {
			t.Errorf("script %q: got error %v, want store/testdata/x.txt%s", test.script, err, test.want)
		}
	}
}

// A store that does anything else than a script says is found out.
func TestGoldenFindsOutALiar(t *testing.T) {
	const script = `
setup running
  namespace retention=1h max-attempt=2m
  claim a fp=1:x
  -> granted fence=+0s number=1 granted=+0s lease-end=+30s remaining=30s
  record IN_PROGRESS fence=+0s number=1 fp=1:x granted=+0s lease-end=+30s limit=+2m expires=+1h30s policy=TAKEOVER retention=1h
story s
  claim z fp=1:y
  -> FINGERPRINT_MISMATCH
story other-key
  claim z fp=1:y id=order-2
  -> granted fence=+0s number=1 granted=+0s lease-end=+30s remaining=30s
  record IN_PROGRESS fence=+0s number=1 fp=1:y granted=+0s lease-end=+30s limit=+2m expires=+1h30s policy=TAKEOVER retention=1h
`
	ctx := t.Context()
	for _, test := range []struct {
		name  string
		story string
		lie   func(inner store.Backend, req store.ClaimRequest) (store.ClaimAnswer, error)
		want  string // empty: an honest store
	}{
		{"honest", "s", func(inner store.Backend, req store.ClaimRequest) (store.ClaimAnswer, error) {
			return inner.Claim(ctx, req)
		}, ""},
		{"honest about another key", "other-key", func(inner store.Backend, req store.ClaimRequest) (store.ClaimAnswer, error) {
			return inner.Claim(ctx, req)
		}, ""},
		{"another reason", "s", func(store.Backend, store.ClaimRequest) (store.ClaimAnswer, error) {
			return store.ClaimAnswer{}, store.Refuse(store.ErrStaleAttempt, "")
		}, "- -> FINGERPRINT_MISMATCH\n+ -> STALE_ATTEMPT\n"},
		{"a bare sentinel", "s", func(store.Backend, store.ClaimRequest) (store.ClaimAnswer, error) {
			return store.ClaimAnswer{}, store.ErrFingerprintMismatch
		}, "+ -> error of no reason"},
		{"an answer", "s", func(store.Backend, store.ClaimRequest) (store.ClaimAnswer, error) {
			return store.ClaimAnswer{InProgress: &store.InProgress{}}, nil
		}, "+ -> in-progress"},
		{"a longer lease", "s", func(inner store.Backend, req store.ClaimRequest) (store.ClaimAnswer, error) {
			renew := store.RenewRequest{Key: req.Key, AttemptID: "a", Fence: Start.UnixMicro(), Lease: time.Minute}
			if _, err := inner.Renew(ctx, renew); err != nil {
				t.Fatal(err)
			}
			return inner.Claim(ctx, req)
		}, "+ record as before: IN_PROGRESS fence=+0s number=1 fp=1:x granted=+0s lease-end=+1m "},
		{"an event", "s", func(inner store.Backend, req store.ClaimRequest) (store.ClaimAnswer, error) {
			late := store.CompleteRequest{Key: req.Key, AttemptID: "z", Fence: 1, Outcome: &store.Outcome{}}
			if _, err := inner.Complete(ctx, late); err == nil {
				t.Fatal("completed with a wrong fence")
			}
			return inner.Claim(ctx, req)
		}, "+ event late-outcome"},
		{"a touched bystander", "other-key", func(inner store.Backend, req store.ClaimRequest) (store.ClaimAnswer, error) {
			release := store.ReleaseRequest{Key: req.Key, AttemptID: "a", Fence: Start.UnixMicro(), Effect: store.EffectNone}
			release.Key.ID = "order-1"
			if _, err := inner.Release(ctx, release); err != nil {
				t.Fatal(err)
			}
			return inner.Claim(ctx, req)
		}, "+ key of the case as before: RELEASED"},
	} {
		t.Run(test.name, func(t *testing.T) {
			set, err := loadGolden(fstest.MapFS{"x.txt": {Data: []byte(script)}})
			if err != nil {
				t.Fatal(err)
			}
			inst := MemoryFactory(t)
			run := newGoldenRun(t, set, inst, 0)
			run.steps(set.setups["running"])
			inst.Backend = liar{inst.Backend, test.lie}
			block := storyOf(set, test.story).blocks[0]
			diff := run.compare(block.cases[0].commands[0], block.expect)
			if test.want == "" && diff != "" || !strings.Contains(diff, test.want) {
				t.Errorf("got the difference\n%swant %q in it", diff, test.want)
			}
		})
	}
}

// liar is a store with another Claim.
type liar struct {
	store.Backend
	claim func(store.Backend, store.ClaimRequest) (store.ClaimAnswer, error)
}

func (l liar) Claim(_ context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	return l.claim(l.Backend, req)
}

func storyOf(set *goldenSet, name string) *goldenSection {
	for _, file := range set.files {
		for _, section := range file.sections {
			if section.kind == goldenStory && section.name == name {
				return section
			}
		}
	}
	return nil
}

func TestDurationText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Microsecond: "0.000001s", 10 * time.Second: "10s", time.Minute: "1m", time.Hour: "1h",
		90 * time.Second: "1m30s", 24*time.Hour + 30*time.Second: "24h30s", -time.Second: "-1s",
		2*time.Minute + time.Microsecond: "2m0.000001s", 30*time.Second - time.Microsecond: "29.999999s",
	} {
		if got := durationText(d); got != want {
			t.Errorf("durationText(%d) = %q, want %q", d, got, want)
		}
		if parsed := parsedDuration(want); parsed != d {
			t.Errorf("%q is read as %v, want %v", want, parsed, d)
		}
	}
}

// FuzzGoldenParse: no script crashes the parser, and what it has read it prints and reads
// back the same.
func FuzzGoldenParse(f *testing.F) {
	set, err := loadGolden(testdata.Golden)
	if err != nil {
		f.Fatal(err)
	}
	for _, setup := range set.setups { // small ones: the fuzzer shrinks what is interesting
		f.Add((&goldenFile{sections: []*goldenSection{setup}}).print())
	}
	f.Add("condition c\ncase a: at now-1s; claim \"x\"*3 fp=1:; lookup fp=- \\\n id=\"a;b\"\n-> x  y\nrecord r\nevent e")
	f.Add("outcome o status=\"\\x00é\" header=a:b header=a:c omitted body-bytes=7\n# comment\n")
	f.Fuzz(checkReadBack)
}

func TestGoldenScriptsReadBack(t *testing.T) {
	names, err := fs.Glob(testdata.Golden, "*.txt")
	if err != nil || len(names) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(testdata.Golden, name)
		if err != nil {
			t.Fatal(err)
		}
		checkReadBack(t, string(text))
	}
}

func checkReadBack(t *testing.T, text string) {
	file, err := parseGolden("x.txt", text)
	if err != nil {
		return
	}
	printed := file.print()
	again, err := parseGolden("x.txt", printed)
	if err != nil {
		t.Fatalf("what was printed cannot be read: %v\n%s", err, printed)
	}
	forgetPositions(file)
	forgetPositions(again)
	if !reflect.DeepEqual(file, again) {
		t.Fatalf("what was printed is read as something else: printed\n%s\nand then\n%s", printed, again.print())
	}
}

func forgetPositions(file *goldenFile) {
	for _, section := range file.sections {
		section.pos = goldenPos{}
		for _, block := range section.blocks {
			for i := range block.cases {
				block.cases[i].pos = goldenPos{}
				for j := range block.cases[i].commands {
					block.cases[i].commands[j].pos = goldenPos{}
				}
			}
			if block.expect != nil {
				block.expect.pos = goldenPos{}
			}
		}
	}
}
