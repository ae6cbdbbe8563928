package main

import (
	"fmt"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// stateWord is a state as one word: the state's own, or lapsed.
func stateWord(state idemdv1.State, lapsed bool) string {
	if lapsed {
		return "lapsed"
	}
	return storepb.Word(state, "STATE_")
}

// stateText says what the state means.
func stateText(state idemdv1.State, lapsed bool) string {
	switch {
	case lapsed:
		return "lapsed: the lease ended without an outcome; what happened is unknown"
	case state == idemdv1.State_STATE_IN_PROGRESS:
		return "in progress: an attempt holds the key"
	case state == idemdv1.State_STATE_COMPLETED:
		return "completed: the outcome answers every repeat"
	case state == idemdv1.State_STATE_RELEASED:
		return "released: nothing happened; the key may be claimed afresh"
	}
	return state.String()
}

func recordText(p *page, r *idemdv1.Record) {
	stateFields(p, r)
	outcomeFields(p, r)
}

func stateFields(p *page, r *idemdv1.Record) {
	p.heading("%s", stateText(r.GetState(), r.GetLapsed()))
	p.field("namespace", r.GetKey().GetNamespace())
	p.field("scope", keyText(r.GetKey().GetScope()))
	p.field("id", keyText(r.GetKey().GetId()))
	p.field("entity", keyText(r.GetKey().GetEntity()))
	p.field("named in the log", storepb.KeyFromProto(r.GetKey()).LogName())
	p.field("fingerprint", fingerprintText(r.GetFingerprint()))
	p.field("fence", r.GetFence())
	p.field("attempt number", r.GetAttemptNumber())
	if r.GetPreviousFence() != 0 {
		p.field("previous fence", r.GetPreviousFence())
	}
	if r.GetUnsettled() {
		p.field("unsettled", "an attempt before this one may have acted")
	}
	p.unsettledSince(r)
	if r.GetReleasedWith() != idemdv1.Effect_EFFECT_UNSPECIFIED {
		p.field("released with effect", storepb.Word(r.GetReleasedWith(), "EFFECT_"))
	}
	p.field("lapse policy", storepb.Word(r.GetLapsePolicy(), "LAPSE_POLICY_"))
	p.field("retention", span(r.GetRetention().AsDuration()))
	p.when("granted at", r.GetGrantedAt())
	p.when("lease end", r.GetLeaseExpiresAt())
	p.when("attempt limit", r.GetAttemptLimit())
	p.when("ended at", r.GetEndedAt())
	p.when("kept until", r.GetExpiresAt())
	p.field("ended attempts", r.GetEndedAttempts())
}

// attemptFields name the attempts that the record remembers.
func attemptFields(p *page, in *idemdv1.InspectRecordResponse) {
	for _, id := range in.GetEndedAttemptIds() {
		attemptField(p, "ended attempt", id)
	}
	if id := in.GetAttemptId(); len(id) > 0 {
		attemptField(p, "attempt", id)
	}
}

func attemptField(p *page, name string, id []byte) {
	p.field(name, fmt.Sprintf("%v, in the log %s", opaque(id), store.AttemptLogName(string(id))))
}

func outcomeFields(p *page, r *idemdv1.Record) {
	if r.GetOutcome() != nil {
		p.outcome(r.GetOutcome())
		p.field("outcome sha256", fmt.Sprintf("%x", r.GetOutcomeDigest()))
	}
}

func fingerprintText(f *idemdv1.Fingerprint) string {
	switch {
	case len(f.GetDigest()) == 0:
		return "none"
	case storepb.FingerprintFromProto(f) == store.UnknownFingerprint:
		return "not known: an operator imported it without one"
	}
	return fmt.Sprintf("%v (version %d)", opaque(f.GetDigest()), f.GetVersion())
}

func eventText(p *page, e *idemdv1.Event) {
	p.heading("event: %s", storepb.Word(e.GetKind(), "EVENT_KIND_"))
	p.when("at", e.GetAt())
	p.field("fence", e.GetFence())
	if e.GetNewFence() != 0 {
		p.field("new fence", e.GetNewFence())
	}
	if e.GetActor() != "" || e.GetReason() != "" {
		p.field("actor", shown(e.GetActor()))
		p.field("reason", shown(e.GetReason()))
	}
	if e.GetOutcome() != nil {
		p.outcome(e.GetOutcome())
		p.field("outcome sha256", fmt.Sprintf("%x", e.GetOutcomeDigest()))
		p.field("outcome bytes", e.GetOutcomeSize())
	}
}
