package server

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// samples returns the values of a metric by its labels, written as a=b,c=d. A histogram's
// value is how many observations it has.
func (r *rig) samples(name string) map[string]float64 {
	r.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.Fatal(err)
	}
	samples := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			samples[strings.Join(labels, ",")] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return samples
}

// value returns the value of a metric without labels.
func (r *rig) value(name string) float64 {
	r.Helper()
	return r.samples(name)[""]
}

// sum returns the sum of a histogram.
func (r *rig) sum(name string) (sum float64) {
	r.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			for _, m := range family.GetMetric() {
				sum += m.GetHistogram().GetSampleSum()
			}
		}
	}
	return sum
}

func TestMetricsOfAWholeLife(t *testing.T) {
	clock := storetest.NewClock()
	r := newRig(t, storetest.NewMemory(clock))
	c, ctx := r.client(), t.Context()
	if _, err := c.CreateNamespace(ctx, store.Namespace{Name: "shop", Retention: 100 * time.Second}); err != nil {
		t.Fatal(err)
	}
	key := store.Key{Namespace: "shop", ID: "k"}
	var fence int64
	claim := func(attempt, print string, version uint32, hold bool) func() error {
		return func() error {
			answer, err := c.Claim(ctx, store.ClaimRequest{
				Key: key, AttemptID: attempt, Fingerprint: store.Fingerprint{Version: version, Digest: print}, Hold: hold,
			})
			if answer.Granted != nil {
				fence = answer.Granted.Fence
			}
			return err
		}
	}
	release := func(attempt string, effect store.Effect) func() error {
		return func() error {
			_, err := c.Release(ctx, store.ReleaseRequest{Key: key, AttemptID: attempt, Fence: fence, Effect: effect})
			return err
		}
	}
	complete := func(attempt string, fence *int64) func() error {
		return func() error {
			_, err := c.Complete(ctx, store.CompleteRequest{Key: key, AttemptID: attempt, Fence: *fence, Outcome: &store.Outcome{}})
			return err
		}
	}
	stale := int64(1)
	want := map[string]float64{}
	for _, step := range []struct {
		do      func() error
		counted string
	}{
		{claim("a", "f", 1, false), "claim granted_new"},
		{claim("a", "f", 1, false), "claim granted_again"},
		{claim("b", "f", 1, false), "claim in_progress"},
		{claim("b", "f", 2, false), "claim in_progress"},
		{claim("b", "g", 1, false), "claim FINGERPRINT_MISMATCH"},
		{release("a", store.EffectNone), "release ok"},
		{claim("b", "f", 1, false), "claim granted_released"},
		{release("b", store.EffectUnknown), "release lapsed"},
		{claim("c", "f", 1, false), "claim granted_takeover"},
		{release("c", store.EffectUnknown), "release lapsed"},
		{claim("d", "f", 1, true), "claim granted_takeover"},
		{release("d", store.EffectUnknown), "release lapsed"},
		{claim("e", "f", 1, false), "claim unresolved"},
		{complete("d", &stale), "complete STALE_FENCE"},
		{complete("d", &fence), "complete ok"},
		{claim("e", "f", 1, false), "claim completed"},
		{func() error { _, err := c.Lookup(ctx, store.LookupRequest{Key: key}); return err }, "lookup ok"},
		{func() error {
			_, err := c.Renew(ctx, store.RenewRequest{Key: key, AttemptID: "d", Fence: fence})
			return err
		}, "renew ALREADY_COMPLETED"},
		{func() error { _, err := c.InspectRecord(ctx, key); return err }, "inspect_record ok"},
		{func() error { _, err := c.ListRecords(ctx, store.ListRequest{Namespace: "shop"}); return err }, "list_records ok"},
		{func() error {
			_, err := c.Resolve(ctx, store.ResolveRequest{Key: key, AnyFence: true, Reason: "r"})
			return err
		}, "resolve NOT_LAPSED"},
		{func() error {
			_, err := c.ForceRelease(ctx, store.ForceReleaseRequest{Key: key, AnyFence: true, Reason: "r"})
			return err
		}, "force_release NOT_HELD"},
		{func() error { _, err := c.GetNamespace(ctx, "shop"); return err }, "get_namespace ok"},
		{func() error { _, err := c.UpdateNamespace(ctx, store.Namespace{Name: "shop"}); return err }, "update_namespace ok"},
	} {
		clock.Advance(time.Second)
		err := step.do()
		op, answer, _ := strings.Cut(step.counted, " ")
		if answer == strings.ToUpper(answer) != (err != nil) {
			t.Fatalf("%s: %v", step.counted, err)
		}
		want[fmt.Sprintf("answer=%s,namespace=shop,operation=%s", answer, op)]++
	}
	want["answer=ok,namespace=shop,operation=create_namespace"] = 1
	if got := r.samples("idemd_answers_total"); !maps.Equal(got, want) {
		t.Errorf("answers are\n%v, want\n%v", got, want)
	}
	if got := r.samples("idemd_fingerprints_incomparable_total"); got["namespace=shop"] != 1 {
		t.Errorf("incomparable fingerprints: %v", got)
	}
	if n, age := r.samples("idemd_repeat_age_seconds")["namespace=shop"], r.sum("idemd_repeat_age_seconds"); n != 1 || age != 1 {
		t.Errorf("%v repeats of %v s, want one of 1 s", n, age)
	}
	if ratio := r.sum("idemd_repeat_age_ratio"); ratio != 0.01 {
		t.Errorf("the repeat came after %v of the retention, want 0.01", ratio)
	}
	if got := r.samples("idemd_store_seconds")["operation=claim"]; got != 10 {
		t.Errorf("the store was asked to claim %v times, want 10", got)
	}
}

