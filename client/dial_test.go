package client

import (
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// An address that cannot be one is told so at once, and not that credentials are missing.
func TestDialChecksTheAddress(t *testing.T) {
	for _, addr := range []string{"foo:bar:1", "localhost:port", "127.0.0.1:65536", "127.0.0.1:", "::1"} {
		for _, opts := range [][]grpc.DialOption{nil, {grpc.WithTransportCredentials(insecure.NewCredentials())}} {
			_, err := Dial(addr, opts...)
			if err == nil || !strings.Contains(err.Error(), "not host:port") || strings.Contains(err.Error(), "security") {
				t.Errorf("%q: %v", addr, err)
			}
		}
	}
	if _, err := Dial("localhost"); err == nil || !strings.Contains(err.Error(), "no port") || strings.Contains(err.Error(), "security") {
		t.Errorf("without a port: %v", err)
	}
	for _, target := range []string{"dns:///idemd.example.com:7600", "passthrough:///idemd", "unix:/run/idemd", "idemd.example.com"} {
		c, err := Dial(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Errorf("%q: %v", target, err)
			continue
		}
		_ = c.Close() // nothing was sent
	}
}
