package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// A recovery that is begun in a database while two servers grant in it is in force in both when the
// command returns: no claim that is sent after that is granted below the floor.
func TestRecoveryBeginsUnderServers(t *testing.T) {
	if testing.Short() {
		t.Skip("a recovery is in force after 20 seconds: 'make test' runs it")
	}
	t.Parallel()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	dsn := migrated(t)
	var begun, stopped atomic.Bool
	var granted, refused [2]atomic.Int64
	var load sync.WaitGroup
	started := make(chan struct{}, 4)
	pace := time.NewTicker(5 * time.Millisecond) // of both servers, which have 20 seconds to grant in, beside other tests
	defer pace.Stop()
	for n := range 2 {
		server := startChildOn(t, "--store="+dsn)
		t.Cleanup(func() { server.kill(); server.wait() })
		c := dialChild(t, server)
		load.Go(func() {
			defer func() { started <- struct{}{} }() // also if it failed before
			for i := 0; !stopped.Load(); i++ {
				if !begun.Load() {
					<-pace.C
				}
				after := begun.Load()
				answer, err := c.Claim(t.Context(), store.ClaimRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: fmt.Sprintf("%d/%d", n, i)}, AttemptID: "a"})
				switch {
				case errors.Is(err, store.ErrUnknownHistory):
					refused[n].Add(1)
				case err != nil || answer.Granted == nil:
					t.Errorf("server %d: %+v, %v", n, answer, err)
				case after:
					t.Errorf("server %d granted %+v after the recovery had begun", n, answer.Granted)
				case granted[n].Add(1) == 1:
					started <- struct{}{}
				}
				if t.Failed() {
					return
				}
				if after && refused[n].Load() > 50 {
					return
				}
			}
		})
	}
	for range 2 {
		<-started
	}
	cmd := exec.CommandContext(t.Context(), path, "recovery", "begin", "--from=2026-01-31T15:04:05Z", "--reason=failed over")
	cmd.Env = append(os.Environ(), "IDEMD_STORE="+dsn)
	out, err := cmd.CombinedOutput()
	begun.Store(true)
	if err != nil {
		stopped.Store(true)
		t.Errorf("%v\n%s", err, out)
	}
	load.Wait()
	for n := range 2 {
		t.Logf("server %d granted %d before, and refused %d", n, granted[n].Load(), refused[n].Load())
	}
}

// Of a database with several regions a recovery is one of all of them, which is said; it is begun in
// the name of one of them, and a floor is lifted by who has said that it is everybody's.
func TestRecoveryOfADatabaseOfRegions(t *testing.T) {
	if testing.Short() {
		t.Skip("a recovery is in force after 20 seconds: 'make test' runs it")
	}
	t.Parallel()
	dsn := pgtest.Shared(t).NewDatabase(t)
	for _, name := range []string{"eu", "us"} {
		run(t, "migrate", "up", "--store="+dsn, "--region="+name).ok(t)
	}
	start := regions(t)
	eu, us := serveRegions(t, func(name string, _ ...string) *served { return start(name, "--store="+dsn) })
	const all = "regions eu, us are in one database: a recovery and its floors are of all of them"
	if got := us.run(t, "recovery", "status").ok(t); !strings.HasPrefix(got, "region us, whose server was asked\n"+all+"\n") {
		t.Errorf("status: %s", got)
	}
	eu.stop()
	us.stop()

	begin := []string{"recovery", "begin", "--store=" + dsn, "--from=2026-01-31T15:04:05Z", "--reason=restored"}
	run(t, begin...).fails(t, exitFailed, `no table of region "local", and none was made; it has the keys of regions eu, us; name one of these with --region or IDEMD_REGION`, "migrate up")
	if got := run(t, append(begin, "--region=eu")...); got.code != exitOK || !strings.HasPrefix(got.stdout, all+"\n") {
		t.Errorf("begin: %+v", got)
	}
	eu, us = start("eu", "--store="+dsn), start("us", "--store="+dsn)
	lift := []string{"recovery", "lift", "--namespace=default", "--reason=settled", "--leases-ended"}
	until(t, func() bool { // eu has joined
		got := eu.run(t, lift...)
		return strings.Contains(got.stderr, "NOT_CONFIRMED: not confirmed: regions eu, us are in one database and have one floor for namespace default")
	})
	if got := eu.run(t, append(lift, "--all-regions")...).ok(t); !strings.HasPrefix(got, "region eu, whose server was asked\n"+all+"\n") {
		t.Errorf("lift: %s", got)
	}
	until(t, func() bool {
		return strings.Contains(us.run(t, "recovery", "status").ok(t), "recovery floor      none")
	})
}
