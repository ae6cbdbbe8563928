package main

import (
	"context"
	"encoding/json"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
)

// A shipFunc has a parcel shipped, once for each key.
type shipFunc func(ctx context.Context, key, address string) error

// handler carries out the event that an order was paid. One that makes no sense is a dead
// letter; nothing was done for it, so it runs when it is redriven to a worker that understands it.
func handler(ship shipFunc) client.Handler {
	return func(ctx context.Context, a *client.Attempt, m client.Message) error {
		var o order
		if err := json.Unmarshal(m.Body, &o); err != nil || o.Address == "" {
			return client.NoEffect(status.Error(codes.InvalidArgument, "no order with an address"))
		}
		// The carrier knows the key of an earlier attempt, so there is nothing to look up.
		return ship(ctx, a.DownstreamKey("ship"), o.Address)
	}
}
