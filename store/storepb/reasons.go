package storepb

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// Domain is the domain of every google.rpc.ErrorInfo that idemd sends.
const Domain = "idemd"

const reasonPrefix = "ERROR_REASON_"

// ReasonName returns what an ErrorInfo carries for the reason: its name without prefix.
func ReasonName(reason pb.ErrorReason) string {
	return strings.TrimPrefix(reason.String(), reasonPrefix)
}

// retryDelay is the hint in a refusal that is worth sending again and has none of its own.
const retryDelay = time.Second

// refusal is one row of the table: a sentinel, and what it is on the wire.
type refusal struct {
	sentinel error
	code     codes.Code
	reason   pb.ErrorReason
	retry    bool       // the same request may be answered later: there is always a RetryInfo
	info     *anypb.Any // the ErrorInfo, made once and never changed
}

// refusals is the table.
var refusals = withInfo([]refusal{
	{sentinel: store.ErrInvalidArgument, code: codes.InvalidArgument, reason: pb.ErrorReason_ERROR_REASON_INVALID_ARGUMENT},
	{sentinel: store.ErrKeyRequired, code: codes.InvalidArgument, reason: pb.ErrorReason_ERROR_REASON_KEY_REQUIRED},
	{sentinel: store.ErrOutcomeTooLarge, code: codes.InvalidArgument, reason: pb.ErrorReason_ERROR_REASON_OUTCOME_TOO_LARGE},

	{sentinel: store.ErrUnauthenticated, code: codes.Unauthenticated, reason: pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED},
	{sentinel: store.ErrPermissionDenied, code: codes.PermissionDenied, reason: pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED},

	{sentinel: store.ErrKeyNotFound, code: codes.NotFound, reason: pb.ErrorReason_ERROR_REASON_KEY_NOT_FOUND},
	{sentinel: store.ErrNamespaceUnknown, code: codes.NotFound, reason: pb.ErrorReason_ERROR_REASON_NAMESPACE_UNKNOWN},

	{sentinel: store.ErrFingerprintMismatch, code: codes.FailedPrecondition, reason: pb.ErrorReason_ERROR_REASON_FINGERPRINT_MISMATCH},
	{sentinel: store.ErrKeyExpired, code: codes.FailedPrecondition, reason: pb.ErrorReason_ERROR_REASON_KEY_EXPIRED},
	{sentinel: store.ErrUnknownHistory, code: codes.FailedPrecondition, reason: pb.ErrorReason_ERROR_REASON_UNKNOWN_HISTORY},
	{sentinel: store.ErrAttemptTooLong, code: codes.FailedPrecondition, reason: pb.ErrorReason_ERROR_REASON_ATTEMPT_TOO_LONG},
	{sentinel: store.ErrWrongRegion, code: codes.FailedPrecondition, reason: pb.ErrorReason_ERROR_REASON_WRONG_REGION},
	{sentinel: store.ErrNotLapsed, code: codes.FailedPrecondition, reason: pb.ErrorReason_ERROR_REASON_NOT_LAPSED},
	{sentinel: store.ErrNotHeld, code: codes.FailedPrecondition, reason: pb.ErrorReason_ERROR_REASON_NOT_HELD},
	{sentinel: store.ErrNoFloor, code: codes.FailedPrecondition, reason: pb.ErrorReason_ERROR_REASON_NO_FLOOR},
	{sentinel: store.ErrNotConfirmed, code: codes.FailedPrecondition, reason: pb.ErrorReason_ERROR_REASON_NOT_CONFIRMED},

	{sentinel: store.ErrKeyUnresolved, code: codes.FailedPrecondition, reason: pb.ErrorReason_ERROR_REASON_KEY_UNRESOLVED},
	{sentinel: store.ErrOutcomeOmitted, code: codes.FailedPrecondition, reason: pb.ErrorReason_ERROR_REASON_OUTCOME_OMITTED},

	{sentinel: store.ErrKeyInProgress, code: codes.Aborted, reason: pb.ErrorReason_ERROR_REASON_KEY_IN_PROGRESS},
	{sentinel: store.ErrStaleFence, code: codes.Aborted, reason: pb.ErrorReason_ERROR_REASON_STALE_FENCE},
	{sentinel: store.ErrStaleAttempt, code: codes.Aborted, reason: pb.ErrorReason_ERROR_REASON_STALE_ATTEMPT},
	{sentinel: store.ErrLeaseExpired, code: codes.Aborted, reason: pb.ErrorReason_ERROR_REASON_LEASE_EXPIRED},
	{sentinel: store.ErrNamespaceChanged, code: codes.Aborted, reason: pb.ErrorReason_ERROR_REASON_NAMESPACE_CHANGED},

	{sentinel: store.ErrAlreadyCompleted, code: codes.AlreadyExists, reason: pb.ErrorReason_ERROR_REASON_ALREADY_COMPLETED},
	{sentinel: store.ErrNamespaceExists, code: codes.AlreadyExists, reason: pb.ErrorReason_ERROR_REASON_NAMESPACE_EXISTS},

	{sentinel: store.ErrNoHome, code: codes.Unavailable, reason: pb.ErrorReason_ERROR_REASON_NO_HOME, retry: true}, // before what it wraps
	{sentinel: store.ErrUnavailable, code: codes.Unavailable, reason: pb.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE, retry: true},
	{sentinel: store.ErrHomeUnreachable, code: codes.Unavailable, reason: pb.ErrorReason_ERROR_REASON_HOME_UNREACHABLE, retry: true},
	{sentinel: store.ErrNamespaceMoving, code: codes.Unavailable, reason: pb.ErrorReason_ERROR_REASON_NAMESPACE_MOVING, retry: true},

	{sentinel: store.ErrOverloaded, code: codes.ResourceExhausted, reason: pb.ErrorReason_ERROR_REASON_OVERLOADED, retry: true},
	{sentinel: store.ErrQuota, code: codes.ResourceExhausted, reason: pb.ErrorReason_ERROR_REASON_QUOTA, retry: true},

	{sentinel: store.ErrRecordCorrupt, code: codes.DataLoss, reason: pb.ErrorReason_ERROR_REASON_RECORD_CORRUPT},
	{sentinel: store.ErrInternal, code: codes.Internal, reason: pb.ErrorReason_ERROR_REASON_INTERNAL, retry: true},
})

