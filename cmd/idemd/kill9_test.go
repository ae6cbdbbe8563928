package main

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/idemd/idemd/client"
)

// seedVariable repeats the random choices of a run.
const seedVariable = "IDEMD_TEST_SEED"

// TestKill9 kills the real server 30 times under load, after a random number of
// acknowledged operations, and checks after each restart what every caller was told.
func TestKill9(t *testing.T) {
	kills, callers := 30, 64
	if testing.Short() {
		kills, callers = 3, 16
	}
	seed := seedOf(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	l := newLoad(t, seed, callers)
	for n := range kills {
		server := startChild(t, dir)
		c := dialChild(t, server)
		if n > 0 {
			l.verify(c)
		}
		l.burst(c, 20+rng.Int64N(2500), server.kill)
		server.wait()
		if t.Failed() {
			t.Fatalf("failed by kill %d of %d; seed %d", n+1, kills, seed)
		}
	}
	server := startChild(t, dir)
	c := dialChild(t, server)
	l.verify(c)
	l.verifyDone(c)
	t.Logf("%d kills, %d operations acknowledged, %d keys, %d fences on the contended keys; seed %d",
		kills, l.acknowledged.Load(), l.keys(), l.hot.grants(), seed)
}

func seedOf(t *testing.T) uint64 {
	text := os.Getenv(seedVariable)
	if text == "" {
		return uint64(time.Now().UnixNano())
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", seedVariable, err)
	}
	return seed
}

func dialChild(t *testing.T, server *child) *client.Client {
	t.Helper()
	return dialAt(t, server.addr)
}

func dialAt(t *testing.T, addr string) *client.Client {
	t.Helper()
	c, err := client.Dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
