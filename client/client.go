package client

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// Client asks a server. Its methods may be called by any number of goroutines. It checks
// what can be checked before a request is sent, so that one that cannot succeed costs no
// call.
//
// An operation on a key that the server could not carry out or answer is sent again, under
// the same attempt id: at most five times, after pauses that grow, are random and keep to the
// server's hint, and for no more than a tenth of the calls and one a second. What operators
// do is sent once.
//
// Operations on keys share the messages of one stream, a session, where the server has them:
// a call of its own costs each more, also a lone one. It is opened once operations come within
// a second of one another, and replaced every minute. A Claim with a wait stays a call, and so
// does what has a large outcome or a context with outgoing metadata.
//
// Where there are regions, a client of [Dial] learns from the answers that there are, and asks
// a key's home itself. What it cannot reach there, or does not know of, it asks the server that
// was dialled, which sends it on; so too, as the same attempt, what is on the way to a home when
// that breaks, or falls silent, which takes 1.4 s to notice. In plain text it leaves this machine
// only if the dialled server is on another one. What operators do is asked of the dialled server.
// See [NoRouting].
//
// Errors are those of [store.Store]: a refusal is a [*store.Error] that unwraps to one of
// package store's sentinels, and to the gRPC error if there was one. A server that cannot
// be reached, or a connection that broke, is [store.ErrUnavailable]: the operation may
// have taken effect, and sending it again with the same attempt id is safe. A context
// that ended gives its own error.
type Client struct {
	keys   *keyCalls
	admin  pb.AdminServiceClient
	budget retryBudget
	conn   io.Closer // nil if the connection is the caller's
	routes *routes   // nil: everything is asked by keys
}

var (
	_ store.Store      = (*Client)(nil)
	_ store.Records    = (*Client)(nil)
	_ store.Namespaces = (*Client)(nil)
	_ store.Recovery   = (*Client)(nil)
)

// New returns a client that uses a connection of the caller's, and does not close it. It asks
// by no other: a key that lives in another region than the server's costs a detour each time.
// An [InspectRecord] answer can exceed gRPC's default limit of 4 MiB on what a client
// receives; allow for [MaxReceiveBytes], as the connections that [Dial] makes do.
//
// [InspectRecord]: [Client.InspectRecord]
func New(cc grpc.ClientConnInterface) *Client {
	return &Client{keys: newKeyCalls(cc), admin: pb.NewAdminServiceClient(cc)}
}

// Close closes the connection that [Dial] made, and what is in flight on it breaks off. On a
// client of [New] it ends the session after what is in flight, and the client can still be
// used.
func (c *Client) Close() error {
	c.keys.sessions.close()
	if c.conn == nil {
		return nil
	}
	err := c.conn.Close() // first: what breaks off on its way home is not to go by it
	if c.routes != nil {
		c.routes.close()
	}
	c.keys.sessions.running.Wait()
	return err
}

// ask sends one operation on a key, and reads its answer.
func ask[Request any, Response interface{ GetServed() *pb.Served }, Answer any](
	ctx context.Context, c *Client, key store.Key,
	method func(*keyCalls, context.Context, Request, ...grpc.CallOption) (Response, error),
	request Request,
	read func(Response) (Answer, error),
) (Answer, error) {
	return call(ctx, func(ctx context.Context, request Request, _ ...grpc.CallOption) (Response, error) {
		by := func(keys *keyCalls) (Response, error) { return method(keys, ctx, request) }
		if c.routes == nil {
			return by(c.keys)
		}
		return routed(c.routes, key, by)
	}, request, read)
}

// call sends one request and reads its answer.
func call[Request, Response, Answer any](
	ctx context.Context,
	method func(context.Context, Request, ...grpc.CallOption) (Response, error),
	request Request,
	read func(Response) (Answer, error),
) (answer Answer, err error) {
	response, err := method(ctx, request)
	if err != nil {
		return answer, failure(ctx, err)
	}
	got, err := read(response)
	if err != nil {
		return answer, err
	}
	return got, nil
}

// failure is the store's error for the error of a call.
func failure(ctx context.Context, err error) error {
	failed := storepb.FromStatus(err)
	if errors.Is(failed, context.Canceled) && ctx.Err() == nil {
		return &store.Error{Sentinel: store.ErrUnavailable, Detail: "the server ended the call", Cause: err}
	}
	return failed
}
