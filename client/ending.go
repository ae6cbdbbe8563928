package client

import (
	"errors"
	"slices"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/client/internal/step"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// NoEffect marks an error with which nothing happened: the key is released, and the next
// claimer is granted it as new. Say so only if you know. A connection that dropped, a
// deadline that passed or a panic proves nothing. Of several errors in one, as [errors.Join]
// makes it, each must be marked. An interceptor between the guard and the handler that makes
// another error of it, to map its code for example, takes the mark off: let it pass marked
// errors on as they are, wrap them, or mark its own.
//
// The marked error unwraps to err, and keeps its gRPC status. NoEffect(nil) is nil. The mark
// is about one intent: [Do] and [Guard] return the error without it to their callers, who
// may be carrying out another.
func NoEffect(err error) error {
	if err == nil {
		return nil
	}
	return &noEffect{err}
}

type noEffect struct{ err error }

func (e *noEffect) Error() string { return e.err.Error() }
func (e *noEffect) Unwrap() error { return e.err }

// GRPCStatus lets gRPC send the status of the marked error.
func (e *noEffect) GRPCStatus() *status.Status { return statusOf(e.err) }

// passedOn is an error that the attempt it is about has returned: no mark in it counts for
// another.
type passedOn struct{ err error }

func (e *passedOn) Error() string { return e.err.Error() }
func (e *passedOn) Unwrap() error { return e.err }

// GRPCStatus lets gRPC send the status of the error.
func (e *passedOn) GRPCStatus() *status.Status { return statusOf(e.err) }

// unmarked returns err for the caller of an attempt, to whom no mark in it applies. A mark
// around all of it is taken off.
func unmarked(err error) error {
	if mark, ok := err.(*noEffect); ok { //nolint:errorlint // only the outermost can be taken off
		err = mark.err
	}
	if mark := (*noEffect)(nil); errors.As(err, &mark) {
		return &passedOn{err}
	}
	return err
}

// isMarked reports whether an error says that the attempt which ends with it had no effect.
func isMarked(err error) bool {
	switch e := err.(type) { //nolint:errorlint // goes through the chain itself: not every part of it counts
	case *noEffect:
		return true
	case *passedOn:
		return false
	case interface{ Unwrap() error }:
		return isMarked(e.Unwrap())
	case interface{ Unwrap() []error }:
		errs := e.Unwrap()
		return len(errs) > 0 && !slices.ContainsFunc(errs, func(err error) bool { return !isMarked(err) })
	default:
		return false
	}
}

// storedCodes are those of errors that are final answers: the same request gets the same
// one again.
var storedCodes = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.OutOfRange,
}

// An ending is what the end of an attempt means for its key: an outcome that answers every
// repeat, or the effect to release it with.
type ending struct {
	outcome *store.Outcome
	effect  store.Effect // if there is no outcome
	why     error        // what to tell of it, beside; may be nil
}

// unknown is the ending of which nobody knows what happened, because of an error.
func unknown(why error) ending { return ending{effect: store.EffectUnknown, why: why} }

// isUnknown reports whether nobody knows what happened.
func (e *ending) isUnknown() bool { return e.outcome == nil && e.effect == store.EffectUnknown }

// inDoubt reports whether nobody knows what became of the intent: of this attempt, or, as an earlier one may have
// acted, of that, which what this one did not do says nothing of.
func (e *ending) inDoubt(earlier bool) bool {
	return e.isUnknown() || earlier && e.outcome == nil
}

// ofStep is what the ending says of the intent as a step of another.
func (e *ending) ofStep(earlier bool) step.End {
	switch {
	case e.inDoubt(earlier):
		return step.Unknown
	case e.outcome == nil && e.effect == store.EffectNone:
		return step.Failed // the key is free again
	default:
		return step.Answered
	}
}

// errNotReturned is why nobody knows what came of whoever has acted and not returned.
var errNotReturned = errors.New("whoever acted panicked, or ended its goroutine")

// weighed is what the end of an attempt means: while a step is in doubt, no failure is final.
func (a *Attempt) weighed(end ending) ending {
	if end.outcome != nil && len(end.outcome.Status) > 0 && a.StepInDoubt() {
		return unknown(errStepInDoubt)
	}
	return end
}

// failed is [failed] of an error of this attempt.
func (a *Attempt) failed(err error, noEffectCodes []codes.Code, inDoubt bool) ending {
	if a != nil && a.StepInDoubt() {
		noEffectCodes, inDoubt = nil, true
	}
	return failed(err, noEffectCodes, inDoubt)
}

var errStepInDoubt = errors.New("whether a step was taken is not known, so the failure that followed is not final")

// failed says what an error of whoever acted means. What is not known to be final or to
// have had no effect is unknown. While it is in doubt whether an earlier attempt acted, no
// error is final: one such as "already paid" would be stored as if nothing had been done.
func failed(err error, noEffectCodes []codes.Code, inDoubt bool) ending {
	st := statusOf(err)
	switch {
	case isMarked(err):
		return ending{effect: store.EffectNone}
	case madeByIdemd(st): // a refusal of idemd further on is no outcome: it can change
		return unknown(err)
	case slices.Contains(noEffectCodes, st.Code()):
		return ending{effect: store.EffectNone}
	case inDoubt, !slices.Contains(storedCodes, st.Code()):
		return unknown(err)
	}
	p := st.Proto()
	p.Message = string([]rune(p.GetMessage())) // what is not UTF-8 is replaced, as gRPC does when it sends it
	b, wrong := proto.Marshal(p)
	if wrong != nil {
		return unknown(err)
	}
	return ending{outcome: &store.Outcome{Status: b}}
}

// statusOf returns the status that a gRPC server sends for an error of its handler.
func statusOf(err error) *status.Status {
	st, ok := status.FromError(err)
	if !ok {
		return status.FromContextError(err)
	}
	return st
}

func madeByIdemd(st *status.Status) bool {
	_, made := storepb.ReasonIn(st)
	return made
}

// failureOf is the error that a stored outcome holds; nil if it holds a success.
func failureOf(o *store.Outcome) (failure, err error) {
	if len(o.Status) == 0 {
		return nil, nil
	}
	st := &rpcstatus.Status{}
	if err := proto.Unmarshal(o.Status, st); err != nil {
		return nil, store.Refuse(store.ErrRecordCorrupt, "the stored outcome holds no google.rpc.Status; it was not made by this client")
	}
	return status.FromProto(st).Err(), nil
}

// maxOmittedType is how long the type of a body that is left out may be.
const maxOmittedType = 255

// withoutBody is what is stored instead of an outcome that is too large: that it ended, and
// how, but not with which answer. It fits into store.MinOutcomeBytes, and so into any
// namespace.
func withoutBody(o *store.Outcome) *store.Outcome {
	short := &store.Outcome{BodyOmitted: true, Header: essential(o.Header)}
	if len(o.BodyType) <= maxOmittedType {
		short.BodyType = o.BodyType
	}
	if len(o.Status) == 0 {
		return short
	}
	st := &rpcstatus.Status{}
	if err := proto.Unmarshal(o.Status, st); err != nil {
		st.Code = int32(codes.Unknown)
	}
	const text = "the status was too large to store"
	short.Status, _ = proto.Marshal(&rpcstatus.Status{Code: st.GetCode(), Message: text}) // cannot fail
	return short
}
