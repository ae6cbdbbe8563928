package storepb

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

func durationOf(seconds int64, nanos int32) *durationpb.Duration {
	return &durationpb.Duration{Seconds: seconds, Nanos: nanos}
}

var (
	at       = time.Date(2026, 5, 4, 3, 2, 1, 987654000, time.UTC)
	testKey  = store.Key{Namespace: "default", Scope: "/pay.v1.Pay/Charge", ID: "é-1", Entity: "acct"}
	testSum  = store.Fingerprint{Version: 7, Digest: "\x00\xff"}
	testDone = &store.Outcome{
		Status: []byte{8, 5}, Body: []byte("\x00body"), BodyType: "text/plain",
		Header:  []store.MetadataEntry{{Name: "a", Value: []byte{0xff}}, {Name: "a", Value: []byte("2")}},
		Trailer: []store.MetadataEntry{{Name: "t", Value: []byte("3")}},
	}
)

var testServed = store.Served{Home: "eu", Forwarded: true, Epoch: 3}

// overTheWire marshals and unmarshals, as a call does.
func overTheWire[M proto.Message](t *testing.T, m M) M {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	back := m.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(raw, back); err != nil {
		t.Fatal(err)
	}
	return back.(M)
}

// roundTrip checks that a value comes back equal, and that no field of its type or of its
// message was left at zero, so that a field that is added and not mapped is noticed.
func roundTrip[S any, M proto.Message](t *testing.T, full S, to func(S) M, from func(M) (S, error), absent ...string) {
	t.Helper()
	name := reflect.TypeFor[S]().String()
	t.Run(strings.TrimPrefix(name, "*"), func(t *testing.T) {
		checkFilled(t, reflect.ValueOf(full), name, absent)
		m := to(full)
		checkMessageFilled(t, m.ProtoReflect())
		got, err := from(overTheWire(t, m))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, full) {
			t.Errorf("came back as\n%+v, sent\n%+v", got, full)
		}
		var none M
		_, _ = from(none) // must not panic
	})
}

func checkFilled(t *testing.T, v reflect.Value, path string, absent []string) {
	t.Helper()
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	for _, allowed := range append(absent, "Request.Epoch") { // is no part of a caller's message: PeerService carries it
		if strings.HasSuffix(path, allowed) {
			return
		}
	}
	if v.IsZero() {
		t.Errorf("%s is not filled in by this test", path)
	}
	if v.Kind() != reflect.Struct || v.Type() == reflect.TypeFor[time.Time]() {
		return
	}
	for i := range v.NumField() {
		checkFilled(t, v.Field(i), path+"."+v.Type().Field(i).Name, absent)
	}
}

func checkMessageFilled(t *testing.T, m protoreflect.Message) {
	t.Helper()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		derived := field.FullName() == "idemd.v1.Record.lapsed" || field.FullName() == "idemd.v1.Outcome.body_omitted"
		if field.ContainingOneof() == nil && !derived && !m.Has(field) {
			t.Errorf("%s is not set by ToProto", field.FullName())
		}
	}
}

