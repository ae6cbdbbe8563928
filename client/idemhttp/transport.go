package idemhttp

import (
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/internal/step"
	"github.com/idemd/idemd/store"
)

// Transport gives each POST and PATCH one Idempotency-Key, and a request of another method the one
// that was given for it, unless that only reads. A request with a key it sends again under that if the
// response may be lost, or the server says when to: at most five times, after pauses that grow, are
// random and keep to the server's Retry-After, and for no more than a tenth of the requests and one a
// second. It is an [http.RoundTripper], for the field Transport of [http.Client], and can be used by
// any number of goroutines once its fields are set.
//
// The key is that of the request's header ([SetKey]), that of its context ([WithKey]), or, if the
// request follows a redirect with its method and body (307, 308), that of the request before. On to
// a host that net/http sends no credentials to, which is neither the first one nor below it, only a
// key in the header goes, as the rest of the header does: else the request is sent once, without.
// Without one it is drawn for this POST or PATCH alone, which protects against lost responses but not
// against this program's dying: give the intent a key of its own.
//
// Sent again is what got no response, for whatever reason, 502, 503 or 504, or 409 or 429 with a Retry-After of at most
// 30 s; if its body can be read again ([http.Request.GetBody]) and its context has not ended. What
// comes of the last time is returned.
//
// A request under a key of [client.Attempt.DownstreamKey] is a step of the attempt that its context is in: it gets
// the step's intent time, unless it has one, and how it ends is noted; see [client.Attempt.StepInDoubt].
//
// Use it only where the server enforces the key on the methods: where it does not, a request that
// is sent again acts again. That is so for the field alone, without this package: net/http itself
// sends a request that carries it again if a kept connection breaks, whatever its method.
type Transport struct {
	// Base sends the requests; nil is [http.DefaultTransport].
	Base http.RoundTripper

	retries client.Retries
}

// maxHint is the longest Retry-After that is waited for.
const maxHint = 30 * time.Second

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	keyed, err := withKey(r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as a RoundTripper must
		}
		return nil, err
	}
	if keyed.Header.Get(HeaderKey) == "" { // then it acts again if it is sent again
		return base.RoundTrip(keyed)
	}
	id, _ := keyIn(keyed.Header)
	s := &sending{base: base, request: keyed, step: step.Of(r.Context(), id)}
	setIntentTime(keyed, s.step.Made())
	err = t.retries.Do(r.Context(), s.try)
	if s.response == nil {
		return nil, err
	}
	return s.response, nil
}

// withKey returns a copy of a request that has a key: unless it reads, it was redirected to another's
// host, or it is of a method that keys are not drawn for and was given none.
func withKey(r *http.Request) (*http.Request, error) {
	keyed := r.Clone(r.Context())
	if r.Header.Get(HeaderKey) != "" || slices.Contains(reading, r.Method) || elsewhere(r) {
		return keyed, nil
	}
	if id, ok := r.Context().Value(contextKey{}).(string); ok {
		return keyed, SetKey(keyed, id)
	}
	if before := r.Response; before != nil && before.Request.Method == r.Method && before.Request.Header.Get(HeaderKey) != "" {
		keyed.Header.Set(HeaderKey, before.Request.Header.Get(HeaderKey))
		return keyed, nil
	}
	if slices.Contains(drawn, r.Method) {
		return keyed, SetKey(keyed, rand.Text())
	}
	return keyed, nil
}

var (
	reading = []string{"", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace} // empty is GET
	drawn   = []string{http.MethodPost, http.MethodPatch}
)

// elsewhere reports whether a request was redirected by way of a host, or to one, that is neither
// the first one nor below it: the rule by which net/http drops Authorization, and does not take it
// up again.
func elsewhere(r *http.Request) bool {
	hosts := []string{r.URL.Hostname()}
	for before := r.Response; before != nil; before = before.Request.Response {
		if before.Request == nil {
			return true // nobody knows
		}
		hosts = append(hosts, before.Request.URL.Hostname())
	}
	first := hosts[len(hosts)-1]
	return slices.ContainsFunc(hosts, func(host string) bool {
		return host != first && (strings.ContainsAny(host, ":%") || !strings.HasSuffix(host, "."+first))
	})
}

// sending is one request that is sent until it is answered.
type sending struct {
	base     http.RoundTripper
	request  *http.Request
	step     step.Step
	sent     bool
	response *http.Response // of the last try
}

var errAgain = errors.New("the response says that the request is to be sent again")

