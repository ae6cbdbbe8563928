package storepb

import (
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

func TestRecoveryRoundTrips(t *testing.T) {
	at := time.Date(2026, 5, 6, 7, 8, 9, 10_000, time.UTC)
	roundTrip(t, store.BeginRecoveryRequest{CompleteUntil: at, Namespace: "payments", Actor: "ann", Reason: "restored"}, BeginRecoveryRequestToProto, BeginRecoveryRequestFromProto)
	roundTrip(t, store.LiftRecoveryRequest{Namespace: "shop", ForNew: true, NothingKnown: true, LeasesEnded: true, AllRegions: true, Actor: "ann", Reason: "settled"}, LiftRecoveryRequestToProto, LiftRecoveryRequestFromProto)
	key := store.Key{Namespace: "n", Scope: "s", ID: "i", Entity: "e"}
	roundTrip(t, store.ImportRequest{Key: key, Fingerprint: store.Fingerprint{Version: 1, Digest: "f"}, Outcome: testDone,
		CompletedAt: at, Actor: "ann", Reason: "ledger"}, ImportRequestToProto, ImportRequestFromProto, "ImportRequest.AnyFingerprint", "Outcome.BodyOmitted")
	for _, req := range []store.ImportRequest{{Key: key, AnyFingerprint: true}, {Key: key}} { // not known, and empty
		got, err := ImportRequestFromProto(ImportRequestToProto(req))
		if err != nil || got.AnyFingerprint != req.AnyFingerprint || got.Fingerprint != req.Fingerprint {
			t.Errorf("%+v became %+v, %v", req, got, err)
		}
	}
}
