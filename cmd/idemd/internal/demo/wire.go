package demo

import (
	"bytes"
	"net/http"
)

// answer is what came back of a request. While a handler runs it is the handler's ResponseWriter.
type answer struct {
	status int
	header http.Header
	body   bytes.Buffer
}

// call has a handler serve a request, as if over a network: a handler that aborts has sent nothing.
func call(h http.Handler, r *http.Request) (a *answer, err error) {
	defer func() {
		if recovered := recover(); recovered == http.ErrAbortHandler { //nolint:errorlint // so net/http does
			a, err = nil, fault("the service had died before it answered")
		} else if recovered != nil {
			panic(recovered)
		}
	}()
	a = &answer{header: http.Header{}}
	h.ServeHTTP(a, r)
	return a, nil
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}
