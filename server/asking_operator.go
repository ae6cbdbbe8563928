package server

import (
	"context"

	"github.com/idemd/idemd/store"
)

// ListRecords implements [store.Records].
func (a *asking) ListRecords(ctx context.Context, req store.ListRequest) (store.RecordPage, error) {
	return askFor(ctx, a, opListRecords, req, a.Backend.ListRecords)
}

// InspectRecord implements [store.Records].
func (a *asking) InspectRecord(ctx context.Context, key store.Key) (store.Inspection, error) {
	return askFor(ctx, a, opInspectRecord, key, a.Backend.InspectRecord)
}

// Resolve implements [store.Records].
func (a *asking) Resolve(ctx context.Context, req store.ResolveRequest) (*store.Record, error) {
	return askFor(ctx, a, opResolve, req, a.Backend.Resolve)
}

// ForceRelease implements [store.Records].
func (a *asking) ForceRelease(ctx context.Context, req store.ForceReleaseRequest) (*store.Record, error) {
	return askFor(ctx, a, opForceRelease, req, a.Backend.ForceRelease)
}

// CreateNamespace implements [store.Namespaces].
func (a *asking) CreateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	return askFor(ctx, a, opCreateNamespace, ns, a.Backend.CreateNamespace)
}

// GetNamespace implements [store.Namespaces].
func (a *asking) GetNamespace(ctx context.Context, name string) (store.Namespace, error) {
	return askFor(ctx, a, opGetNamespace, name, a.Backend.GetNamespace)
}

// UpdateNamespace implements [store.Namespaces].
func (a *asking) UpdateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	return askFor(ctx, a, opUpdateNamespace, ns, a.Backend.UpdateNamespace)
}

// ListNamespaces implements [store.Namespaces].
func (a *asking) ListNamespaces(ctx context.Context) ([]store.Namespace, error) {
	return askFor(ctx, a, opListNamespaces, struct{}{},
		func(ctx context.Context, _ struct{}) ([]store.Namespace, error) { return a.Backend.ListNamespaces(ctx) })
}

// Buckets implements [store.Maintainer].
func (a *asking) Buckets(ctx context.Context) ([]store.Bucket, error) {
	return askFor(ctx, a, opListBuckets, struct{}{},
		func(ctx context.Context, _ struct{}) ([]store.Bucket, error) { return a.Backend.Buckets(ctx) })
}
