package store_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

func validClaim() store.ClaimRequest {
	return store.ClaimRequest{Key: store.Key{Namespace: "default", ID: "order-1"}, AttemptID: "a"}
}

func TestClaimLimits(t *testing.T) {
	tests := []struct {
		name   string
		change func(*store.ClaimRequest)
		want   error
		says   string
	}{
		{"as it is", func(*store.ClaimRequest) {}, nil, ""},
		{"empty id", func(r *store.ClaimRequest) { r.Key.ID = "" }, store.ErrKeyRequired, "one id per intent"},
		{"id of 255 bytes", func(r *store.ClaimRequest) { r.Key.ID = strings.Repeat("a", 255) }, nil, ""},
		{"id of 256 bytes", func(r *store.ClaimRequest) { r.Key.ID = strings.Repeat("a", 256) }, store.ErrInvalidArgument, "id has 256 bytes, at most 255"},
		{"id of 128 two-byte characters", func(r *store.ClaimRequest) { r.Key.ID = strings.Repeat("é", 128) }, store.ErrInvalidArgument, "id has 256 bytes"},
		{"id of 4 KiB of random bytes", func(r *store.ClaimRequest) { r.Key.ID = strings.Repeat("\xff\x00", 2048) }, store.ErrInvalidArgument, "id has 4096 bytes, at most 255"},
		{"id of 4 KiB of a", func(r *store.ClaimRequest) { r.Key.ID = strings.Repeat("a", 4096) }, store.ErrInvalidArgument, "id has 4096 bytes, at most 255"},
		{"emoji and spaces", func(r *store.ClaimRequest) { r.Key.ID = "  \U0001f4b3 order " }, nil, ""},
		{"newline in the id", func(r *store.ClaimRequest) { r.Key.ID = "a\nb" }, store.ErrInvalidArgument, "control character at byte 1"},
		{"C1 control in the id", func(r *store.ClaimRequest) { r.Key.ID = "é\u0085" }, store.ErrInvalidArgument, "control character at byte 2"},
		{"DEL in the entity", func(r *store.ClaimRequest) { r.Key.Entity = "\x7f" }, store.ErrInvalidArgument, "entity has a control character"},
		{"broken UTF-8 in the scope", func(r *store.ClaimRequest) { r.Key.Scope = "\xff" }, store.ErrInvalidArgument, "scope is not valid UTF-8"},
		{"no namespace", func(r *store.ClaimRequest) { r.Key.Namespace = "" }, store.ErrInvalidArgument, "namespace must be"},
		{"upper case namespace", func(r *store.ClaimRequest) { r.Key.Namespace = "Pay" }, store.ErrInvalidArgument, "namespace must be"},
		{"namespace that starts with -", func(r *store.ClaimRequest) { r.Key.Namespace = "-pay" }, store.ErrInvalidArgument, "namespace must be"},
		{"namespace of 63", func(r *store.ClaimRequest) { r.Key.Namespace = strings.Repeat("n", 63) }, nil, ""},
		{"namespace of 64", func(r *store.ClaimRequest) { r.Key.Namespace = strings.Repeat("n", 64) }, store.ErrInvalidArgument, "it has 64 bytes"},
		{"no attempt", func(r *store.ClaimRequest) { r.AttemptID = "" }, store.ErrInvalidArgument, "attempt id has 0 bytes"},
		{"attempt of 65 bytes", func(r *store.ClaimRequest) { r.AttemptID = strings.Repeat("\x00", 65) }, store.ErrInvalidArgument, "1 to 64"},
		{"fingerprint of 64 bytes", func(r *store.ClaimRequest) { r.Fingerprint.Digest = strings.Repeat("\xff", 64) }, nil, ""},
		{"fingerprint of 65 bytes", func(r *store.ClaimRequest) { r.Fingerprint.Digest = strings.Repeat("f", 65) }, store.ErrInvalidArgument, "at most 64"},
		{"empty fingerprint with a version", func(r *store.ClaimRequest) { r.Fingerprint.Version = 1 }, store.ErrInvalidArgument, "has no version"},
		{"lease of 999 ms", func(r *store.ClaimRequest) { r.Lease = 999 * time.Millisecond }, store.ErrInvalidArgument, "lease 999ms is outside 1s to 15m"},
		{"lease of 15 min", func(r *store.ClaimRequest) { r.Lease = 15 * time.Minute }, nil, ""},
		{"negative lease", func(r *store.ClaimRequest) { r.Lease = -1 }, store.ErrInvalidArgument, "lease"},
		{"negative wait", func(r *store.ClaimRequest) { r.Wait = -1 }, store.ErrInvalidArgument, "wait"},
		{"wait of an hour", func(r *store.ClaimRequest) { r.Wait = time.Hour }, store.ErrInvalidArgument, "outside 0s to 5m"},
		{"intent in the year 10000", func(r *store.ClaimRequest) { r.IntentTime = time.Unix(1<<40, 0) }, store.ErrInvalidArgument, "intent time"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			req := validClaim()
			test.change(&req)
			checkRefusal(t, req.Validate(), test.want, test.says)
		})
	}
}

