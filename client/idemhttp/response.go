package idemhttp

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/internal/step"
	"github.com/idemd/idemd/store"
)

// maxHeld is how much of a response is held back, which is what can be stored.
const maxHeld = store.MaxOutcomeBytes

var errStreamed = errors.New("the response was streamed, and is not stored")

// A response is what a handler writes, held back until it returns. Once it is too large, flushed
// or hijacked it is passed on as it comes. Like what net/http gives it is for one goroutine.
type response struct {
	to     http.ResponseWriter
	before http.Header // of it, which what is outside the guard has set

	status  int         // 0 until it is known
	header  http.Header // as it was then
	body    []byte      // that is held back
	unknown bool        // the handler says itself that it is no final answer
	did     string      // what is done with the key: step.Completed, step.Released, or empty if nobody knows
	passing bool        // on to the client, as it comes
	why     error       // it is passed on: errStreamed, or store.ErrOutcomeTooLarge
}

// Header implements [http.ResponseWriter].
func (r *response) Header() http.Header { return r.to.Header() }

// WriteHeader implements [http.ResponseWriter].
func (r *response) WriteHeader(status int) {
	switch {
	case status < 100 || status > 999: // as net/http does, but before anything is stored
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	case r.status != 0:
	case status < 200 && status != http.StatusSwitchingProtocols:
		r.to.WriteHeader(status)
	default:
		r.status, r.header = status, r.to.Header().Clone()
		r.unknown = status >= 400 && r.header.Get(HeaderUnknown) == "true"
		if status == http.StatusSwitchingProtocols {
			r.pass(errStreamed)
		}
	}
}

// own returns the values of a header field that the handler has set. What is outside the guard sets its
// own again for each repeat, which may be another: it compresses for who takes that.
func (r *response) own(name string) []string {
	if values := r.header.Values(name); !slices.Equal(values, r.before.Values(name)) {
		return values
	}
	return nil
}

// Write implements [http.ResponseWriter].
func (r *response) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	switch {
	case r.passing:
	case r.status == http.StatusNoContent || r.status == http.StatusNotModified:
		return 0, http.ErrBodyNotAllowed
	case r.exceeds(len(p)):
		return 0, http.ErrContentLength
	case len(r.body)+len(p) <= maxHeld:
		r.body = append(r.body, p...)
		return len(p), nil
	default:
		r.pass(store.ErrOutcomeTooLarge)
	}
	return r.to.Write(p)
}

// exceeds reports whether n bytes more are more than the Content-Length that the handler has given, as
// net/http would: it is to know that, and nothing of them is to be stored.
func (r *response) exceeds(n int) bool {
	length, err := strconv.ParseInt(r.header.Get("Content-Length"), 10, 64)
	return err == nil && length >= 0 && int64(len(r.body)+n) > length
}

// FlushError is what [http.ResponseController.Flush] calls.
func (r *response) FlushError() error {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	r.pass(errStreamed)
	return http.NewResponseController(r.to).Flush()
}

// Flush implements [http.Flusher].
func (r *response) Flush() { _ = r.FlushError() } // a Flusher cannot tell

// Hijack implements [http.Hijacker].
func (r *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(r.to).Hijack()
	if err == nil {
		r.passing, r.why = true, errStreamed
	}
	return conn, buffered, err
}

// Unwrap lets [http.ResponseController] set deadlines.
func (r *response) Unwrap() http.ResponseWriter { return r.to }

// pass sends on what was held back, and from then on all that comes.
func (r *response) pass(why error) {
	if !r.passing || why == errStreamed { //nolint:errorlint // a sentinel of this file
		r.why = why
	}
	if !r.passing {
		r.passing = true
		r.mark(true, "", "") // the handler has not ended
		r.send()
	}
}

// mark says of a response whether it is a final answer, and what was done with the key if that is known. A handler may have
// passed on what others said of theirs.
func (r *response) mark(unknown bool, did, key string) {
	r.header.Del(HeaderEnd)
	r.header.Del(HeaderUnknown)
	switch {
	case r.status < 400:
	case unknown:
		r.header.Set(HeaderUnknown, "true")
	case did != "":
		r.header.Set(HeaderEnd, step.Mark(did, r.status, key))
	}
}

// finish is called when the handler has returned. As net/http would, it says what kind of body
// it is if the handler has not.
func (r *response) finish() {
	if r.passing {
		return
	}
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if _, said := r.header["Content-Type"]; !said && len(r.body) > 0 && len(r.own("Content-Encoding")) == 0 {
		r.header.Set("Content-Type", http.DetectContentType(r.body))
	}
}

// release sends what was held back.
func (r *response) release(p client.Passage, key string) {
	if r.passing {
		return
	}
	r.finish()
	if p.Guarded && !p.Recorded {
		r.header.Set(HeaderNotRecorded, "true")
	}
	if r.did == step.Completed && p.Guarded && !p.Completed { // a step was asked for when the handler had returned
		r.did = ""
	}
	did := r.did
	if !p.Recorded { // nor is it where nothing is enforced
		did = ""
	}
	r.mark(r.did == "", did, key)
	r.send()
}

// send sends what was held back. Header fields that were set later are none, except as trailers.
func (r *response) send() {
	later := r.to.Header().Clone()
	replace(r.to.Header(), r.header)
	r.to.WriteHeader(r.status)
	if len(r.body) > 0 {
		_, _ = r.to.Write(r.body) // the client may have gone; what was done is stored
	}
	maps.Copy(r.to.Header(), later)
	r.body = nil
}

func replace(header, with http.Header) {
	clear(header)
	maps.Copy(header, with)
}
