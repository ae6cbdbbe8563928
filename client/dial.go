package client

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
)

// MaxReceiveBytes has room for every answer: the largest is an inspection, with the outcome
// and 32 events, each with one.
const MaxReceiveBytes = 16 << 20

// Dial returns a client with a connection of its own, which Close closes. It does not
// wait for the server: the first call does.
//
// Without options the connection is in plain text, which is allowed only to a loopback
// address. To any other, pass [TLSFiles] or grpc.WithTransportCredentials, and [BearerToken]
// where a token says who asks. Options of the caller's win
// over the defaults: pings on a silent connection with calls in flight every 30 s, and at
// most 5 s between attempts to connect, so that calls succeed soon after a server is back.
//
// Where there are regions, the client learns from the server which they are and where keys
// live, and connects to a key's home itself, with the same options; see [Client].
func Dial(addr string, opts ...grpc.DialOption) (*Client, error) {
	if err := checkTarget(addr); err != nil {
		return nil, err
	}
	defaults := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxReceiveBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect(), MinConnectTimeout: 5 * time.Second}),
	}
	if isLoopback(addr) {
		defaults = append(defaults, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	opts = append(defaults, opts...)
	conn, err := grpc.NewClient(addr, opts...)
	if err != nil {
		if !strings.Contains(addr, ":") {
			err = errors.New("it has no port")
		}
		return nil, fmt.Errorf("cannot use %q as the address of a server: %w; give host:port, and transport credentials unless the host is loopback", addr, err)
	}
	c := New(conn)
	c.conn = conn
	if !slices.Contains(opts, NoRouting()) {
		c.routes = newRoutes(c.keys, func(address string) (*grpc.ClientConn, error) {
			return grpc.NewClient("dns:///"+address, opts...) // never what else gRPC could take an address for
		})
	}
	return c, nil
}

// NoRouting is an option of [Dial] that keeps a client to the server that was dialled, which
// sends on what lives in another region.
func NoRouting() grpc.DialOption { return noRouting{} }

type noRouting struct{ grpc.EmptyDialOption }

// checkTarget refuses an address that gRPC would find wrong with the first call, or before
// that in words about something else. gRPC's own targets, such as dns:///host, it leaves
// alone, and a host without a port, which with credentials means 443.
func checkTarget(addr string) error {
	if target, err := url.Parse(addr); err == nil && resolver.Get(target.Scheme) != nil || !strings.Contains(addr, ":") {
		return nil
	}
	return checkHostPort(addr)
}

func checkHostPort(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%q is not host:port, such as 127.0.0.1:7600", addr)
	}
	return nil
}

func reconnect() backoff.Config {
	b := backoff.DefaultConfig
	b.BaseDelay, b.MaxDelay = 100*time.Millisecond, 5*time.Second
	return b
}

// isLoopback reports whether host:port names this machine, without asking DNS.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && isLoopbackHost(host)
}

func isLoopbackHost(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
