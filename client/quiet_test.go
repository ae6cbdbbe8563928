package client_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

// distantStore is one whose answers to what is asked take a while to come.
type distantStore struct {
	*faultyStore
	away atomic.Int64 // a duration
}

func (s *distantStore) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	return fromAfar(ctx, s, func() (store.ClaimAnswer, error) { return s.faultyStore.Claim(ctx, req) })
}

func (s *distantStore) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	return fromAfar(ctx, s, func() (store.LookupAnswer, error) { return s.faultyStore.Lookup(ctx, req) })
}

func fromAfar[A any](ctx context.Context, s *distantStore, ask func() (A, error)) (answer A, err error) {
	select {
	case <-time.After(time.Duration(s.away.Load())):
		return ask()
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// farGuard calls methods that fail open, of a guard whose store is far away.
type farGuard struct {
	*distantStore
	guard  *client.Guard
	events eventLog
	acted  map[string]int
}

func newFarGuard(t *testing.T, away time.Duration) *farGuard {
	g := &farGuard{distantStore: &distantStore{faultyStore: newStore(t)}, acted: map[string]int{}}
	g.away.Store(int64(away))
	g.guard = client.NewGuard(g.distantStore, client.NoOwner(), client.Method(chargeMethod, client.Policy{FailOpen: true}), client.OnEvent(g.events.add))
	return g
}

func (g *farGuard) call(t *testing.T, key string, deadline time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(client.MetadataKey, key))
	_, err := g.guard.UnaryServerInterceptor()(ctx, &testv1.ChargeRequest{}, &grpc.UnaryServerInfo{FullMethod: chargeMethod}, func(context.Context, any) (any, error) {
		g.acted[key]++
		return &testv1.ChargeResponse{}, nil
	})
	return err
}

// A store that is farther away than half of a caller's deadline is not down: nothing acts twice.
func TestFailOpenFarAway(t *testing.T) {
	const away = 160 * time.Millisecond
	for _, deadline := range []time.Duration{300 * time.Millisecond, 150 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			g := newFarGuard(t, away)
			for i := range 64 {
				key := fmt.Sprint("key-", i)
				for range 2 {
					err := g.call(t, key, deadline)
					if short := deadline < away; short && status.Code(err) != codes.DeadlineExceeded || !short && err != nil {
						t.Errorf("%s: %v", key, err)
					}
					time.Sleep(time.Second)
				}
				if g.acted[key] > 1 {
					t.Errorf("%s acted %d times", key, g.acted[key])
				}
			}
			for _, kind := range g.events.take() {
				if kind == client.EventFailedOpen {
					t.Error("failed open")
				}
			}
		})
	}
}

// A store that is silent opens, for callers with short deadlines as soon as that is known; and
// once it is there again it is heard, also if no such caller would wait for it.
func TestFailOpenWhileSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFarGuard(t, time.Hour)
		const deadline = 300 * time.Millisecond
		for key := range 4 {
			err := g.call(t, fmt.Sprint("silent-", key), deadline)
			if key == 0 && status.Code(err) != codes.DeadlineExceeded || key > 0 && err != nil {
				t.Errorf("call %d: %v", key, err)
			}
		}
		g.away.Store(int64(160 * time.Millisecond))
		_ = g.call(t, "back", deadline)
		time.Sleep(10 * time.Second)
		g.events.take()
		if err := g.call(t, "heard", deadline); err != nil {
			t.Error(err)
		}
		if got := g.events.take(); len(got) == 0 || got[0] != client.EventGranted {
			t.Errorf("once it is heard: %v", got)
		}
	})
}
