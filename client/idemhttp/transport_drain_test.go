package idemhttp_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/client/idemhttp"
)

// busy answers 503 with a body, once, and then 201.
type busy struct {
	body   io.ReadCloser
	length int64
	sent   int
}

func (b *busy) RoundTrip(*http.Request) (*http.Response, error) {
	b.sent++
	if b.sent > 1 {
		return &http.Response{StatusCode: http.StatusCreated, Body: http.NoBody}, nil
	}
	return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: b.body, ContentLength: b.length}, nil
}

// stalled is a body of which nothing comes, until it is closed; or until freed, if that is set.
type stalled struct{ closed, freed chan struct{} }

func (s stalled) Read([]byte) (int, error) {
	if s.freed != nil {
		<-s.freed
	}
	<-s.closed
	return 0, io.ErrUnexpectedEOF
}

func (s stalled) Close() error {
	close(s.closed)
	return nil
}

// The rest of a response that is not the last is read to keep the connection, but not waited for.
func TestTransportWaitsForNoBody(t *testing.T) {
	for name, test := range map[string]struct {
		length int64
		stuck  bool // also when it is closed
	}{"of no length": {-1, false}, "short": {10, false}, "long": {1 << 20, false}, "stuck": {10, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				body := stalled{closed: make(chan struct{})}
				if test.stuck {
					body.freed = make(chan struct{})
					defer close(body.freed)
				}
				b := &busy{body: body, length: test.length}
				start := time.Now()
				resp, err := (&idemhttp.Transport{Base: b}).RoundTrip(newPost(t, t.Context(), nil)) //nolint:bodyclose // there is none
				if err != nil || resp.StatusCode != http.StatusCreated || time.Since(start) > 2*time.Second {
					t.Errorf("got %v, %v after %v", resp, err, time.Since(start))
				}
			})
		})
	}
}

func TestTransportReadsAShortBody(t *testing.T) {
	for length, left := range map[int64]int{6: 0, -1: 6, 5000: 6} {
		synctest.Test(t, func(t *testing.T) {
			text := strings.NewReader("answer")
			b := &busy{body: io.NopCloser(text), length: length}
			if _, err := (&idemhttp.Transport{Base: b}).RoundTrip(newPost(t, t.Context(), nil)); err != nil || b.sent != 2 { //nolint:bodyclose // there is none
				t.Errorf("sent %d times: %v", b.sent, err)
			}
			equal(t, "what is left", text.Len(), left)
		})
	}
}
