package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
	"github.com/idemd/idemd/store/storetest"
)

// The log holds no key, no attempt id and no outcome, whatever is called and however it
// ends, at any level.
func TestLogHoldsNoSecrets(t *testing.T) {
	const secret = "s3cret"
	clock := storetest.NewClock()
	r := newRig(t, storetest.NewMemory(clock))
	c, ctx := r.client(), t.Context()
	raw := r.connect()
	keys, admin := pb.NewIdempotencyServiceClient(raw), pb.NewAdminServiceClient(raw)

	outcome := &store.Outcome{
		Status: []byte(secret), Body: []byte(secret), BodyType: secret,
		Header: []store.MetadataEntry{{Name: secret, Value: []byte(secret)}},
	}
	for _, key := range []store.Key{
		{Namespace: "default", Scope: secret + "/scope", ID: secret + "-id", Entity: secret + "-entity"},
		{Namespace: secret, ID: secret},                // no such namespace
		{Namespace: "default", ID: secret + "\n"},      // refused
		{Namespace: secret + " is not a name", ID: ""}, // refused
	} {
		wire := &pb.Key{Namespace: key.Namespace, Scope: key.Scope, Id: key.ID, Entity: key.Entity}
		attempt := []byte(secret + "-attempt")
		print := &pb.Fingerprint{Digest: []byte(secret)}
		granted, _ := keys.Claim(ctx, &pb.ClaimRequest{Key: wire, AttemptId: attempt, Fingerprint: print})
		fence := granted.GetGranted().GetFence()
		_, _ = keys.Claim(ctx, &pb.ClaimRequest{Key: wire, AttemptId: attempt}) // mismatch
		_, _ = keys.Renew(ctx, &pb.RenewRequest{Key: wire, AttemptId: attempt, Fence: fence})
		_, _ = keys.Renew(ctx, &pb.RenewRequest{Key: wire, AttemptId: attempt, Fence: fence + 1}) // stale
		_, _ = keys.Release(ctx, &pb.ReleaseRequest{Key: wire, AttemptId: attempt, Fence: fence, Effect: pb.Effect_EFFECT_UNKNOWN})
		_, _ = c.InspectRecord(ctx, key)
		_, _ = c.Resolve(ctx, store.ResolveRequest{Key: key, AnyFence: true, Outcome: outcome, Actor: "ann", Reason: secret})
		_, _ = c.ForceRelease(ctx, store.ForceReleaseRequest{Key: key, AnyFence: true, Actor: "ann", Reason: secret}) // not held
		_, _ = keys.Complete(ctx, &pb.CompleteRequest{Key: wire, AttemptId: attempt, Fence: fence, Outcome: &pb.Outcome{Body: []byte(secret)}})
		_, _ = keys.Claim(ctx, &pb.ClaimRequest{Key: wire, AttemptId: []byte("b"), Fingerprint: print}) // completed
		_, _ = keys.Lookup(ctx, &pb.LookupRequest{Key: wire, Fingerprint: print})
		_, _ = admin.ListRecords(ctx, &pb.ListRecordsRequest{Namespace: key.Namespace, PageToken: secret})
		_, _ = admin.GetNamespace(ctx, &pb.GetNamespaceRequest{Name: key.Namespace})
	}
	shop := &pb.Namespace{Name: "shop"}
	_, _ = admin.CreateNamespace(ctx, &pb.CreateNamespaceRequest{Namespace: shop})
	log := r.log.String()
	// The one place where the word may stand: a namespace with a valid name.
	if strings.Contains(strings.ReplaceAll(log, "namespace="+secret+" ", ""), secret) {
		t.Errorf("the log has a secret:\n%s", log)
	}
	for _, want := range []string{
		"call answered", "call refused", "reason=FINGERPRINT_MISMATCH", "reason=STALE_FENCE", "reason=NOT_HELD",
		"reason=NAMESPACE_UNKNOWN", "reason=INVALID_ARGUMENT", "reason=KEY_REQUIRED", "code=FAILED_PRECONDITION", "namespace=default key=",
		`msg="operator acted" method=/idemd.v1.AdminService/Resolve`, "actor=ann",
		"method=/idemd.v1.AdminService/CreateNamespace", "namespace=shop",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not have %q", want)
		}
	}
}