func TestRequestsRoundTrip(t *testing.T) {
	roundTrip(t, store.ClaimRequest{
		Key: testKey, AttemptID: "\xff\x00", Fingerprint: testSum, Lease: 90 * time.Second, Hold: true, IntentTime: at, Wait: time.Second,
	}, ClaimRequestToProto, ClaimRequestFromProto)
	roundTrip(t, store.RenewRequest{Key: testKey, AttemptID: "a", Fence: math.MaxInt64, Lease: 1500 * time.Millisecond},
		RenewRequestToProto, RenewRequestFromProto)
	roundTrip(t, store.CompleteRequest{Key: testKey, AttemptID: "a", Fence: 1, Outcome: testDone},
		CompleteRequestToProto, CompleteRequestFromProto, ".BodyOmitted")
	roundTrip(t, store.ReleaseRequest{Key: testKey, AttemptID: "a", Fence: 1, Effect: store.EffectUnknown},
		ReleaseRequestToProto, ReleaseRequestFromProto)
	roundTrip(t, store.LookupRequest{Key: testKey, Fingerprint: testSum}, LookupRequestToProto, LookupRequestFromProto)
	roundTrip(t, store.ListRequest{
		Namespace: "n", Filter: store.Filter{State: store.StateReleased, Lapsed: true, Scope: "s", Entity: "e"}, PageSize: 9, PageToken: "t",
	}, ListRequestToProto, ListRequestFromProto)
	roundTrip(t, store.ResolveRequest{Key: testKey, Fence: 5, AnyFence: true, Outcome: testDone, Actor: "ann", Reason: "seen at the bank"},
		ResolveRequestToProto, ResolveRequestFromProto, ".BodyOmitted")
	roundTrip(t, store.ForceReleaseRequest{Key: testKey, Fence: 5, AnyFence: true, Actor: "ann", Reason: "host is gone"},
		ForceReleaseRequestToProto, ForceReleaseRequestFromProto)
}

func TestAnswersRoundTrip(t *testing.T) {
	roundTrip(t, store.RenewAnswer{LeaseExpiresAt: at, LeaseRemaining: time.Second, HeldFor: 3, Served: testServed},
		RenewAnswerToProto, RenewAnswerFromProto)
	roundTrip(t, store.CompleteAnswer{CompletedAt: at, ExpiresAt: at.Add(1e9), Served: testServed}, CompleteAnswerToProto, CompleteAnswerFromProto)
	roundTrip(t, store.ReleaseAnswer{State: store.StateReleased, Served: testServed}, ReleaseAnswerToProto, ReleaseAnswerFromProto)
	roundTrip(t, store.LookupAnswer{
		State: store.StateCompleted, Lapsed: true, Unsettled: true, LapsePolicy: store.Hold, Fence: 5, AttemptNumber: 2, GrantedAt: at,
		LeaseExpiresAt: at.Add(1e9), EndedAt: at.Add(2e9), ExpiresAt: at.Add(3e9), Outcome: testDone, OutcomeWithheld: true, Served: testServed,
	}, LookupAnswerToProto, LookupAnswerFromProto, ".BodyOmitted")
}

func TestClaimAnswersRoundTrip(t *testing.T) {
	for _, full := range []store.ClaimAnswer{
		{Granted: &store.Granted{Fence: 5, AttemptNumber: 2, Unsettled: true, UnsettledSince: at.Add(-1e9), PreviousFence: 4, GrantedAt: at,
			LeaseExpiresAt: at.Add(1e9), LeaseRemaining: time.Second, HeldFor: 17}},
		{InProgress: &store.InProgress{LeaseExpiresAt: at, LeaseRemaining: time.Second, RetryAfter: time.Minute}},
		{Completed: &store.Completed{Outcome: testDone, Fence: 5, CompletedAt: at, ExpiresAt: at.Add(2e9), Age: 1e9, Retention: 2e9}},
		{Unresolved: &store.Unresolved{Fence: 5, LapsedAt: at}},
	} {
		full.FingerprintIncomparable, full.Served = true, testServed
		// One of the four is set; it must be full.
		for field, value := range reflect.ValueOf(full).Fields() {
			if value.Kind() == reflect.Pointer && !value.IsNil() {
				checkFilled(t, value, field.Name, []string{".BodyOmitted"})
			}
		}
		got, err := ClaimAnswerFromProto(overTheWire(t, ClaimAnswerToProto(full)))
		if err != nil || !reflect.DeepEqual(got, full) {
			t.Errorf("came back as %+v, %v, sent %+v", got, err, full)
		}
	}
}

