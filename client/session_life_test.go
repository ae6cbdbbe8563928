package client

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/idemd/idemd/proto/idemd/v1"
)

// A server that accepts sessions and never answers in them costs few callers anything.
func TestSilentSessionsAreGivenUp(t *testing.T) {
	silent := func(*scripted) func(pb.IdempotencyService_SessionServer) error {
		return func(stream pb.IdempotencyService_SessionServer) error {
			_ = accepts(stream)
			<-stream.Context().Done()
			return nil
		}
	}
	scriptedly(t, silent, func(r *sessionRig) {
		failed := 0
		for range 1200 {
			ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
			if err := r.claim(ctx); err != nil {
				failed++
			}
			cancel()
			time.Sleep(500 * time.Millisecond)
		}
		if _, opened := r.was(); opened < 5 || opened > 20 || failed > opened {
			r.Errorf("in 10 minutes %d sessions were opened, %d callers failed", opened, failed)
		}
	})
}

// One slow answer is no silence, if others come meanwhile.
func TestSlowOperationIsNoSilence(t *testing.T) {
	first := func(s *scripted) func(pb.IdempotencyService_SessionServer) error {
		return func(stream pb.IdempotencyService_SessionServer) error {
			_ = accepts(stream)
			for n := 0; ; n++ {
				m, err := stream.Recv()
				if err != nil {
					return nil
				}
				if answers := s.answers(m); n > 0 {
					_ = stream.Send(&pb.SessionResponse{Answers: answers}) // Recv says it too
				}
			}
		}
	}
	scriptedly(t, first, func(r *sessionRig) {
		r.opens()
		s := r.client.keys.sessions.current.Load()
		ctx, cancel := context.WithTimeout(r.Context(), 2*silence)
		defer cancel()
		slow := make(chan error, 1)
		go func() { slow <- r.claim(ctx) }()
		time.Sleep(silence)
		r.claims(0)
		if err := <-slow; !errors.Is(err, context.DeadlineExceeded) {
			r.Error(err)
		}
		if s.isRetired() {
			r.Error("the session is given up")
		}
	})
}

// cutting answers after 50 ms, and cuts what is older than a limit, as proxies do.
func cutting(limit time.Duration) func(*scripted) func(pb.IdempotencyService_SessionServer) error {
	return func(s *scripted) func(pb.IdempotencyService_SessionServer) error {
		return func(stream pb.IdempotencyService_SessionServer) error {
			_ = accepts(stream)
			over := time.After(limit)
			received, ended := make(chan *pb.SessionRequest), make(chan struct{})
			go func() {
				for {
					m, err := stream.Recv()
					if err != nil {
						close(ended)
						return
					}
					received <- m
				}
			}()
			for {
				select {
				case m := <-received:
					time.Sleep(50 * time.Millisecond)
					if err := stream.Send(&pb.SessionResponse{Answers: s.answers(m)}); err != nil {
						return err
					}
				case <-ended:
					return nil
				case <-over:
					go func() { // what comes now is never answered
						for {
							select {
							case <-received:
							case <-ended:
								return
							}
						}
					}()
					return status.Error(codes.DeadlineExceeded, "upstream request timeout")
				}
			}
		}
	}
}

// Where streams are cut at some age, sessions end before it once that is known.
func TestTheAgeOfACutIsLearnt(t *testing.T) {
	for limit, most := range map[time.Duration]int{15 * time.Second: 60, 6 * time.Second: 180} {
		scriptedly(t, cutting(limit), func(r *sessionRig) {
			r.opens()
			var all sync.WaitGroup
			var sentAgain atomic.Int64
			start := time.Now()
			for range 8 {
				all.Go(func() {
					for time.Since(start) < 10*time.Minute {
						if err := r.claim(r.Context()); err != nil {
							sentAgain.Add(1)
						}
						time.Sleep(time.Second / 4)
					}
				})
			}
			all.Wait()
			synctest.Wait()
			for _, n := range r.attempts {
				sentAgain.Add(int64(n - 1))
			}
			if _, opened := r.was(); sentAgain.Load() > 8 || opened > most*3/2 || opened < most/2 {
				r.Errorf("cut at %v: %d operations broke off, %d sessions", limit, sentAgain.Load(), opened)
			}
		})
	}
}

// A cut is forgotten: it may have been a crash.
func TestACutIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &sessions{}
		s := newSession(nil, func() {})
		s.answered = true
		p.ended(s, io.ErrUnexpectedEOF, 20*time.Second)
		p.ended(s, io.ErrUnexpectedEOF, 30*time.Second)
		for range 100 {
			if got := p.life(); got > 15*time.Second || got < 12*time.Second {
				t.Fatalf("after a cut at 20 s: %v", got)
			}
		}
		time.Sleep(cutMemory + 1)
		for range 100 {
			if got := p.life(); got < sessionLife*3/4 {
				t.Fatalf("later: %v", got)
			}
		}
	})
}