// try sends the request once.
func (s *sending) try() (again bool, err error) {
	if err := s.rewind(); err != nil {
		return false, err
	}
	s.response, err = s.send() //nolint:bodyclose // rewind closes it, or the caller
	rewindable := s.request.Body == nil || s.request.Body == http.NoBody || s.request.GetBody != nil
	if err != nil {
		return rewindable && s.request.Context().Err() == nil, err
	}
	hint, again := askedAgain(s.response)
	if !again || !rewindable {
		return false, nil
	}
	return true, &store.Error{Sentinel: store.ErrUnavailable, RetryAfter: hint, Cause: errAgain}
}

// send sends the request once, and notes what that says of the step that it is. A success is one when its body has come,
// or is closed.
func (s *sending) send() (*http.Response, error) {
	if !s.step.IsOne() {
		return s.base.RoundTrip(s.request)
	}
	of := first(s.request)
	ended := s.step.Ask(of.Method + " " + of.URL.Host + of.URL.Path)
	end := step.Unknown
	defer func() {
		if ended != nil {
			ended(end)
		}
	}()
	response, err := s.base.RoundTrip(s.request)
	if err != nil {
		return response, err
	}
	if end = stepEnd(response, s.step.Key()); end == step.Answered && response.Body != nil && response.Body != http.NoBody {
		response.Body = &awaited{ReadCloser: response.Body, end: end, ended: ended}
		ended = nil
	}
	return response, nil
}

// awaited is the body of a step's response, which says how the step ended when it has.
type awaited struct {
	io.ReadCloser
	end   step.End // if it comes whole
	ended func(step.End)
	once  sync.Once
}

func (b *awaited) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.tell(b.end)
	case err != nil:
		b.tell(step.Unknown)
	}
	return n, err
}

func (b *awaited) Close() error {
	err := b.ReadCloser.Close()
	b.tell(b.end)
	return err
}

func (b *awaited) tell(end step.End) { b.once.Do(func() { b.ended(end) }) }

// first is the request that this one was redirected from, by whatever way; itself if it was not.
func first(r *http.Request) *http.Request {
	for r.Response != nil && r.Response.Request != nil {
		r = r.Response.Request
	}
	return r
}

// stepEnd is what a response says of a step. A redirect says nothing yet; a 5xx, or a 429, may be that of whoever stands
// between.
func stepEnd(r *http.Response, key string) step.End {
	failed := r.StatusCode >= 400
	if r.Header.Get(HeaderRefused) != "" || r.Header.Get(HeaderUnknown) == "true" || failed && r.Header.Get(HeaderNotRecorded) == "true" {
		return step.Unknown
	}
	for _, mark := range r.Header.Values(HeaderEnd) {
		if end, ok := step.EndOf(mark, r.StatusCode, key); ok {
			return end
		}
	}
	switch {
	case r.StatusCode < 300:
		return step.Answered
	case r.StatusCode < 400, r.StatusCode >= 500, slices.Contains(transient, r.StatusCode):
		return step.Unknown
	default:
		return step.Failed // nobody vouches for it, but mostly it is the service's answer
	}
}

// rewind gets the request ready to be sent once more.
func (s *sending) rewind() error {
	if s.response != nil {
		discard(s.response)
		s.response = nil
	}
	if !s.sent || s.request.GetBody == nil {
		s.sent = true
		return nil
	}
	body, err := s.request.GetBody()
	if err != nil {
		return err
	}
	s.request = s.request.Clone(s.request.Context())
	s.request.Body = body
	return nil
}

// A response that is not the last is read to its end, so that its connection is kept, if it is
// short and comes at once.
const (
	maxDiscard  = 4 << 10
	discardTime = 100 * time.Millisecond
)

func discard(r *http.Response) {
	if r.ContentLength >= 0 && r.ContentLength <= maxDiscard {
		done := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, maxDiscard))
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(discardTime):
		}
	}
	_ = r.Body.Close()
}

// askedAgain reports whether a response asks for the request to be sent again, and after how long.
func askedAgain(r *http.Response) (hint time.Duration, again bool) {
	hint, hinted := retryAfter(r.Header.Get("Retry-After"))
	switch r.StatusCode {
	case http.StatusConflict, http.StatusTooManyRequests:
		return hint, hinted && hint <= maxHint
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return hint, hint <= maxHint
	default:
		return 0, false
	}
}

// retryAfter reads the field Retry-After: seconds, or a date.
func retryAfter(value string) (d time.Duration, ok bool) {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	date, err := http.ParseTime(value)
	return max(time.Until(date), 0), err == nil
}
