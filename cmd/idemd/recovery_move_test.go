package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// A backup that is older than a move knows none of the keys that were moved, and the operator who
// restores it is told so: the backup's time says nothing about them.
func TestARestoreFromBeforeAMove(t *testing.T) {
	root := t.TempDir()
	start := regions(t)
	eu, us := start("eu", "--data-dir="+t.TempDir(), "--backup-root="+root), start("us")
	until(t, func() bool { return run(t, "namespace", "create", "pay", "--addr", us.addr).code == exitOK })
	order := []string{"claim", "--namespace=pay", "--id=order-1"}
	at := func(s *served, args ...string) []string { return append(args, "--addr", s.addr) }
	until(t, func() bool { return run(t, at(us, append(order, "--attempt=a")...)...).code == exitOK })
	run(t, at(us, "complete", "--namespace=pay", "--id=order-1", "--attempt=a", "--outcome=charged")...).ok(t)
	run(t, at(eu, "backup", "old")...).ok(t)
	if moved := run(t, at(us, "region", "move", "pay", "eu")...); moved.code != exitOK {
		t.Fatalf("the move: %+v", moved)
	}
	if got := run(t, at(eu, append(order, "--attempt=b")...)...).ok(t); !strings.Contains(got, "charged") {
		t.Fatalf("after the move: %s", got)
	}
	eu.stop()

	eu = start("eu", "--data-dir="+filepath.Join(root, "old"), "--restored-from=backup")
	var refused result
	until(t, func() bool {
		refused = run(t, at(eu, append(order, "--attempt=c")...)...)
		return !strings.Contains(refused.stderr, "UNAVAILABLE") && !strings.Contains(refused.stderr, "HOME_UNREACHABLE") && !strings.Contains(refused.stderr, "NO_HOME")
	})
	refused.fails(t, exitFailed, "UNKNOWN_HISTORY")
	_, ofPay, _ := strings.Cut(run(t, at(eu, "recovery", "status")...).ok(t), "pay\n")
	for _, says := range []string{"known before it", "nothing, whatever the backup has", "its keys were moved here (fixed eu, epoch 2)", "(no key is known from before)"} {
		if !strings.Contains(ofPay, says) {
			t.Errorf("the status does not say %q:\n%s", says, ofPay)
		}
	}
	lift := at(eu, "recovery", "lift", "--namespace=pay", "--reason=settled")
	run(t, lift...).fails(t, exitFailed, "region eu, whose server was asked: NOT_CONFIRMED: ", "nothing is known for namespace pay from before the floor", "--nothing-known")
	run(t, at(eu, append(order, "--attempt=c")...)...).fails(t, exitFailed, "UNKNOWN_HISTORY")
	run(t, append(lift, "--nothing-known")...).fails(t, exitFailed, "NOT_CONFIRMED: ", "a lease from before the floor", "--leases-ended")
	run(t, append(lift, "--nothing-known", "--leases-ended")...).ok(t)
	run(t, at(eu, append(order, "--attempt=c")...)...).ok(t)
	run(t, at(eu, "recovery", "lift", "--namespace=default", "--leases-ended", "--reason=settled")...).ok(t) // it lives at us as ever
}
