package server

import (
	"context"
	"strings"
	"testing"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

func TestQuiet(t *testing.T) {
	var q quiet
	began := time.Now()
	for _, step := range []struct {
		kind  string
		after time.Duration
		held  int
		ok    bool
	}{
		{"a", 0, 0, true}, {"a", 0, 0, false}, {"b", 0, 0, true}, {"a", quietFor - 1, 0, false},
		{"a", quietFor, 2, true}, {"a", 2 * quietFor, 0, true}, {"b", 3 * quietFor, 0, true},
	} {
		if held, ok := q.pass(step.kind, began.Add(step.after)); held != step.held || ok != step.ok {
			t.Errorf("%s after %v: %d, %v; want %d, %v", step.kind, step.after, held, ok, step.held, step.ok)
		}
	}
}

// A store that is away does not fill the disk with one line for each call. Other refusals are
// logged each.
func TestLogOfAStoreThatIsAway(t *testing.T) {
	var refusal error
	r := newRig(t, &hooked{newMemory(), func(context.Context, operation) error { return refusal }})
	once := pb.NewIdempotencyServiceClient(r.connect())
	for _, c := range []struct {
		refusal error
		limited bool
	}{{store.ErrUnavailable, true}, {context.DeadlineExceeded, true}, {store.ErrQuota, false}} {
		refusal = c.refusal
		began := time.Now()
		for range 10 {
			_, _ = once.Claim(t.Context(), &pb.ClaimRequest{Key: storepb.KeyToProto(testKey), AttemptId: []byte("a")})
		}
		lines := strings.Count(r.log.String(), "reason="+storepb.ReasonName(storepb.Reason(refusal)))
		if most := 1 + int(time.Since(began)/quietFor); c.limited && lines > most {
			t.Errorf("%d lines, want at most %d:\n%s", lines, most, r.log)
		}
		if !c.limited && lines != 10 {
			t.Errorf("%d lines of another refusal, want 10", lines)
		}
	}
}
