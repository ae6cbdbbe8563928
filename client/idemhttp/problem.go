package idemhttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// problem is the body of a refusal (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Reason string `json:"reason,omitempty"`
}

func (p problem) write(w http.ResponseWriter) {
	body, _ := json.Marshal(p) // cannot fail
	header := w.Header()
	header.Del("Content-Length")
	header.Set("Content-Type", "application/problem+json")
	header.Set("Content-Language", "en")
	header.Set("Link", fmt.Sprintf(`<%s>; rel="describedby"; type="text/html"`, p.Type))
	if p.Reason != "" {
		header.Set(HeaderRefused, p.Reason)
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // the client may have gone
}

// refusals says what a refusal is in HTTP. Titles, and details where they are given, are the draft's.
var refusals = []struct {
	sentinel      error
	status        int
	title, detail string
	retry         bool // there is always a Retry-After
}{
	{sentinel: store.ErrKeyRequired, status: http.StatusBadRequest, title: "Idempotency-Key is missing"},
	{sentinel: store.ErrInvalidArgument, status: http.StatusBadRequest, title: "Idempotency-Key cannot be used"},
	{sentinel: store.ErrUnauthenticated, status: http.StatusUnauthorized, title: "Owner of the Idempotency-Key is unknown"},
	{sentinel: store.ErrPermissionDenied, status: http.StatusForbidden, title: "Idempotency-Key may not be used"},
	{
		sentinel: store.ErrFingerprintMismatch, status: http.StatusUnprocessableEntity, title: "Idempotency-Key is already used",
		detail: "This operation is idempotent and it requires correct usage of Idempotency Key. Idempotency Key MUST not be reused across different payloads of this operation.",
	},
	{
		sentinel: store.ErrKeyInProgress, status: http.StatusConflict, title: "A request is outstanding for this Idempotency-Key", retry: true,
		detail: "A request with the same Idempotency-Key for the same operation is being processed or is outstanding.",
	},
	{sentinel: store.ErrStaleFence, status: http.StatusConflict, title: takenOver, detail: askAgain, retry: true},
	{sentinel: store.ErrStaleAttempt, status: http.StatusConflict, title: takenOver, detail: askAgain, retry: true},
	{sentinel: store.ErrAlreadyCompleted, status: http.StatusConflict, title: takenOver, detail: askAgain, retry: true},
	{
		sentinel: store.ErrKeyUnresolved, status: http.StatusConflict, title: "What an earlier request with this Idempotency-Key did is not known",
		detail: "Nobody acts before that is settled. Do not send it under another key.",
	},
	{
		sentinel: store.ErrUnknownHistory, status: http.StatusConflict, title: "Whether this Idempotency-Key was used is not known",
		detail: "What was stored was restored from a copy, and may lack it. Do not send it under another key before you know whether it was done.",
	},
	{
		sentinel: store.ErrKeyExpired, status: http.StatusGone, title: "Idempotency-Key has expired",
		detail: "What came of this request is no longer stored. Find out whether it was done.",
	},
	{sentinel: store.ErrOutcomeOmitted, status: http.StatusGone, title: "Response for this Idempotency-Key is not stored"},
	{sentinel: store.ErrRecordCorrupt, status: http.StatusInternalServerError, title: "Record of this Idempotency-Key is damaged"},
}

const (
	takenOver = "Another request with this Idempotency-Key took over"
	askAgain  = "Send the same request again to get what came of it."
)

// unavailable is the answer for every other refusal: idemd, or what it needs, does not answer.
const unavailable = "Idempotency-Key cannot be checked now"

// writeProblem refuses a request.
func writeProblem(w http.ResponseWriter, docs string, err error) {
	p, retryAfter := problemOf(err)
	p.Type = docs
	if retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(retryAfter.Seconds()))))
	}
	p.write(w)
}

func problemOf(err error) (problem, time.Duration) {
	var mistake setUpError
	if errors.As(err, &mistake) {
		return problem{Title: "This server is not set up", Status: http.StatusInternalServerError, Detail: mistake.Error()}, 0
	}
	refused := &store.Error{Sentinel: err}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		refused.Sentinel = store.ErrUnavailable
	}
	errors.As(err, &refused)
	p := problem{Title: unavailable, Status: http.StatusServiceUnavailable, Detail: refused.Detail, Reason: storepb.ReasonName(storepb.Reason(refused))}
	if p.Detail == "" {
		p.Detail = "This request did nothing; whether an earlier one with this key did is not known. Send the same request again."
	}
	retry := true
	for _, row := range refusals {
		if errors.Is(refused.Sentinel, row.sentinel) {
			p.Title, p.Status, retry = row.title, row.status, row.retry
			if row.detail != "" {
				p.Detail = row.detail
			}
		}
	}
	switch {
	case errors.Is(err, errTooLarge):
		p.Title, p.Status = "Request body is too large", http.StatusRequestEntityTooLarge
	case errors.Is(err, errNoLength):
		p.Title, p.Status = "Length of the request body is missing", http.StatusLengthRequired
	}
	if !retry {
		return p, 0
	}
	return p, max(refused.RetryAfter, time.Second)
}