// A caller cannot make label values: only namespaces that exist have their own.
func TestUnknownNamespacesShareALabel(t *testing.T) {
	r := newRig(t, newMemory())
	conn := r.connect()
	c, ctx := r.client(), t.Context()
	for i := range 50 {
		name := fmt.Sprintf("made-up-%d", i)
		key := store.Key{Namespace: name, ID: "k"}
		_, _ = c.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: "a"})
		_, _ = c.Lookup(ctx, store.LookupRequest{Key: key})
		_, _ = c.GetNamespace(ctx, name)
		_, _ = c.UpdateNamespace(ctx, store.Namespace{Name: name})
		_, _ = c.ListRecords(ctx, store.ListRequest{Namespace: name})
		_, _ = c.InspectRecord(ctx, key)
		_, _ = c.ForceRelease(ctx, store.ForceReleaseRequest{Key: key, AnyFence: true, Reason: "r"})
		invalidClaim(ctx, conn, name)
	}
	_, _ = c.ListNamespaces(ctx)
	for labels, n := range r.samples("idemd_answers_total") {
		if !strings.Contains(labels, "namespace="+UnknownNamespace+",") || n == 0 {
			t.Errorf("%s: %v", labels, n)
		}
	}
}

func TestWaitingClaimsAndCommitsAreMeasured(t *testing.T) {
	r := newRig(t, newMemory())
	r.config.Metrics.ObserveCommit(16, 4000, 2*time.Millisecond)
	r.config.Metrics.ObserveCommit(8, 3000, 3*time.Millisecond)
	r.config.Metrics.ObserveWall(-90 * time.Minute)
	if got := r.samples("idemd_wall_ahead_seconds")[""]; got != -5400 {
		t.Errorf("the wall clock is %v s ahead, want -5400", got)
	}
	if ops, sync := r.sum("idemd_commit_operations"), r.sum("idemd_commit_sync_seconds"); ops != 24 || sync != 0.005 {
		t.Errorf("commits of %v operations, %v s", ops, sync)
	}
	if got := r.value("idemd_commit_bytes_total"); got != 7000 {
		t.Errorf("commits of %v bytes", got)
	}
	if got, ok := r.samples("idemd_waiting_claims")[""]; !ok || got != 0 {
		t.Errorf("waiting claims: %v, %v", got, ok)
	}
}

// TestBucketsAhead checks that a store which needs no buckets ahead is not said to have none.
func TestBucketsAhead(t *testing.T) {
	r := newRig(t, newMemory())
	if got := r.samples("idemd_buckets_ahead"); len(got) != 0 {
		t.Errorf("buckets ahead of a store that has not told: %v", got)
	}
	for _, buckets := range []int{2, 0} {
		r.config.Metrics.ObserveBucketsAhead(buckets)
		if got, ok := r.samples("idemd_buckets_ahead")[""]; !ok || got != float64(buckets) {
			t.Errorf("buckets ahead: %v, %v; want %d", got, ok, buckets)
		}
	}
}

func TestMetricsAreRegisteredOnce(t *testing.T) {
	registry := prometheus.NewRegistry()
	if _, err := NewMetrics(registry); err != nil {
		t.Fatal(err)
	}
	if _, err := NewMetrics(registry); err == nil {
		t.Error("registered twice without an error")
	}
}

// Every label value is written down and no two are the same.
func TestLabelValuesAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for a := range Answer(answers) {
		if name := a.String(); name == "" || seen[name] {
			t.Errorf("answer %d is called %q", a, name)
		} else {
			seen[name] = true
		}
	}
	for op := range operations {
		if name := op.String(); name == "" || seen[name] {
			t.Errorf("operation %d is called %q", op, name)
		} else {
			seen[name] = true
		}
	}
	if got := refusal(fmt.Errorf("wrapped: %w", context.DeadlineExceeded)); got != AnswerDeadlineExceeded {
		t.Errorf("a deadline is counted as %v", got)
	}
	if got := refusal(context.Canceled); got != AnswerCanceled {
		t.Errorf("a cancellation is counted as %v", got)
	}
}