// Commands ask each server whether it has regions, for their own sake: that it has none is no news.
func TestLogIsQuietWhereThereAreNoRegions(t *testing.T) {
	r := newRig(t, storetest.NewMemory(storetest.NewClock()))
	_, err := pb.NewIdempotencyServiceClient(r.connect()).GetTopology(t.Context(), &pb.GetTopologyRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Fatal(err)
	}
	if log := r.log.String(); !strings.Contains(log, "GetTopology") || strings.Contains(log, "level=INFO msg=\"call refused\"") {
		t.Errorf("the log has\n%s", log)
	}
}

// Who was granted a key, and by which attempt, is found by what an operator is shown of its record.
// A grant after a lapse is logged without being asked for: it may be the second time.
func TestLogNamesTheAttempt(t *testing.T) {
	clock := storetest.NewClock()
	r := newRig(t, storetest.NewMemory(clock))
	keys, ctx := pb.NewIdempotencyServiceClient(r.connect()), t.Context()
	claim := func(attempt string) *pb.ClaimResponse {
		t.Helper()
		answer, err := keys.Claim(ctx, &pb.ClaimRequest{Key: storepb.KeyToProto(testKey), AttemptId: []byte(attempt)})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	last := func(want ...string) {
		t.Helper()
		lines := strings.Split(strings.TrimSpace(r.log.String()), "\n")
		for _, want := range want {
			if line := lines[len(lines)-1]; !strings.Contains(line+" ", " "+want+" ") {
				t.Errorf("the log says %q, want %q", line, want)
			}
		}
	}
	key := "key=" + testKey.LogName()
	first := claim("one").GetGranted().GetFence()
	last(`level=DEBUG msg="call answered"`, key, "attempt="+store.AttemptLogName("one"), "answer=granted", fmt.Sprint("fence=", first))
	claim("two")
	last("level=DEBUG", key, "attempt="+store.AttemptLogName("two"), "answer=in_progress")
	clock.Advance(time.Hour)
	second := claim("two").GetGranted().GetFence()
	last(`level=INFO msg="key taken over"`, key, "attempt="+store.AttemptLogName("two"), "answer=granted", fmt.Sprint("fence=", second))
	_, _ = keys.Complete(ctx, &pb.CompleteRequest{Key: storepb.KeyToProto(testKey), AttemptId: []byte("one"), Fence: first, Outcome: &pb.Outcome{}})
	last("level=INFO", `msg="call refused"`, key, "attempt="+store.AttemptLogName("one"), "reason=STALE_FENCE")
	if _, err := keys.Complete(ctx, &pb.CompleteRequest{Key: storepb.KeyToProto(testKey), AttemptId: []byte("two"), Fence: second, Outcome: &pb.Outcome{}}); err != nil {
		t.Fatal(err)
	}
	last("level=DEBUG", "attempt="+store.AttemptLogName("two"), "method=/idemd.v1.IdempotencyService/Complete")
	claim("three")
	last("answer=completed")
}

func TestLogLevels(t *testing.T) {
	for err, want := range map[error]string{
		nil:                        "DEBUG",
		store.ErrStaleFence:        "INFO",
		store.ErrUnavailable:       "WARN",
		store.ErrOverloaded:        "WARN",
		context.DeadlineExceeded:   "WARN",
		context.Canceled:           "DEBUG",
		store.ErrRecordCorrupt:     "ERROR",
		errors.New("what is this"): "ERROR",
	} {
		r := newRig(t, &hooked{newMemory(), func(context.Context, operation) error { return err }})
		once := pb.NewIdempotencyServiceClient(r.connect()) // a client of idemd's would send some of them again
		_, _ = once.Claim(t.Context(), &pb.ClaimRequest{Key: storepb.KeyToProto(testKey), AttemptId: []byte("a")})
		if log := r.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "level="+want+" ") {
			t.Errorf("%v is logged as:\n%s", err, log)
		}
	}
}

func TestLogSaysHowLongACallTook(t *testing.T) {
	r := newRig(t, &hooked{newMemory(), func(context.Context, operation) error { return store.ErrQuota }})
	_, _ = r.client().Claim(t.Context(), store.ClaimRequest{Key: testKey, AttemptID: "a"})
	_, rest, _ := strings.Cut(r.log.String(), "duration=")
	text, _, _ := strings.Cut(rest, " ")
	if took, err := time.ParseDuration(text); err != nil || took <= 0 {
		t.Errorf("duration is %q: %v\n%s", text, err, r.log)
	}
}