func withInfo(rows []refusal) []refusal {
	for i := range rows {
		info, err := anypb.New(&errdetails.ErrorInfo{Reason: ReasonName(rows[i].reason), Domain: Domain})
		if err != nil {
			panic(err) // a constant message that cannot be marshalled
		}
		rows[i].info = info
	}
	return rows
}

var (
	byReason    = indexByReason(refusals)
	internalRow = rowOf(store.ErrInternal)
)

func indexByReason(rows []refusal) map[string]*refusal {
	index := make(map[string]*refusal, len(rows))
	for i := range rows {
		index[ReasonName(rows[i].reason)] = &rows[i]
	}
	return index
}

// rowOf returns the row whose sentinel err is or wraps; nil if there is none.
func rowOf(err error) *refusal {
	for i := range refusals {
		if errors.Is(err, refusals[i].sentinel) {
			return &refusals[i]
		}
	}
	return nil
}

// Reason returns the reason that err has on the wire: INTERNAL for an error that is no
// refusal, UNSPECIFIED for nil and for the errors of a context.
func Reason(err error) pb.ErrorReason {
	row, _ := classify(err)
	if row == nil {
		return pb.ErrorReason_ERROR_REASON_UNSPECIFIED
	}
	return row.reason
}

// classify finds the row of err and the refusal that says so, if err holds one. Both are
// nil for nil and for the errors of a context.
func classify(err error) (*refusal, *store.Error) {
	if err == nil {
		return nil, nil
	}
	var refused *store.Error
	if errors.As(err, &refused) {
		// Its sentinel counts, not its cause, which may itself wrap another one.
		if row := rowOf(refused.Sentinel); row != nil {
			return row, refused
		}
		err = refused.Sentinel
	}
	if row := rowOf(err); row != nil {
		return row, nil
	}
	if contextError(err) != nil {
		return nil, nil
	}
	return internalRow, nil
}

// contextError returns the context's error that err is or wraps; nil if there is none.
func contextError(err error) error {
	for _, target := range [...]error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, target) {
			return target
		}
	}
	return nil
}

// unknownReason maps a code to the sentinel that asks the caller for the same conduct,
// for refusals whose reason is not in the table: those of a newer server.
var unknownReason = map[codes.Code]error{
	codes.InvalidArgument:    store.ErrInvalidArgument,
	codes.OutOfRange:         store.ErrInvalidArgument,
	codes.FailedPrecondition: store.ErrInvalidArgument,
	codes.PermissionDenied:   store.ErrPermissionDenied,
	codes.Unauthenticated:    store.ErrUnauthenticated,
	codes.Unimplemented:      store.ErrInvalidArgument,
	codes.NotFound:           store.ErrKeyNotFound,
	codes.Aborted:            store.ErrStaleFence,
	codes.AlreadyExists:      store.ErrAlreadyCompleted,
	codes.Unavailable:        store.ErrUnavailable,
	codes.ResourceExhausted:  store.ErrOverloaded,
	codes.DataLoss:           store.ErrRecordCorrupt,
}

// noReason maps a code to a sentinel for statuses that idemd did not make: those of gRPC
// itself and of what stands in between. Nothing is known about the key then, and only a
// status that cannot come after the operation took effect may say that nothing was done.
var noReason = map[codes.Code]error{
	codes.InvalidArgument:   store.ErrInvalidArgument,
	codes.PermissionDenied:  store.ErrPermissionDenied,
	codes.Unauthenticated:   store.ErrUnauthenticated,
	codes.Unimplemented:     store.ErrInvalidArgument,
	codes.Unavailable:       store.ErrUnavailable,
	codes.ResourceExhausted: store.ErrUnavailable,
}
