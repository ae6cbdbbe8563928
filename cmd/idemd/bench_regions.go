package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/cmd/idemd/internal/bench"
	"github.com/idemd/idemd/store"
)

// startRegions starts two regions, one of which is the home of all keys, and a bare server that
// sends on what it is asked to the other bare one.
func (c *benchCmd) startRegions(s *session, o *bench.Options, dir string) error {
	near, far, err := twoAddresses()
	if err != nil {
		return err
	}
	topology := filepath.Join(dir, "topology.yaml")
	text := fmt.Sprintf("regions:\n  far: {address: %q}\n  near: {address: %q}\nplacements:\n  \"*\": fixed far\n", far, near)
	if err := os.WriteFile(topology, []byte(text), 0o600); err != nil {
		return err
	}
	for name, addr := range map[string]string{"far": far, "near": near} {
		if _, err := c.startServer(s, o, "idemd", "--data-dir="+filepath.Join(dir, name), "--addr="+addr, "--region="+name, "--topology="+topology); err != nil {
			return err
		}
	}
	if o.Relay, err = c.startServer(s, o, "relay", "--addr="+o.Bare); err != nil {
		return err
	}
	o.Near = near
	return awaitPlacement(s.ctx, near)
}

// twoAddresses are free, as far as can be known: each region's file says where the other one is,
// before either is there.
func twoAddresses() (a, b string, err error) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	defer first.Close()
	second, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	defer second.Close()
	return first.Addr().String(), second.Addr().String(), nil
}

// awaitPlacement waits until the regions have agreed where keys live.
func awaitPlacement(ctx context.Context, addr string) error {
	asked, err := client.Dial(addr, client.NoRouting())
	if err != nil {
		return err
	}
	defer asked.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	claim := store.ClaimRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: rand.Text()}, AttemptID: "placed"}
	for {
		answer, err := asked.Claim(ctx, claim) // sent again, after a pause
		switch {
		case err == nil && !answer.Served.Forwarded:
			return errors.New("two regions were started, and nothing is sent from one to the other")
		case err == nil:
			return nil
		case !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrHomeUnreachable) || ctx.Err() != nil:
			return fmt.Errorf("two regions that were started do not serve: %w", err)
		}
	}
}
