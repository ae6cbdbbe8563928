package client

import (
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

func TestThousandsOfCallersLearnOnce(t *testing.T) {
	among(t, func(w *world) {
		storm := func() int {
			var callers sync.WaitGroup
			for range 2000 {
				callers.Go(func() {
					if err := w.claim(w.Context(), "us"); err != nil {
						w.Error(err)
					}
				})
			}
			callers.Wait()
			return w.take()["eu"].topologies
		}
		if n := storm(); n != 1 {
			w.Errorf("at first the topology was asked for %d times", n)
		}
		time.Sleep(2 * firstTopologyPause)
		w.with(func() { w.placement.Epoch, w.placement.Revision, w.placement.Rule = 2, 2, "fixed ap" })
		if n := storm(); n != 1 {
			w.Errorf("after a move it was asked for %d times", n)
		}
	})
}

func TestTopologyIsUnimplemented(t *testing.T) {
	among(t, func(w *world) {
		w.with(func() { w.regions["eu"].topologyError = unimplemented })
		for range 9 {
			w.claims("us")
			time.Sleep(time.Minute)
		}
		w.were("in nine minutes", map[string]tally{"eu": {forwarded: 9, topologies: 1}})
		w.with(func() { w.regions["eu"].topologyError = nil })
		time.Sleep(time.Minute)
		w.claims("us", "us", "us")
		w.were("then", map[string]tally{"eu": {forwarded: 2, topologies: 1}, "us": {own: 1}})
	})
}

func TestTopologyIsAskedForNowAndThen(t *testing.T) {
	among(t, func(w *world) {
		w.learnt("us")
		for range 360 {
			w.claims("us")
			time.Sleep(10 * time.Second)
		}
		got := w.take()
		if n := got["eu"].topologies; n < 9 || n > 17 || got["us"].own != 360 {
			w.Errorf("in an hour: %v", got)
		}
		time.Sleep(time.Hour)
		w.were("in an idle hour", map[string]tally{})
	})
}

// A server that does not tell, or tells what does not help, is asked ever less often.
func TestLearningInVain(t *testing.T) {
	for what, make := range map[string]func(*world){
		"an error":             func(w *world) { w.regions["eu"].topologyError = status.Error(codes.Unavailable, "later") },
		"a rule not known yet": func(w *world) { w.placement.Rule = "orbit us" },
	} {
		among(t, func(w *world) {
			w.with(func() { make(w) })
			for range 1200 {
				w.claims("us")
				time.Sleep(time.Second / 2)
			}
			got := w.take()["eu"]
			if got.topologies < 10 || got.topologies > 40 || got.forwarded != 1200 {
				w.Errorf("%s: in ten minutes %+v", what, got)
			}
		})
	}
}

func TestRegionsAreNoMore(t *testing.T) {
	among(t, func(w *world) {
		w.learnt("us")
		w.with(func() {
			w.placement.Rule = "fixed eu"
			w.regions["eu"].unplaced, w.regions["eu"].topologyError = true, unimplemented
		})
		w.down("us")
		time.Sleep(2 * topologyLife)
		w.claims("us", "us")
		w.were("asked", map[string]tally{"eu": {own: 2, topologies: 1}})
		if w.client.routes.known.Load() != nil {
			w.Error("there are regions still")
		}
	})
}

// Nobody who was dialled on this machine sends plain text out of it.
func TestPlainTextStaysOnThisMachine(t *testing.T) {
	among(t, func(w *world) {
		w.with(func() {
			w.at("us", "192.0.2.3:7600")
			w.at("ap", "unix:/run/7600")
		})
		for range 100 {
			w.claims("us", "ap")
			time.Sleep(time.Minute / 10)
		}
		if got := w.take()["eu"]; got.forwarded != 200 {
			w.Errorf("%+v", got)
		}
		w.with(func() {
			if len(w.dialled) != 1 {
				w.Errorf("dialled: %v", w.dialled)
			}
		})
	})
}

func TestMaySendTo(t *testing.T) {
	security := func(l credentials.SecurityLevel) credentials.AuthInfo {
		return authInfo{credentials.CommonAuthInfo{SecurityLevel: l}}
	}
	private, plain := security(credentials.PrivacyAndIntegrity), security(credentials.NoSecurity)
	here, there := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7600}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7600}
	socket := &net.UnixAddr{Net: "unix", Name: "/run/idemd"}
	for _, c := range []struct {
		from    net.Addr
		auth    credentials.AuthInfo
		address string
		want    bool
	}{
		{here, plain, "127.0.0.1:7601", true},
		{here, plain, "[::1]:7601", true},
		{here, plain, "localhost:7601", true},
		{here, plain, "192.0.2.2:7600", false},
		{here, plain, "us.example.com:7600", false},
		{here, plain, "localhost.example.com:7600", false},
		{here, nil, "192.0.2.2:7600", false},
		{socket, plain, "192.0.2.2:7600", false},
		{socket, plain, "127.0.0.1:7601", true},
		{here, private, "us.example.com:7600", true},
		{socket, private, "us.example.com:7600", true},
		{there, plain, "us.example.com:7600", true}, // as its caller chose for the one that was dialled
		{there, private, "us.example.com:7600", true},
		{there, plain, "127.0.0.1:7600", false}, // that is there, not here
		{there, private, "localhost:7600", false},
		{there, private, "unix:/run/idemd", false},
		{there, private, "dns:///us.example.com:7600", false},
		{there, private, "us.example.com", false},
		{there, private, ":7600", false},
		{there, private, "", false},
	} {
		if got := maySendTo(c.address, &peer.Peer{Addr: c.from, AuthInfo: c.auth}); got != c.want {
			t.Errorf("from %v (%v) to %q: %v", c.from, c.auth, c.address, got)
		}
	}
}

type authInfo struct{ credentials.CommonAuthInfo }

func (authInfo) AuthType() string { return "a test's" }
