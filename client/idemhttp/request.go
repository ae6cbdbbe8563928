package idemhttp

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

var errNoKey = store.Refuse(store.ErrKeyRequired, "This operation is idempotent and it requires correct usage of Idempotency Key.")

// A setUpError is a mistake in the program around the guard.
type setUpError string

func (e setUpError) Error() string { return string(e) }

const (
	// errInstalledTwice is that of the guard inside, which says nothing of what the handler outside has done.
	errInstalledTwice setUpError = "the guard holds this key already: it is wrapped around this handler twice, " +
		"or its handler has passed the request on to the same route; pass that on with a key of its own"

	// errBodyTaken is that of a body of which the guard cannot tell whether it is another one.
	errBodyTaken setUpError = "what is outside of the guard has read the body of the request, so that the guard cannot compare it; " +
		"put the guard outside of what reads the body, or give back a body to be read and set ContentLength to its length"
)

// errNoLength is that of a body that is empty, or was read by what is outside: nobody knows.
var errNoLength = store.Refuse(store.ErrInvalidArgument, "the request has neither a body nor Content-Length: send Content-Length: 0 if it is empty; "+
	"if it is not, what is outside of the guard has read it: put the guard outside of that")

// readRequest makes the claim out of a request, and leaves the body to be read again.
func (h *handler) readRequest(r *http.Request) (claim store.ClaimRequest, err error) {
	claim = store.ClaimRequest{Lease: h.policy.Lease, Hold: h.policy.Hold, Wait: h.policy.Wait}
	claim.Key = store.Key{Namespace: h.guard.options.namespace, Scope: h.guard.options.scopeOf(r)}
	if claim.Key.ID, err = keyIn(r.Header); err != nil {
		return claim, err
	}
	if claim.Key.ID == "" {
		return claim, errNoKey
	}
	body, err := h.readBody(r) // before the owner is asked, who may read it too
	if err != nil {
		return claim, err
	}
	claim.Key.Entity, err = h.entity(r)
	rewind(r, body)
	if err != nil {
		return claim, err
	}
	if err := claim.Key.Validate(); err != nil {
		return claim, err
	}
	if a, ok := client.AttemptFrom(r.Context()); ok && a.Key == claim.Key {
		return claim, errInstalledTwice
	}
	if claim.IntentTime, err = intentTime(r.Header); err != nil {
		return claim, err
	}
	claim.Fingerprint = fingerprintOf(r, h.policy.Fingerprint, body)
	return claim, nil
}

// entity asks who owns the key.
func (h *handler) entity(r *http.Request) (string, error) {
	if h.guard.options.noOwner {
		return "", nil
	}
	owner, err := h.guard.options.owner(r)
	if err == nil && owner != "" { // callers without a name are not one party unless NoOwner says so
		return owner, nil
	}
	refused := store.Refuse(store.ErrUnauthenticated, "who owns the idempotency key could not be established")
	refused.Cause = err
	for _, sentinel := range []error{store.ErrPermissionDenied, store.ErrUnavailable} {
		if errors.Is(err, sentinel) {
			refused.Sentinel = sentinel
		}
	}
	return "", refused
}

func intentTime(h http.Header) (time.Time, error) {
	text, err := oneValue(h, HeaderIntentTime)
	if err != nil || text == "" {
		return time.Time{}, err
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.IsZero() { // zero would be taken for not known
		return time.Time{}, store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("the field %s is not a time of RFC 3339, such as 2026-11-29T12:00:00Z", HeaderIntentTime))
	}
	return t, nil
}
