package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// TestReplicasUnderLoad has callers work by way of three processes on one database, of which
// one is killed, while the database is restarted in an orderly way and like after a crash.
// After each it checks what every caller was told, by way of processes that were not started
// again.
func TestReplicasUnderLoad(t *testing.T) {
	rounds, callers := 4, 48
	if testing.Short() {
		rounds, callers = 1, 16
	}
	seed := seedOf(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	database := pgtest.New(t, pgtest.Durable)
	dsn := database.NewDatabase(t)
	run(t, "migrate", "up", "--store="+dsn).ok(t)
	var replicas []*child
	for range 3 {
		replicas = append(replicas, startChildOn(t, "--store="+dsn))
	}
	l := newLoad(t, seed, callers)
	burst := func(what string, harm func()) {
		t.Helper()
		l.burst(spreadOver(t, replicas), 20+rng.Int64N(1000), func() {
			harm()
			l.over.Store(true)
		})
		if t.Failed() {
			t.Fatalf("failed by %s; seed %d", what, seed)
		}
	}
	verify := func(what string, among []*child) {
		t.Helper()
		took := resumes(t, among)
		l.verify(spreadOver(t, among))
		if t.Failed() {
			t.Fatalf("failed after %s; seed %d", what, seed)
		}
		t.Logf("%s: all replicas answered within %v", what, took)
	}
	for n := range rounds {
		dead := n % len(replicas)
		burst("kill -9 of a replica", replicas[dead].kill)
		replicas[dead].wait()
		verify("kill -9 of a replica", append(append([]*child(nil), replicas[:dead]...), replicas[dead+1:]...))
		replicas[dead] = startChildOn(t, "--store="+dsn)
		burst("a restart", func() { database.Restart(t, pgtest.FastShutdown) })
		verify("a restart", replicas)
		burst("a crash", func() { database.Restart(t, pgtest.ImmediateShutdown) })
		verify("a crash", replicas)
	}
	l.verifyDone(spreadOver(t, replicas))
	t.Logf("%d operations acknowledged, %d keys, %d fences on the contended keys; seed %d",
		l.acknowledged.Load(), l.keys(), l.hot.grants(), seed)
}

func spreadOver(t *testing.T, replicas []*child) *spread {
	t.Helper()
	var addrs []string
	for _, r := range replicas {
		addrs = append(addrs, r.addr)
	}
	return newSpread(t, addrs...)
}

// resumes returns how long it took until each replica granted a claim.
func resumes(t *testing.T, replicas []*child) time.Duration {
	t.Helper()
	begun := time.Now()
	for _, r := range replicas {
		c := dialChild(t, r)
		for n := 0; ; n++ {
			key := store.Key{Namespace: store.DefaultNamespace, Scope: "resumes", ID: fmt.Sprint(r.addr, begun.UnixNano(), n)}
			_, err := c.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "a"})
			if err == nil {
				break
			}
			if !errors.Is(err, store.ErrUnavailable) || time.Since(begun) > 30*time.Second {
				t.Fatalf("after %v: %v", time.Since(begun), err)
			}
		}
	}
	return time.Since(begun)
}
