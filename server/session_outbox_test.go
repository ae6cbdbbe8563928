package server

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

func answerOf(id uint64, bytes int) *pb.SessionAnswer {
	return &pb.SessionAnswer{Id: id, Result: &pb.SessionAnswer_Lookup{Lookup: &pb.LookupResponse{Outcome: &pb.Outcome{Body: make([]byte, bytes)}}}}
}

// Small answers overtake large ones, and neither kind holds up the other.
func TestSmallAnswersGoFirst(t *testing.T) {
	b := newOutbox(nil)
	for i := range uint64(3) {
		b.put(answerOf(i, 200<<10), nil)
	}
	const smalls = 300 // more than fit in a message
	for i := range uint64(smalls) {
		b.put(&pb.SessionAnswer{Id: 100 + i}, nil)
	}
	small := 0
	for i := range uint64(3) {
		m := b.take()
		last := len(m.GetAnswers()) - 1
		if m.GetAnswers()[last].GetId() != i {
			t.Errorf("message %d ends with answer %d", i, m.GetAnswers()[last].GetId())
		}
		for _, a := range m.GetAnswers()[:last] {
			if a.GetId() != uint64(100+small) {
				t.Errorf("message %d has answer %d in place of small one %d", i, a.GetId(), small)
			}
			small++
		}
	}
	if m := b.take(); small != smalls || m != nil {
		t.Errorf("%d small ones, and then %v", small, m)
	}
}

// gRPC may look at a message after it was sent.
func TestAnswersThatWereSentAreNotChanged(t *testing.T) {
	b := newOutbox(nil)
	b.put(answerOf(1, 0), nil)
	first := b.take()
	b.put(answerOf(2, 0), nil)
	if b.take(); len(first.GetAnswers()) != 1 || first.GetAnswers()[0].GetId() != 1 {
		t.Errorf("the first message is now %v", first)
	}
}

// Room is reserved for an answer before it is asked for, and each that is sent lets only those
// go on that there is room for.
func TestRoomIsReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newOutbox(nil)
		ctx, cancel := context.WithCancel(t.Context())
		granted := make(chan reservation, 1000)
		for range 200 {
			go func() {
				if r := b.reserve(ctx, false); r != nil {
					granted <- r
				}
			}()
		}
		synctest.Wait()
		if n := len(granted); n != maxUnsent/firstExpected {
			t.Errorf("%d begin at once", n)
		}
		for n := len(granted); n > 0; n-- {
			b.put(answerOf(1, 200<<10), <-granted)
		}
		if synctest.Wait(); len(granted) != 0 {
			t.Errorf("%d go on next to %d unsent bytes", len(granted), b.large.size)
		}
		for b.large.size > maxUnsent {
			b.take()
		}
		if synctest.Wait(); len(granted) > 8 {
			t.Errorf("%d go on next to %d unsent bytes", len(granted), b.large.size)
		}
		for b.take() != nil {
		}
		if synctest.Wait(); len(granted) != maxUnsent/firstExpected {
			t.Errorf("%d go on when all is sent", len(granted))
		}
		cancel() // the rest do not wait any more
		synctest.Wait()
		if n := len(b.room.waiting); n != 0 {
			t.Errorf("%d wait", n)
		}
		for n := len(granted); n > 0; n-- {
			b.put(answerOf(1, 0), <-granted)
		}
		if b.room.reserved != 0 {
			t.Errorf("%d bytes stay reserved", b.room.reserved)
		}
	})
}

// A renewal is carried out, and its answer is sent, before large answers that were asked for
// earlier.
func TestLargeAnswersHoldUpNoRenewal(t *testing.T) {
	var renewals atomic.Int64
	sessioned(t, func(_ context.Context, op operation) error {
		if op == opRenew {
			renewals.Add(1)
		}
		return nil
	}, func(t *testing.T, r *rig) {
		c := r.client()
		key := store.Key{Namespace: "default", ID: "large"}
		fence := grant(t, c, key, "a")
		outcome := &store.Outcome{Body: make([]byte, 200<<10)}
		if _, err := c.Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: fence, Outcome: outcome}); err != nil {
			t.Fatal(err)
		}
		s := openSession(t.Context(), t, r.connect())
		s.send(claimOf(0, "held", "h"))
		fence = s.granted(0).GetFence()
		for i := range uint64(500) {
			s.send(claimOf(1+i, "large", "b"))
		}
		synctest.Wait()
		s.send(&pb.SessionOperation{Id: 1000, Request: &pb.SessionOperation_Renew{Renew: &pb.RenewRequest{
			Key: &pb.Key{Namespace: "default", Id: "held"}, AttemptId: []byte("h"), Fence: fence,
		}}})
		synctest.Wait()
		if n := renewals.Load(); n != 1 {
			t.Errorf("%d renewals while nobody reads", n)
		}
		if got := s.answer(1000); got.GetRenew() == nil {
			t.Errorf("renewal: %v", got)
		}
		if n := len(s.answers); n > 5 {
			t.Errorf("%d large answers came first", n)
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := s.end(); !errors.Is(err, io.EOF) {
			t.Errorf("ended with %v", err)
		}
		if n := len(s.answers); n != 500 {
			t.Errorf("%d large answers", n)
		}
	})
}
