package server

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/server/identity"
)

// Who has many connections keeps nobody out who has few, and makes room with those that are idle
// for longest.
func TestWhoHasMostMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const few = 2
		e := newEntrance(t, 8, 2) // six for those who are known
		defer e.close()
		come := func(principal identity.Principal) *guest {
			t.Helper()
			g := e.knock()
			time.Sleep(time.Millisecond)
			g.inside.peer.met(principal)
			return g
		}
		full := func(want float64) {
			t.Helper()
			if got := e.value("idemd_listeners_full"); got != want {
				t.Errorf("idemd_listeners_full is %v, want %v", got, want)
			}
		}
		var greedy, others []*guest
		for range 6 {
			full(0)
			greedy = append(greedy, come("token:greedy"))
		}
		full(1)
		// The first one is used, a moment after the last became known: the second is idle for longest.
		time.Sleep(time.Millisecond)
		go func() { _, _ = greedy[0].outside.Write([]byte("x")) }()
		if _, err := greedy[0].inside.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		for i, principal := range []identity.Principal{"token:a", "token:ops"} {
			others = append(others, come(principal), come(principal))
			for n, g := range greedy {
				if left := n >= 1 && n <= few*(i+1); g.open() == left {
					t.Errorf("after %s came: of the greedy one's the one of number %d is open: %t", principal, n, !left)
				}
			}
		}
		// Who has as many as anybody makes room itself, and so does the greedy one.
		more := come("token:greedy")
		if greedy[5].open() || !more.open() || !greedy[0].open() {
			t.Error("the greedy one's own make room for its next")
		}
		others = append(others, come("token:b")) // there are three with two
		last := others[len(others)-1]
		if !last.open() {
			t.Error("who has none is refused for those who have two")
		}
		open := 0
		for _, g := range append(append(greedy, more), others...) {
			if g.open() {
				open++
			}
		}
		if open != 6 {
			t.Errorf("%d are open, want 6", open)
		}
		full(1)
		_ = last.inside.Close()
		full(0)
		if log := e.log.String(); !strings.Contains(log, "principal=token:greedy has=6") {
			t.Errorf("the log does not say who has most:\n%s", log)
		}
	})
}

// Strangers, however many, take no place of those who are known, and are let in though all of those
// are taken.
func TestStrangersTakeNoPlaceOfTheKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEntrance(t, 4, 2)
		defer e.close()
		a, b := e.knock(), e.knock()
		a.inside.peer.met("token:a")
		b.inside.peer.met("token:b")
		caller := e.knock()
		e.knock()                         // before the caller has shown who it is
		caller.inside.peer.met("token:c") // all have one: there is no place
		for range 20 {
			e.knock()
		}
		if !a.open() || !b.open() || caller.open() {
			t.Errorf("open: %t, %t, and of who came last %t", a.open(), b.open(), caller.open())
		}
	})
}

// Who is not known any more is a stranger again, and the first to make room.
func TestWhoIsKnownNoMoreMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEntrance(t, 8, 2)
		defer e.close()
		stays := e.knock()
		stays.inside.peer.met("token:stays")
		var revoked []*guest
		for range 4 {
			g := e.knock()
			g.inside.peer.met("token:revoked")
			revoked = append(revoked, g)
		}
		stranger := e.knock()
		d := stays.inside.door
		d.lookAgain(func(p identity.Principal) bool { return p == "token:stays" })
		left := 0
		for _, g := range revoked {
			if g.open() {
				left++
			}
		}
		if left != 1 || !stays.open() || !stranger.open() {
			t.Errorf("%d of the revoked are open, want 1; stays: %t, a stranger: %t", left, stays.open(), stranger.open())
		}
		for _, g := range revoked {
			if g.open() {
				g.inside.peer.met("token:stays") // a connection of several
			}
		}
		time.Sleep(strangerTime)
		if stranger.open() || !stays.open() || d.open != 2 || d.unknown.Len() != 0 {
			t.Errorf("a stranger's: %t, that stays: %t; %d, %d", stranger.open(), stays.open(), d.open, d.unknown.Len())
		}
	})
}

// The policy is looked at all the time.
func TestARevokedCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSecured(t)
		defer s.close()
		s.dial(s.certOf(paymentsCaller)).Connect()
		s.dial(s.certOf(everyCaller)).Connect()
		synctest.Wait()
		d := s.allDoors()[0]
		places := func() (int, int) {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.open, d.unknown.Len()
		}
		if known, strangers := places(); known != 2 || strangers != 0 {
			t.Fatalf("%d are known, %d are not", known, strangers)
		}
		s.change("policy.yaml", strings.ReplaceAll(testPolicy, `"spiffe://example.org/payments"`, `"spiffe://example.org/elsewhere"`))
		time.Sleep(lookInterval)
		synctest.Wait()
		if known, strangers := places(); known != 1 || strangers != 1 {
			t.Errorf("%d are known, %d are not, want one each", known, strangers)
		}
		time.Sleep(strangerTime)
		synctest.Wait()
		if known, strangers := places(); known != 1 || strangers > 1 { // it may have come again
			t.Errorf("%d are known, %d are not", known, strangers)
		}
	})
}

// An operator sees that a listener is full.
func TestNoticeOfAFullListener(t *testing.T) {
	r := newRig(t, newMemory())
	grant(t, r.client(), testKey, "a") // it listens
	if notice := r.crowded(); notice != "" {
		t.Errorf("%q though there is room", notice)
	}
	d := r.allDoors()[0]
	d.mu.Lock()
	d.count(d.most)
	d.mu.Unlock()
	if notice := r.health.notice(true); !strings.Contains(notice, "all connections that callers may have") {
		t.Errorf("notice %q", notice)
	}
	d.mu.Lock()
	d.count(-d.most)
	d.mu.Unlock()
}
