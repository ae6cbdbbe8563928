package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/client/key"
	"github.com/idemd/idemd/cmd/idemd/internal/reconcile"
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
		"look    idemd record inspect --addr " + s.addr + " --scope charge --id declined --entity acme\n",
		"effect of unsettled key\n  record  key 'who knows', scope charge, entity acme, lapsed, fence ",
		"look    idemd record inspect --addr " + s.addr + " --scope charge --id 'who knows' --entity acme\n",
		"settle  idemd record resolve --addr " + s.addr + " --scope charge --id 'who knows' --entity acme --fence ",
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

	_, settle, _ := strings.Cut(got.stdout, "settle  ")
	settle, _, _ = strings.Cut(settle, "\n")
	run(t, words(t, settle)...).ok(t)
	if settled := s.run(t, append(args, "--step=charge")...); !strings.Contains(settled.stdout, "compared: 2 findings\n") {
		t.Error(settled.stdout)
	}
}

// TestReconcileNext has what it tells to run reach the same server, by the same credentials; or one that serves the
// store, which has to be started.
func TestReconcileNext(t *testing.T) {
	finding := reconcile.Finding{Kind: reconcile.EffectOfUnsettledKey, Record: &reconcile.Record{Key: "-1", Scope: "charge", Fence: 7}}
	next := func(c *reconcileCmd) string {
		c.Namespace = "shop"
		var p page
		c.nextText(&session{program: &program{name: "bin/idemd"}}, &p, &finding)
		return p.b.String()
	}
	remote := &reconcileCmd{remoteFlags: remoteFlags{Addr: "idemd.example:7600", credentialFlags: credentialFlags{CA: "ca.crt", TokenFile: "my token"}}}
	const reach = "--addr idemd.example:7600 --ca ca.crt --token-file 'my token' --namespace shop --scope charge --id=-1"
	want := "  look\tbin/idemd record inspect " + reach + "\n" +
		"  settle\tbin/idemd record resolve " + reach + " --fence 7 --outcome 'what happened' --reason WHY\n"
	if got := next(remote); got != want {
		t.Errorf("of a server:\n%s\nwant\n%s", got, want)
	}
	dir := "/var/lib/idemd"
	embedded := &reconcileCmd{remoteFlags: remoteFlags{Addr: defaultAddr}, DataDir: &dir}
	want = "  first\tstart the server on /var/lib/idemd: what follows asks it (--addr says where it listens)\n" +
		"  look\tbin/idemd record inspect --namespace shop --scope charge --id=-1\n" +
		"  settle\tbin/idemd record resolve --namespace shop --scope charge --id=-1 --fence 7 --outcome 'what happened' --reason WHY\n"
	if got := next(embedded); got != want {
		t.Errorf("of a directory:\n%s\nwant\n%s", got, want)
	}
}
