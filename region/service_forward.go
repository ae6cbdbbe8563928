package region

import (
	"context"
	"fmt"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// Forward implements the PeerService.
func (s *service) Forward(ctx context.Context, m *pb.ForwardRequest) (*pb.ForwardResponse, error) {
	from, err := s.believed(ctx, m)
	if err == nil {
		var response *pb.ForwardResponse
		if response, err = s.forwarded(ctx, from, m); err == nil {
			return response, nil
		}
	}
	return nil, wire(err)
}

func (s *service) forwarded(ctx context.Context, from *peer, m *pb.ForwardRequest) (*pb.ForwardResponse, error) {
	c := call{service: s, from: from, epoch: m.GetEpoch(), caller: m.GetCaller()}
	out := &pb.ForwardResponse{}
	var err error
	switch op := m.GetOperation().(type) {
	case *pb.ForwardRequest_Claim:
		err = serve(ctx, c, claiming, op.Claim, storepb.ClaimRequestFromProto, func(a store.ClaimAnswer) {
			out.Answer = &pb.ForwardResponse_Claim{Claim: storepb.ClaimAnswerToProto(a)}
		})
	case *pb.ForwardRequest_Renew:
		err = serve(ctx, c, renewing, op.Renew, storepb.RenewRequestFromProto, func(a store.RenewAnswer) {
			out.Answer = &pb.ForwardResponse_Renew{Renew: storepb.RenewAnswerToProto(a)}
		})
	case *pb.ForwardRequest_Complete:
		err = serve(ctx, c, completing, op.Complete, storepb.CompleteRequestFromProto, func(a store.CompleteAnswer) {
			out.Answer = &pb.ForwardResponse_Complete{Complete: storepb.CompleteAnswerToProto(a)}
		})
	case *pb.ForwardRequest_Release:
		err = serve(ctx, c, releasing, op.Release, storepb.ReleaseRequestFromProto, func(a store.ReleaseAnswer) {
			out.Answer = &pb.ForwardResponse_Release{Release: storepb.ReleaseAnswerToProto(a)}
		})
	case *pb.ForwardRequest_Lookup:
		err = serve(ctx, c, lookingUp, op.Lookup, storepb.LookupRequestFromProto, func(a store.LookupAnswer) {
			out.Answer = &pb.ForwardResponse_Lookup{Lookup: storepb.LookupAnswerToProto(a)}
		})
	default:
		err = s.operated(ctx, c, m, out)
	}
	return out, err
}

// operated is forwarded for what operators ask.
func (s *service) operated(ctx context.Context, c call, m *pb.ForwardRequest, out *pb.ForwardResponse) error {
	switch op := m.GetOperation().(type) {
	case *pb.ForwardRequest_ListRecords:
		return c.list(ctx, op.ListRecords, out)
	case *pb.ForwardRequest_InspectRecord:
		return serve(ctx, c, inspecting, op.InspectRecord, storepb.InspectRequestFromProto, func(a store.Inspection) {
			out.Answer = &pb.ForwardResponse_InspectRecord{InspectRecord: storepb.InspectionToProto(a)}
		})
	case *pb.ForwardRequest_Resolve:
		return serve(ctx, c, resolving, op.Resolve, storepb.ResolveRequestFromProto, func(a *store.Record) {
			out.Answer = &pb.ForwardResponse_Resolve{Resolve: &pb.ResolveResponse{Record: storepb.SettledToProto(a)}}
		})
	case *pb.ForwardRequest_ForceRelease:
		return serve(ctx, c, forcing, op.ForceRelease, storepb.ForceReleaseRequestFromProto, func(a *store.Record) {
			out.Answer = &pb.ForwardResponse_ForceRelease{ForceRelease: &pb.ForceReleaseResponse{Record: storepb.SettledToProto(a)}}
		})
	case *pb.ForwardRequest_ImportOutcome:
		return serve(ctx, c, importing, op.ImportOutcome, storepb.ImportRequestFromProto, func(a store.ImportAnswer) {
			out.Answer = &pb.ForwardResponse_ImportOutcome{ImportOutcome: storepb.ImportAnswerToProto(a)}
		})
	}
	return store.Refuse(store.ErrInvalidArgument, "the operation is missing, or of a kind that is not known here; nothing was done")
}

// call is one operation that another region sent.
type call struct {
	*service
	from   *peer
	epoch  int64
	caller string
}

// serve carries out an operation on a key whose home is here.
func serve[R, A, M any](ctx context.Context, c call, op *operation[R, A], m M, read func(M) (R, error), write func(A)) error {
	req, err := read(m)
	if err == nil {
		err = op.validate(req)
	}
	if err != nil {
		return err
	}
	key := op.key(req)
	if err := c.authorize(ctx, c.caller, op.method, key.Namespace); err != nil {
		return err
	}
	k, err := c.placed(ctx, key.Namespace)
	if err != nil {
		return err
	}
	if home := k.rule.Home(key); home != c.region.config.Name {
		return c.notHere(k, fmt.Sprintf("the key lives in region %q", home))
	}
	if op.grants && k.dispute != "" {
		return disputed(k)
	}
	answer, err := op.perform(c.local, ctx, op.by(req, c.epoch))
	if err == nil {
		write(answer)
	}
	return err
}

// list lists what of a namespace is here.
func (c call) list(ctx context.Context, m *pb.ListRecordsRequest, out *pb.ForwardResponse) error {
	req, err := storepb.ListRequestFromProto(m)
	if err == nil {
		err = req.Validate()
	}
	if err == nil {
		err = c.authorize(ctx, c.caller, listing.method, req.Namespace)
	}
	if err == nil {
		_, err = c.placed(ctx, req.Namespace)
	}
	if err != nil {
		return err
	}
	page, err := c.local.ListRecords(ctx, req)
	if err == nil {
		out.Answer = &pb.ForwardResponse_ListRecords{ListRecords: storepb.RecordPageToProto(page)}
	}
	return err
}

// placed is what is known of a namespace, if it is placed by the epoch of the call. If it is not,
// one of the two regions has yesterday's placement; this one learns, if it is the one.
func (c call) placed(ctx context.Context, namespace string) (*known, error) {
	if err := c.region.atHome(); err != nil {
		return nil, err
	}
	k := c.region.atlas.Load().byName[namespace]
	if k == nil || k.problem != "" || k.ns.Placement.Epoch != c.epoch {
		if err := c.region.refresh(ctx); err != nil {
			return nil, err
		}
		k = c.region.atlas.Load().byName[namespace]
	}
	if k != nil && (k.ns.Placement.Epoch < c.epoch || !k.placed()) && c.from.learn(ctx) == nil {
		k = c.region.atlas.Load().byName[namespace]
	}
	switch {
	case k == nil:
		return nil, store.NamespaceUnknown(namespace)
	case k.problem != "":
		return nil, homeless(k)
	case k.ns.Placement.Epoch != c.epoch:
		return nil, c.notHere(k, fmt.Sprintf("it was sent by epoch %d", c.epoch))
	}
	return k, nil
}

func (c call) notHere(k *known, why string) error {
	return store.Refuse(store.ErrWrongRegion, fmt.Sprintf("region %q places namespace %q by %q (epoch %d): %s",
		c.region.config.Name, k.ns.Name, k.ns.Placement.Rule, k.ns.Placement.Epoch, why))
}
