package client

import (
	"context"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// ListRecords implements [store.Records].
func (c *Client) ListRecords(ctx context.Context, req store.ListRequest) (store.RecordPage, error) {
	if err := req.Validate(); err != nil {
		return store.RecordPage{}, err
	}
	return call(ctx, c.admin.ListRecords, storepb.ListRequestToProto(req), storepb.RecordPageFromProto)
}

// InspectRecord implements [store.Records]. The record has no attempt ids: a server does
// not show them.
func (c *Client) InspectRecord(ctx context.Context, key store.Key) (store.Inspection, error) {
	if err := key.Validate(); err != nil {
		return store.Inspection{}, err
	}
	req := &pb.InspectRecordRequest{Key: storepb.KeyToProto(key)}
	return call(ctx, c.admin.InspectRecord, req, storepb.InspectionFromProto)
}

// Resolve implements [store.Records]. For the record see [Client.InspectRecord].
func (c *Client) Resolve(ctx context.Context, req store.ResolveRequest) (*store.Record, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	return call(ctx, c.admin.Resolve, storepb.ResolveRequestToProto(req), recordOf[*pb.ResolveResponse])
}

// ForceRelease implements [store.Records]. For the record see [Client.InspectRecord].
func (c *Client) ForceRelease(ctx context.Context, req store.ForceReleaseRequest) (*store.Record, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	return call(ctx, c.admin.ForceRelease, storepb.ForceReleaseRequestToProto(req), recordOf[*pb.ForceReleaseResponse])
}

func recordOf[M interface{ GetRecord() *pb.Record }](m M) (*store.Record, error) {
	return storepb.RecordFromProto(m.GetRecord())
}

// CreateNamespace implements [store.Namespaces].
func (c *Client) CreateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	settings := ns.WithDefaults()
	if err := settings.Validate(); err != nil {
		return store.Namespace{}, err
	}
	req := &pb.CreateNamespaceRequest{Namespace: storepb.NamespaceToProto(ns)}
	return call(ctx, c.admin.CreateNamespace, req, namespaceOf[*pb.CreateNamespaceResponse])
}

// GetNamespace implements [store.Namespaces].
func (c *Client) GetNamespace(ctx context.Context, name string) (store.Namespace, error) {
	if err := store.ValidateNamespaceName(name); err != nil {
		return store.Namespace{}, err
	}
	req := &pb.GetNamespaceRequest{Name: name}
	return call(ctx, c.admin.GetNamespace, req, namespaceOf[*pb.GetNamespaceResponse])
}

// UpdateNamespace implements [store.Namespaces].
func (c *Client) UpdateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	if err := store.ValidateNamespaceName(ns.Name); err != nil {
		return store.Namespace{}, err
	}
	return call(ctx, c.admin.UpdateNamespace, storepb.UpdateToProto(ns), namespaceOf[*pb.UpdateNamespaceResponse])
}

func namespaceOf[M interface{ GetNamespace() *pb.Namespace }](m M) (store.Namespace, error) {
	return storepb.NamespaceAnswerFromProto(m.GetNamespace())
}

// ListNamespaces implements [store.Namespaces].
func (c *Client) ListNamespaces(ctx context.Context) ([]store.Namespace, error) {
	return call(ctx, c.admin.ListNamespaces, &pb.ListNamespacesRequest{},
		func(m *pb.ListNamespacesResponse) ([]store.Namespace, error) {
			return storepb.NamespacesFromProto(m.GetNamespaces())
		})
}

// Buckets lists the time slices of the server's key store. See [store.Maintainer].
func (c *Client) Buckets(ctx context.Context) ([]store.Bucket, error) {
	return call(ctx, c.admin.ListBuckets, &pb.ListBucketsRequest{},
		func(m *pb.ListBucketsResponse) ([]store.Bucket, error) {
			return storepb.BucketsFromProto(m.GetBuckets())
		})
}
