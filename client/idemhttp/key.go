package idemhttp

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

// The header fields of guarded requests and responses.
const (
	// HeaderKey carries the key of a request.
	HeaderKey = "Idempotency-Key"
	// HeaderIntentTime carries when the intent was first made, in RFC 3339, the same on every
	// repeat. With it, a repeat that comes after retention is refused and not taken for new.
	HeaderIntentTime = "Idempotency-Intent-Time"
	// HeaderReplayed is "true" in a response that is that of an earlier request.
	HeaderReplayed = "Idempotency-Replayed"
	// HeaderNotRecorded is "true" in a response that is not stored yet, so that a repeat may
	// be told to wait.
	HeaderNotRecorded = "Idempotency-Not-Recorded"
	// HeaderUnknown is "true" in a response of 400 and above that is no final answer, as nobody knows
	// what requests with the key did. See [client.Attempt.StepInDoubt].
	HeaderUnknown = "Idempotency-Unknown"
	// HeaderEnd, in a response of 400 and above, is what the guard did with the key, completed it or released it, the
	// status and a digest of the key. It is for [Transport]; see [client.Attempt.StepInDoubt].
	HeaderEnd = "Idempotency-End"
	// HeaderRefused is the reason of a refusal, such as KEY_IN_PROGRESS.
	HeaderRefused = "Idempotency-Refused"
)

// SetKey gives a request its key: made once for the intent, and the same on every repeat of it,
// also by another process. An id is 1 to 255 bytes of printable ASCII; another one is
// [store.ErrInvalidArgument].
func SetKey(r *http.Request, id string) error {
	value, err := formatKey(id)
	if err != nil {
		return err
	}
	r.Header.Set(HeaderKey, value)
	return nil
}

// SetStepKey gives a request that guarded code makes, with the context of its attempt, the key for that
// step of its intent, and [client.Attempt.StepTime] as its intent time, in the place of what its header
// has; see [client.StepKey]. In a context without an attempt it does nothing, and [Transport] draws a key.
//
// Let the request keep that context, or one made from it, as [context.WithoutCancel] does: by it Transport
// knows whose step it is, and notes how it ends.
func SetStepKey(r *http.Request, name string) error {
	a, ok := client.AttemptFrom(r.Context())
	if !ok {
		return nil
	}
	r.Header.Del(HeaderIntentTime)
	setIntentTime(r, a.StepTime())
	return SetKey(r, a.DownstreamKey(name))
}

// setIntentTime gives a request its intent time, unless it has one or that is not known.
func setIntentTime(r *http.Request, made time.Time) {
	if len(r.Header.Values(HeaderIntentTime)) == 0 && !made.IsZero() {
		r.Header.Set(HeaderIntentTime, made.UTC().Format(time.RFC3339Nano))
	}
}

type contextKey struct{}

// WithKey returns a context for one request, to which [Transport] gives the key; for code that
// is given a context and makes the request itself, such as generated clients. A request that has
// a key of its own keeps that, and one that only reads gets none. Make no second request with the context.
func WithKey(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, contextKey{}, id)
}

func formatKey(id string) (string, error) {
	if id == "" || len(id) > store.MaxIDBytes {
		return "", store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("a key has 1 to %d bytes, this one %d", store.MaxIDBytes, len(id)))
	}
	value, err := httpsfv.Marshal(httpsfv.NewItem(id))
	if err != nil {
		return "", &store.Error{Sentinel: store.ErrInvalidArgument, Detail: "a key that travels in HTTP is printable ASCII", Cause: err}
	}
	return value, nil
}

// oneValue returns the value of a request's header field; empty if there is none. A field that
// is there and empty was meant to be something.
func oneValue(h http.Header, name string) (string, error) {
	return oneOf(h, name, func(value string) (string, error) { return value, nil })
}

// keyIn returns the key in a request's header; empty if there is none.
func keyIn(h http.Header) (string, error) { return oneOf(h, HeaderKey, parseKey) }

// oneOf returns what all fields of a name say, each as parse has it: a proxy may have doubled one.
func oneOf(h http.Header, name string, parse func(value string) (string, error)) (string, error) {
	var said []string
	for _, value := range h.Values(name) {
		value = strings.Trim(value, " \t")
		if value == "" {
			return "", store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("the field %s is empty; give it its value, or leave it out", name))
		}
		one, err := parse(value)
		if err != nil {
			return "", err
		}
		said = append(said, one)
	}
	said = slices.Compact(said)
	switch {
	case len(said) == 0:
		return "", nil
	case len(said) > 1:
		return "", store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("there are %d fields %s that differ; send one", len(said), name))
	default:
		return said[0], nil
	}
}

// parseKey returns the key that a value of the field is.
func parseKey(value string) (string, error) {
	if value[0] != '"' {
		return bareKey(value)
	}
	list, err := httpsfv.UnmarshalList([]string{value})
	if id := oneString(list); err == nil && id != "" {
		return id, nil
	}
	return "", &store.Error{Sentinel: store.ErrInvalidArgument, Detail: malformed, Cause: err}
}

// oneString returns the string that all members of a list are, empty if there is none: a proxy may have
// made one field of two.
func oneString(list httpsfv.List) string {
	var said []string
	for _, member := range list {
		item, _ := member.(httpsfv.Item)
		text, _ := item.Value.(string)
		said = append(said, text)
	}
	if said = slices.Compact(said); len(said) == 1 {
		return said[0]
	}
	return ""
}

// bareKey takes a value without quotes as the key, as many clients send it.
func bareKey(value string) (string, error) {
	if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == ',' }) {
		return "", store.Refuse(store.ErrInvalidArgument, malformed)
	}
	return value, nil
}

const malformed = `the field Idempotency-Key is not one string of structured fields (RFC 9651), such as "8e03978e-40d5-43e8-bc93-6894a57f9324" in its quotes`
