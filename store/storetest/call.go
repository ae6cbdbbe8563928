package storetest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/idemd/idemd/store"
)

// opKind names the operations that the model knows.
type opKind string

const (
	opClaim    opKind = "Claim"
	opRenew    opKind = "Renew"
	opComplete opKind = "Complete"
	opRelease  opKind = "Release"
	opLookup   opKind = "Lookup"
	opResolve  opKind = "Resolve"
	opForce    opKind = "ForceRelease"
	opInspect  opKind = "InspectRecord"
	opImport   opKind = "ImportOutcome"
)

// call is one request, for the model and for a backend alike. Which fields count
// depends on the kind.
type call struct {
	Kind        opKind
	Key         store.Key
	AttemptID   string
	Fence       int64
	Fingerprint store.Fingerprint
	Lease       time.Duration
	Hold        bool
	Intent      instant
	Done        instant // of an import, zero for now; its Fingerprint may be [store.UnknownFingerprint]
	Effect      store.Effect
	Outcome     *store.Outcome
	Actor       string
	Reason      string
	Epoch       int64 // of the namespace's placement
}

// named says that the operation carries an attempt id, fenced that it carries a fence. An
// operator's may carry one: zero is any.
func (o call) named() bool { return o.Kind == opClaim || o.fenced() }
func (o call) fenced() bool {
	return o.Kind == opRenew || o.Kind == opComplete || o.Kind == opRelease
}

// perform sends the operation to a backend.
func (o call) perform(ctx context.Context, b store.Backend) reply {
	switch o.Kind {
	case opClaim:
		return claimReply(b.Claim(ctx, o.claimRequest()))
	case opRenew:
		return renewReply(b.Renew(ctx, store.RenewRequest{Key: o.Key, AttemptID: o.AttemptID, Fence: o.Fence, Lease: o.Lease, Epoch: o.Epoch}))
	case opComplete:
		return completeReply(b.Complete(ctx, store.CompleteRequest{Key: o.Key, AttemptID: o.AttemptID, Fence: o.Fence, Outcome: o.Outcome, Epoch: o.Epoch}))
	case opRelease:
		return releaseReply(b.Release(ctx, store.ReleaseRequest{Key: o.Key, AttemptID: o.AttemptID, Fence: o.Fence, Effect: o.Effect, Epoch: o.Epoch}))
	case opLookup:
		return lookupReply(b.Lookup(ctx, store.LookupRequest{Key: o.Key, Fingerprint: o.Fingerprint, Epoch: o.Epoch}))
	case opResolve:
		return recordReply(b.Resolve(ctx, store.ResolveRequest{Key: o.Key, Fence: o.Fence, AnyFence: o.Fence == 0, Outcome: o.Outcome, Actor: o.Actor, Reason: o.Reason, Epoch: o.Epoch}))
	case opForce:
		return recordReply(b.ForceRelease(ctx, store.ForceReleaseRequest{Key: o.Key, Fence: o.Fence, AnyFence: o.Fence == 0, Actor: o.Actor, Reason: o.Reason, Epoch: o.Epoch}))
	case opImport:
		return importReply(b.ImportOutcome(ctx, o.importRequest()))
	case opInspect:
		return inspectReply(b.InspectRecord(ctx, o.Key))
	}
	panic("storetest: no operation " + string(o.Kind))
}

func (o call) claimRequest() store.ClaimRequest {
	return store.ClaimRequest{Key: o.Key, AttemptID: o.AttemptID, Fingerprint: o.Fingerprint, Lease: o.Lease, Hold: o.Hold,
		IntentTime: o.Intent.time(), Epoch: o.Epoch}
}

func (o call) importRequest() store.ImportRequest {
	req := store.ImportRequest{Key: o.Key, Fingerprint: o.Fingerprint, Outcome: o.Outcome, CompletedAt: o.Done.time(), Actor: o.Actor, Reason: o.Reason, Epoch: o.Epoch}
	if req.Fingerprint == store.UnknownFingerprint {
		req.Fingerprint, req.AnyFingerprint = store.Fingerprint{}, true
	}
	return req
}

// outcomeDigest is the digest that the documentation of [store.Outcome.Digest] defines.
func outcomeDigest(o *store.Outcome) store.OutcomeDigest {
	b := []byte("idemd.outcome.v1")
	number := func(n int) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	field := func(value string) { number(len(value)); b = append(b, value...) }
	field(string(o.Status))
	field(o.BodyType)
	field(string(o.Body))
	if o.BodyOmitted {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	for _, list := range [][]store.MetadataEntry{o.Header, o.Trailer} {
		number(len(list))
		for _, e := range list {
			field(e.Name)
			field(string(e.Value))
		}
	}
	return sha256.Sum256(b)
}
