package server

import (
	"context"
	"errors"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store/storepb"
)

// UnknownNamespace is the label namespace of what is about no namespace that exists. No
// namespace can have this name.
const UnknownNamespace = "_unknown"

// operation is the label operation.
type operation uint8

const (
	opClaim operation = iota
	opRenew
	opComplete
	opRelease
	opLookup
	opListRecords
	opInspectRecord
	opResolve
	opForceRelease
	opCreateNamespace
	opGetNamespace
	opListNamespaces
	opUpdateNamespace
	opListBuckets
	opImportOutcome
	opBeginRecovery
	opLiftRecovery
	operations // how many there are
)

var operationNames = [operations]string{
	opClaim:           "claim",
	opRenew:           "renew",
	opComplete:        "complete",
	opRelease:         "release",
	opLookup:          "lookup",
	opListRecords:     "list_records",
	opInspectRecord:   "inspect_record",
	opResolve:         "resolve",
	opForceRelease:    "force_release",
	opCreateNamespace: "create_namespace",
	opGetNamespace:    "get_namespace",
	opListNamespaces:  "list_namespaces",
	opUpdateNamespace: "update_namespace",
	opListBuckets:     "list_buckets",
	opImportOutcome:   "import_outcome",
	opBeginRecovery:   "begin_recovery",
	opLiftRecovery:    "lift_recovery",
}

func (op operation) String() string { return operationNames[op] }

// isOperators reports whether it is a call of the AdminService.
func (op operation) isOperators() bool { return op > opLookup }

// Answer is the label answer. A refusal's is its reason, such as STALE_FENCE.
type Answer uint8

// The answers that are no refusals.
const (
	// AnswerOK: done. Of a Release: the key is released.
	AnswerOK Answer = iota
	// The key was granted: to its first attempt; after a lapse; after a Release; or again
	// to the attempt that holds it.
	AnswerGrantedNew
	AnswerGrantedTakeover
	AnswerGrantedReleased
	AnswerGrantedAgain
	// AnswerInProgress: another attempt holds the key.
	AnswerInProgress
	// AnswerCompleted: a repeat was given the stored outcome.
	AnswerCompleted
	// AnswerUnresolved: an attempt lapsed under HOLD.
	AnswerUnresolved
	// AnswerLapsed: a Release left the key lapsed.
	AnswerLapsed
	// The caller went away, or its deadline passed.
	AnswerCanceled
	AnswerDeadlineExceeded

	firstReason
)

var answerNames = [firstReason]string{
	AnswerOK:               "ok",
	AnswerGrantedNew:       "granted_new",
	AnswerGrantedTakeover:  "granted_takeover",
	AnswerGrantedReleased:  "granted_released",
	AnswerGrantedAgain:     "granted_again",
	AnswerInProgress:       "in_progress",
	AnswerCompleted:        "completed",
	AnswerUnresolved:       "unresolved",
	AnswerLapsed:           "lapsed",
	AnswerCanceled:         "canceled",
	AnswerDeadlineExceeded: "deadline_exceeded",
}

// String returns the label's value.
func (a Answer) String() string {
	if a < firstReason {
		return answerNames[a]
	}
	return storepb.ReasonName(pb.ErrorReason(a - firstReason))
}

// answers is how many there are, refusals included.
var answers = int(firstReason) + len(pb.ErrorReason_name)

// refusal is the answer that an error is.
func refusal(err error) Answer {
	reason := storepb.Reason(err)
	switch {
	case reason != pb.ErrorReason_ERROR_REASON_UNSPECIFIED:
		return firstReason + Answer(reason)
	case errors.Is(err, context.DeadlineExceeded):
		return AnswerDeadlineExceeded
	default:
		return AnswerCanceled
	}
}

// proves reports whether only a namespace that exists can be answered so.
func (a Answer) proves() bool {
	switch pb.ErrorReason(a - firstReason) {
	case pb.ErrorReason_ERROR_REASON_KEY_NOT_FOUND,
		pb.ErrorReason_ERROR_REASON_FINGERPRINT_MISMATCH,
		pb.ErrorReason_ERROR_REASON_KEY_EXPIRED,
		pb.ErrorReason_ERROR_REASON_UNKNOWN_HISTORY,
		pb.ErrorReason_ERROR_REASON_ATTEMPT_TOO_LONG,
		pb.ErrorReason_ERROR_REASON_NOT_LAPSED,
		pb.ErrorReason_ERROR_REASON_NOT_HELD,
		pb.ErrorReason_ERROR_REASON_NO_FLOOR,
		pb.ErrorReason_ERROR_REASON_NOT_CONFIRMED,
		pb.ErrorReason_ERROR_REASON_STALE_FENCE,
		pb.ErrorReason_ERROR_REASON_STALE_ATTEMPT,
		pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED,
		pb.ErrorReason_ERROR_REASON_ALREADY_COMPLETED,
		pb.ErrorReason_ERROR_REASON_NAMESPACE_EXISTS,
		pb.ErrorReason_ERROR_REASON_NAMESPACE_CHANGED,
		pb.ErrorReason_ERROR_REASON_RECORD_CORRUPT,
		pb.ErrorReason_ERROR_REASON_HOME_UNREACHABLE,
		pb.ErrorReason_ERROR_REASON_NAMESPACE_MOVING:
		return true
	}
	return a < AnswerCanceled
}
