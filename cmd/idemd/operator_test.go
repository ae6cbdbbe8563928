package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

func TestNamespaces(t *testing.T) {
	s := serve(t, t.TempDir())
	var created idemdv1.CreateNamespaceResponse
	s.json(t, &created, "namespace", "create", "shop", "--tier=week", "--retention=3d", "--lapse-policy=hold",
		"--default-lease=1m", "--max-lease=5m", "--max-attempt=2h", "--max-outcome-bytes=2000",
		"--entity-rule=required", "--recovery-floor=2026-01-31T00:00:00Z")
	ns := created.GetNamespace()
	if ns.GetTier() != idemdv1.Tier_TIER_WEEK || ns.GetRetention().AsDuration() != 72*time.Hour ||
		ns.GetLapsePolicy() != idemdv1.LapsePolicy_LAPSE_POLICY_HOLD || ns.GetLease().AsDuration() != time.Minute ||
		ns.GetMaxLease().AsDuration() != 5*time.Minute || ns.GetMaxAttempt().AsDuration() != 2*time.Hour ||
		ns.GetMaxOutcomeBytes() != 2000 || ns.GetEntity() != idemdv1.EntityRule_ENTITY_RULE_REQUIRED ||
		ns.GetRecoveryFloor().AsTime() != time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC) {
		t.Errorf("created: %v", ns)
	}
	s.run(t, "namespace", "create", "shop", "--tier=hour").fails(t, exitFailed, "NAMESPACE_EXISTS: ")
	s.run(t, "namespace", "create", "No Such Name").fails(t, exitFailed, "INVALID_ARGUMENT: ")

	// What is not given stays.
	var set idemdv1.UpdateNamespaceResponse
	s.json(t, &set, "namespace", "set", "shop", "--retention=100h", "--recovery-floor=2026-01-01T00:00:00Z")
	if !set.GetNamespace().GetRecoveryFloor().AsTime().Equal(ns.GetRecoveryFloor().AsTime()) || set.GetNamespace().GetRetention().AsDuration() != 100*time.Hour {
		t.Errorf("set: %v", set.GetNamespace())
	}
	var got idemdv1.GetNamespaceResponse
	s.json(t, &got, "namespace", "get", "shop")
	if !proto.Equal(got.GetNamespace(), set.GetNamespace()) || got.GetNamespace().GetMaxOutcomeBytes() != 2000 {
		t.Errorf("get: %v\nset: %v", got.GetNamespace(), set.GetNamespace())
	}

	list := s.run(t, "namespace", "list").ok(t)
	if !strings.HasPrefix(list, "default\n") || !strings.Contains(list, "\nshop\n") {
		t.Errorf("list:\n%s", list)
	}
	shop := s.run(t, "namespace", "get", "shop").ok(t)
	for _, want := range []string{"week", " 100h\n", "hold", " 1m\n", "required", "3d until "} {
		if !strings.Contains(shop, want) {
			t.Errorf("get does not show %q:\n%s", want, shop)
		}
	}
	s.run(t, "namespace", "get", "none-such").fails(t, exitFailed, "NAMESPACE_UNKNOWN: ")
}

func TestResolve(t *testing.T) {
	s := serve(t, t.TempDir())
	lapse := func(id string) {
		t.Helper()
		s.run(t, "claim", "--id="+id, "--attempt=one", "--hold").ok(t)
		s.run(t, "release", "--id="+id, "--attempt=one", "--effect=unknown").ok(t)
	}

	lapse("a")
	claim := s.run(t, "claim", "--id=a").ok(t)
	hints := regexp.MustCompile(`(?m)^  idemd record .*$`).FindAllString(claim, -1)
	if !strings.HasPrefix(claim, "unresolved:") || len(hints) != 3 ||
		!strings.Contains(hints[0], " inspect ") || !strings.Contains(hints[1], "--outcome") || !strings.Contains(hints[2], "--nothing-happened") {
		t.Fatalf("claim of a held key:\n%s", claim)
	}
	run(t, words(t, strings.TrimSpace(hints[0]))...).ok(t)
	run(t, words(t, strings.TrimSpace(hints[2]))...).ok(t)
	if out := s.run(t, "claim", "--id=a").ok(t); !strings.HasPrefix(out, "granted: act now") {
		t.Errorf("claim after it was settled:\n%s", out)
	}

	lapse("b")
	out := s.run(t, "record", "resolve", "--id=b", "--any-fence", "--outcome=found it", "--actor=ann", "--reason=asked the bank").ok(t)
	if !strings.HasPrefix(out, "completed:") || !strings.Contains(out, "found it") {
		t.Errorf("resolve with an outcome:\n%s", out)
	}
	inspected := s.run(t, "record", "inspect", "--id=b").ok(t)
	for _, want := range []string{"event: resolved", "ann", "asked the bank", "found it"} {
		if !strings.Contains(inspected, want) {
			t.Errorf("inspect does not show %q:\n%s", want, inspected)
		}
	}
	lapse("c")
	if out := s.run(t, "record", "resolve", "--id=c", "--any-fence", "--outcome=", "--reason=done, said nothing").ok(t); !strings.HasPrefix(out, "completed:") {
		t.Errorf("resolve with an empty outcome:\n%s", out)
	}
	s.run(t, "record", "resolve", "--id=c", "--any-fence", "--nothing-happened", "--reason=twice").fails(t, exitFailed, "NOT_LAPSED: ")
}

