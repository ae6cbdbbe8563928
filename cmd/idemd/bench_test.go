package main

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/idemd/idemd/cmd/idemd/internal/bench"
)

// benchArgs measure as little as there is to measure.
func benchArgs(dir string, more ...string) []string {
	return append([]string{"bench", "--dir=" + dir, "--concurrency=2,5", "--duration=5ms", "--rounds=2"}, more...)
}

func TestBench(t *testing.T) {
	dir := t.TempDir()
	r := run(t, benchArgs(dir, "--output=json")...)
	if r.code != exitOK {
		t.Fatalf("exit code %d\n%s", r.code, r.stderr)
	}
	var report benchReport
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("%v in %s", err, r.stdout)
	}
	if len(report.Lone) != 8 || len(report.Rows) != 2*2*len(bench.OpNames) || report.SyncP50 <= 0 {
		t.Fatalf("report: %+v", report)
	}
	calls := map[string]int{"bare": 1, "claim": 1, "pair": 2, "replay": 1, "wait": 3, "client-claim": 1, "client-pair": 2, "client-replay": 1, "bare-sync": 1, "guarded": 2, "guarded-replay": 1, "forwarded": 1}
	for i, row := range report.Rows {
		op, callers := bench.OpNames[i/4], []int{2, 5}[i/2%2]
		if i%2 == 0 && (row.Op != "bare" || row.Of != op || row.RatioToBare != 1) || i%2 == 1 && row.Op != op {
			t.Errorf("row %d: %+v, want %s", i, row, op)
		}
		if row.Callers != callers || row.Calls != calls[row.Op] || row.PerSecond <= 0 || row.P50 <= 0 || row.P99 < row.P50 || row.RatioToBare <= 0 {
			t.Errorf("row %d: %+v", i, row)
		}
		if writes := slices.Contains([]string{"claim", "pair", "wait", "guarded"}, row.Op); writes && row.OpsPerSync < 1 {
			t.Errorf("row %d: %.1f operations per sync", i, row.OpsPerSync)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestBenchJSON is about names that programs read.
func TestBenchJSON(t *testing.T) {
	r := run(t, benchArgs(t.TempDir(), "--ops=pair", "--output=json")...)
	var report struct {
		Rows []map[string]any `json:"rows"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || len(report.Rows) != 4 {
		t.Fatalf("%v in %s%s", err, r.stdout, r.stderr)
	}
	for i, op := range []string{"bare", "pair"} {
		row := report.Rows[i]
		if row["op"] != op || row["callers"] != 2.0 {
			t.Errorf("row %d: %v", i, row)
		}
		for _, name := range []string{"per_second", "p50_us", "p99_us", "ratio_to_bare"} {
			if n, ok := row[name].(float64); !ok || n <= 0 {
				t.Errorf("row %d: %s is %v", i, name, row[name])
			}
		}
	}
}

func TestBenchText(t *testing.T) {
	r := run(t, benchArgs(t.TempDir(), "--ops=pair")...)
	for _, want := range []string{"OP ", "bare (pair) ", "pair ", "lone claim by a call: p50 ", "lone claim by the Go client: p50 ", "bare server that syncs once: p50 "} {
		if r.code != exitOK || !strings.Contains(r.stdout, want) {
			t.Errorf("exit code %d, no %q in\n%s%s", r.code, want, r.stdout, r.stderr)
		}
	}
}

// TestBenchForwarded checks that it says what a detour costs.
func TestBenchForwarded(t *testing.T) {
	r := run(t, benchArgs(t.TempDir(), "--ops=forwarded")...)
	for _, want := range []string{"bare (forwarded) ", "\nforwarded ", "lone forwarded replay: p50 "} {
		if r.code != exitOK || !strings.Contains(r.stdout, want) {
			t.Errorf("exit code %d, no %q in\n%s%s", r.code, want, r.stdout, r.stderr)
		}
	}
}

// TestBenchInterrupted checks that what was measured is not lost.
func TestBenchInterrupted(t *testing.T) {
	exe, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, output := range []string{"text", "json"} {
		ctx, cancel := context.WithCancel(t.Context())
		var stdout, stderr strings.Builder
		progress := writerFunc(func(text []byte) (int, error) {
			if strings.Contains(string(text), "5 of 5") {
				cancel()
			}
			return stderr.Write(text)
		})
		p := program{name: "idemd", exe: exe, exit: exitUnexpectedly(t)}
		code := p.Run(ctx, benchArgs(t.TempDir(), "--ops=pair", "--output="+output), strings.NewReader(""), &stdout, progress)
		if code != exitFailed || !strings.HasPrefix(stderr.String(), "this takes about 0 s\nmeasuring 1 of 5: ") || !strings.HasSuffix(stderr.String(), "\nidemd: interrupted: what was measured until then is shown\n") {
			t.Errorf("%s: exit code %d, %s", output, code, stderr.String())
		}
		for _, want := range map[string][]string{
			"text": {"OP ", "\nclaim ", "\nbare (pair) ", "\npair ", "lone claim by a call: p50 ", "lone claim by the Go client: p50 ", "bare server that syncs once: p50 "},
			"json": {`"lone_claim":[{`},
		}[output] {
			if !strings.Contains(stdout.String(), want) {
				t.Errorf("%s: no %q in\n%s", output, want, stdout.String())
			}
		}
		cancel()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }

func TestBenchOfNoServer(t *testing.T) {
	addr := freeAddr(t)
	r := run(t, benchArgs(t.TempDir(), "--addr="+addr)...)
	_, line, _ := strings.Cut(r.stderr, "1 of 24: claim, 1 callers\n") // after the progress
	if r.code != exitNoAnswer || strings.Count(line, addr) != 1 || strings.Count(line, "\n") != 1 || strings.Contains(line, "code =") {
		t.Errorf("exit code %d, %q", r.code, r.stderr)
	}
}

func TestBenchOfARunningServer(t *testing.T) {
	s := serve(t, t.TempDir())
	r := run(t, benchArgs(t.TempDir(), "--ops=claim,guarded,guarded-replay", "--addr="+s.addr)...)
	if r.code != exitOK || !strings.Contains(r.stdout, "target: "+s.addr) {
		t.Fatalf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if list := s.run(t, "record", "list").ok(t); !strings.Contains(list, " bench ") || !strings.Contains(list, "/idemd.v1.IdempotencyService/Claim") {
		t.Errorf("no keys of the benchmark on the server:\n%s", list)
	}
}
