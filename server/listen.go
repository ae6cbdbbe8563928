package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// ErrInsecureAddress is in the error of an address that other machines can reach, when
// that was not allowed.
var ErrInsecureAddress = errors.New("plain text beyond this machine is not allowed")

// CheckListenAddr refuses a host:port to listen on that is malformed or, unless
// allowInsecure is set, that other machines can reach: there is no TLS and no identity
// yet, so whoever reaches the port can claim and complete every key. It asks no DNS: a
// host is an IP address, or localhost.
func CheckListenAddr(addr string, allowInsecure bool) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen address %q is not host:port, such as 127.0.0.1:7600", addr)
	}
	if allowInsecure || host == "localhost" {
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
func checkListener(lis net.Listener, allowInsecure bool) error {
	if allowInsecure || isLocal(lis) {
		return nil
	}
	return insecureAddress(lis.Addr().String())
}

func isLocal(lis net.Listener) bool {
	tcp, ok := lis.Addr().(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

func insecureAddress(addr string) error {
	return fmt.Errorf("%w: %s can be reached from other machines; listen on 127.0.0.1, or allow it by name (--allow-insecure)", ErrInsecureAddress, addr)
}
