package storepb

import (
	"reflect"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// checks says for each kind of request what a server does with its bytes.
var checks = []func(*testing.T, []byte){
	check(&pb.ClaimRequest{}, ClaimRequestFromProto, ClaimRequestToProto, (*store.ClaimRequest).Validate),
	check(&pb.RenewRequest{}, RenewRequestFromProto, RenewRequestToProto, (*store.RenewRequest).Validate),
	check(&pb.CompleteRequest{}, CompleteRequestFromProto, CompleteRequestToProto, (*store.CompleteRequest).Validate),
	check(&pb.ReleaseRequest{}, ReleaseRequestFromProto, ReleaseRequestToProto, (*store.ReleaseRequest).Validate),
	check(&pb.LookupRequest{}, LookupRequestFromProto, LookupRequestToProto, (*store.LookupRequest).Validate),
	check(&pb.ListRecordsRequest{}, ListRequestFromProto, ListRequestToProto, (*store.ListRequest).Validate),
	check(&pb.ResolveRequest{}, ResolveRequestFromProto, ResolveRequestToProto, (*store.ResolveRequest).Validate),
	check(&pb.ForceReleaseRequest{}, ForceReleaseRequestFromProto, ForceReleaseRequestToProto, (*store.ForceReleaseRequest).Validate),
	check(&pb.Namespace{}, NamespaceFromProto, NamespaceToProto, func(ns *store.Namespace) error {
		settings := ns.WithDefaults()
		return settings.Validate()
	}),
}

// check reads bytes as one kind of request. What is refused is refused as
// INVALID_ARGUMENT; what is accepted comes back equal over the wire.
func check[M proto.Message, R any](empty M, from func(M) (R, error), to func(R) M, validate func(*R) error) func(*testing.T, []byte) {
	return func(t *testing.T, raw []byte) {
		m := empty.ProtoReflect().New().Interface().(M)
		if proto.Unmarshal(raw, m) != nil {
			return // gRPC refuses it before us
		}
		req, err := from(m)
		if err == nil {
			err = validate(&req)
		}
		if err != nil {
			if st := ToStatus(err); st.Code() != codes.InvalidArgument {
				t.Fatalf("refused as %v: %v", st.Code(), err)
			}
			return
		}
		again, err := from(overTheWire(t, to(req)))
		if err != nil || !reflect.DeepEqual(again, req) {
			t.Fatalf("came back as\n%+v, %v, was\n%+v", again, err, req)
		}
	}
}

func FuzzRequestValidation(f *testing.F) {
	seeds := []proto.Message{
		ClaimRequestToProto(store.ClaimRequest{Key: testKey, AttemptID: "a", Fingerprint: testSum, Lease: time.Minute, IntentTime: at, Wait: time.Second}),
		RenewRequestToProto(store.RenewRequest{Key: testKey, AttemptID: "a", Fence: 5}),
		CompleteRequestToProto(store.CompleteRequest{Key: testKey, AttemptID: "a", Fence: 5, Outcome: testDone}),
		ReleaseRequestToProto(store.ReleaseRequest{Key: testKey, AttemptID: "a", Fence: 5, Effect: store.EffectNone}),
		LookupRequestToProto(store.LookupRequest{Key: testKey}),
		ListRequestToProto(store.ListRequest{Namespace: "n", PageSize: 5}),
		ResolveRequestToProto(store.ResolveRequest{Key: testKey, Fence: 5, Outcome: testDone, Reason: "r"}),
		ForceReleaseRequestToProto(store.ForceReleaseRequest{Key: testKey, AnyFence: true, Reason: "r"}),
		NamespaceToProto(store.Namespace{Name: "n", Retention: time.Hour}.WithDefaults()),
	}
	for kind, m := range seeds {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(kind), raw)
		f.Add(uint8(kind), []byte{})
	}
	f.Fuzz(func(t *testing.T, kind uint8, raw []byte) {
		checks[int(kind)%len(checks)](t, raw)
	})
}

// TestFuzzSeedsAreAccepted keeps the fuzz target honest: refusing everything would pass it.
func TestFuzzSeedsAreAccepted(t *testing.T) {
	req := store.ClaimRequest{Key: testKey, AttemptID: "a", Fingerprint: testSum, Lease: time.Minute, IntentTime: at, Wait: time.Second}
	got, err := ClaimRequestFromProto(ClaimRequestToProto(req))
	if err != nil || got.Validate() != nil {
		t.Errorf("refused: %v, %v", err, got.Validate())
	}
}
