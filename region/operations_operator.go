package region

import (
	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

var inspecting = &operation[store.Key, store.Inspection]{
	method:   pb.AdminService_InspectRecord_FullMethodName,
	validate: func(k store.Key) error { return k.Validate() },
	key:      func(k store.Key) store.Key { return k },
	by:       func(k store.Key, _ int64) store.Key { return k },
	perform:  store.Backend.InspectRecord,
	write: func(m *pb.ForwardRequest, k store.Key) {
		m.Operation = &pb.ForwardRequest_InspectRecord{InspectRecord: &pb.InspectRecordRequest{Key: storepb.KeyToProto(k)}}
	},
	answer: func(m *pb.ForwardResponse) (store.Inspection, error) {
		return storepb.InspectionFromProto(m.GetInspectRecord())
	},
}

var resolving = &operation[store.ResolveRequest, *store.Record]{
	method:   pb.AdminService_Resolve_FullMethodName,
	validate: func(r store.ResolveRequest) error { return r.Validate() },
	key:      func(r store.ResolveRequest) store.Key { return r.Key },
	by:       func(r store.ResolveRequest, epoch int64) store.ResolveRequest { r.Epoch = epoch; return r },
	perform:  store.Backend.Resolve,
	write: func(m *pb.ForwardRequest, r store.ResolveRequest) {
		m.Operation = &pb.ForwardRequest_Resolve{Resolve: storepb.ResolveRequestToProto(r)}
	},
	answer: func(m *pb.ForwardResponse) (*store.Record, error) {
		return storepb.RecordFromProto(m.GetResolve().GetRecord())
	},
}

var forcing = &operation[store.ForceReleaseRequest, *store.Record]{
	method:   pb.AdminService_ForceRelease_FullMethodName,
	validate: func(r store.ForceReleaseRequest) error { return r.Validate() },
	key:      func(r store.ForceReleaseRequest) store.Key { return r.Key },
	by:       func(r store.ForceReleaseRequest, epoch int64) store.ForceReleaseRequest { r.Epoch = epoch; return r },
	perform:  store.Backend.ForceRelease,
	write: func(m *pb.ForwardRequest, r store.ForceReleaseRequest) {
		m.Operation = &pb.ForwardRequest_ForceRelease{ForceRelease: storepb.ForceReleaseRequestToProto(r)}
	},
	answer: func(m *pb.ForwardResponse) (*store.Record, error) {
		return storepb.RecordFromProto(m.GetForceRelease().GetRecord())
	},
}

// listing is about a namespace: whoever asks says of which region's records.
var listing = &operation[store.ListRequest, store.RecordPage]{
	method:  pb.AdminService_ListRecords_FullMethodName,
	perform: store.Backend.ListRecords,
	write: func(m *pb.ForwardRequest, r store.ListRequest) {
		m.Operation = &pb.ForwardRequest_ListRecords{ListRecords: storepb.ListRequestToProto(r)}
	},
	answer: func(m *pb.ForwardResponse) (store.RecordPage, error) {
		return answered(m.GetListRecords(), storepb.RecordPageFromProto)
	},
}