// A peer of a release that knows only whether a record is unsettled says nothing of since when. Any
// time that was taken from what it does say could be too late.
func TestUnsettledOfAnOlderPeer(t *testing.T) {
	since := timeToProto(at)
	for _, test := range []struct {
		unsettled bool
		since     *timestamppb.Timestamp
		want      time.Time
	}{{false, nil, time.Time{}}, {true, nil, store.LongAgo}, {true, since, at}, {true, timeToProto(store.LongAgo), store.LongAgo}, {false, since, time.Time{}}} {
		answer, err := ClaimAnswerFromProto(overTheWire(t, &pb.ClaimResponse{Result: &pb.ClaimResponse_Granted{
			Granted: &pb.Granted{Fence: 5, Unsettled: test.unsettled, UnsettledSince: test.since},
		}}))
		if err != nil || !answer.Granted.UnsettledSince.Equal(test.want) || answer.Granted.Unsettled != test.unsettled {
			t.Errorf("unsettled %t since %v: read as %+v, %v", test.unsettled, test.since, answer.Granted, err)
		}
		message := RecordToProto(&store.Record{State: store.StateInProgress, LapsePolicy: store.Takeover, GrantedAt: at}, at)
		message.Unsettled, message.UnsettledSince = test.unsettled, test.since
		record, err := RecordFromProto(overTheWire(t, message))
		if err != nil || !record.UnsettledSince.Equal(test.want) {
			t.Errorf("unsettled %t since %v: read as %+v, %v", test.unsettled, test.since, record, err)
		}
	}
}

func TestOperatorsViewRoundTrips(t *testing.T) {
	record := &store.Record{
		Key: testKey, State: store.StateCompleted, Fence: 5, PreviousFence: 4, AttemptNumber: 2, Fingerprint: testSum,
		GrantedAt: at, LeaseEnd: at.Add(1e9), AttemptLimit: at.Add(2e9), EndedAt: at.Add(3e9), ExpiresAt: at.Add(4e9),
		LapsePolicy: store.Hold, Retention: time.Hour, UnsettledSince: at.Add(-1e9), ReleasedWith: store.EffectUnknown,
		Ended: []string{"", ""}, Outcome: testDone, OutcomeDigest: testDone.Digest(),
	}
	roundTrip(t, record, func(r *store.Record) *pb.Record { return RecordToProto(r, at) }, RecordFromProto,
		".AttemptID", ".BodyOmitted")
	event := store.Event{At: at, Kind: store.EventLateOutcome, Fence: 5, AttemptNumber: 2, NewFence: 6, Outcome: testDone,
		OutcomeDigest: testDone.Digest(), OutcomeSize: 7, Actor: "ann", Reason: "r"}
	roundTrip(t, event, EventToProto, EventFromProto, ".BodyOmitted")
	roundTrip(t, store.RecordPage{Records: []*store.Record{record}, NextPageToken: "n", Now: at, Missing: "region us"}, RecordPageToProto, RecordPageFromProto)
	inspected := *record
	inspected.AttemptID, inspected.Ended = "\xff\x00", []string{"older", "old"}
	roundTrip(t, store.Inspection{Record: &inspected, Events: []store.Event{event}, Now: at},
		InspectionToProto, InspectionFromProto, ".BodyOmitted")
	namespace := store.Namespace{
		Name: "n", Tier: store.TierMonth, Retention: time.Hour, LapsePolicy: store.Hold, Lease: 1e9, MaxLease: 2e9, MaxAttempt: 3e9,
		MaxOutcomeBytes: 77, Entity: store.EntityForbidden, RecoveryFloor: at, CreatedAt: at, UpdatedAt: at, FloorForNew: at,
		Recovery: []store.RecoveryStep{{At: at, Kind: store.RecoveryLifted, ForNew: true, Floor: at, CompleteUntil: at, Actor: "ann", Reason: "settled"}},

		PastRetentions: []store.PastRetention{{Retention: time.Minute, Until: at}},
		Placement:      store.Placement{Epoch: 2, Revision: 5, Rule: "fixed eu", Move: store.Move{To: "us", Phase: store.MoveFlipped}},
		SharedBy:       []string{"eu", "us"},
	}
	roundTrip(t, namespace, NamespaceToProto, NamespaceFromProto, ".IfUpdatedAt") // which an update carries
	namespace.IfUpdatedAt = at.Add(time.Second)
	roundTrip(t, namespace, UpdateToProto, UpdateFromProto)
	buckets := []store.Bucket{{Tier: store.TierDay, Start: at, End: at.Add(1e9), DropAfter: at.Add(2e9)}}
	if got, err := BucketsFromProto(BucketsToProto(buckets)); err != nil || !reflect.DeepEqual(got, buckets) {
		t.Errorf("buckets came back as %+v, %v", got, err)
	}
}

