package region

import (
	"context"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// ImportOutcome implements [store.Records].
func (r *Router) ImportOutcome(ctx context.Context, req store.ImportRequest) (store.ImportAnswer, error) {
	return route(ctx, r, importing, req)
}

// BeginRecovery implements [store.Recovery], for this region's store: it is a region's store
// that is restored. It is a home again once it has heard all other regions.
func (r *Router) BeginRecovery(ctx context.Context, req store.BeginRecoveryRequest) (store.BegunRecovery, error) {
	begun, err := r.local.BeginRecovery(ctx, req)
	if err != nil {
		return begun, err
	}
	if err := r.region.refresh(ctx); err != nil || req.Namespace != "" {
		return begun, err
	}
	if err := r.region.join(ctx); err != nil {
		r.region.logger.Warn("the store could not join the others; it is tried again", "error", err)
	}
	return begun, nil
}

// LiftRecovery implements [store.Recovery], in this region's store. The floor of one that has not
// joined goes up when it does.
func (r *Router) LiftRecovery(ctx context.Context, req store.LiftRecoveryRequest) (store.Namespace, error) {
	if err := r.region.atHome(); err != nil {
		return store.Namespace{}, err
	}
	ns, err := r.local.LiftRecovery(ctx, req)
	if err != nil {
		return ns, err
	}
	return ns, r.region.refresh(ctx)
}

var importing = &operation[store.ImportRequest, store.ImportAnswer]{
	method:   pb.AdminService_ImportOutcome_FullMethodName,
	validate: func(r store.ImportRequest) error { return r.Validate() },
	key:      func(r store.ImportRequest) store.Key { return r.Key },
	by:       func(r store.ImportRequest, epoch int64) store.ImportRequest { r.Epoch = epoch; return r },
	perform:  store.Backend.ImportOutcome,
	write: func(m *pb.ForwardRequest, r store.ImportRequest) {
		m.Operation = &pb.ForwardRequest_ImportOutcome{ImportOutcome: storepb.ImportRequestToProto(r)}
	},
	answer: func(m *pb.ForwardResponse) (store.ImportAnswer, error) {
		return storepb.ImportAnswerFromProto(m.GetImportOutcome())
	},
}
