package storetest

import (
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/idemd/idemd/store"
)

// keyOf returns the key of the case with what the command changes of it.
func (r *goldenRun) keyOf(cmd goldenCommand) store.Key {
	key := r.key
	for name, field := range map[string]*string{"ns": &key.Namespace, "scope": &key.Scope, "id": &key.ID, "entity": &key.Entity} {
		if cmd.has(name) {
			*field = cmd.text(name)
		}
	}
	return key
}

// operate sends one operation and returns its answer as a script shows it.
func (r *goldenRun) operate(key store.Key, cmd goldenCommand) string {
	r.t.Helper()
	ctx := r.t.Context()
	switch cmd.verb {
	case "claim":
		answer, err := r.inst.Claim(ctx, store.ClaimRequest{
			Key: key, AttemptID: cmd.text("attempt"), Fingerprint: fingerprintOf(cmd.text("fp")), Lease: duration(cmd, "lease"),
			Hold: cmd.has("hold"), IntentTime: r.time(cmd, "intent"), Epoch: r.epoch(cmd),
		})
		return answerText(r, answer, err, r.claimText)
	case "renew":
		answer, err := r.inst.Renew(ctx, store.RenewRequest{
			Key: key, AttemptID: cmd.text("attempt"), Fence: r.fence(cmd), Lease: duration(cmd, "lease"), Epoch: r.epoch(cmd),
		})
		return answerText(r, answer, err, r.renewText)
	case "complete":
		answer, err := r.inst.Complete(ctx, store.CompleteRequest{
			Key: key, AttemptID: cmd.text("attempt"), Fence: r.fence(cmd), Outcome: r.outcome(cmd), Epoch: r.epoch(cmd),
		})
		return answerText(r, answer, err, r.completeText)
	case "release":
		answer, err := r.inst.Release(ctx, store.ReleaseRequest{
			Key: key, AttemptID: cmd.text("attempt"), Fence: r.fence(cmd), Effect: goldenEffects[cmd.text("effect")], Epoch: r.epoch(cmd),
		})
		return answerText(r, answer, err, releaseText)
	case "import-outcome":
		answer, err := r.inst.ImportOutcome(ctx, store.ImportRequest{
			Key: key, Fingerprint: fingerprintOf(cmd.text("fp")), AnyFingerprint: !cmd.has("fp"), Outcome: r.outcome(cmd),
			CompletedAt: r.time(cmd, "completed"), Actor: cmd.text("actor"), Reason: cmd.text("reason"), Epoch: r.epoch(cmd),
		})
		return answerText(r, answer, err, importText)
	case "lookup":
		answer, err := r.inst.Lookup(ctx, store.LookupRequest{Key: key, Fingerprint: fingerprintOf(cmd.text("fp")), Epoch: r.epoch(cmd)})
		return answerText(r, answer, err, r.lookupText)
	case "resolve":
		record, err := r.inst.Resolve(ctx, store.ResolveRequest{
			Key: key, Fence: r.expected(cmd), AnyFence: !cmd.has("fence"), Outcome: r.outcome(cmd), Actor: cmd.text("actor"), Reason: cmd.text("reason"),
			Epoch: r.epoch(cmd),
		})
		return answerText(r, record, err, r.returnedText)
	case "place", "import", "forget":
		return r.move(key.Namespace, cmd)
	default: // the parser lets nothing else through
		record, err := r.inst.ForceRelease(ctx, store.ForceReleaseRequest{
			Key: key, Fence: r.expected(cmd), AnyFence: !cmd.has("fence"), Actor: cmd.text("actor"), Reason: cmd.text("reason"),
			Epoch: r.epoch(cmd),
		})
		return answerText(r, record, err, r.returnedText)
	}
}

// answerText shows an answer or a refusal. A refusal must come with nothing else.
func answerText[A any](r *goldenRun, answer A, err error, text func(A) string) string {
	r.t.Helper()
	if err == nil {
		return text(answer)
	}
	if !reflect.ValueOf(&answer).Elem().IsZero() {
		r.t.Fatalf("the refusal %v comes with an answer: %+v", err, answer)
	}
	return reasonOf(err)
}

// returnedText checks that the record an operator is given is the one that is stored.
func (r *goldenRun) returnedText(record *store.Record) string {
	r.t.Helper()
	if got, want := r.recordText(record), r.recordText(r.inspect(record.Key).Record); got != want {
		r.t.Fatalf("the returned record differs from the stored one\nreturned: %s\nstored:   %s", got, want)
	}
	return "ok"
}

func (r *goldenRun) namespace(cmd goldenCommand, ns store.Namespace) store.Namespace {
	for _, arg := range cmd.args {
		text := arg.text()
		switch arg.name {
		case "retention":
			ns.Retention = duration(cmd, arg.name)
		case "tier":
			ns.Tier = goldenTiers[text]
		case "policy":
			ns.LapsePolicy = goldenPolicies[text]
		case "lease":
			ns.Lease = duration(cmd, arg.name)
		case "max-lease":
			ns.MaxLease = duration(cmd, arg.name)
		case "max-attempt":
			ns.MaxAttempt = duration(cmd, arg.name)
		case "max-outcome":
			ns.MaxOutcomeBytes, _ = strconv.Atoi(text)
		case "entity":
			ns.Entity = goldenEntityRules[text]
		case "floor":
			ns.RecoveryFloor = time.Time{}
			if text != "none" {
				ns.RecoveryFloor = r.time(cmd, arg.name)
			}
		}
	}
	return ns
}

func (r *goldenRun) outcome(cmd goldenCommand) *store.Outcome {
	return r.set.outcomes[cmd.text("outcome")]
}

// time returns the instant that an argument means, zero if it is not there.
func (r *goldenRun) time(cmd goldenCommand, name string) time.Time {
	text := cmd.text(name)
	if text == "" {
		return time.Time{}
	}
	if rest, ok := strings.CutPrefix(text, "now"); ok {
		return r.now().Add(parsedDuration(rest))
	}
	return r.base.Add(parsedDuration(text))
}

func (r *goldenRun) fence(cmd goldenCommand) int64 {
	text := cmd.text("fence")
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	return r.base.Add(parsedDuration(text)).UnixMicro()
}

// expected is the fence that an operator expects, zero if any will do.
func (r *goldenRun) expected(cmd goldenCommand) int64 {
	if !cmd.has("fence") {
		return 0
	}
	return r.fence(cmd)
}

func duration(cmd goldenCommand, name string) time.Duration { return parsedDuration(cmd.text(name)) }

// parsedDuration is zero for an empty text; the parser has checked any other.
func parsedDuration(text string) time.Duration {
	d, _ := time.ParseDuration(text)
	return d
}