func TestOmittedBodyRoundTrips(t *testing.T) {
	omitted := &store.Outcome{BodyOmitted: true}
	if got := OutcomeFromProto(overTheWire(t, OutcomeToProto(omitted))); !reflect.DeepEqual(got, omitted) {
		t.Errorf("came back as %+v", got)
	}
	if OutcomeToProto(nil) != nil || OutcomeFromProto(nil) != nil {
		t.Error("no outcome became one")
	}
	// An outcome that says nothing is still one.
	if got := OutcomeFromProto(OutcomeToProto(&store.Outcome{})); got == nil || got.Digest() != (&store.Outcome{}).Digest() {
		t.Errorf("the empty outcome came back as %+v", got)
	}
}

// They are shown where one record is inspected, and nowhere else.
func TestAttemptIDsAreNotShown(t *testing.T) {
	m := RecordToProto(&store.Record{AttemptID: "secret", Ended: []string{"secret2"}}, at)
	if text := m.String(); strings.Contains(text, "secret") || m.GetEndedAttempts() != 1 {
		t.Errorf("record is %s", text)
	}
}

func TestRecordSaysWhetherItIsLapsed(t *testing.T) {
	rec := &store.Record{State: store.StateInProgress, LeaseEnd: at}
	if RecordToProto(rec, at.Add(-1)).GetLapsed() || !RecordToProto(rec, at).GetLapsed() {
		t.Error("lapsed must begin at the lease's end")
	}
}

// TestEnumsHaveTheSameNumbers holds the store's constants and the wire's side by side: the
// conversions rely on it.
func TestEnumsHaveTheSameNumbers(t *testing.T) {
	for _, c := range []struct {
		store int
		wire  protoreflect.Enum
		want  string
	}{
		{int(store.StateInProgress), pb.State(store.StateInProgress), "STATE_IN_PROGRESS"},
		{int(store.StateCompleted), pb.State(store.StateCompleted), "STATE_COMPLETED"},
		{int(store.StateReleased), pb.State(store.StateReleased), "STATE_RELEASED"},
		{int(store.Takeover), pb.LapsePolicy(store.Takeover), "LAPSE_POLICY_TAKEOVER"},
		{int(store.Hold), pb.LapsePolicy(store.Hold), "LAPSE_POLICY_HOLD"},
		{int(store.EffectNone), pb.Effect(store.EffectNone), "EFFECT_NONE"},
		{int(store.EffectUnknown), pb.Effect(store.EffectUnknown), "EFFECT_UNKNOWN"},
		{int(store.TierHour), pb.Tier(store.TierHour), "TIER_HOUR"},
		{int(store.TierDay), pb.Tier(store.TierDay), "TIER_DAY"},
		{int(store.TierWeek), pb.Tier(store.TierWeek), "TIER_WEEK"},
		{int(store.TierMonth), pb.Tier(store.TierMonth), "TIER_MONTH"},
		{int(store.EventTakeover), pb.EventKind(store.EventTakeover), "EVENT_KIND_TAKEOVER"},
		{int(store.EventLateOutcome), pb.EventKind(store.EventLateOutcome), "EVENT_KIND_LATE_OUTCOME"},
		{int(store.EventResolved), pb.EventKind(store.EventResolved), "EVENT_KIND_RESOLVED"},
		{int(store.EventForceReleased), pb.EventKind(store.EventForceReleased), "EVENT_KIND_FORCE_RELEASED"},
		{int(store.EventImported), pb.EventKind(store.EventImported), "EVENT_KIND_IMPORTED"},
		{int(store.RecoveryBegun), pb.RecoveryKind(store.RecoveryBegun), "RECOVERY_KIND_BEGUN"},
		{int(store.RecoveryLifted), pb.RecoveryKind(store.RecoveryLifted), "RECOVERY_KIND_LIFTED"},
		{int(store.RecoveryCarried), pb.RecoveryKind(store.RecoveryCarried), "RECOVERY_KIND_CARRIED"},
		{int(store.EntityOptional), entityRuleToProto(store.EntityOptional), "ENTITY_RULE_OPTIONAL"},
		{int(store.EntityRequired), entityRuleToProto(store.EntityRequired), "ENTITY_RULE_REQUIRED"},
		{int(store.EntityForbidden), entityRuleToProto(store.EntityForbidden), "ENTITY_RULE_FORBIDDEN"},
	} {
		values := c.wire.Descriptor().Values()
		if value := values.ByNumber(c.wire.Number()); value == nil || string(value.Name()) != c.want {
			t.Errorf("%d is %v on the wire, want %s", c.store, value, c.want)
		}
	}
	// A value that is added to the wire must be added to the table too.
	for wire, known := range map[protoreflect.Enum]int{
		pb.State(0): int(store.StateReleased), pb.LapsePolicy(0): int(store.Hold), pb.Effect(0): int(store.EffectUnknown),
		pb.Tier(0): int(store.TierMonth), pb.EventKind(0): int(store.EventImported), pb.RecoveryKind(0): int(store.RecoveryCarried), pb.EntityRule(0): int(store.EntityForbidden) + 1,
	} {
		if n := wire.Descriptor().Values().Len(); n != known+1 {
			t.Errorf("%v has %d values, %d are known", wire.Descriptor().Name(), n, known+1)
		}
	}
}

