package client

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/idemd/idemd/client/internal/step"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// The metadata of guarded calls.
const (
	// MetadataKey carries the key of a call.
	MetadataKey = "idempotency-key"
	// MetadataIntentTime carries when the intent was first made, in RFC 3339; see [IntentTime].
	MetadataIntentTime = "idempotency-intent-time"
	// MetadataReplayed is a response header: "true" if the response is that of an earlier
	// call. It is a trailer if the headers had been sent before that was known.
	MetadataReplayed = "idempotency-replayed"
	// MetadataNotRecorded is a response trailer: "true" if the response is not stored yet,
	// so that a repeat may be told to wait.
	MetadataNotRecorded = "idempotency-not-recorded"
	// MetadataUnknown is a response trailer: "true" with an error that is no final answer, as nobody
	// knows what calls with the key did. See [Attempt.StepInDoubt].
	MetadataUnknown = "idempotency-unknown"
	// MetadataEnd is a response trailer with an error: what the guard did with the key, completed it or released it,
	// the code of the error and a digest of the key. It is for callers' interceptors; see [Attempt.StepInDoubt].
	MetadataEnd = "idempotency-end"
	// MetadataGuarded is a response trailer: "true" if the call was guarded, so that sending
	// it again under its key does not act again. An error may carry it as well. A call that
	// is only observed, that failed open or that ran without a key does not.
	MetadataGuarded = "idempotency-guarded"
)

// keyID returns the key of the call; empty if it has none.
func (c *guarded) keyID(ctx context.Context) (string, error) {
	id, err := oneValue(ctx, MetadataKey)
	if err != nil || c.method.keyField == nil {
		return id, err
	}
	field := c.method.keyIn(c.request)
	switch {
	case id == "" || field == id:
		return field, nil
	case field == "":
		return id, nil
	default:
		return "", store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("metadata %q and the request's %s differ; send one key, or the same in both", MetadataKey, c.method.keyField.Name()))
	}
}

// oneValue returns the value of request metadata; empty if there is none. Metadata that is
// there and empty was meant to be something.
func oneValue(ctx context.Context, name string) (string, error) {
	values := slices.Compact(slices.Clone(metadata.ValueFromIncomingContext(ctx, name)))
	switch len(values) {
	case 0:
		return "", nil
	case 1:
		if values[0] == "" {
			return "", store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("metadata %q is empty; give it its value, or leave it out", name))
		}
		return values[0], nil
	default:
		return "", store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("metadata %q has %d values; send one", name, len(values)))
	}
}

func intentTime(ctx context.Context) (time.Time, error) {
	text, err := oneValue(ctx, MetadataIntentTime)
	if err != nil || text == "" {
		return time.Time{}, err
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.IsZero() { // zero would be taken for not known
		return time.Time{}, store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("metadata %q is not a time of RFC 3339, such as 2026-11-29T12:00:00Z", MetadataIntentTime))
	}
	return t, nil
}

// entity asks who owns the key.
func (c *guarded) entity(ctx context.Context) (string, error) {
	if c.guard.options.noOwner {
		return "", nil
	}
	owner, err := c.guard.options.owner(ctx)
	if err == nil && owner != "" { // callers without a name are not one party unless NoOwner says so
		return owner, nil
	}
	if _, ok := status.FromError(err); ok && err != nil {
		return "", err
	}
	return "", status.Error(codes.Unauthenticated, "who owns the idempotency key could not be established")
}

func (c *guarded) fingerprint() (store.Fingerprint, error) {
	m, ok := c.request.(proto.Message)
	if !ok {
		return store.Fingerprint{}, store.Refuse(store.ErrInternal, fmt.Sprintf("a %T cannot be guarded: it is no protobuf message", c.request))
	}
	return c.method.print.Fingerprint(m)
}

// replay gives a repeat what the first call got.
func (c *guarded) replay(ctx context.Context, o *store.Outcome, x *execution) (any, error) {
	replayMetadata(ctx, o)
	if x.unstored {
		mark(ctx, MetadataNotRecorded)
	}
	failure, err := failureOf(o)
	if err == nil && failure == nil {
		var response proto.Message
		if response, err = c.storedResponse(o); err == nil {
			return response, nil
		}
	}
	if err != nil {
		failure = storepb.ToStatus(err).Err()
	}
	if !x.unstored {
		setTrailer(ctx, MetadataEnd, step.Mark(step.Completed, int(statusOf(failure).Code()), x.request.Key.ID))
	}
	return nil, failure
}

// replayMetadata sets the metadata of a repeat. What cannot be set, as headers once an
// interceptor outside has sent them, is left out: it must not hide what was done.
func replayMetadata(ctx context.Context, o *store.Outcome) {
	if grpc.SetHeader(ctx, metadata.Pairs(MetadataReplayed, "true")) != nil {
		mark(ctx, MetadataReplayed)
	}
	_ = grpc.SetHeader(ctx, metadataOf(o.Header))
	_ = grpc.SetTrailer(ctx, metadataOf(o.Trailer))
}

func (c *guarded) storedResponse(o *store.Outcome) (proto.Message, error) {
	if o.BodyOmitted {
		return nil, outcomeOmitted()
	}
	name := c.method.descriptor.Output().FullName()
	if err := checkType(o, string(name)); err != nil {
		return nil, err
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		return nil, unreadable(err)
	}
	response := kind.New().Interface()
	return response, unreadable(proto.Unmarshal(o.Body, response))
}

// mark sets trailers of the call to "true".
func mark(ctx context.Context, trailers ...string) {
	for _, name := range trailers {
		setTrailer(ctx, name, "true")
	}
}

func setTrailer(ctx context.Context, name, value string) {
	// It fails only on a context that gRPC did not make; there is nobody to tell then.
	_ = grpc.SetTrailer(ctx, metadata.Pairs(name, value))
}
