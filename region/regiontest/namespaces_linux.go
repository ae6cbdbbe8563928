package regiontest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Namespaces has a network namespace per region, joined by a bridge in one more, which are
// removed when the test ends; or false, and what is missing, where that cannot be made.
func Namespaces(t testing.TB) (Ground, string) {
	n := &namespaces{prefix: fmt.Sprintf("idemd-%d-%d-", os.Getpid(), grounds.Add(1))}
	middle, err := n.add(t, "between")
	if err != nil {
		return nil, err.Error()
	}
	n.middle = &namespace{name: middle, address: "10.99.0.254"}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "bridge", "type", "bridge"},
		{"addr", "add", "10.99.0.254/16", "dev", "bridge"},
		{"link", "set", "bridge", "up"},
	} {
		if err := ip(append([]string{"-n", middle}, args...)...); err != nil {
			return nil, err.Error()
		}
	}
	return n, ""
}

// grounds keeps the names of several tests apart.
var grounds atomic.Int64

type namespaces struct {
	prefix string
	middle *namespace
}

func (n *namespaces) between() site  { return n.middle }
func (n *namespaces) insecure() bool { return true }

func (n *namespaces) site(t testing.TB, number int) site {
	t.Helper()
	name, err := n.add(t, fmt.Sprint(number))
	if err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprintf("port%d", number)
	s := &namespace{name: name, address: fmt.Sprintf("10.99.%d.1", number+1), bridge: n.middle, port: port}
	for _, args := range [][]string{
		{"-n", n.middle.name, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name},
		{"-n", n.middle.name, "link", "set", port, "master", "bridge", "up"},
		{"-n", name, "link", "set", "lo", "up"},
		{"-n", name, "addr", "add", s.address + "/16", "dev", "eth0"},
		{"-n", name, "link", "set", "eth0", "up"},
	} {
		if err := ip(args...); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// add makes a namespace, which goes with the test.
func (n *namespaces) add(t testing.TB, name string) (string, error) {
	name = n.prefix + name
	if err := ip("netns", "add", name); err != nil {
		return "", err
	}
	t.Cleanup(func() {
		if err := ip("netns", "delete", name); err != nil {
			t.Error(err)
		}
	})
	return name, nil
}

func ip(args ...string) error {
	var stderr bytes.Buffer
	cmd := exec.Command("ip", args...)
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

type namespace struct {
	name, address string
	bridge        *namespace // where the other end of its cable is, in a port
	port          string
}

func (s *namespace) host() string { return s.address }

func (s *namespace) listen(port int) (net.Listener, error) {
	return inside(s, func() (net.Listener, error) {
		return net.Listen("tcp", net.JoinHostPort(s.address, fmt.Sprint(port)))
	})
}

func (s *namespace) dial(ctx context.Context, addr string) (net.Conn, error) {
	return inside(s, func() (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", addr) })
}

func (s *namespace) command(path string, args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", s.name, path}, args...)...)
}

func (s *namespace) unplug(t testing.TB, away bool) bool {
	t.Helper()
	if s.bridge == nil {
		return false
	}
	to := map[bool]string{true: "down", false: "up"}[away]
	if err := ip("-n", s.bridge.name, "link", "set", s.port, to); err != nil {
		t.Fatal(err)
	}
	return true
}

// inside makes a socket in the namespace: a socket stays where it was made.
func inside[T any](s *namespace, socket func() (T, error)) (made T, err error) {
	runtime.LockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return made, err
	}
	defer here.Close()
	if err := enter("/run/netns/" + s.name); err != nil {
		runtime.UnlockOSThread()
		return made, err
	}
	made, err = socket()
	if unix.Setns(int(here.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread() // else the thread ends with the goroutine, so that nobody else is misled
	}
	return made, err
}

func enter(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
}
