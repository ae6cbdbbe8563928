package server

import (
	"context"
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// untouchable is a backend that must not be asked.
type untouchable struct {
	store.Backend
	t *testing.T
}

func (u untouchable) Claim(context.Context, store.ClaimRequest) (store.ClaimAnswer, error) {
	u.t.Error("Claim reached the store")
	return store.ClaimAnswer{}, store.ErrInternal
}

func (u untouchable) Renew(context.Context, store.RenewRequest) (store.RenewAnswer, error) {
	u.t.Error("Renew reached the store")
	return store.RenewAnswer{}, store.ErrInternal
}

func (u untouchable) Complete(context.Context, store.CompleteRequest) (store.CompleteAnswer, error) {
	u.t.Error("Complete reached the store")
	return store.CompleteAnswer{}, store.ErrInternal
}

func (u untouchable) Release(context.Context, store.ReleaseRequest) (store.ReleaseAnswer, error) {
	u.t.Error("Release reached the store")
	return store.ReleaseAnswer{}, store.ErrInternal
}

func (u untouchable) Lookup(context.Context, store.LookupRequest) (store.LookupAnswer, error) {
	u.t.Error("Lookup reached the store")
	return store.LookupAnswer{}, store.ErrInternal
}

func (u untouchable) ListRecords(context.Context, store.ListRequest) (store.RecordPage, error) {
	u.t.Error("ListRecords reached the store")
	return store.RecordPage{}, store.ErrInternal
}

func (u untouchable) InspectRecord(context.Context, store.Key) (store.Inspection, error) {
	u.t.Error("InspectRecord reached the store")
	return store.Inspection{}, store.ErrInternal
}

func (u untouchable) Resolve(context.Context, store.ResolveRequest) (*store.Record, error) {
	u.t.Error("Resolve reached the store")
	return nil, store.ErrInternal
}

func (u untouchable) ForceRelease(context.Context, store.ForceReleaseRequest) (*store.Record, error) {
	u.t.Error("ForceRelease reached the store")
	return nil, store.ErrInternal
}

func (u untouchable) ImportOutcome(context.Context, store.ImportRequest) (store.ImportAnswer, error) {
	u.t.Error("ImportOutcome reached the store")
	return store.ImportAnswer{}, store.ErrInternal
}

func (u untouchable) BeginRecovery(context.Context, store.BeginRecoveryRequest) (store.BegunRecovery, error) {
	u.t.Error("BeginRecovery reached the store")
	return store.BegunRecovery{}, store.ErrInternal
}

func (u untouchable) LiftRecovery(context.Context, store.LiftRecoveryRequest) (store.Namespace, error) {
	u.t.Error("LiftRecovery reached the store")
	return store.Namespace{}, store.ErrInternal
}

func (u untouchable) CreateNamespace(context.Context, store.Namespace) (store.Namespace, error) {
	u.t.Error("CreateNamespace reached the store")
	return store.Namespace{}, store.ErrInternal
}

func (u untouchable) GetNamespace(context.Context, string) (store.Namespace, error) {
	u.t.Error("GetNamespace reached the store")
	return store.Namespace{}, store.ErrInternal
}

func (u untouchable) UpdateNamespace(context.Context, store.Namespace) (store.Namespace, error) {
	u.t.Error("UpdateNamespace reached the store")
	return store.Namespace{}, store.ErrInternal
}

// badCall makes a call with a bad request.
type badCall = func(context.Context, pb.IdempotencyServiceClient, pb.AdminServiceClient) error

// refusalCase is a bad request and what it must get: a reason, and words of the text.
type refusalCase struct {
	name   string
	call   badCall
	reason string
	text   string
}

// keyCase is a bad key, in a request of every method that takes a key.
func keyCase(name, reason, text string, key *pb.Key) []refusalCase {
	attempt := []byte("a")
	calls := map[string]badCall{
		"Claim": func(ctx context.Context, k pb.IdempotencyServiceClient, _ pb.AdminServiceClient) error {
			return only(k.Claim(ctx, &pb.ClaimRequest{Key: key, AttemptId: attempt}))
		},
		"Renew": func(ctx context.Context, k pb.IdempotencyServiceClient, _ pb.AdminServiceClient) error {
			return only(k.Renew(ctx, &pb.RenewRequest{Key: key, AttemptId: attempt, Fence: 1}))
		},
		"Complete": func(ctx context.Context, k pb.IdempotencyServiceClient, _ pb.AdminServiceClient) error {
			return only(k.Complete(ctx, &pb.CompleteRequest{Key: key, AttemptId: attempt, Fence: 1, Outcome: &pb.Outcome{}}))
		},
		"Release": func(ctx context.Context, k pb.IdempotencyServiceClient, _ pb.AdminServiceClient) error {
			return only(k.Release(ctx, &pb.ReleaseRequest{Key: key, AttemptId: attempt, Fence: 1, Effect: pb.Effect_EFFECT_NONE}))
		},
		"Lookup": func(ctx context.Context, k pb.IdempotencyServiceClient, _ pb.AdminServiceClient) error {
			return only(k.Lookup(ctx, &pb.LookupRequest{Key: key}))
		},
		"InspectRecord": func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.InspectRecord(ctx, &pb.InspectRecordRequest{Key: key}))
		},
		"Resolve": func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.Resolve(ctx, &pb.ResolveRequest{Key: key, AnyFence: true, Reason: "r"}))
		},
		"ForceRelease": func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.ForceRelease(ctx, &pb.ForceReleaseRequest{Key: key, AnyFence: true, Reason: "r"}))
		},
		"ImportOutcome": func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.ImportOutcome(ctx, &pb.ImportOutcomeRequest{Key: key, Reason: "r"}))
		},
	}
	var cases []refusalCase
	for method, call := range calls {
		cases = append(cases, refusalCase{method + "/" + name, call, reason, text})
	}
	return cases
}

