package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// ErrInsecureAddress is in the error of an address that other machines can reach, when
// that was not allowed.
var ErrInsecureAddress = errors.New("beyond this machine there must be TLS and a policy")

// CheckListenAddr refuses a host:port to listen on that is malformed or, unless allowed, that
// other machines can reach: without TLS and a policy whoever reaches the port can claim and
// complete every key. It asks no DNS: a host is an IP address, or localhost.
func CheckListenAddr(addr string, allowed bool) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen address %q is not host:port, such as 127.0.0.1:7600", addr)
	}
	if allowed || host == "localhost" {
		return nil
	}
	ip, err := netip.ParseAddr(host)
	if err == nil && ip.IsLoopback() {
		return nil
	}
	return insecureAddress(addr)
}

// checkListener is CheckListenAddr for what already listens. What is not TCP, a Unix
// socket or a pipe, does not leave the machine.
func checkListener(lis net.Listener, allowed bool) error {
	if allowed || isLocal(lis) {
		return nil
	}
	return insecureAddress(lis.Addr().String())
}

func isLocal(lis net.Listener) bool {
	tcp, ok := lis.Addr().(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

func insecureAddress(addr string) error {
	return fmt.Errorf("%w: %s can be reached from other machines; listen on 127.0.0.1, give --tls-cert, --tls-key and --policy, or allow it by name (--allow-insecure)", ErrInsecureAddress, addr)
}