func TestEntityRuleUnspecifiedIsOptional(t *testing.T) {
	for wire, want := range map[pb.EntityRule]store.EntityRule{0: store.EntityOptional, 1: store.EntityOptional, 2: store.EntityRequired, 3: store.EntityForbidden} {
		if ns, err := NamespaceFromProto(&pb.Namespace{Entity: wire}); err != nil || ns.Entity != want {
			t.Errorf("%v became %v, %v", wire, ns.Entity, err)
		}
	}
}

func TestTimesAreCutToMicroseconds(t *testing.T) {
	req, err := ClaimRequestFromProto(&pb.ClaimRequest{IntentTime: timestamppb.New(at.Add(999))})
	if err != nil || !req.IntentTime.Equal(at) {
		t.Errorf("became %v, %v; want %v", req.IntentTime, err, at)
	}
}

func TestHostileRequestsAreRefused(t *testing.T) {
	claim := func(m *pb.ClaimRequest) error { _, err := ClaimRequestFromProto(m); return err }
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"duration beyond int64 ns": {claim(&pb.ClaimRequest{Lease: durationOf(10_000_000_000, 0)}), "lease"},
		"most negative duration":   {claim(&pb.ClaimRequest{Wait: durationOf(math.MinInt64, 0)}), "wait"},
		"signs differ":             {claim(&pb.ClaimRequest{Wait: durationOf(1, -1)}), "wait"},
		"nanos out of range":       {claim(&pb.ClaimRequest{Wait: durationOf(1, 2_000_000_000)}), "wait"},
		"before 1970":              {claim(&pb.ClaimRequest{IntentTime: &timestamppb.Timestamp{Seconds: -1}}), "intent time"},
		"year 1, Go's zero time":   {claim(&pb.ClaimRequest{IntentTime: timestamppb.New(time.Time{})}), "intent time"},
		"beyond year 9999":         {claim(&pb.ClaimRequest{IntentTime: &timestamppb.Timestamp{Seconds: math.MaxInt64}}), "intent time"},
		"bad nanos":                {claim(&pb.ClaimRequest{IntentTime: &timestamppb.Timestamp{Nanos: -1}}), "intent time"},
		"effect that wraps to 1": {func() error {
			_, err := ReleaseRequestFromProto(&pb.ReleaseRequest{Effect: 257})
			return err
		}(), "effect"},
		"negative state": {func() error {
			_, err := ListRequestFromProto(&pb.ListRecordsRequest{State: -1})
			return err
		}(), "state"},
		"lowest entity rule": {func() error {
			_, err := NamespaceFromProto(&pb.Namespace{Entity: math.MinInt32})
			return err
		}(), "entity rule"},
		"past retention": {func() error {
			_, err := NamespaceFromProto(&pb.Namespace{PastRetentions: []*pb.PastRetention{nil, {Until: &timestamppb.Timestamp{Seconds: -9}}}})
			return err
		}(), "past retention until"},
	} {
		if !errors.Is(c.err, store.ErrInvalidArgument) || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}