// only drops the answer of a call.
func only(_ any, err error) error { return err }

// TestBadRequestsAreRefusedBeforeAnyWork sends what a client of idemd would not send.
func TestBadRequestsAreRefusedBeforeAnyWork(t *testing.T) {
	good := &pb.Key{Namespace: "default", Id: "k"}
	attempt := []byte("a")
	claim := func(m *pb.ClaimRequest) badCall {
		m.Key = good
		if m.AttemptId == nil {
			m.AttemptId = attempt
		}
		return func(ctx context.Context, k pb.IdempotencyServiceClient, _ pb.AdminServiceClient) error {
			return only(k.Claim(ctx, m))
		}
	}
	renew := func(m *pb.RenewRequest) badCall {
		m.Key = good
		return func(ctx context.Context, k pb.IdempotencyServiceClient, _ pb.AdminServiceClient) error {
			return only(k.Renew(ctx, m))
		}
	}
	complete := func(o *pb.Outcome) badCall {
		return func(ctx context.Context, k pb.IdempotencyServiceClient, _ pb.AdminServiceClient) error {
			return only(k.Complete(ctx, &pb.CompleteRequest{Key: good, AttemptId: attempt, Fence: 1, Outcome: o}))
		}
	}
	create := func(ns *pb.Namespace) badCall {
		return func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.CreateNamespace(ctx, &pb.CreateNamespaceRequest{Namespace: ns}))
		}
	}
	const invalid = "INVALID_ARGUMENT"
	cases := []refusalCase{
		{"Claim/no attempt", claim(&pb.ClaimRequest{AttemptId: []byte{}}), invalid, "attempt id has 0 bytes"},
		{"Claim/long attempt", claim(&pb.ClaimRequest{AttemptId: make([]byte, 65)}), invalid, "attempt id has 65 bytes, 1 to 64"},
		{"Claim/long fingerprint", claim(&pb.ClaimRequest{Fingerprint: &pb.Fingerprint{Digest: make([]byte, 65)}}), invalid, "at most 64"},
		{"Claim/version without digest", claim(&pb.ClaimRequest{Fingerprint: &pb.Fingerprint{Version: 1}}), invalid, "empty fingerprint"},
		{"Claim/short lease", claim(&pb.ClaimRequest{Lease: durationpb.New(1)}), invalid, "lease 1ns is outside 1s to 15m"},
		{"Claim/negative wait", claim(&pb.ClaimRequest{Wait: durationpb.New(-1)}), invalid, "wait"},
		{"Claim/long wait", claim(&pb.ClaimRequest{Wait: &durationpb.Duration{Seconds: math.MaxInt64}}), invalid, "wait"},
		{"Claim/intent before 1970", claim(&pb.ClaimRequest{IntentTime: &timestamppb.Timestamp{Seconds: -1}}), invalid, "intent time"},
		{"Renew/no fence", renew(&pb.RenewRequest{AttemptId: attempt}), invalid, "fence 0"},
		{"Renew/negative lease", renew(&pb.RenewRequest{AttemptId: attempt, Fence: 1, Lease: durationpb.New(-1)}), invalid, "lease"},
		{"Complete/no outcome", complete(nil), invalid, "outcome is missing"},
		{"Complete/too large", complete(&pb.Outcome{Body: make([]byte, 3<<18)}), "OUTCOME_TOO_LARGE", "at most 262144"},
		{"Complete/omitted and there", complete(&pb.Outcome{Body: []byte("x"), BodyOmitted: true}), invalid, "omitted"},
		{"Complete/metadata without a name", complete(&pb.Outcome{Header: []*pb.MetadataEntry{{}}}), invalid, "no name"},
		{"Release/no effect", func(ctx context.Context, k pb.IdempotencyServiceClient, _ pb.AdminServiceClient) error {
			return only(k.Release(ctx, &pb.ReleaseRequest{Key: good, AttemptId: attempt, Fence: 1}))
		}, invalid, "effect must be given"},
		{"Release/unknown effect", func(ctx context.Context, k pb.IdempotencyServiceClient, _ pb.AdminServiceClient) error {
			return only(k.Release(ctx, &pb.ReleaseRequest{Key: good, AttemptId: attempt, Fence: 1, Effect: 257}))
		}, invalid, "effect has the value 257"},
		{"Lookup/long fingerprint", func(ctx context.Context, k pb.IdempotencyServiceClient, _ pb.AdminServiceClient) error {
			return only(k.Lookup(ctx, &pb.LookupRequest{Key: good, Fingerprint: &pb.Fingerprint{Digest: make([]byte, 1<<10)}}))
		}, invalid, "1024 bytes"},
		{"ListRecords/no namespace", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.ListRecords(ctx, &pb.ListRecordsRequest{}))
		}, invalid, "namespace must be"},
		{"ListRecords/page size", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.ListRecords(ctx, &pb.ListRecordsRequest{Namespace: "default", PageSize: 1001}))
		}, invalid, "outside 0 to 1000"},
		{"ListRecords/scope", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.ListRecords(ctx, &pb.ListRecordsRequest{Namespace: "default", Scope: "a\nb"}))
		}, invalid, "scope"},
		{"ListRecords/entity", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.ListRecords(ctx, &pb.ListRecordsRequest{Namespace: "default", Entity: strings.Repeat("e", 256)}))
		}, invalid, "entity"},
		{"ListRecords/state", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.ListRecords(ctx, &pb.ListRecordsRequest{Namespace: "default", State: -1}))
		}, invalid, "state"},
		{"Resolve/no reason", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.Resolve(ctx, &pb.ResolveRequest{Key: good}))
		}, invalid, "reason is required"},
		{"ForceRelease/no reason", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.ForceRelease(ctx, &pb.ForceReleaseRequest{Key: good}))
		}, invalid, "reason is required"},
		{"ImportOutcome/no reason", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.ImportOutcome(ctx, &pb.ImportOutcomeRequest{Key: good}))
		}, invalid, "reason is required"},
		{"BeginRecovery/no time", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.BeginRecovery(ctx, &pb.BeginRecoveryRequest{Reason: "r"}))
		}, invalid, "the instant is missing"},
		{"LiftRecovery/no namespace", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.LiftRecovery(ctx, &pb.LiftRecoveryRequest{Reason: "r"}))
		}, invalid, "namespace must be"},
		{"Backup/not configured", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.Backup(ctx, &pb.BackupRequest{Name: "../../etc"}))
		}, invalid, "makes no backups"},
		{"AcceptStore/no id", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.AcceptStore(ctx, &pb.AcceptStoreRequest{Region: "eu", Reason: "r"}))
		}, invalid, "32 hexadecimal digits"},
		{"AcceptStore/no reason", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.AcceptStore(ctx, &pb.AcceptStoreRequest{Region: "eu", StoreId: store.NewStoreID()}))
		}, invalid, "reason is required"},
		{"CreateNamespace/nothing", create(nil), invalid, "namespace must be"},
		{"CreateNamespace/name", create(&pb.Namespace{Name: "Shop"}), invalid, "namespace must be 1 to 63 of a-z, 0-9 and '-', not starting with '-'; it has 'S' at byte 1"},
		{"CreateNamespace/retention", create(&pb.Namespace{Name: "shop", Retention: durationpb.New(1)}), invalid, "retention"},
		{"CreateNamespace/outcome bytes", create(&pb.Namespace{Name: "shop", MaxOutcomeBytes: -1}), invalid, "max outcome bytes"},
		{"CreateNamespace/tier", create(&pb.Namespace{Name: "shop", Tier: 5}), invalid, "tier has the value 5"},
		{"GetNamespace/name", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.GetNamespace(ctx, &pb.GetNamespaceRequest{Name: "-"}))
		}, invalid, "namespace must be"},
		{"UpdateNamespace/policy", func(ctx context.Context, _ pb.IdempotencyServiceClient, a pb.AdminServiceClient) error {
			return only(a.UpdateNamespace(ctx, &pb.UpdateNamespaceRequest{Namespace: &pb.Namespace{Name: "shop", LapsePolicy: 9}}))
		}, invalid, "lapse policy has the value 9"},
	}
	cases = append(cases, keyCase("no key", "KEY_REQUIRED", "make one id per intent", nil)...)
	cases = append(cases, keyCase("no id", "KEY_REQUIRED", "make one id per intent", &pb.Key{Namespace: "default"})...)
	cases = append(cases, keyCase("no namespace", invalid, "namespace must be", &pb.Key{Id: "k"})...)
	// Case 8: one clear error, whatever the text holds. Case 9: control characters.
	random := strings.Repeat("ébgŋ%\u2603", 512)
	for _, long := range []string{strings.Repeat("a", 256), strings.Repeat("a", 4096), random} {
		cases = append(cases, keyCase("long id", invalid, "at most 255 are allowed", &pb.Key{Namespace: "default", Id: long})...)
	}
	cases = append(cases, keyCase("long scope", invalid, "at most 255", &pb.Key{Namespace: "default", Id: "k", Scope: random})...)
	cases = append(cases, keyCase("control character", invalid, "control character", &pb.Key{Namespace: "default", Id: "k", Entity: "a\nb"})...)

	r := newRig(t, untouchable{newMemory(), t})
	conn := r.connect()
	keys, admin := pb.NewIdempotencyServiceClient(conn), pb.NewAdminServiceClient(conn)
	called := map[string]bool{}
	for _, c := range cases {
		err := c.call(t.Context(), keys, admin)
		code, reason := reasonIn(err)
		if code.String() != "InvalidArgument" || reason != c.reason || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v (reason %s), want %s with %q", c.name, err, reason, c.reason, c.text)
		}
		method, _, _ := strings.Cut(c.name, "/")
		called[method] = true
	}
	for _, service := range []grpc.ServiceDesc{pb.IdempotencyService_ServiceDesc, pb.AdminService_ServiceDesc} {
		for _, m := range service.Methods {
			takesNothing := m.MethodName == "ListNamespaces" || m.MethodName == "ListBuckets" || m.MethodName == "GetTopology"
			if !called[m.MethodName] && !takesNothing {
				t.Errorf("no bad request for %s", m.MethodName)
			}
		}
	}
}

// invalidClaim sends a Claim that is refused before the store is asked.
func invalidClaim(ctx context.Context, conn grpc.ClientConnInterface, namespace string) {
	_, _ = pb.NewIdempotencyServiceClient(conn).Claim(ctx, &pb.ClaimRequest{Key: &pb.Key{Namespace: namespace, Id: "k"}})
}

// Case 32: a client does not send what is far too large.
func TestClientRefusesLargeOutcomesItself(t *testing.T) {
	r := newRig(t, untouchable{newMemory(), t})
	_, err := r.client().Complete(t.Context(), store.CompleteRequest{
		Key: testKey, AttemptID: "a", Fence: 1, Outcome: &store.Outcome{Body: make([]byte, 5<<20)},
	})
	if code, _ := reasonIn(err); code.String() != "Unknown" || !strings.Contains(err.Error(), "at most 262144 are allowed") {
		t.Errorf("got %v", err)
	}
	if len(r.samples("idemd_answers_total")) != 0 {
		t.Error("the request was sent")
	}
}
