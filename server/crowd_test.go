package server

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/test/bufconn"
)

// addressed is a listener of which the test says who comes from where.
type addressed struct {
	*bufconn.Listener
	next string
}

type addressedConn struct {
	net.Conn
	from *net.TCPAddr
}

func (l *addressed) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return addressedConn{c, net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(l.next), 4711))}, nil
}

func (c addressedConn) RemoteAddr() net.Addr { return c.from }

// newStreet is an entrance to which people come from addresses.
func newStreet(t *testing.T, most, strangers int) (e *entrance, knock func(from string) *guest) {
	e = &entrance{TB: t, rig: newRig(t, newMemory()), lis: bufconn.Listen(1 << 20), let: make(chan *passed, 1)}
	lis := &addressed{Listener: e.lis}
	e.listen(lis, most, strangers)
	return e, func(from string) *guest {
		lis.next = from
		return e.knock()
	}
}

// Whoever shows who it is, however slowly, is not displaced by those who come from fewer addresses
// than there are places.
func TestWhoComesFromFewAddressesMakesRoom(t *testing.T) {
	for name, others := range map[string]func(n int) string{
		"one address":             func(int) string { return "192.0.2.1" },
		"three addresses":         func(n int) string { return fmt.Sprintf("192.0.2.%d", n%3) },
		"one network of IPv6":     func(n int) string { return fmt.Sprintf("2001:db8:0:1::%x", n) },
		"IPv4 in two ways":        func(n int) string { return []string{"192.0.2.1", "::ffff:192.0.2.1"}[n%2] },
		"one, and a caller of v6": func(int) string { return "2001:db8::1" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, knock := newStreet(t, 16, 4)
				defer e.close()
				slow := map[string]*guest{"v4": knock("198.51.100.7")}
				for n := range 50 {
					knock(others(n))
					if n == 10 && name != "three addresses" {
						slow["v6"] = knock("2001:db8:0:2::1")
					}
				}
				for which, g := range slow {
					if !g.open() {
						t.Errorf("%s was displaced", which)
						continue
					}
					g.inside.peer.met("token:slow")
				}
				if d := slow["v4"].inside.door; d.open != len(slow) || d.unknown.Len() != 4-len(slow) {
					t.Errorf("%d are known, %d are not", d.open, d.unknown.Len())
				}
			})
		})
	}
}

// Who comes from as many addresses as there are places displaces who came first, as all do.
func TestWhoComesFromManyAddressesDisplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, knock := newStreet(t, 16, 4)
		defer e.close()
		var came []*guest
		for n := range 20 {
			came = append(came, knock(fmt.Sprintf("2001:db8:0:%x::1", n)))
			for i, g := range came {
				if want := i > n-4; g.open() != want {
					t.Fatalf("after %d came number %d is open: %t", n, i, !want)
				}
			}
		}
		// One who leaves makes room for one.
		_ = came[18].inside.Close()
		knock("192.0.2.1")
		if !came[16].open() {
			t.Error("one makes room though there is some")
		}
		knock("192.0.2.1") // its own first makes room
		if !came[16].open() || !came[17].open() || !came[19].open() {
			t.Error("one makes room for the second of an address")
		}
	})
}
