package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// Refusals that say nothing about the attempt: of a proxy, while a token changes, of a
// namespace that has not come up yet.
func notAboutTheAttempt() []error {
	refusals := []error{store.ErrRecordCorrupt, store.ErrNamespaceUnknown, store.ErrWrongRegion}
	for _, code := range []codes.Code{
		codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.InvalidArgument, codes.Internal,
		codes.Unknown, codes.ResourceExhausted, codes.Aborted, codes.DeadlineExceeded, codes.Canceled,
	} {
		refusals = append(refusals, storepb.FromStatus(status.Error(code, "from a proxy")))
	}
	return refusals
}

// Case 25: what was done is recorded once the store can, whatever came in between.
func TestRecordedAfterRefusals(t *testing.T) {
	for _, refusal := range notAboutTheAttempt() {
		synctest.Test(t, func(t *testing.T) {
			s, events := newStore(t), &eventLog{}
			s.fail("complete", refusal)
			fn, _ := returns("paid", nil)
			got, err := client.Do(t.Context(), s, orderKey, nil, fn, client.OnEvent(events.add))
			if err != nil || got.Value != "paid" || got.Recorded {
				t.Errorf("%v: %+v, %v", refusal, got, err)
			}
			time.Sleep(5 * time.Second)
			s.fail("complete", nil)
			if err := client.Drain(t.Context()); err != nil {
				t.Error(err)
			}
			equalKinds(t, events.take(), client.EventGranted, client.EventNotRecorded, client.EventRecorded)
			if rec := s.inspect(t, orderKey).Record; string(rec.Outcome.Body) != "paid" {
				t.Errorf("%v: %+v", refusal, rec)
			}
		})
	}
}

// That nothing is known is not worth sending again: the lapse says the same. So it takes no
// room of outcomes.
func TestUnknownIsNotSentAgain(t *testing.T) { synctest.Test(t, testUnknownIsNotSentAgain) }

func testUnknownIsNotSentAgain(t *testing.T) {
	s, events := newStore(t), &eventLog{}
	s.fail("release", store.ErrUnavailable)
	lost := errors.New("connection reset")
	fn, _ := returns("", lost)
	if _, err := client.Do(t.Context(), s, orderKey, nil, fn, client.OnEvent(events.add)); !errors.Is(err, lost) {
		t.Error(err)
	}
	s.fail("release", nil)
	time.Sleep(time.Hour)
	if told := events.last().Err; !errors.Is(told, lost) || !errors.Is(told, store.ErrUnavailable) {
		t.Errorf("the event says %v", told)
	}
	equalKinds(t, events.take(), client.EventGranted, client.EventUnknown) // nothing is lost
	if rec := s.inspect(t, orderKey).Record; s.count("release") != 1 || s.count("renew") != 0 || !rec.Lapsed(time.Now()) {
		t.Errorf("%v; %+v", s.calls, rec)
	}
}

// Successes are recorded however many calls ended as unknown before them.
func TestUnknownTakesNoRoom(t *testing.T) { synctest.Test(t, testUnknownTakesNoRoom) }

func testUnknownTakesNoRoom(t *testing.T) {
	s := newStore(t)
	s.fail("release", store.ErrUnavailable)
	s.fail("complete", store.ErrUnavailable)
	do := func(n int, end error) {
		var group sync.WaitGroup
		for i := range n {
			group.Go(func() {
				key := orderKey
				key.ID = fmt.Sprintf("%v %d", end, i)
				fn, _ := returns("paid", end)
				_, _ = client.Do(t.Context(), s, key, nil, fn)
			})
		}
		group.Wait()
	}
	const successes = 100
	do(1100, errors.New("gone"))
	do(successes, nil)
	s.fail("complete", nil)
	if err := client.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	for i := range successes {
		key := orderKey
		key.ID = fmt.Sprintf("%v %d", error(nil), i)
		if rec := s.inspect(t, key).Record; rec.State != store.StateCompleted {
			t.Fatalf("%d: %+v", i, rec)
		}
	}
}

// An outcome that is too large for its namespace is sent whole once, and kept in its short form.
func TestTooLargeIsSentOnce(t *testing.T) { synctest.Test(t, testTooLargeIsSentOnce) }

func testTooLargeIsSentOnce(t *testing.T) {
	s := &sizedStore{faultyStore: newStore(t)}
	s.fail("complete", store.ErrUnavailable)
	fn, _ := returns(make([]byte, 100<<10), nil)
	if got, err := client.Do(t.Context(), s, orderKey, nil, fn); err != nil || got.Recorded {
		t.Errorf("%v, %v", got.Recorded, err)
	}
	time.Sleep(time.Minute)
	s.fail("complete", nil)
	if err := client.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if s.large.Load() != 1 || s.count("complete") < 3 || !s.inspect(t, orderKey).Record.Outcome.BodyOmitted {
		t.Errorf("sent %d times whole, %d times short", s.large.Load(), s.count("complete"))
	}
}

// sizedStore takes no outcomes above 10 KiB.
type sizedStore struct {
	*faultyStore
	large atomic.Int64
}

