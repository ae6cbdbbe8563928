package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// remote runs a subcommand against a server that the test started.
func (s *served) run(t *testing.T, args ...string) result {
	t.Helper()
	return run(t, append(args, "--addr="+s.addr)...)
}

// json runs a subcommand with -o json and reads the response back.
func (s *served) json(t *testing.T, into proto.Message, args ...string) {
	t.Helper()
	out := s.run(t, append(args, "-o", "json")...).ok(t)
	if err := protojson.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("%v: %v in %q", args, err, out)
	}
	if strings.Count(out, "\n") != 1 || !strings.HasSuffix(out, "\n") {
		t.Errorf("%v: %q is not one line", args, out)
	}
}

func TestClaimAndComplete(t *testing.T) {
	s := serve(t, t.TempDir())

	granted := s.run(t, "claim", "--id=order 1", "--scope=/pay.v1/Charge", "--entity=it's", "--attempt=try-1").ok(t)
	if !strings.HasPrefix(granted, "granted: act now\n") {
		t.Fatalf("first claim:\n%s", granted)
	}
	inProgress := s.run(t, "claim", "--id=order 1", "--scope=/pay.v1/Charge", "--entity=it's").ok(t)
	if !strings.HasPrefix(inProgress, "in progress:") {
		t.Fatalf("second claim:\n%s", inProgress)
	}

	// The commands that the grant shows can be pasted into a shell.
	next := regexp.MustCompile(`(?m)^  idemd (renew|complete) .*$`).FindAllString(granted, -1)
	if len(next) != 2 {
		t.Fatalf("a complete and a renew command expected in:\n%s", granted)
	}
	run(t, words(t, next[1])...).ok(t)
	run(t, words(t, next[0])...).ok(t)

	var again idemdv1.ClaimResponse
	s.json(t, &again, "claim", "--id=order 1", "--scope=/pay.v1/Charge", "--entity=it's")
	if body := again.GetCompleted().GetOutcome().GetBody(); string(body) != "what happened" {
		t.Errorf("claim after complete: %v", &again)
	}
}

// words splits a printed command as a shell does, and leaves the program's name out.
func words(t *testing.T, command string) []string {
	t.Helper()
	sh := startShell(t)
	out := sh.run(t, `for word in `+command+`; do printf '%s\n' "$word"; done`, "")
	return strings.Split(strings.TrimSuffix(out, "\n"), "\n")[1:]
}

func TestClaimDrawsAnAttempt(t *testing.T) {
	s := serve(t, t.TempDir())
	r := s.run(t, "claim", "--id=a", "-o", "json")
	attempt, found := strings.CutPrefix(strings.TrimSpace(r.stderr), "attempt ")
	if r.code != exitOK || !found || len(attempt) != 32 {
		t.Fatalf("exit code %d, standard error %q; want the attempt id of 128 bits", r.code, r.stderr)
	}
	s.run(t, "complete", "--id=a", "--attempt="+attempt, "--outcome=").ok(t)

	one := s.run(t, "claim", "--id=b").ok(t)
	two := s.run(t, "claim", "--id=c").ok(t)
	id := regexp.MustCompile(`attempt +([0-9a-f]{32})\n`)
	if a, b := id.FindStringSubmatch(one), id.FindStringSubmatch(two); a == nil || b == nil || a[1] == b[1] {
		t.Errorf("two claims drew %v and %v; want two different attempts", a, b)
	}
}

