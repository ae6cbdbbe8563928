package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/idemd/idemd/store"
)

// A recovery that is begun in a database while two servers grant in it is in force in both when the
// command returns: no claim that is sent after that is granted below the floor.
func TestRecoveryBeginsUnderServers(t *testing.T) {
	if testing.Short() {
		t.Skip("a recovery is in force after 20 seconds: 'make test' runs it")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	dsn := migrated(t)
	var begun, stopped atomic.Bool
	var granted, refused [2]atomic.Int64
	var load sync.WaitGroup
	started := make(chan struct{}, 4)
	for n := range 2 {
		server := startChildOn(t, "--store="+dsn)
		t.Cleanup(func() { server.kill(); server.wait() })
		c := dialChild(t, server)
		load.Go(func() {
			defer func() { started <- struct{}{} }() // also if it failed before
			for i := 0; !stopped.Load(); i++ {
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
