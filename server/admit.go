package server

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/idemd/idemd/server/identity"
)

// admit finds who asks, and refuses what they may not ask for. It is done for every call and for
// every operation of a session, so that what changes counts at once. The context that it returns
// knows the principal.
func (c *calls) admit(ctx context.Context, method string, req any) (context.Context, error) {
	ctx, r, err := c.authenticate(ctx, method)
	if err != nil || !c.identity.Identifies() {
		return ctx, err
	}
	return ctx, r.authorize(c.identity.Authorizer(), principalOf(ctx), req)
}

// authenticate finds who calls a method, and the rule of that.
func (c *calls) authenticate(ctx context.Context, method string) (context.Context, rule, error) {
	r, served := rules[method]
	if !served {
		return ctx, r, notServed(method).Err()
	}
	if r.open() || !c.identity.Identifies() {
		return ctx, r, nil
	}
	principal, err := c.identity.Authenticate(credentialsOf(ctx))
	if err != nil {
		return ctx, r, err
	}
	if c.identity.Knows(principal) {
		connectionOf(ctx).met(principal)
	}
	return identity.NewContext(ctx, principal), r, nil
}

// admitStream lets a stream begin for somebody with a role for it. What it asks for is looked at
// when it is read.
func (c *calls) admitStream(ss grpc.ServerStream, method string) (grpc.ServerStream, error) {
	ctx, r, err := c.authenticate(ss.Context(), method)
	if err != nil || !c.identity.Identifies() {
		return ss, err
	}
	authorizer, principal := c.identity.Authorizer(), principalOf(ctx)
	admitted := &admittedStream{ServerStream: ss, ctx: ctx}
	if r.namespace != nil {
		admitted.authorize = func(req any) error {
			err := r.authorize(authorizer, principal, req)
			if err != nil {
				return c.notAdmitted(ctx, req, method, err)
			}
			return nil
		}
	}
	return admitted, as(r.anyOf...).authorize(authorizer, principal, nil)
}

// admittedStream is a stream of somebody who is known.
type admittedStream struct {
	grpc.ServerStream
	ctx       context.Context
	authorize func(req any) error // nil: its messages need no more than it does
}

// Context implements grpc.ServerStream.
func (s *admittedStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s *admittedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil || s.authorize == nil {
		return err
	}
	if f, ok := m.(*frame); ok {
		if f.err != nil {
			return nil // who reads it refuses it
		}
		m = f.message
	}
	return s.authorize(m)
}

// principalOf is who asks; empty where nobody is told apart.
func principalOf(ctx context.Context) string {
	principal, _ := identity.FromContext(ctx)
	return string(principal)
}

// credentialsOf is what a call brings along. Of its metadata only authorization counts.
func credentialsOf(ctx context.Context) identity.Credentials {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return identity.Credentials{}
	}
	credentials := identity.OfConnection(from.AuthInfo)
	credentials.Private = credentials.Private || !isAfar(from.Addr)
	credentials.Authorization = metadata.ValueFromIncomingContext(ctx, "authorization")
	return credentials
}

// isAfar reports whether a peer may be another machine. What is not TCP, a Unix socket or a pipe,
// does not leave this one.
func isAfar(addr net.Addr) bool {
	if c, ok := addr.(*connection); ok {
		addr = c.Addr
	}
	tcp, ok := addr.(*net.TCPAddr)
	return ok && !tcp.IP.IsLoopback()
}