// An operator finds a key and its attempts in the log, which has neither as they are, and no key that
// has expired is missed for that.
func TestRecordsAreFoundInTheLog(t *testing.T) {
	s := serve(t, t.TempDir(), "--log-level=debug")
	key := []string{"--scope=charge", "--id=order-1", "--entity=acme"}
	do := func(args ...string) string {
		t.Helper()
		return s.run(t, append(slices.Clone(args), key...)...).ok(t)
	}
	do("claim", "--attempt=first")
	do("record", "force-release", "--any-fence", "--reason=hangs")
	do("claim", "--attempt=hex:ff00")
	inspected := do("record", "inspect")
	for name, want := range map[string]string{
		"named in the log": store.Key{Namespace: "default", Scope: "charge", ID: "order-1", Entity: "acme"}.LogName(),
		"attempt":          "hex:ff00, in the log " + store.AttemptLogName("\xff\x00"),
		"ended attempts":   "1",
		"ended attempt":    "first, in the log " + store.AttemptLogName("first"),
	} {
		if !regexp.MustCompile(`(?m)^  ` + name + `  +` + regexp.QuoteMeta(want) + `$`).MatchString(inspected) {
			t.Errorf("inspect does not show %s %q:\n%s", name, want, inspected)
		}
	}
	name := run(t, append([]string{"record", "digest"}, key...)...).ok(t) // asks no server
	if !strings.Contains(inspected, "  "+name) {
		t.Errorf("the key's digest is %q, and inspect shows\n%s", name, inspected)
	}
	log := s.stderr.String()
	for _, attempt := range []string{"first", "\xff\x00"} {
		line := regexp.MustCompile(`(?m)^.*/Claim .* key=` + strings.TrimSpace(name) + ` attempt=` + store.AttemptLogName(attempt) + ` answer=granted fence=\d+$`)
		if !line.MatchString(log) {
			t.Errorf("the log has no line of a grant to %q:\n%s", attempt, log)
		}
	}
	run(t, "record", "digest", "--id=").fails(t, exitUsage, "id is empty")
	do("release", "--attempt=hex:ff00", "--effect=unknown")
	do("record", "resolve", "--any-fence", "--nothing-happened", "--reason=looked")
	if inspected := do("record", "inspect"); !strings.Contains(inspected, "ended attempts") {
		t.Errorf("of a key that an operator has settled inspect shows\n%s", inspected)
	}
}

func TestForceReleaseAndList(t *testing.T) {
	s := serve(t, t.TempDir())
	s.run(t, "claim", "--id=stuck one", "--attempt=one").ok(t)
	t.Setenv("USER", "ann")
	var record idemdv1.InspectRecordResponse
	s.json(t, &record, "record", "inspect", "--id=stuck one")
	fence := fmt.Sprintf("--fence=%d", record.GetRecord().GetFence())
	s.run(t, "record", "force-release", "--id=stuck one", "--reason=r").fails(t, exitUsage, "--fence")
	s.run(t, "record", "force-release", "--id=stuck one", fence, "--any-fence", "--reason=r").fails(t, exitUsage, "--fence")
	s.run(t, "record", "force-release", "--id=stuck one", "--fence=1", "--reason=r").fails(t, exitFailed, "STALE_FENCE: ")
	out := s.run(t, "record", "force-release", "--id=stuck one", fence, "--reason=its host burned down").ok(t)
	if !strings.HasPrefix(out, "lapsed:") {
		t.Errorf("force-release:\n%s", out)
	}
	s.run(t, "record", "force-release", "--id=stuck one", fence, "--reason=again").fails(t, exitFailed, "STALE_FENCE: ")
	s.json(t, &record, "record", "inspect", "--id=stuck one")
	if events := record.GetEvents(); len(events) != 1 || events[0].GetActor() != "ann" || events[0].GetReason() != "its host burned down" {
		t.Errorf("events: %v", events)
	}
	s.run(t, "claim", "--id=other", "--attempt=one").ok(t)
	s.run(t, "complete", "--id=other", "--attempt=one", "--outcome=").ok(t)
	s.run(t, "record", "force-release", "--id=other", "--any-fence", "--reason=r").fails(t, exitFailed, "NOT_HELD: ")

	for want, args := range map[string][]string{
		"'stuck one' other": nil,
		"other":             {"--state=completed"},
		"'stuck one'":       {"--lapsed"},
		"":                  {"--state=released"},
	} {
		list := s.run(t, append([]string{"record", "list"}, args...)...).ok(t)
		var ids []string
		for _, id := range []string{"'stuck one'", "other"} {
			if strings.Contains(list, "  "+id+" ") {
				ids = append(ids, id)
			}
		}
		if strings.Join(ids, " ") != want {
			t.Errorf("record list %v: got %v, want %v\n%s", args, ids, want, list)
		}
	}

	for id, entity := range map[string]string{"mine": "acme", "theirs": "acme2"} {
		s.run(t, "claim", "--id="+id, "--scope=charge", "--entity="+entity).ok(t)
	}
	for want, args := range map[string][]string{
		"mine theirs": {"--scope=charge"},
		"mine":        {"--entity=acme"},
		"theirs":      {"--scope=charge", "--entity=acme2"},
		"":            {"--scope=char"},
	} {
		list := s.run(t, append([]string{"record", "list"}, args...)...).ok(t)
		ids := regexp.MustCompile("mine|theirs|stuck|other").FindAllString(list, -1)
		slices.Sort(ids)
		if strings.Join(ids, " ") != want {
			t.Errorf("record list %v: got %v, want %v\n%s", args, ids, want, list)
		}
	}
	s.run(t, "record", "list", "--entity="+strings.Repeat("e", 256)).fails(t, exitFailed, "INVALID_ARGUMENT: ", "entity")

	var page idemdv1.ListRecordsResponse
	s.json(t, &page, "record", "list", "--page-size=1")
	first := page.GetRecords()[0].GetKey().GetId()
	s.json(t, &page, "record", "list", "--page-size=1", "--page-token="+page.GetNextPageToken())
	if len(page.GetRecords()) != 1 || page.GetRecords()[0].GetKey().GetId() == first {
		t.Errorf("second page: %v after %q", page.GetRecords(), first)
	}
}

