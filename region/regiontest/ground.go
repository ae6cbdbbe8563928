package regiontest

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"testing"
)

// Ground is where regions stand.
type Ground interface {
	// site makes a place for the region with that number, from 0.
	site(t testing.TB, number int) site
	// between is what lies between the regions, where proxies listen and dial.
	between() site
	// insecure says that the addresses are not loopback's, so that there must be TLS or the
	// word that none is wanted.
	insecure() bool
}

// site is one place: an address, and what listens, dials and runs there.
type site interface {
	host() string
	listen(port int) (net.Listener, error)
	dial(ctx context.Context, addr string) (net.Conn, error)
	command(path string, args ...string) *exec.Cmd
	// unplug takes the site's cable away, so that packets are lost, or plugs it in again; false
	// if there is none.
	unplug(t testing.TB, away bool) bool
}

// Loopback has a loopback address per region.
func Loopback() Ground { return loopback{} }

type loopback struct{}

func (loopback) site(_ testing.TB, number int) site {
	return loopbackSite(fmt.Sprintf("127.0.%d.1", number+1))
}

func (loopback) between() site  { return loopbackSite("127.0.0.1") }
func (loopback) insecure() bool { return false }

type loopbackSite string

func (s loopbackSite) host() string { return string(s) }

func (s loopbackSite) listen(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort(string(s), fmt.Sprint(port)))
}

func (s loopbackSite) dial(ctx context.Context, addr string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
}

func (s loopbackSite) command(path string, args ...string) *exec.Cmd {
	return exec.Command(path, args...)
}

func (s loopbackSite) unplug(testing.TB, bool) bool { return false }