// TestGranted checks that a script which acts if the exit code is 0 acts once, and never
// unchecked.
func TestGranted(t *testing.T) {
	s := serve(t, t.TempDir())
	claim := func(id, attempt string, code int, heading string) {
		t.Helper()
		r := s.run(t, "claim", "--granted", "--id="+id, "--attempt="+attempt)
		if r.code != code || r.stderr != "" || !strings.HasPrefix(r.stdout, heading) {
			t.Errorf("exit code %d, want %d and %q\n%s%s", r.code, code, heading, r.stdout, r.stderr)
		}
	}
	claim("a", "one", exitOK, "granted: ")
	claim("a", "one", exitOK, "granted: ")
	claim("a", "two", exitNotGranted, "in progress: ")
	s.run(t, "complete", "--id=a", "--attempt=one", "--outcome=").ok(t)
	claim("a", "two", exitNotGranted, "completed: ")

	claim("b", "one", exitOK, "granted: ")
	s.run(t, "release", "--id=b", "--attempt=one", "--effect=unknown").ok(t)
	claim("b", "two", exitUnsettled, "granted, unsettled: ")

	s.run(t, "claim", "--granted", "--hold", "--id=c", "--attempt=one").ok(t)
	s.run(t, "release", "--id=c", "--attempt=one", "--effect=unknown").ok(t)
	claim("c", "two", exitNotGranted, "unresolved: ")

	s.run(t, "claim", "--granted", "--id=a", "--attempt=two", "--namespace=none-such").fails(t, exitFailed, "NAMESPACE_UNKNOWN")
	if r := s.run(t, "claim", "--granted", "--id=a", "-o", "json"); r.code != exitNotGranted || !json.Valid([]byte(r.stdout)) {
		t.Errorf("json: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

func TestClaimSendsAllFlags(t *testing.T) {
	s := serve(t, t.TempDir())
	intent := time.Now().UTC().Add(-time.Hour).Truncate(time.Second)
	var resp idemdv1.ClaimResponse
	s.json(t, &resp, "claim", "--id=a", "--attempt=hex:00ff", "--fingerprint=hex:0102", "--fingerprint-version=3",
		"--lease=2m", "--hold", "--intent-time="+intent.Format(time.RFC3339))
	if got := resp.GetGranted().GetLeaseRemaining().AsDuration(); got != 2*time.Minute {
		t.Errorf("lease: got %v, want 2m", got)
	}
	var record idemdv1.InspectRecordResponse
	s.json(t, &record, "record", "inspect", "--id=a")
	r := record.GetRecord()
	if f := r.GetFingerprint(); f.GetVersion() != 3 || string(f.GetDigest()) != "\x01\x02" {
		t.Errorf("fingerprint: got %v", f)
	}
	if r.GetLapsePolicy() != idemdv1.LapsePolicy_LAPSE_POLICY_HOLD {
		t.Errorf("lapse policy: got %v, want HOLD", r.GetLapsePolicy())
	}
	old := time.Now().UTC().Add(-48 * time.Hour).Format(time.RFC3339)
	s.run(t, "claim", "--id=b", "--intent-time="+old).fails(t, exitFailed, "KEY_EXPIRED: ")
}

func TestClaimWaits(t *testing.T) {
	s := serve(t, t.TempDir())
	s.run(t, "claim", "--id=a", "--attempt=holder").ok(t)
	waited := make(chan result)
	go func() { waited <- s.run(t, "claim", "--id=a", "--wait=1m") }()
	s.run(t, "complete", "--id=a", "--attempt=holder", "--outcome=done").ok(t)
	if out := (<-waited).ok(t); !strings.HasPrefix(out, "completed:") {
		t.Errorf("waiting claim:\n%s", out)
	}
}

func TestOutcomes(t *testing.T) {
	s := serve(t, t.TempDir())
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file, []byte("from\x00a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args                    []string
		status, body, kind, out string
	}{
		"nothing":   {[]string{"--outcome="}, "", "", "", "OK"},
		"terminal":  {[]string{"--code=5", "--message=\x1b[2J"}, "\x08\x05\x12\x04\x1b[2J", "", "", `NOT_FOUND: "\x1b[2J"`},
		"bad type":  {[]string{"--outcome=x", "--type=a\x1b[2J"}, "", "x", "a\x1b[2J", `type          "a\x1b[2J"`},
		"text":      {[]string{"--outcome=héllo"}, "", "héllo", "text/plain", "héllo"},
		"type":      {[]string{"--outcome={}", "--type=application/json"}, "", "{}", "application/json", "application/json"},
		"file":      {[]string{"--outcome=@" + file}, "", "from\x00a file", "application/octet-stream", "11 bytes, sha256 "},
		"stdin":     {[]string{"--outcome=-"}, "", "from stdin", "application/octet-stream", "from stdin"},
		"code":      {[]string{"--code=not_found", "--message=no such order"}, "\x08\x05\x12\x0dno such order", "", "", "NOT_FOUND: no such order"},
		"with body": {[]string{"--code=9", "--outcome=x"}, "\x08\x09", "x", "text/plain", "FAILED_PRECONDITION"},
	} {
		t.Run(name, func(t *testing.T) {
			s.run(t, "claim", "--id="+name, "--attempt=a").ok(t)
			args := append([]string{"complete", "--addr=" + s.addr, "--id=" + name, "--attempt=a"}, test.args...)
			runWith(t, "from stdin", args...).ok(t)
			if out := s.run(t, "claim", "--id="+name).ok(t); !strings.Contains(out, test.out) {
				t.Errorf("claim does not show %q:\n%s", test.out, out)
			}
			var resp idemdv1.LookupResponse
			s.json(t, &resp, "lookup", "--id="+name)
			o := resp.GetOutcome()
			if string(o.GetStatus()) != test.status || string(o.GetBody()) != test.body || o.GetBodyType() != test.kind {
				t.Errorf("stored: %q", o)
			}
		})
	}
}

func TestOutcomesThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, make([]byte, store.MaxOutcomeBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	largest := filepath.Join(dir, "largest")
	if err := os.WriteFile(largest, make([]byte, store.MaxOutcomeBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	complete := []string{"complete", "--addr=127.0.0.1:1", "--id=a", "--attempt=a"}
	for want, args := range map[string][]string{
		"no such file":         {"--outcome=@" + filepath.Join(dir, "missing")},
		"is a directory":       {"--outcome=@" + dir},
		"larger than the 2621": {"--outcome=@" + large},
		"has 262168 bytes":     {"--outcome=@" + largest}, // without its type it would do
		"a file after the @":   {"--outcome=@"},
		"leave --outcome out":  {"--outcome=x", "--body-omitted"},
		"gRPC status code":     {"--code=BAD"},
		"goes with a --code":   {"--message=ok", "--outcome="},
		"--outcome ''":         {"--type=text/plain"},
	} {
		run(t, append(complete, args...)...).fails(t, exitUsage, want)
	}
}

// TestReleaseOfATakeover checks that "nothing happened" of one attempt is not shown as
// if nothing had happened at all.
func TestReleaseOfATakeover(t *testing.T) {
	s := serve(t, t.TempDir())
	var first idemdv1.ClaimResponse
	s.json(t, &first, "claim", "--id=a", "--attempt=one")
	since := regexp.MustCompile(`(?m)^  unsettled since +` + regexp.QuoteMeta(formatTime(first.GetGranted().GetGrantedAt())) + `$`)
	s.run(t, "release", "--id=a", "--attempt=one", "--effect=unknown").ok(t)
	if out := s.run(t, "record", "inspect", "--id=a").ok(t); strings.Contains(out, "unsettled since") {
		t.Errorf("inspect of what has no attempt before:\n%s", out)
	}
	if out := s.run(t, "claim", "--id=a", "--attempt=two").ok(t); !strings.Contains(out, "leaves the key unsettled") || !since.MatchString(out) {
		t.Errorf("claim after a lapse:\n%s", out)
	}
	if out := s.run(t, "release", "--id=a", "--attempt=two", "--effect=none").ok(t); !strings.Contains(out, "an earlier one may have acted") {
		t.Errorf("release:\n%s", out)
	}
	if out := s.run(t, "record", "inspect", "--id=a").ok(t); !since.MatchString(out) {
		t.Errorf("inspect:\n%s", out)
	}
}

func TestUnsettledSinceText(t *testing.T) {
	for _, test := range []struct {
		g    *idemdv1.Granted
		want string
	}{
		{&idemdv1.Granted{UnsettledSince: timestamppb.New(store.LongAgo)}, ""},
		{&idemdv1.Granted{Unsettled: true}, "not known: an earlier release did not keep it"},
		{&idemdv1.Granted{Unsettled: true, UnsettledSince: timestamppb.New(store.LongAgo)}, "not known: an earlier release did not keep it"},
		{&idemdv1.Granted{Unsettled: true, UnsettledSince: timestamppb.New(time.UnixMicro(1_700_000_000_000_001))}, "2023-11-14T22:13:20.000001Z"},
	} {
		var p page
		var out strings.Builder
		p.unsettledSince(test.g)
		err := p.print(&out)
		if got := strings.TrimSpace(strings.TrimPrefix(out.String(), "  unsettled since")); err != nil || got != test.want {
			t.Errorf("%v: %q, %v; want %q", test.g, got, err, test.want)
		}
	}
}

// TestHintsOfOddValues checks that commands which are shown for values that look like
// flags work.
func TestHintsOfOddValues(t *testing.T) {
	s := serve(t, t.TempDir())
	granted := s.run(t, "claim", "--id=-x", "--scope=--y", "--entity=-it's", "--attempt=-1").ok(t)
	next := regexp.MustCompile(`(?m)^  idemd (complete) .*$`).FindString(granted)
	run(t, words(t, strings.TrimSpace(next))...).ok(t)
}

func TestOutcomeTooLargeForTheNamespace(t *testing.T) {
	s := serve(t, t.TempDir())
	s.run(t, "namespace", "create", "small", "--max-outcome-bytes=1024").ok(t)
	s.run(t, "claim", "--namespace=small", "--id=a", "--attempt=one").ok(t)
	s.run(t, "complete", "--namespace=small", "--id=a", "--attempt=one", "--outcome="+strings.Repeat("x", 1025)).
		fails(t, exitFailed, "OUTCOME_TOO_LARGE: ", "--max-outcome-bytes", "--body-omitted")
	s.run(t, "complete", "--namespace=small", "--id=a", "--attempt=one", "--body-omitted").ok(t)
	if out := s.run(t, "claim", "--namespace=small", "--id=a").ok(t); !strings.Contains(out, "not stored: it was too large") {
		t.Errorf("claim does not say that the body is omitted:\n%s", out)
	}
}

func TestRenewReleaseLookup(t *testing.T) {
	s := serve(t, t.TempDir())
	var claim idemdv1.ClaimResponse
	s.json(t, &claim, "claim", "--id=a", "--attempt=one")
	fence := strconv.FormatInt(claim.GetGranted().GetFence(), 10)

	renewed := s.run(t, "renew", "--id=a", "--attempt=one", "--fence="+fence, "--lease=10m").ok(t)
	if !regexp.MustCompile(`^renewed: go on\n  lease ends  .* \(in 10m0s\)\n$`).MatchString(renewed) {
		t.Errorf("renew:\n%s", renewed)
	}
	s.run(t, "renew", "--id=a", "--attempt=one", "--fence=7").fails(t, exitFailed, "STALE_FENCE: ")
	s.run(t, "renew", "--id=a", "--attempt=two").fails(t, exitFailed, "STALE_FENCE: ")
	if out := s.run(t, "lookup", "--id=a").ok(t); !strings.HasPrefix(out, "in progress:") || !strings.Contains(out, fence) {
		t.Errorf("lookup:\n%s", out)
	}
	if out := s.run(t, "release", "--id=a", "--attempt=one", "--effect=none").ok(t); !strings.HasPrefix(out, "released:") {
		t.Errorf("release:\n%s", out)
	}
	s.run(t, "claim", "--id=a", "--attempt=one").fails(t, exitFailed, "STALE_ATTEMPT: ")
	s.run(t, "claim", "--id=a", "--attempt=two").ok(t)
	if out := s.run(t, "release", "--id=a", "--attempt=two", "--effect=unknown").ok(t); !strings.HasPrefix(out, "lapsed:") {
		t.Errorf("release:\n%s", out)
	}
	if out := s.run(t, "lookup", "--id=a").ok(t); !strings.HasPrefix(out, "lapsed:") || !strings.Contains(out, "unsettled") {
		t.Errorf("lookup:\n%s", out)
	}
	if out := s.run(t, "claim", "--id=a", "--attempt=three").ok(t); !strings.HasPrefix(out, "granted, unsettled:") {
		t.Errorf("claim after a lapse:\n%s", out)
	}
}

func TestFingerprints(t *testing.T) {
	s := serve(t, t.TempDir())
	s.run(t, "claim", "--id=a", "--attempt=one", "--fingerprint=request").ok(t)
	s.run(t, "complete", "--id=a", "--attempt=one", "--outcome=secret").ok(t)
	s.run(t, "claim", "--id=a", "--fingerprint=other").fails(t, exitFailed, "FINGERPRINT_MISMATCH: ")
	if out := s.run(t, "lookup", "--id=a", "--fingerprint=request").ok(t); !strings.Contains(out, "secret") {
		t.Errorf("lookup with the fingerprint:\n%s", out)
	}
	out := s.run(t, "lookup", "--id=a").ok(t)
	if strings.Contains(out, "secret") || !strings.Contains(out, "withheld") {
		t.Errorf("lookup without the fingerprint:\n%s", out)
	}
}

func TestRefusals(t *testing.T) {
	s := serve(t, t.TempDir())
	s.run(t, "lookup", "--id=never").fails(t, exitFailed, "KEY_NOT_FOUND: ")
	s.run(t, "lookup", "--id=").fails(t, exitFailed, "KEY_REQUIRED: ")
	s.run(t, "lookup", "--id=a", "--namespace=none-such").fails(t, exitFailed, "NAMESPACE_UNKNOWN: ")
	s.run(t, "claim", "--id=a", "--lease=1ms").fails(t, exitFailed, "INVALID_ARGUMENT: ")
	s.run(t, "complete", "--id=never", "--attempt=a", "--outcome=").fails(t, exitFailed, "KEY_NOT_FOUND: ")
}

func TestUsageErrors(t *testing.T) {
	for want, args := range map[string][]string{
		"expected one of":          {},
		"unexpected argument":      {"explode"},
		"unknown flag --colour":    {"serve", "--colour=red"},
		"missing flags: --id":      {"claim"},
		"missing flags: --eff":     {"release", "--id=a", "--attempt=a"},
		"hexadecimal digits":       {"claim", "--id=a", "--attempt=hex:0"},
		"RFC 3339":                 {"claim", "--id=a", "--intent-time=yesterday"},
		"a time that they do not":  {"claim", "--id=a", "--intent-time=0001-01-01T01:00:00+01:00"},
		"--recovery-floor: \"0001": {"namespace", "set", "default", "--recovery-floor=0001-01-01T00:00:00Z"},
		"--from: \"0001-01-01T00":  {"recovery", "begin", "--from=0001-01-01T00:00:00Z", "--reason=r"},
		"--message goes with a":    {"complete", "--id=a", "--attempt=a", "--code=0", "--message=hi"},
		"--lease":                  {"claim", "--id=a", "--lease=long"},
		"--lease: \"0s\"":          {"claim", "--id=a", "--lease=0s"},
		"see idemd claim --help":   {"claim"},
		"--wait: a value is exp":   {"claim", "--id=a", "--wait", "-1s"},
		"the command line ends":    {"claim", "--id"},
		"1 to 64 bytes":            {"claim", "--id=a", "--attempt="},
		"has 1 to 64 bytes":        {"renew", "--id=a", "--attempt=hex:"},
		"a fence is positive":      {"renew", "--id=a", "--attempt=a", "--fence=0"},
		"--timeout: \"0\"":         {"lookup", "--id=a", "--timeout=0"},
		"give a setting":           {"namespace", "set", "default"},
		"--state in-progress":      {"record", "list", "--state=completed", "--lapsed"},
		"from 0 to 262120":         {"bench", "--outcome-bytes=262144"},
		`argument 3, "--id=\xff"`:  {"claim", "--scope=a", "--id=\xff"},
		`\x1b`:                     {"claim", "\x1b[2J"},
		"--addr \"127.0.0.1:x\"":   {"lookup", "--id=a", "--addr=127.0.0.1:x"},
		"not a directory":          {"serve", "--data-dir=keys_test.go"},
		"--data-dir is empty":      {"serve", "--data-dir="},
		`must be one of "text",`:   {"lookup", "--id=a", "--output=xml"},
		"idemd recovery lift":      {"namespace", "create", "a", "--recovery-floor=none"},
		"--nothing-happened":       {"record", "resolve", "--id=a", "--any-fence", "--reason=r"},
		`there is no "fly"`:        {"bench", "--ops=fly"},
		"must be positive":         {"bench", "--rounds=0"},
		"allow-insecure":           {"lookup", "--id=a", "--addr=192.0.2.1:7600"},
		"host:port":                {"lookup", "--id=a", "--addr=localhost"},
	} {
		run(t, args...).fails(t, exitUsage, want)
	}
}

func TestFlagsFromEnvironment(t *testing.T) {
	s := serve(t, t.TempDir())
	t.Setenv("IDEMD_ADDR", s.addr)
	t.Setenv("IDEMD_SCOPE", "from-env")
	t.Setenv("IDEMD_OUTPUT", "json")
	out := run(t, "claim", "--id=a", "--attempt=one").ok(t)
	if !json.Valid([]byte(out)) {
		t.Fatalf("IDEMD_OUTPUT=json: got %s", out)
	}
	run(t, "lookup", "--id=a", "--scope=from-env").ok(t)
	run(t, "lookup", "--id=a", "--scope=").fails(t, exitFailed, "KEY_NOT_FOUND: ")
	t.Setenv("IDEMD_ENTITY", "\xff")
	run(t, "lookup", "--id=a").fails(t, exitUsage, `variable "IDEMD_ENTITY" is not valid UTF-8`, "hex:")
}

func TestHelpAndVersion(t *testing.T) {
	if out := run(t, "--help").ok(t); !strings.Contains(out, "serve") {
		t.Errorf("help:\n%s", out)
	}
	if out := run(t, "claim", "--help").ok(t); !strings.Contains(out, "$IDEMD_ATTEMPT") {
		t.Errorf("help of claim does not name the variables:\n%s", out)
	}
	for _, args := range [][]string{{"version"}, {"--version"}, {"claim", "--version"}} {
		if out := run(t, args...).ok(t); !regexp.MustCompile(`^idemd .* go1\.`).MatchString(out) {
			t.Errorf("%v: %s", args, out)
		}
	}
}
