package storepb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemd/idemd/store"
)

// maxMessageBytes bounds the text of a status: headers have limits on the way.
const maxMessageBytes = 2048

// ToStatus turns an error of a [store.Store] into what goes over the wire: the code, the
// public text, a google.rpc.ErrorInfo and, if the refusal has a hint or is worth sending
// again, a RetryInfo. A cause never crosses. An error that is no refusal is INTERNAL and says nothing more; the
// errors of a context are CANCELED and DEADLINE_EXCEEDED. ToStatus(nil) is OK.
func ToStatus(err error) *status.Status {
	if err == nil {
		return status.New(codes.OK, "")
	}
	row, refused := classify(err)
	switch {
	case row == nil && errors.Is(err, context.DeadlineExceeded):
		return status.New(codes.DeadlineExceeded, "the deadline passed before the store answered")
	case row == nil:
		return status.New(codes.Canceled, "the call was cancelled before the store answered")
	case refused == nil:
		return row.status(row.sentinel.Error(), 0)
	default:
		return row.status(refused.Error(), refused.RetryAfter)
	}
}

func (r *refusal) status(text string, retryAfter time.Duration) *status.Status {
	details := []*anypb.Any{r.info}
	if retryAfter <= 0 && r.retry {
		retryAfter = retryDelay
	}
	if retryAfter > 0 {
		hint, err := anypb.New(&errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)})
		if err == nil {
			details = append(details, hint)
		}
	}
	return status.FromProto(&rpcstatus.Status{Code: int32(r.code), Message: wireText(text), Details: details})
}

// wireText makes a text one that a status can carry.
func wireText(text string) string {
	if len(text) > maxMessageBytes {
		text = text[:maxMessageBytes] + "..."
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// FromStatus turns the error of a gRPC call into what a [store.Store] returns: an
// [*store.Error] that unwraps to a sentinel and to the gRPC error, or the error of a
// context. A reason that it does not know, from a newer server, becomes the sentinel
// that asks for the same conduct. A status that idemd did not make becomes ErrUnavailable
// or ErrInternal, never a statement about the key. FromStatus(nil) is nil.
func FromStatus(err error) error {
	if err == nil {
		return nil
	}
	if own := contextError(err); own != nil {
		return own
	}
	st, ok := status.FromError(err)
	if !ok {
		return &store.Error{Sentinel: store.ErrInternal, Detail: "the call failed without a status", Cause: err}
	}
	reason, retryAfter := details(st)
	refused := &store.Error{RetryAfter: retryAfter, Cause: err}
	switch row := byReason[reason]; {
	case row != nil:
		refused.Sentinel, refused.Detail = row.sentinel, detail(row.sentinel, st.Message())
	case st.Code() == codes.Canceled:
		return context.Canceled
	case st.Code() == codes.DeadlineExceeded:
		return context.DeadlineExceeded
	case reason != "":
		refused.Sentinel = sentinelOf(unknownReason, st.Code())
		refused.Detail = fmt.Sprintf("the server refused with %s, which this client does not know: %s", reason, st.Message())
	default:
		refused.Sentinel = sentinelOf(noReason, st.Code())
		refused.Detail = fmt.Sprintf("gRPC status %v: %s", st.Code(), st.Message())
	}
	return refused
}

func sentinelOf(table map[codes.Code]error, code codes.Code) error {
	if sentinel := table[code]; sentinel != nil {
		return sentinel
	}
	return store.ErrInternal
}

// ReasonIn returns the reason in a status, and whether idemd made the status: gRPC and what
// stands in between make some too.
func ReasonIn(st *status.Status) (reason string, made bool) {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return info.GetReason(), true
		}
	}
	return "", false
}

// details reads the reason and the hint out of a status. The reason is empty if idemd
// did not make the status.
func details(st *status.Status) (reason string, retryAfter time.Duration) {
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == Domain {
				reason = d.GetReason()
			}
		case *errdetails.RetryInfo:
			if d.GetRetryDelay().CheckValid() == nil {
				retryAfter = max(d.GetRetryDelay().AsDuration(), 0)
			}
		}
	}
	return reason, retryAfter
}

// detail takes the sentinel's own words, which Error adds again, off the message.
func detail(sentinel error, message string) string {
	rest, ok := strings.CutPrefix(message, sentinel.Error())
	if !ok {
		return message
	}
	return strings.TrimPrefix(rest, ": ")
}
