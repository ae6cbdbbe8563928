package storepb

import (
	"errors"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// NamespaceToProto returns the message of a namespace. Zero settings stay absent.
func NamespaceToProto(ns store.Namespace) *pb.Namespace {
	m := &pb.Namespace{
		Name:            ns.Name,
		Tier:            pb.Tier(ns.Tier),
		Retention:       durationToProto(ns.Retention),
		LapsePolicy:     pb.LapsePolicy(ns.LapsePolicy),
		Lease:           durationToProto(ns.Lease),
		MaxLease:        durationToProto(ns.MaxLease),
		MaxAttempt:      durationToProto(ns.MaxAttempt),
		MaxOutcomeBytes: int32Of(ns.MaxOutcomeBytes),
		Entity:          entityRuleToProto(ns.Entity),
		RecoveryFloor:   timeToProto(ns.RecoveryFloor),
		FloorForNew:     timeToProto(ns.FloorForNew),
		Recovery:        recoveryToProto(ns.Recovery),
		CreatedAt:       timeToProto(ns.CreatedAt),
		UpdatedAt:       timeToProto(ns.UpdatedAt),
		Placement:       PlacementToProto(ns.Placement),
		SharedBy:        ns.SharedBy,
	}
	for _, past := range ns.PastRetentions {
		m.PastRetentions = append(m.PastRetentions, &pb.PastRetention{
			Retention: durationToProto(past.Retention),
			Until:     timeToProto(past.Until),
		})
	}
	return m
}

// NamespaceFromProto returns the namespace of a message, or ErrInvalidArgument. No message
// is the zero namespace, whose name Validate refuses. What is set by the store is read
// too; a store ignores it in a request.
func NamespaceFromProto(m *pb.Namespace) (store.Namespace, error) {
	var r reader
	ns := store.Namespace{
		Name:            m.GetName(),
		Tier:            enum(&r, "tier", m.GetTier(), store.TierMonth),
		Retention:       r.duration("retention", m.GetRetention()),
		LapsePolicy:     enum(&r, "lapse policy", m.GetLapsePolicy(), store.Hold),
		Lease:           r.duration("lease", m.GetLease()),
		MaxLease:        r.duration("max lease", m.GetMaxLease()),
		MaxAttempt:      r.duration("max attempt", m.GetMaxAttempt()),
		MaxOutcomeBytes: int(m.GetMaxOutcomeBytes()),
		Entity:          entityRuleFromProto(&r, m.GetEntity()),
		RecoveryFloor:   r.time("recovery floor", m.GetRecoveryFloor()),
		FloorForNew:     r.time("floor for new", m.GetFloorForNew()),
		Recovery:        recoveryFromProto(&r, m.GetRecovery()),
		CreatedAt:       r.time("created at", m.GetCreatedAt()),
		UpdatedAt:       r.time("updated at", m.GetUpdatedAt()),
		Placement:       placementFromProto(&r, m.GetPlacement()),
		SharedBy:        m.GetSharedBy(),
	}
	for _, past := range m.GetPastRetentions() {
		ns.PastRetentions = append(ns.PastRetentions, store.PastRetention{
			Retention: r.duration("past retention", past.GetRetention()),
			Until:     r.time("past retention until", past.GetUntil()),
		})
	}
	return ns, r.err
}

// UpdateToProto returns the message of an update.
func UpdateToProto(ns store.Namespace) *pb.UpdateNamespaceRequest {
	return &pb.UpdateNamespaceRequest{Namespace: NamespaceToProto(ns), IfUpdatedAt: timeToProto(ns.IfUpdatedAt)}
}

// UpdateFromProto returns the namespace of an update, or ErrInvalidArgument.
func UpdateFromProto(m *pb.UpdateNamespaceRequest) (store.Namespace, error) {
	ns, err := NamespaceFromProto(m.GetNamespace())
	if err != nil {
		return store.Namespace{}, err
	}
	var r reader
	ns.IfUpdatedAt = r.time("if updated at", m.GetIfUpdatedAt())
	return ns, r.err
}

var errNoNamespace = errors.New("the namespace is missing")

// NamespaceAnswerFromProto returns the namespace of an answer, or ErrInternal, also if there
// is none.
func NamespaceAnswerFromProto(m *pb.Namespace) (store.Namespace, error) {
	if m == nil {
		return store.Namespace{}, notUnderstood(errNoNamespace)
	}
	ns, err := NamespaceFromProto(m)
	if err != nil {
		return store.Namespace{}, notUnderstood(err)
	}
	return ns, nil
}

// NamespacesFromProto returns the namespaces of an answer, or ErrInternal.
func NamespacesFromProto(list []*pb.Namespace) ([]store.Namespace, error) {
	return listFromProto(list, NamespaceAnswerFromProto)
}

// NamespacesToProto returns the messages of namespaces.
func NamespacesToProto(list []store.Namespace) []*pb.Namespace {
	out := make([]*pb.Namespace, len(list))
	for i, ns := range list {
		out[i] = NamespaceToProto(ns)
	}
	return out
}

// The numbers of the entity rules differ: on the wire zero means that nothing was said.
func entityRuleToProto(rule store.EntityRule) pb.EntityRule { return pb.EntityRule(rule) + 1 }

func entityRuleFromProto(r *reader, rule pb.EntityRule) store.EntityRule {
	known := enum(r, "entity rule", rule, store.EntityForbidden+1)
	return max(known, 1) - 1
}

// ListRequestToProto returns the message of a request.
func ListRequestToProto(r store.ListRequest) *pb.ListRecordsRequest {
	return &pb.ListRecordsRequest{
		Namespace: r.Namespace,
		State:     pb.State(r.Filter.State),
		Lapsed:    r.Filter.Lapsed,
		Scope:     r.Filter.Scope,
		Entity:    r.Filter.Entity,
		PageSize:  int32Of(r.PageSize),
		PageToken: r.PageToken,
	}
}

// ListRequestFromProto returns the request of a message, or ErrInvalidArgument.
func ListRequestFromProto(m *pb.ListRecordsRequest) (store.ListRequest, error) {
	var r reader
	req := store.ListRequest{
		Namespace: m.GetNamespace(),
		Filter: store.Filter{
			State:  enum(&r, "state", m.GetState(), store.StateReleased),
			Lapsed: m.GetLapsed(),
			Scope:  m.GetScope(),
			Entity: m.GetEntity(),
		},
		PageSize:  int(m.GetPageSize()),
		PageToken: m.GetPageToken(),
	}
	return req, r.err
}

// ResolveRequestToProto returns the message of a request.
func ResolveRequestToProto(r store.ResolveRequest) *pb.ResolveRequest {
	return &pb.ResolveRequest{
		Key:      KeyToProto(r.Key),
		Fence:    r.Fence,
		AnyFence: r.AnyFence,
		Outcome:  OutcomeToProto(r.Outcome),
		Actor:    r.Actor,
		Reason:   r.Reason,
	}
}

// ResolveRequestFromProto returns the request of a message. It cannot fail.
func ResolveRequestFromProto(m *pb.ResolveRequest) (store.ResolveRequest, error) {
	return store.ResolveRequest{
		Key:      KeyFromProto(m.GetKey()),
		Fence:    m.GetFence(),
		AnyFence: m.GetAnyFence(),
		Outcome:  OutcomeFromProto(m.GetOutcome()),
		Actor:    m.GetActor(),
		Reason:   m.GetReason(),
	}, nil
}

// InspectRequestFromProto returns the key of a message. It cannot fail.
func InspectRequestFromProto(m *pb.InspectRecordRequest) (store.Key, error) {
	return KeyFromProto(m.GetKey()), nil
}

// ForceReleaseRequestToProto returns the message of a request.
func ForceReleaseRequestToProto(r store.ForceReleaseRequest) *pb.ForceReleaseRequest {
	return &pb.ForceReleaseRequest{
		Key:      KeyToProto(r.Key),
		Fence:    r.Fence,
		AnyFence: r.AnyFence,
		Actor:    r.Actor,
		Reason:   r.Reason,
	}
}

// ForceReleaseRequestFromProto returns the request of a message. It cannot fail.
func ForceReleaseRequestFromProto(m *pb.ForceReleaseRequest) (store.ForceReleaseRequest, error) {
	return store.ForceReleaseRequest{
		Key:      KeyFromProto(m.GetKey()),
		Fence:    m.GetFence(),
		AnyFence: m.GetAnyFence(),
		Actor:    m.GetActor(),
		Reason:   m.GetReason(),
	}, nil
}

// BucketsToProto returns the messages of buckets.
func BucketsToProto(list []store.Bucket) []*pb.Bucket {
	out := make([]*pb.Bucket, len(list))
	for i, b := range list {
		out[i] = &pb.Bucket{
			Tier:      pb.Tier(b.Tier),
			Start:     timeToProto(b.Start),
			End:       timeToProto(b.End),
			DropAfter: timeToProto(b.DropAfter),
		}
	}
	return out
}

// BucketsFromProto returns the buckets of an answer, or ErrInternal.
func BucketsFromProto(list []*pb.Bucket) ([]store.Bucket, error) {
	return listFromProto(list, func(m *pb.Bucket) (store.Bucket, error) {
		var r reader
		b := store.Bucket{
			Tier:      enum(&r, "tier", m.GetTier(), store.TierMonth),
			Start:     r.time("start", m.GetStart()),
			End:       r.time("end", m.GetEnd()),
			DropAfter: r.time("drop after", m.GetDropAfter()),
		}
		return b, r.answer()
	})
}
