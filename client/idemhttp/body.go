package idemhttp

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"

	"github.com/idemd/idemd/store"
)

// errTooLarge is that of a body of more than [Policy.MaxBody], or than what is outside takes.
var errTooLarge = store.Refuse(store.ErrInvalidArgument, "the body of the request is too large for this operation")

// readBody returns the body of a request, and leaves it to be read again.
func (h *handler) readBody(r *http.Request) ([]byte, error) {
	var body []byte
	if r.Body != nil {
		var err error
		body, err = io.ReadAll(io.LimitReader(r.Body, h.policy.MaxBody+1))
		r.Body = &reread{Reader: io.MultiReader(bytes.NewReader(body), r.Body), Closer: r.Body}
		var bound *http.MaxBytesError
		switch {
		case int64(len(body)) > h.policy.MaxBody, errors.As(err, &bound):
			return nil, errTooLarge
		case errors.Is(err, http.ErrBodyReadAfterClose):
			return nil, errBodyTaken
		case err != nil:
			return nil, &store.Error{Sentinel: store.ErrInvalidArgument, Detail: "the body of the request could not be read to its end", Cause: err}
		}
	}
	return body, whole(r, len(body))
}

// whole checks that nobody has read a part of the body before: as far as that can be seen, and
// where it cannot, nothing of a body counts as taken.
func whole(r *http.Request, size int) error {
	switch {
	case r.ContentLength >= 0 && int64(size) < r.ContentLength, r.ContentLength < 0 && parsed(r):
		return errBodyTaken
	case r.ContentLength < 0 && size == 0:
		return errNoLength
	default:
		return nil
	}
}

// parsed reports whether the body was read as a form.
func parsed(r *http.Request) bool {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return r.MultipartForm != nil || r.PostForm != nil && kind == "application/x-www-form-urlencoded"
}

// rewind has the body read from its beginning. Its length is known now, also to a guard inside.
func rewind(r *http.Request, body []byte) {
	if r.Body != nil {
		r.Body, r.ContentLength = &reread{Reader: bytes.NewReader(body), Closer: r.Body}, int64(len(body))
	}
}

// reread is a body from its beginning.
type reread struct {
	io.Reader
	io.Closer
}
