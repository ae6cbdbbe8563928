package server

import (
	"context"
	"errors"

	"github.com/idemd/idemd/store"
)

// unreached counts the operations that no home has answered, over all regions: a home counts its
// own answers, and of these it does not know.
type unreached struct {
	store.Backend
	metrics *Metrics
}

// lost counts an operation whose home could not be reached.
func lost[A any](u *unreached, op operation, namespace string, answer A, err error) (A, error) {
	if errors.Is(err, store.ErrHomeUnreachable) {
		u.metrics.refused(op, namespace, err)
	}
	return answer, err
}

func (u *unreached) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	answer, err := u.Backend.Claim(ctx, req)
	return lost(u, opClaim, req.Key.Namespace, answer, err)
}

func (u *unreached) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	answer, err := u.Backend.Renew(ctx, req)
	return lost(u, opRenew, req.Key.Namespace, answer, err)
}

func (u *unreached) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	answer, err := u.Backend.Complete(ctx, req)
	return lost(u, opComplete, req.Key.Namespace, answer, err)
}

func (u *unreached) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	answer, err := u.Backend.Release(ctx, req)
	return lost(u, opRelease, req.Key.Namespace, answer, err)
}

func (u *unreached) Lookup(ctx context.Context, req store.LookupRequest) (store.LookupAnswer, error) {
	answer, err := u.Backend.Lookup(ctx, req)
	return lost(u, opLookup, req.Key.Namespace, answer, err)
}

func (u *unreached) ListRecords(ctx context.Context, req store.ListRequest) (store.RecordPage, error) {
	page, err := u.Backend.ListRecords(ctx, req)
	return lost(u, opListRecords, req.Namespace, page, err)
}

func (u *unreached) InspectRecord(ctx context.Context, key store.Key) (store.Inspection, error) {
	inspection, err := u.Backend.InspectRecord(ctx, key)
	return lost(u, opInspectRecord, key.Namespace, inspection, err)
}

func (u *unreached) Resolve(ctx context.Context, req store.ResolveRequest) (*store.Record, error) {
	rec, err := u.Backend.Resolve(ctx, req)
	return lost(u, opResolve, req.Key.Namespace, rec, err)
}

func (u *unreached) ForceRelease(ctx context.Context, req store.ForceReleaseRequest) (*store.Record, error) {
	rec, err := u.Backend.ForceRelease(ctx, req)
	return lost(u, opForceRelease, req.Key.Namespace, rec, err)
}

func (u *unreached) ImportOutcome(ctx context.Context, req store.ImportRequest) (store.ImportAnswer, error) {
	answer, err := u.Backend.ImportOutcome(ctx, req)
	return lost(u, opImportOutcome, req.Key.Namespace, answer, err)
}
