package server

import (
	"context"

	"github.com/idemd/idemd/store"
)

// counted counts the answers of a backend. The five operations go to keys, which stands
// over the backend and waits.
type counted struct {
	store.Backend
	keys    store.Store
	metrics *Metrics
}

func (c *counted) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	answer, err := c.keys.Claim(ctx, req)
	c.metrics.claimed(req.Key.Namespace, answer, err)
	return answer, err
}

func (c *counted) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	answer, err := c.keys.Renew(ctx, req)
	c.metrics.done(opRenew, req.Key.Namespace, err)
	return answer, err
}

func (c *counted) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	answer, err := c.keys.Complete(ctx, req)
	c.metrics.done(opComplete, req.Key.Namespace, err)
	return answer, err
}

func (c *counted) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	answer, err := c.keys.Release(ctx, req)
	if err == nil && answer.State == store.StateInProgress {
		c.metrics.count(opRelease, req.Key.Namespace, AnswerLapsed)
		return answer, nil
	}
	c.metrics.done(opRelease, req.Key.Namespace, err)
	return answer, err
}

func (c *counted) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	answer, err := c.keys.Lookup(ctx, req)
	c.metrics.done(opLookup, req.Key.Namespace, err)
	return answer, err
}

func (c *counted) ListRecords(ctx context.Context, req store.ListRequest) (store.RecordPage, error) {
	page, err := c.Backend.ListRecords(ctx, req)
	c.metrics.done(opListRecords, req.Namespace, err)
	return page, err
}

func (c *counted) InspectRecord(ctx context.Context, key store.Key) (store.Inspection, error) {
	inspection, err := c.Backend.InspectRecord(ctx, key)
	c.metrics.done(opInspectRecord, key.Namespace, err)
	return inspection, err
}

func (c *counted) Resolve(ctx context.Context, req store.ResolveRequest) (*store.Record, error) {
	rec, err := c.Backend.Resolve(ctx, req)
	c.metrics.done(opResolve, req.Key.Namespace, err)
	return rec, err
}

func (c *counted) ForceRelease(ctx context.Context, req store.ForceReleaseRequest) (*store.Record, error) {
	rec, err := c.Backend.ForceRelease(ctx, req)
	c.metrics.done(opForceRelease, req.Key.Namespace, err)
	return rec, err
}

func (c *counted) CreateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	created, err := c.Backend.CreateNamespace(ctx, ns)
	c.metrics.done(opCreateNamespace, ns.Name, err)
	return created, err
}

func (c *counted) GetNamespace(ctx context.Context, name string) (store.Namespace, error) {
	ns, err := c.Backend.GetNamespace(ctx, name)
	c.metrics.done(opGetNamespace, name, err)
	return ns, err
}

func (c *counted) UpdateNamespace(ctx context.Context, ns store.Namespace) (store.Namespace, error) {
	updated, err := c.Backend.UpdateNamespace(ctx, ns)
	c.metrics.done(opUpdateNamespace, ns.Name, err)
	return updated, err
}

func (c *counted) ListNamespaces(ctx context.Context) ([]store.Namespace, error) {
	list, err := c.Backend.ListNamespaces(ctx)
	c.metrics.done(opListNamespaces, "", err)
	return list, err
}

func (c *counted) Buckets(ctx context.Context) ([]store.Bucket, error) {
	list, err := c.Backend.Buckets(ctx)
	c.metrics.done(opListBuckets, "", err)
	return list, err
}