func (s *sizedStore) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	if req.Outcome.Size() > 10<<10 {
		s.large.Add(1)
		return store.CompleteAnswer{}, store.ErrOutcomeTooLarge
	}
	return s.faultyStore.Complete(ctx, req)
}

// dyingServer grants every claim, and after that refuses everything.
type dyingServer struct {
	grpc.ClientConnInterface
	refusal error

	mu   sync.Mutex
	sent map[string]int
	told []metadata.MD
}

func (d *dyingServer) Invoke(ctx context.Context, method string, _, reply any, _ ...grpc.CallOption) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sent[method[strings.LastIndex(method, "/")+1:]]++
	if md, _ := metadata.FromOutgoingContext(ctx); len(md) > 0 {
		d.told = append(d.told, md)
	}
	if r, ok := reply.(*pb.ClaimResponse); ok {
		r.Result = &pb.ClaimResponse_Granted{Granted: &pb.Granted{Fence: 1, AttemptNumber: 1, LeaseRemaining: durationpb.New(30 * time.Second)}}
		return nil
	}
	return d.refusal
}

func (d *dyingServer) count(operation string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sent[operation]
}

// L5: what waits to be recorded when a server dies is no load for it when it comes back,
// and its hint is kept to.
func TestRecordingIsNoStorm(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "connection refused")
	overloaded := storepb.ToStatus(&store.Error{Sentinel: store.ErrOverloaded, RetryAfter: 20 * time.Second}).Err()
	for _, test := range []struct {
		refusal                   error
		completes, renews, budget int
	}{
		{unavailable, 40, 7, 60},
		{overloaded, 26, 3, 0}, // the hint is longer than a caller waits
	} {
		synctest.Test(t, func(t *testing.T) {
			const calls = 100
			d := &dyingServer{refusal: test.refusal, sent: map[string]int{}}
			c := client.New(d)
			var group sync.WaitGroup
			for i := range calls {
				group.Go(func() {
					fn, _ := returns("paid", nil)
					if _, err := client.Do(t.Context(), c, store.Key{Namespace: "default", ID: fmt.Sprint(i)}, nil, fn); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
			if first := d.count("Complete"); first > calls+test.budget {
				t.Errorf("%d Completes at once", first)
			}
			if err := client.Drain(t.Context()); err != nil {
				t.Error(err)
			}
			if completes, renews := d.count("Complete"), d.count("Renew"); completes < 10*calls || completes > test.completes*calls || renews > test.renews*calls || renews < calls {
				t.Errorf("%v of %d calls", d.sent, calls)
			}
		})
	}
}

// What the caller sends to others, its credentials and keys, is not sent to the store.
func TestTheCallersMetadataIsNotSent(t *testing.T) { synctest.Test(t, testTheCallersMetadataIsNotSent) }

func testTheCallersMetadataIsNotSent(t *testing.T) {
	d := &dyingServer{refusal: status.Error(codes.Unavailable, "gone"), sent: map[string]int{}}
	c := client.New(d)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer of-the-end-user")
	_, err := client.Do(ctx, c, orderKey, nil, func(ctx context.Context, _ *client.Attempt) (string, error) {
		time.Sleep(15 * time.Second) // until it is renewed
		if md, _ := metadata.FromOutgoingContext(ctx); len(md) != 1 {
			t.Errorf("the function has %v", md)
		}
		return "", nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := client.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if len(d.told) != 0 || d.count("Claim") == 0 || d.count("Renew") == 0 || d.count("Complete") < 2 {
		t.Errorf("sent %v with other metadata %d times", d.sent, len(d.told))
	}
	if _, err := c.Lookup(ctx, store.LookupRequest{Key: orderKey}); err == nil || len(d.told) == 0 {
		t.Errorf("a direct call: %v, sent with its metadata %d times", err, len(d.told))
	}
}

// A hook that panics costs nothing but its event.
func TestEventHookPanics(t *testing.T) {
	for _, kind := range []client.EventKind{
		client.EventGranted, client.EventLeaseLost, client.EventNotRecorded, client.EventRecorded,
	} {
		synctest.Test(t, func(t *testing.T) {
			s, told := newStore(t), 0
			got, err := client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, _ *client.Attempt) (string, error) {
				if kind == client.EventLeaseLost {
					s.fail("renew", store.ErrUnavailable)
					<-ctx.Done()
				}
				s.fail("complete", store.ErrUnavailable)
				return "paid", nil
			}, client.OnEvent(func(e client.Event) {
				if e.Kind == kind {
					told++
					panic("oops")
				}
			}))
			if err != nil || got.Value != "paid" || got.Recorded {
				t.Errorf("%v: %+v, %v", kind, got, err)
			}
			s.fail("complete", nil)
			if err := client.Drain(t.Context()); err != nil {
				t.Error(err)
			}
			renewals := s.count("renew")
			time.Sleep(time.Hour)
			if rec := s.inspect(t, orderKey).Record; told != 1 || rec.State != store.StateCompleted || s.count("renew") != renewals {
				t.Errorf("%v: told %d times, renewed on %v, %+v", kind, told, s.count("renew") != renewals, rec)
			}
		})
	}
}
