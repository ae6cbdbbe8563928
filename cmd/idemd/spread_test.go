package main

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

// spread is a backend that sends each operation to another one of several servers.
type spread struct {
	clients []*client.Client
	next    atomic.Uint64
	// changed is told of a change of a namespace, which servers learn of later. May be nil.
	changed func()
	store.Maintainer
	store.Placements // not asked for
	store.Members    // nor this
}

func newSpread(t testing.TB, addrs ...string) *spread {
	t.Helper()
	s := &spread{}
	for _, addr := range addrs {
		c, err := client.Dial(addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		s.clients = append(s.clients, c)
	}
	return s
}

func (s *spread) one() *client.Client { return s.clients[s.next.Add(1)%uint64(len(s.clients))] }

func (s *spread) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	return s.one().Claim(ctx, req)
}

func (s *spread) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	return s.one().Renew(ctx, req)
}

func (s *spread) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	return s.one().Complete(ctx, req)
}

func (s *spread) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	return s.one().Release(ctx, req)
}

func (s *spread) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	return s.one().Lookup(ctx, req)
}

func (s *spread) ListRecords(ctx context.Context, req store.ListRequest) (store.RecordPage, error) {
	return s.one().ListRecords(ctx, req)
}

func (s *spread) InspectRecord(ctx context.Context, key store.Key) (store.Inspection, error) {
	return s.one().InspectRecord(ctx, key)
}

func (s *spread) Resolve(ctx context.Context, req store.ResolveRequest) (*store.Record, error) {
	return s.one().Resolve(ctx, req)
}

func (s *spread) ForceRelease(ctx context.Context, req store.ForceReleaseRequest) (*store.Record, error) {
	return s.one().ForceRelease(ctx, req)
}

func (s *spread) ImportOutcome(ctx context.Context, req store.ImportRequest) (store.ImportAnswer, error) {
	return s.one().ImportOutcome(ctx, req)
}

func (s *spread) BeginRecovery(ctx context.Context, req store.BeginRecoveryRequest) (store.BegunRecovery, error) {
	defer s.tell()
	return s.one().BeginRecovery(ctx, req)
}

func (s *spread) LiftRecovery(ctx context.Context, req store.LiftRecoveryRequest) (store.Namespace, error) {
	defer s.tell()
	return s.one().LiftRecovery(ctx, req)
}

func (s *spread) CreateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	defer s.tell()
	return s.one().CreateNamespace(ctx, ns)
}

func (s *spread) UpdateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	defer s.tell()
	return s.one().UpdateNamespace(ctx, ns)
}

func (s *spread) tell() {
	if s.changed != nil {
		s.changed()
	}
}

func (s *spread) GetNamespace(ctx context.Context, name string) (store.Namespace, error) {
	return s.one().GetNamespace(ctx, name)
}

func (s *spread) ListNamespaces(ctx context.Context) ([]store.Namespace, error) {
	return s.one().ListNamespaces(ctx)
}

func (s *spread) Buckets(ctx context.Context) ([]store.Bucket, error) { return s.one().Buckets(ctx) }
