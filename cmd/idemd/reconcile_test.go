package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/cmd/idemd/internal/reconcile"
)

// TestReconcile compares a ledger with a running server, and then with its store.
func TestReconcile(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir)
	begin := time.Now().Add(-time.Minute)
	for _, id := range []string{"order-1", "order-2", "order-3"} {
		s.run(t, "claim", "--id="+id, "--scope=charge", "--attempt=one").ok(t)
		s.run(t, "complete", "--id="+id, "--scope=charge", "--attempt=one", "--outcome=charged").ok(t)
	}
	s.run(t, "claim", "--id=elsewhere", "--attempt=one").ok(t)
	s.run(t, "complete", "--id=elsewhere", "--attempt=one", "--outcome=").ok(t)
	at := time.Now().Format(time.RFC3339Nano)
	ledger := filepath.Join(t.TempDir(), "ledger.csv")
	write := func(lines ...string) {
		t.Helper()
		if err := os.WriteFile(ledger, []byte(strings.ReplaceAll(strings.Join(lines, "\n"), "NOW", at)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"reconcile", "--effects=" + ledger, "--scope=charge", "--since=" + begin.Format(time.RFC3339), "--until=" + time.Now().Add(time.Minute).Format(time.RFC3339)}

	write("effect,key,time,intent", "ch_1,order-1,NOW,o1", "ch_2,order-2,NOW,o2", "ch_3,order-3,NOW,o3")
	clean := s.run(t, args...).ok(t)
	if !strings.HasPrefix(clean, "compared: 0 findings\n") || !strings.Contains(clean, " 3: 3 judged, ") {
		t.Errorf("a clean ledger:\n%s", clean)
	}

	write("effect,key,time,intent", "ch_1,order-1,NOW,o1", "ch_2,order-2,NOW,o2", "ch_4,order-2,NOW,o2", "ch_5,unknown,NOW,o1")
	metrics := filepath.Join(t.TempDir(), "idemd.prom")
	want := []string{
		"effect without key\n  line 5  effect ch_5 at ", "key without effect\n  record  key order-3, scope charge, completed, fence ",
		"two effects for key\n  record  key order-2, scope charge, completed, fence ", "two effects for intent\n  line 2  effect ch_1 at ",
		"\n  line 3  effect ch_2 at ", "key order-2, intent o2\n  line 4  effect ch_4 at ", "compared: 4 findings\n",
	}
	check := func(got result) {
		t.Helper()
		if got.code != exitFindings || got.stderr != "" {
			t.Errorf("exit code %d\n%s", got.code, got.stderr)
		}
		for _, part := range want {
			if !strings.Contains(got.stdout, part) {
				t.Errorf("it does not say %q:\n%s", part, got.stdout)
			}
		}
	}
	check(s.run(t, append(args, "--metrics-file="+metrics)...))
	text, err := os.ReadFile(metrics)
	for _, line := range []string{
		`idemd_reconcile_findings{finding="two_effects_for_intent",namespace="default"} 1`,
		`idemd_reconcile_findings{finding="effect_of_released_key",namespace="default"} 0`,
		`idemd_reconcile_effects{namespace="default",verdict="judged"} 4`,
		`idemd_reconcile_records{namespace="default",verdict="judged"} 3`,
	} {
		if err != nil || !strings.Contains(string(text), line+"\n") {
			t.Errorf("the metrics lack %s: %v\n%s", line, err, text)
		}
	}

	var kinds []string
	asJSON := s.run(t, append(args, "--output=json")...)
	for line := range strings.Lines(asJSON.stdout) {
		var f struct {
			reconcile.Finding
			Summary *reconcile.Counts
		}
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, string(f.Kind))
		if f.Summary != nil && (f.Summary.Found() != 4 || f.Summary.Effects != 4) {
			t.Errorf("summary: %s", line)
		}
	}
	if len(kinds) != 5 || kinds[4] != "" || asJSON.code != exitFindings {
		t.Errorf("exit code %d:\n%s", asJSON.code, asJSON.stdout)
	}

	// A line that cannot be used is told, and nothing else is lost.
	write("effect,key,time,intent", "ch_1,order-1,NOW,o1", "ch_2,order-2,soon,o2", "ch_3,order-3,NOW,o3")
	bad := s.run(t, args...)
	if bad.code != exitIncomplete || !strings.HasPrefix(bad.stderr, `line 3: "soon" is not a time`) || !strings.Contains(bad.stdout, "compared: 1 findings") {
		t.Errorf("%+v", bad)
	}
	// A column under another name is told, and so is that what it would say is not compared.
	write("effect,key,intent_id,time", "ch_1,order-1,o1,NOW", "ch_2,order-2,o1,NOW", "ch_3,order-3,o3,NOW")
	misnamed := s.run(t, append(args, "--metrics-file="+metrics)...)
	if misnamed.code != 0 || misnamed.stderr != "idemd: unknown columns are left alone: intent_id; the known ones are key, time, effect, scope, entity, intent\n" ||
		!strings.Contains(misnamed.stdout, "\n  two effects for intent   not compared: no column intent\n") || !strings.Contains(misnamed.stdout, "\n  entity                   not compared: no column entity\n") {
		t.Errorf("%+v", misnamed)
	}
	if text, err = os.ReadFile(metrics); err != nil || strings.Contains(string(text), "two_effects_for_intent") || !strings.Contains(string(text), "two_effects_for_key") {
		t.Errorf("%v: metrics:\n%s", err, text)
	}
	if got := s.run(t, append(args, "--output=json")...); got.code != 0 || !strings.Contains(got.stdout, `"unknown_columns":["intent_id"]`) || !strings.Contains(got.stdout, `"two_effects_for_intent":"no column intent"`) {
		t.Errorf("%+v", got)
	}
	write("key,time", "order-1,NOW", "order-2,NOW", "order-3,NOW")
	if bare := s.run(t, append(args, "--metrics-file="+metrics)...); bare.stderr != "" || !strings.Contains(bare.stdout, ", repeated not compared: no column effect\n") {
		t.Errorf("%+v", bare)
	}
	if text, err = os.ReadFile(metrics); err != nil || strings.Contains(string(text), `"repeated"`) {
		t.Errorf("%v: metrics:\n%s", err, text)
	}
	if line := s.run(t, append(args, "--output=json")...).ok(t); strings.Contains(line, `"effects_repeated":0`) || !strings.Contains(line, `"effects_repeated":"no column effect"`) {
		t.Error(line)
	}
	write("effect,time")
	s.run(t, args...).fails(t, exitIncomplete, `no column "key"`)
	write("key,time")
	s.run(t, "reconcile", "--effects="+ledger).fails(t, exitIncomplete, "--since")
	s.run(t, "reconcile", "--effects="+ledger, "--since="+at, "--until="+begin.Format(time.RFC3339)).fails(t, exitIncomplete, "--until")
	write("key,time", "order-1,NOW")
	s.run(t, "reconcile", "--effects="+ledger, "--since="+time.Now().Add(time.Hour).Format(time.RFC3339)).fails(t, exitIncomplete, "--until")
	nothing := s.run(t, "reconcile", "--effects="+ledger, "--scope=none-such", "--since="+begin.Format(time.RFC3339), "--until="+begin.Format(time.RFC3339))
	if nothing.code != exitIncomplete || !strings.Contains(nothing.stdout, "compared: 0 findings") || !strings.Contains(nothing.stderr, "nothing was judged") {
		t.Errorf("%+v", nothing)
	}
	s.run(t, "reconcile", "--effects=none-such.csv").fails(t, exitIncomplete, "none-such.csv")
	s.run(t, append(args, "--namespace=none-such")...).fails(t, exitIncomplete, "NAMESPACE_UNKNOWN: ")

	s.stop()
	s.run(t, append(args, "--timeout=1s")...).fails(t, exitNoAnswer, "STORE_UNAVAILABLE: ")
	lines := fmt.Sprintf("effect,key,time,intent\nch_1,order-1,%[1]s,o1\nch_2,order-2,%[1]s,o2\nch_4,order-2,%[1]s,o2\nch_5,unknown,%[1]s,o1\n", at)
	args[1] = "--effects=-"
	check(runWith(t, lines, append(args, "--data-dir="+dir)...))
}
