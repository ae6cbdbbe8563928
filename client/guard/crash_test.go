package guard_test

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/idemd/idemd/client/guard"
)

// childPlan tells this program, started again by its own tests, to be an attempt that is killed: "KIND DSN GUARD POINT".
const childPlan = "IDEMD_GUARD_CHILD"

// Where the child is killed.
const (
	afterEffect  = "effect" // the effect is written, and neither recorded nor committed
	beforeCommit = "recorded"
	afterCommit  = "committed" // and nobody has been told
)

var points = []string{afterEffect, beforeCommit, afterCommit}

// child is attempt 1. It says when it has come to the point, and stays there to be killed.
func child(plan string) {
	fields := strings.Split(plan, "|")
	point := func(name string) {
		if name == fields[3] {
			fmt.Println("at", name)
			<-context.Background().Done() // never
		}
	}
	err := func() error {
		d, _, err := open(fields[0], fields[1])
		if err != nil {
			return err
		}
		tx, err := d.begin(context.Background(), d.levels[0])
		if err != nil {
			return err
		}
		if err := attempt(tx, fields[2], 1, func() { point(afterEffect) }); err != nil {
			return err
		}
		point(beforeCommit)
		if err := tx.commit(); err != nil {
			return err
		}
		point(afterCommit)
		return nil
	}()
	fmt.Println("ended:", err)
	os.Exit(1)
}

// attempt is one of acts, or one that overwrites, behind a fence.
func attempt(tx guard.Tx, name string, n int64, at func()) error {
	if name == "fence" {
		if err := fence.Check(context.Background(), tx, "x", n); err != nil {
			return err
		}
		defer at()
		return run(tx, "UPDATE effects SET value = $1 WHERE id = 'register'", n)
	}
	_, err := acts[name](tx, n, at)
	return err
}

// killed starts a child, and kills it at the point.
func killed(t *testing.T, d *database, name, point string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childPlan+"="+strings.Join([]string{d.kind, d.dsn, name, point}, "|"))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	wantEqual(t, "the child", line, "at "+point+"\n")
	if err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Kill(); err != nil { // SIGKILL
		t.Error(err)
	}
	_ = cmd.Wait() // it was killed
}

// An attempt is killed, and the next one comes: there is one effect, and the next one is told whose it is.
func TestKilled(t *testing.T) {
	t.Parallel()
	overAll(t, func(t *testing.T, d *database) {
		for _, name := range slices.Sorted(maps.Keys(acts)) {
			for _, point := range points {
				d.clear(t)
				d.do(t, newOrder)
				killed(t, d, name, point)
				for _, again := range []bool{point == afterCommit, true} {
					var answer string
					d.do(t, func(tx guard.Tx) (err error) {
						answer, err = acts[name](tx, 2, func() {})
						return err
					})
					wantEqual(t, name+", killed at "+point+": "+answer, strings.HasPrefix(answer, fmt.Sprintf("repeat %v", again)), true)
					wantEqual(t, name+", killed at "+point+": effects", d.effects(t, "x"), 1)
				}
				wantEqual(t, name+", killed at "+point+": effect of attempt", d.value(t, "x"), map[bool]int64{true: 1, false: 2}[point == afterCommit])
			}
		}
	})
}

func TestKilledBehindFence(t *testing.T) {
	t.Parallel()
	overAll(t, func(t *testing.T, d *database) {
		for _, point := range points {
			d.clear(t)
			d.do(t, func(tx guard.Tx) error { return effect(tx, "register", 0) })
			killed(t, d, "fence", point)
			var highest int64
			d.do(t, func(tx guard.Tx) error {
				_, err := tx.QueryRow(t.Context(), "SELECT COALESCE(MAX(fence), 0) FROM idemd_fence", nil, &highest)
				return err
			})
			wantEqual(t, "killed at "+point+": fence and effect", highest, d.value(t, "register"))
			wantEqual(t, "killed at "+point+": effect", highest, map[bool]int64{true: 1, false: 0}[point == afterCommit])

			d.do(t, func(tx guard.Tx) error { return attempt(tx, "fence", 2, func() {}) })
			err := d.tryTx(d.levels[0], func(tx guard.Tx) error { return attempt(tx, "fence", 1, func() {}) })
			wantIs(t, "the first attempt, late", err, guard.ErrStaleFence)
			wantEqual(t, "effect", d.value(t, "register"), 2)
		}
	})
}

func (d *database) value(t *testing.T, id string) (value int64) {
	t.Helper()
	d.do(t, func(tx guard.Tx) error {
		_, err := tx.QueryRow(t.Context(), forDialect(tx, "SELECT value FROM effects WHERE id = $1"), []any{id}, &value)
		return err
	})
	return value
}