// pagesAdmin lists records in pages as they were written down, and notes what was asked.
type pagesAdmin struct {
	idemdv1.AdminServiceClient
	pages []int // how many records each has
	asked []string
}

func (a *pagesAdmin) ListRecords(_ context.Context, req *idemdv1.ListRecordsRequest, _ ...grpc.CallOption) (*idemdv1.ListRecordsResponse, error) {
	a.asked = append(a.asked, fmt.Sprint(req.GetPageSize(), req.GetPageToken()))
	resp := &idemdv1.ListRecordsResponse{Records: make([]*idemdv1.Record, a.pages[len(a.asked)-1])}
	if len(a.asked) < len(a.pages) {
		resp.NextPageToken = fmt.Sprint("token-", len(a.asked))
	}
	return resp, nil
}

func TestListGoesOnBehindShortPages(t *testing.T) {
	for name, c := range map[string]struct {
		pages   []int
		size    int32
		asked   string
		records int
		token   string
	}{
		"one page":           {[]int{3}, 5, "5", 3, ""},
		"empty pages":        {[]int{0, 0, 2}, 5, "5 5token-1 5token-2", 2, ""},
		"nothing":            {[]int{0, 0}, 5, "5 5token-1", 0, ""},
		"short, then full":   {[]int{3, 0, 2, 9}, 5, "5 2token-1 2token-2", 5, "token-3"},
		"full":               {[]int{5, 1}, 5, "5", 5, "token-1"},
		"without a size":     {[]int{99, 1, 1}, 0, "0 1token-1", 100, "token-2"},
		"without a size, 40": {[]int{40, 0}, 0, "0 60token-1", 40, ""},
	} {
		admin := &pagesAdmin{pages: c.pages}
		resp, err := listRecords(t.Context(), admin, &idemdv1.ListRecordsRequest{PageSize: c.size})
		if err != nil || strings.Join(admin.asked, " ") != c.asked || len(resp.GetRecords()) != c.records || resp.GetNextPageToken() != c.token {
			t.Errorf("%s: asked %q, got %d records and token %q, %v", name, admin.asked, len(resp.GetRecords()), resp.GetNextPageToken(), err)
		}
	}
}

func TestListShortensLongIDs(t *testing.T) {
	s := serve(t, t.TempDir())
	id := strings.Repeat("ü", 100)
	s.run(t, "claim", "--id="+id).ok(t)
	s.run(t, "claim", "--id=abc\u202edef").ok(t)
	list := s.run(t, "record", "list").ok(t)
	if strings.Contains(list, id) || !strings.Contains(list, strings.Repeat("ü", 63)) {
		t.Errorf("a long id is not shortened:\n%s", list)
	}
	if !strings.Contains(list, `"abc\u202edef"`) {
		t.Errorf("what turns text around is not escaped:\n%s", list)
	}
}

func TestActorWithoutUser(t *testing.T) {
	t.Setenv("USER", "")
	if name := userName(); name != fmt.Sprintf("uid %d", os.Getuid()) {
		t.Errorf("got %q", name)
	}
}

func TestBuckets(t *testing.T) {
	s := serve(t, t.TempDir())
	s.run(t, "claim", "--id=a").ok(t)
	out := s.run(t, "bucket", "list").ok(t)
	if lines := strings.Split(out, "\n"); len(lines) < 2 || !strings.HasPrefix(lines[0], "TIER") || !strings.HasPrefix(lines[1], "day ") {
		t.Errorf("bucket list:\n%s", out)
	}
}
