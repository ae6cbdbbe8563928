package regiontest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// slack is how late a busy machine may be.
const slack = 2 * time.Second

// echo is two regions of which b gives back what a sends.
type echo struct {
	t       *testing.T
	network *Network
	near    site
	addr    string
}

func newEcho(t *testing.T, ground Ground, delay time.Duration) *echo {
	t.Helper()
	near, far, middle := ground.site(t, 0), ground.site(t, 1), ground.between()
	server, err := far.listen(0)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	proxy, err := middle.listen(0)
	if err != nil {
		t.Fatal(err)
	}
	n := NewNetwork(delay, "a", "b")
	n.connect("a", "b", proxy, func(ctx context.Context) (net.Conn, error) { return middle.dial(ctx, server.Addr().String()) })
	t.Cleanup(func() {
		n.Close()
		_ = server.Close()
		<-served
	})
	return &echo{t: t, network: n, near: near, addr: proxy.Addr().String()}
}

func (e *echo) dial() net.Conn {
	e.t.Helper()
	c, err := e.near.dial(e.t.Context(), e.addr)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = c.Close() })
	return c
}

func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, c net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("heard %q, %v; want %q", got, err, text)
	}
}

// silent fails the test if c says anything for a while.
func silent(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v; want silence", n, err)
	}
}

func onEachGround(t *testing.T, test func(t *testing.T, ground Ground)) {
	t.Run("loopback", func(t *testing.T) { test(t, Loopback()) })
	t.Run("namespaces", func(t *testing.T) { test(t, namespacesOrSkip(t)) })
}

func namespacesOrSkip(t *testing.T) Ground {
	t.Helper()
	ground, missing := Namespaces(t)
	if ground == nil {
		t.Skipf("network namespaces were NOT tested: %s", missing)
	}
	return ground
}

func TestLinesTakeTheirDelayAndKeepOrder(t *testing.T) {
	onEachGround(t, func(t *testing.T, ground Ground) {
		e := newEcho(t, ground, 40*time.Millisecond)
		e.network.SetDelay("b", "a", 80*time.Millisecond)
		begun := time.Now()
		c := e.dial()
		say(t, c, "hello")
		hear(t, c, "hello")
		if took := time.Since(begun); took < 240*time.Millisecond || took > 240*time.Millisecond+slack {
			t.Errorf("a handshake and an answer took %v, want two ways there and back, 240 ms", took)
		}
		begun = time.Now()
		text := ""
		for i := range 1000 {
			line := fmt.Sprintln(i)
			say(t, c, line)
			text += line
		}
		hear(t, c, text)
		if took := time.Since(begun); took < 120*time.Millisecond || took > 120*time.Millisecond+slack {
			t.Errorf("a thousand lines took %v, want one way there and back, 120 ms", took)
		}
	})
}

func TestAHeldLineIsSilentInItsDirectionOnly(t *testing.T) {
	onEachGround(t, func(t *testing.T, ground Ground) {
		e := newEcho(t, ground, time.Millisecond)
		for _, held := range []direction{{"a", "b"}, {"b", "a"}} {
			c := e.dial()
			say(t, c, "before")
			hear(t, c, "before")
			e.network.Hold(held.from, held.to)
			say(t, c, "during")
			silent(t, c)
			young := e.dial() // the proxy is there, but not what is behind it
			say(t, young, "young")
			silent(t, young)
			e.network.Heal()
			hear(t, c, "during")
			hear(t, young, "young")
		}
	})
}

func TestAnUnpluggedSiteLosesPackets(t *testing.T) {
	e := newEcho(t, namespacesOrSkip(t), time.Millisecond)
	c := e.dial()
	say(t, c, "before")
	hear(t, c, "before")
	if !e.near.unplug(t, true) {
		t.Fatal("there is no cable")
	}
	say(t, c, "during")
	silent(t, c)
	e.near.unplug(t, false)
	hear(t, c, "during")
}

func TestIsolateHoldsWhatItSays(t *testing.T) {
	for _, test := range []struct {
		sends, receives bool
		held            map[direction]bool
	}{
		{true, false, map[direction]bool{{"b", "a"}: true, {"b", "c"}: true}},
		{false, true, map[direction]bool{{"a", "b"}: true, {"c", "b"}: true}},
		{true, true, map[direction]bool{{"b", "a"}: true, {"b", "c"}: true, {"a", "b"}: true, {"c", "b"}: true}},
	} {
		n := NewNetwork(0, "a", "b", "c")
		n.Isolate("b", test.sends, test.receives)
		for d, l := range n.lines {
			if l.carries() == test.held[d] {
				t.Errorf("sends %t, receives %t: from %s to %s is held: %t", test.sends, test.receives, d.from, d.to, !l.carries())
			}
		}
	}
}

func TestTheEndOfAConnectionIsPassedOn(t *testing.T) {
	e := newEcho(t, Loopback(), time.Millisecond)
	c := e.dial()
	say(t, c, "last words")
	_ = c.(*net.TCPConn).CloseWrite()
	hear(t, c, "last words")
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read %d, %v after the end; want the end", n, err)
	}
}

func TestACutEndsAndRefusesConnections(t *testing.T) {
	e := newEcho(t, Loopback(), time.Millisecond)
	old := e.dial()
	say(t, old, "x")
	hear(t, old, "x")
	e.network.Cut("b")
	connections := map[string]net.Conn{"old": old}
	if c, err := e.near.dial(t.Context(), e.addr); err == nil { // else it was refused already
		defer c.Close()
		connections["new"] = c
	}
	for what, c := range connections {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the %s connection: read %v after a cut; want that it is gone", what, err)
		}
	}
	e.network.Heal()
	c := e.dial()
	say(t, c, "x")
	hear(t, c, "x")
}

func TestNobodyThereIsARefusal(t *testing.T) {
	n := NewNetwork(time.Millisecond, "a", "b")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.connect("a", "b", l, func(context.Context) (net.Conn, error) { return nil, errors.New("connection refused") })
	defer n.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %v; want that the connection is gone", err)
	}
}