func TestMissingKeyIsRequired(t *testing.T) {
	req, err := ClaimRequestFromProto(&pb.ClaimRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := req.Validate(); !errors.Is(err, store.ErrKeyRequired) {
		t.Errorf("Validate says %v", err)
	}
}

func TestAnswersThatAreNotUnderstood(t *testing.T) {
	claim := func(m *pb.ClaimResponse) error {
		a, err := ClaimAnswerFromProto(m)
		if a.Granted != nil {
			t.Errorf("%v was taken for a grant", m)
		}
		return err
	}
	bad := &timestamppb.Timestamp{Seconds: -1}
	for name, err := range map[string]error{
		"no answer":             claim(nil),
		"no result":             claim(&pb.ClaimResponse{FingerprintIncomparable: true}),
		"empty grant":           claim(&pb.ClaimResponse{Result: &pb.ClaimResponse_Granted{}}),
		"grant without a fence": claim(&pb.ClaimResponse{Result: &pb.ClaimResponse_Granted{Granted: &pb.Granted{AttemptNumber: 1}}}),
		"grant with a bad time": claim(&pb.ClaimResponse{Result: &pb.ClaimResponse_Granted{Granted: &pb.Granted{Fence: 1, GrantedAt: bad}}}),
		"completed, no outcome": claim(&pb.ClaimResponse{Result: &pb.ClaimResponse_Completed{Completed: &pb.Completed{}}}),
		"state":                 second(ReleaseAnswerFromProto(&pb.ReleaseResponse{State: 9})),
		"lease end":             second(RenewAnswerFromProto(&pb.RenewResponse{LeaseExpiresAt: bad})),
		"completed at":          second(CompleteAnswerFromProto(&pb.CompleteResponse{CompletedAt: bad})),
		"lookup":                second(LookupAnswerFromProto(&pb.LookupResponse{LapsePolicy: 9})),
		"short digest":          second(RecordFromProto(&pb.Record{OutcomeDigest: []byte{1}})),
		"long digest":           second(RecordFromProto(&pb.Record{OutcomeDigest: make([]byte, 33)})),
		"attempts not named":    second(InspectionFromProto(&pb.InspectRecordResponse{Record: &pb.Record{EndedAttempts: 2}, EndedAttemptIds: [][]byte{{1}}})),
		"ended attempts":        second(RecordFromProto(&pb.Record{EndedAttempts: math.MaxInt32})),
		"no record":             second(InspectionFromProto(&pb.InspectRecordResponse{})),
		"event":                 second(InspectionFromProto(&pb.InspectRecordResponse{Record: &pb.Record{}, Events: []*pb.Event{{Kind: 99}}})),
		"page":                  second(RecordPageFromProto(&pb.ListRecordsResponse{Records: []*pb.Record{{State: 9}}})),
		"bucket":                second(BucketsFromProto([]*pb.Bucket{{Tier: 9}})),
		"no namespace":          second(NamespaceAnswerFromProto(nil)),
		"namespaces":            second(NamespacesFromProto([]*pb.Namespace{{Tier: 9}})),
	} {
		if !errors.Is(err, store.ErrInternal) || !errors.As(err, new(*store.Error)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