func checkRefusal(t *testing.T, err, want error, says string) {
	t.Helper()
	if !errors.Is(err, want) || (want == nil && err != nil) {
		t.Fatalf("got %v, want %v", err, want)
	}
	if want != nil && !strings.Contains(err.Error(), says) {
		t.Errorf("%q does not say %q", err, says)
	}
}

func TestOutcomeLimits(t *testing.T) {
	tests := []struct {
		name    string
		outcome *store.Outcome
		want    error
		says    string
	}{
		{"none", nil, store.ErrInvalidArgument, "outcome is missing"},
		{"empty", &store.Outcome{}, nil, ""},
		{"256 KiB", &store.Outcome{Body: make([]byte, 256<<10)}, nil, ""},
		{"256 KiB + 1", &store.Outcome{Body: make([]byte, 256<<10), BodyType: "x"}, store.ErrOutcomeTooLarge, "262145 bytes, at most 262144"},
		{"metadata counts", &store.Outcome{Trailer: []store.MetadataEntry{{Name: "x", Value: make([]byte, 256<<10)}}}, store.ErrOutcomeTooLarge, "262145"},
		{"omitted body that is there", &store.Outcome{BodyOmitted: true, Body: []byte("x")}, store.ErrInvalidArgument, "omitted"},
		{"256 headers", &store.Outcome{Header: slices.Repeat([]store.MetadataEntry{{Name: "x"}}, 256)}, nil, ""},
		{"257 trailers", &store.Outcome{Trailer: slices.Repeat([]store.MetadataEntry{{Name: "x"}}, 257)}, store.ErrInvalidArgument, "outcome has 257 trailers, at most 256"},
		{"header without a name", &store.Outcome{Header: []store.MetadataEntry{{}}}, store.ErrInvalidArgument, "header 1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			req := store.CompleteRequest{Key: validClaim().Key, AttemptID: "a", Fence: 1, Outcome: test.outcome}
			checkRefusal(t, req.Validate(), test.want, test.says)
		})
	}
}

func TestSettleLimits(t *testing.T) {
	key := validClaim().Key
	renew := store.RenewRequest{Key: key, AttemptID: "a"}
	checkRefusal(t, renew.Validate(), store.ErrInvalidArgument, "fence 0 is not one that a grant gave")
	release := store.ReleaseRequest{Key: key, AttemptID: "a", Fence: 1}
	checkRefusal(t, release.Validate(), store.ErrInvalidArgument, "effect must be given")
	force := store.ForceReleaseRequest{Key: key}
	checkRefusal(t, force.Validate(), store.ErrInvalidArgument, "a reason is required")
	resolve := store.ResolveRequest{Key: key, Reason: strings.Repeat("r", 1025)}
	checkRefusal(t, resolve.Validate(), store.ErrInvalidArgument, "reason has 1025 bytes")
	resolve = store.ResolveRequest{Key: key, Reason: "r"}
	checkRefusal(t, resolve.Validate(), store.ErrInvalidArgument, "fence 0 is not that of a record")
	force = store.ForceReleaseRequest{Key: key, Reason: "r", Fence: -1}
	checkRefusal(t, force.Validate(), store.ErrInvalidArgument, "fence -1 is not that of a record")
	force = store.ForceReleaseRequest{Key: key, Reason: "r", Fence: 1, AnyFence: true}
	checkRefusal(t, force.Validate(), store.ErrInvalidArgument, "give one of them")
	list := store.ListRequest{Namespace: "default", PageSize: 1001}
	checkRefusal(t, list.Validate(), store.ErrInvalidArgument, "page size 1001 is outside 0 to 1000")
}

func TestFingerprintCompare(t *testing.T) {
	empty := store.Fingerprint{}
	tests := []struct {
		name string
		f, g store.Fingerprint
		want store.Match
	}{
		{"equal", store.Fingerprint{Version: 1, Digest: "x"}, store.Fingerprint{Version: 1, Digest: "x"}, store.MatchEqual},
		{"other digest", store.Fingerprint{Version: 1, Digest: "x"}, store.Fingerprint{Version: 1, Digest: "y"}, store.MatchDifferent},
		{"other algorithm", store.Fingerprint{Version: 1, Digest: "x"}, store.Fingerprint{Version: 2, Digest: "x"}, store.MatchIncomparable},
		{"both empty", empty, empty, store.MatchEqual},
		{"one empty", empty, store.Fingerprint{Version: 2, Digest: "x"}, store.MatchDifferent},
		{"one zero byte is not empty", empty, store.Fingerprint{Digest: "\x00"}, store.MatchDifferent},
	}
	for _, test := range tests {
		if got := test.f.Compare(test.g); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
		if got := test.g.Compare(test.f); got != test.want {
			t.Errorf("%s, turned round: %d, want %d", test.name, got, test.want)
		}
	}
}
