package main

import (
	"context"
	"strings"
	"testing"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

// TestReadmeSteps has a gateway call a wallet that calls a provider, as Go programs do, and goes by the
// page's commands from the gateway's key to the wallet's record and to what the provider was given.
func TestReadmeSteps(t *testing.T) {
	server := serve(t, t.TempDir())
	for _, namespace := range []string{"gateway", "wallet"} {
		server.run(t, "namespace", "create", namespace).ok(t)
	}
	idemd, err := client.Dial(server.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer idemd.Close()
	do := func(ctx context.Context, key store.Key, step string, next func(context.Context, string) (string, error)) (string, error) {
		done, err := client.Do(ctx, idemd, key, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
			return next(ctx, a.DownstreamKey(step))
		})
		return done.Value, err
	}
	var provider string
	begin := store.Key{Namespace: "gateway", Scope: "POST /refunds", ID: "order-1001", Entity: "acme"}
	_, err = do(t.Context(), begin, "wallet", func(ctx context.Context, id string) (string, error) {
		refund := store.Key{Namespace: "wallet", Scope: "/wallet.v1.Wallet/Refund", ID: id, Entity: "acme"}
		return do(ctx, refund, "refund", func(_ context.Context, id string) (string, error) {
			provider = id
			return "refunded by the provider", nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}

	sh := startShell(t)
	sh.run(t, "export IDEMD_ADDR="+server.addr, "")
	var shown []string
	for line := range strings.Lines(strings.ReplaceAll(readmeBlocks(t, "steps")[0], "idemd ", "bin/idemd ")) {
		shown = append(shown, sh.run(t, line, ""))
	}
	switch {
	case len(shown) != 3 || shown[0] != "":
		t.Errorf("three commands are expected, of which the first one prints nothing: %q", shown)
	case !strings.Contains(shown[1], "refunded by the provider"):
		t.Errorf("the wallet's record is not shown:\n%s", shown[1])
	case shown[2] != provider+"\n":
		t.Errorf("the provider was given %q, and derived is %q", provider, shown[2])
	}
}
