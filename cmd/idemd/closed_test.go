package main

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// A server that closes a connection on which TLS came about, as one that is full does, is not said to
// want what was given.
func TestClosedAfterTheHandshake(t *testing.T) {
	secrets := certificates(t, "idemd")
	dir := secrets["idemd"]
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	go func() {
		for {
			c, err := plain.Accept()
			if err != nil {
				return
			}
			secured := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}})
			_ = secured.Handshake()
			_ = secured.Close()
		}
	}()
	addr := "--addr=" + plain.Addr().String()
	with := run(t, append([]string{"lookup", "--id=k", "--timeout=1s", addr}, as(dir)...)...)
	with.fails(t, exitNoAnswer, "closed the connection")
	if strings.Contains(with.stderr, "--ca") {
		t.Errorf("--ca was given: %s", with.stderr)
	}
	run(t, "lookup", "--id=k", "--timeout=1s", addr).fails(t, exitNoAnswer, "--ca is missing")
}
