package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

// gated is sessioned with a gate for Completes.
func gated(t *testing.T, test func(*testing.T, *rig, *gate)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(opComplete, func() {}) // of this bubble
		r := newRig(t, &hooked{newMemory(), g.before})
		defer r.close()
		test(t, r, g)
	})
}

// drained shuts the server down in a bubble, and returns how long that took.
func (r *rig) drained(ctx context.Context) <-chan time.Duration {
	took := make(chan time.Duration, 1)
	start := time.Now()
	go func() {
		_ = r.Shutdown(ctx) // whether calls were cut off is seen elsewhere
		took <- time.Since(start)
	}()
	synctest.Wait()
	return took
}

// What was sent before the client knew of the drain is carried out and answered.
func TestDrainOfASession(t *testing.T) {
	gated(t, func(t *testing.T, r *rig, g *gate) {
		idle := openSession(t.Context(), t, r.connect())
		s := openSession(t.Context(), t, r.connect())
		s.send(claimOf(1, "k", "a"))
		fence := s.granted(1).GetFence()
		s.send(completeOf(2, "k", "a", fence), waitingClaim(3, "k", "b"))
		<-g.entered
		took := r.drained(t.Context())
		s.send(lookupOf(4, "none"))
		for !s.closing {
			if err := s.receive(); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(s.CloseSend(), idle.CloseSend()); err != nil {
			t.Fatal(err)
		}
		if err := idle.end(); !idle.closing || !errors.Is(err, io.EOF) {
			t.Errorf("one that is idle is told %v and ends with %v", idle.closing, err)
		}
		close(g.opened)
		if err := s.end(); !errors.Is(err, io.EOF) || len(s.answers) != 3 {
			t.Errorf("ended with %v, answers %v", err, s.answers)
		}
		s.refused(4, codes.NotFound, "KEY_NOT_FOUND")
		if got := s.answer(2); got.GetComplete() == nil {
			t.Errorf("the Complete in flight: %v", got)
		}
		if got := s.answer(3); got.GetClaim().GetInProgress() == nil {
			t.Errorf("the claim that waited: %v", got)
		}
		if took := <-took; took != 0 {
			t.Errorf("took %v", took)
		}
	})
}

// A client that does not do its part delays the drain by a second, and what is in flight is
// still answered.
func TestDrainOfAStubbornSession(t *testing.T) {
	gated(t, func(t *testing.T, r *rig, g *gate) {
		s := openSession(t.Context(), t, r.connect())
		s.send(claimOf(1, "k", "a"))
		s.send(completeOf(2, "k", "a", s.granted(1).GetFence()))
		<-g.entered
		took := r.drained(t.Context())
		time.AfterFunc(3*time.Second, func() { close(g.opened) })
		if err := s.end(); status.Code(err) != codes.Unavailable {
			t.Errorf("ended with %v", err)
		}
		if got := s.answer(2); got.GetComplete() == nil {
			t.Errorf("the Complete in flight: %v", got)
		}
		if took := <-took; took != 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// One that does not read holds nothing up either.
func TestDrainOfASlowReader(t *testing.T) {
	sessioned(t, nil, func(t *testing.T, r *rig) {
		c := r.client()
		key := store.Key{Namespace: "default", ID: "large"}
		fence := grant(t, c, key, "a")
		outcome := &store.Outcome{Body: make([]byte, 200<<10)}
		if _, err := c.Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: fence, Outcome: outcome}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, halfCloses := range []bool{true, false} {
			s := openSession(ctx, t, r.connect())
			for i := range uint64(500) {
				s.send(claimOf(i, "large", "b"))
			}
			if halfCloses {
				if err := s.CloseSend(); err != nil {
					t.Fatal(err)
				}
			}
		}
		synctest.Wait()
		// gRPC itself sends what it has taken before it lets the connection go: until it is cut.
		within, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		if took := <-r.drained(within); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A session that is cut off ends after what it carries out: nobody uses the store after that.
func TestDrainOfASessionIsBounded(t *testing.T) {
	var j journal
	entered := make(chan struct{})
	r := newRig(t, &hooked{newMemory(), func(ctx context.Context, op operation) error {
		if op == opLookup {
			close(entered)
			<-ctx.Done()
			j.note("handler cut off")
			return ctx.Err()
		}
		return nil
	}})
	s := openSession(t.Context(), t, r.connect())
	s.send(lookupOf(1, "k"))
	<-entered
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := r.Shutdown(ended)
	j.note("shut down")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v", err)
	}
	if want := []string{"handler cut off", "shut down"}; !slices.Equal(j.order(), want) {
		t.Errorf("order is %q, want %q", j.order(), want)
	}
	if err := s.end(); status.Code(err) != codes.Unavailable {
		t.Errorf("ended with %v", err)
	}
}

// Servers are replaced under load: no operation fails, and none is even sent twice.
func TestDrainUnderLoad(t *testing.T) {
	const callers, servers, claimsOnEach = 32, 5, 1000
	var asked, claims atomic.Int64
	backend := &hooked{newMemory(), func(_ context.Context, op operation) error {
		if op == opClaim {
			claims.Add(1)
		}
		return nil
	}}
	var current atomic.Pointer[rig]
	current.Store(newRig(t, backend))
	conn, err := grpc.NewClient("passthrough:///pipe", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return current.Load().lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := client.New(conn)
	stop, ticks := make(chan struct{}), make(chan error)
	var load sync.WaitGroup
	for i := range callers {
		load.Go(func() {
			for n := 0; ; n++ {
				key := store.Key{Namespace: "default", ID: fmt.Sprint(i, "-", n)}
				asked.Add(1)
				answer, err := c.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "a"})
				if err == nil && answer.Granted == nil {
					err = fmt.Errorf("got %+v", answer)
				}
				select {
				case ticks <- err:
				case <-stop:
					return
				}
			}
		})
	}
	tick := func(err error) {
		if err != nil {
			t.Errorf("claim: %v", err)
		}
	}
	for range servers {
		for range claimsOnEach {
			tick(<-ticks)
		}
		old := current.Swap(newRig(t, backend))
		shut := make(chan error, 1)
		go func() { shut <- old.Shutdown(t.Context()) }()
		for draining := true; draining; {
			select {
			case err := <-ticks:
				tick(err)
			case err := <-shut:
				draining = false
				if err != nil {
					t.Errorf("Shutdown: %v", err)
				}
			}
		}
	}
	close(stop)
	load.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if claims.Load() != asked.Load() {
		t.Errorf("%d claims were sent for %d", claims.Load(), asked.Load())
	}
}
