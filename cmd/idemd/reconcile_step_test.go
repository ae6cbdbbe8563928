package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/client/key"
	"github.com/idemd/idemd/store"
)

// TestReconcileStep compares the export of a provider that was given attempt.DownstreamKey, and runs
// what is told to run of an effect that its record denies.
func TestReconcileStep(t *testing.T) {
	s := serve(t, t.TempDir())
	of := func(id string) []string { return []string{"--scope=charge", "--entity=acme", "--id=" + id} }
	for id, end := range map[string][]string{
		"paid":      {"complete", "--outcome=charged"},
		"declined":  {"complete", "--code=FAILED_PRECONDITION", "--message=declined"},
		"who knows": {"release", "--effect=unknown"},
	} {
		s.run(t, append([]string{"claim", "--attempt=one"}, of(id)...)...).ok(t)
		s.run(t, append(append(end[:1:1], of(id)...), append(end[1:], "--attempt=one")...)...).ok(t)
	}
	at := time.Now().Format(time.RFC3339Nano)
	ledger := filepath.Join(t.TempDir(), "provider.csv")
	text := "effect,key,time,intent\n"
	for i, id := range []string{"paid", "declined", "who knows"} {
		derived := key.Downstream(store.Key{Namespace: "default", Scope: "charge", ID: id, Entity: "acme"}, "charge")
		text += fmt.Sprintf("ch_%d,%s,%s,order-%d\n", i+1, derived, at, i/2)
	}
	if err := os.WriteFile(ledger, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	metrics := filepath.Join(t.TempDir(), "idemd.prom")
	args := []string{"reconcile", "--effects=" + ledger, "--since=" + time.Now().Add(-time.Minute).Format(time.RFC3339), "--until=" + time.Now().Add(time.Minute).Format(time.RFC3339)}
	got := s.run(t, append(args, "--step=charge", "--metrics-file="+metrics)...)
	if got.code != exitFindings || got.stderr != "" {
		t.Errorf("exit code %d\n%s", got.code, got.stderr)
	}
	for _, part := range []string{
		"effect of failed key\n  record  key declined, scope charge, entity acme, completed, fence ", ", derived from declined, intent order-0\n",
		"look    idemd record inspect --namespace=default --id=declined --scope=charge --entity=acme\n",
		"effect of unsettled key\n  record  key 'who knows', scope charge, entity acme, lapsed, fence ",
		"look    idemd record inspect --namespace=default --id='who knows' --scope=charge --entity=acme\n",
		"settle  idemd record resolve --namespace=default --id='who knows' --scope=charge --entity=acme --fence=",
		"two effects for intent\n", "compared: 3 findings\n",
	} {
		if !strings.Contains(got.stdout, part) {
			t.Errorf("it does not say %q:\n%s", part, got.stdout)
		}
	}
	written, err := os.ReadFile(metrics)
	for _, kind := range []string{"effect_of_failed_key", "effect_of_unsettled_key"} {
		line := fmt.Sprintf("idemd_reconcile_findings{finding=%q,namespace=\"default\"} 1\n", kind)
		if err != nil || !strings.Contains(string(written), line) {
			t.Errorf("the metrics lack %s: %v\n%s", line, err, written)
		}
	}

	for step, want := range map[string]string{"--step=": "say of which --step", "--step=charges": "the step charges"} {
		if hint := s.run(t, append(args, step)...); hint.code != exitFindings || !strings.Contains(hint.stderr, want) {
			t.Errorf("%s: exit code %d\n%s", step, hint.code, hint.stderr)
		}
	}

	_, fence, _ := strings.Cut(got.stdout, "--fence=")
	fence, _, _ = strings.Cut(fence, " ")
	s.run(t, append([]string{"record", "resolve", "--fence=" + fence, "--reason=paid", "--outcome=charged"}, of("who knows")...)...).ok(t)
	if settled := s.run(t, append(args, "--step=charge")...); !strings.Contains(settled.stdout, "compared: 2 findings\n") {
		t.Error(settled.stdout)
	}
}
