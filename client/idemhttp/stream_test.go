package idemhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/idemhttp"
	"github.com/idemd/idemd/store"
)

// A site is a rig behind a real server.
type site struct {
	*rig
	server *httptest.Server
}

// newSite waits where a repeat comes while the end of what was passed on is still to be recorded.
func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{rig: newRig(t, idemhttp.Policy{Wait: time.Minute}, idemhttp.NoOwner())}
	s.server = httptest.NewServer(s.mux)
	t.Cleanup(s.server.Close)
	return s
}

// answer is what a real client gets.
type answer struct {
	status  int
	header  http.Header
	body    string
	trailer http.Header
	err     error
}

func (s *site) post(ctx context.Context, key string) answer {
	return post(ctx, s.server.Client(), s.server.URL, key)
}

func post(ctx context.Context, c *http.Client, url, key string) answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/orders/7/pay", strings.NewReader("42 EUR"))
	if err != nil {
		return answer{err: err}
	}
	if key != "" {
		req.Header.Set(idemhttp.HeaderKey, key)
	}
	return sent(c, req)
}

// sent sends a request.
func sent(c *http.Client, req *http.Request) answer {
	resp, err := c.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body), resp.Trailer, err}
}

// unknown checks that what was streamed is not stored, and that the next request is told to check.
func (s *site) unknown(t *testing.T) {
	t.Helper()
	unsettled := false
	s.does(func(_ http.ResponseWriter, r *http.Request) {
		if a, ok := client.AttemptFrom(r.Context()); ok {
			unsettled = a.Unsettled
		}
	})
	if got := s.post(t.Context(), key1); got.status != http.StatusOK || !unsettled {
		t.Errorf("the next is answered %+v, told to check: %v", got, unsettled)
	}
	events := s.kinds(client.EventGranted, client.EventUnknown, client.EventTakeover, client.EventRecorded)
	if why := events[1].Err; why == nil || !strings.Contains(why.Error(), "streamed") {
		t.Errorf("why: %v", why)
	}
}

// A flushed response comes as it is written, and is not stored: server-sent events here.
func TestStreamed(t *testing.T) {
	s := newSite(t)
	next := make(chan struct{})
	s.does(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		<-next
		fmt.Fprint(w, "data: 2\n\n")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.server.URL+"/orders/7/pay", strings.NewReader("42 EUR"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(idemhttp.HeaderKey, key1)
	resp, err := s.server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); line != "data: 1\n" || err != nil {
		t.Errorf("before the handler returns: %q, %v", line, err)
	}
	close(next)
	if rest, err := io.ReadAll(lines); string(rest) != "\ndata: 2\n\n" || err != nil {
		t.Errorf("then %q, %v", rest, err)
	}
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("Content-Type %q", got)
	}
	s.unknown(t)
}

func TestHijacked(t *testing.T) {
	s := newSite(t)
	s.does(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nhijacked")
		_ = conn.Close()
	})
	if got := s.post(t.Context(), key1); got.body != "hijacked" {
		t.Errorf("got %+v", got)
	}
	s.unknown(t)
}

// 1xx is passed on and means nothing; the final response is stored. Trailers come the first time.
func TestInformational(t *testing.T) {
	s := newSite(t)
	s.does(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusCreated)
		w.WriteHeader(http.StatusTeapot) // superfluous
		fmt.Fprint(w, "done")
		w.Header().Set("X-Sum", "7")
		w.Header().Set(http.TrailerPrefix+"X-Late", "8")
	})
	hints := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
		if code == http.StatusEarlyHints {
			hints++
		}
		return nil
	}})
	got := s.post(ctx, key1)
	if got.status != http.StatusCreated || got.body != "done" || hints != 1 || got.trailer.Get("X-Sum") != "7" || got.trailer.Get("X-Late") != "8" {
		t.Errorf("got %+v, %d hints", got, hints)
	}
	again := s.post(ctx, key1)
	if again.status != http.StatusCreated || again.body != "done" || again.header.Get(idemhttp.HeaderReplayed) != "true" || hints != 1 {
		t.Errorf("the repeat got %+v, %d hints", again, hints)
	}
	s.ran(1)
}

// A handler that writes more than the Content-Length it gave is told so, and the rest is no part of the
// response, neither the first time nor later.
func TestMoreThanContentLength(t *testing.T) {
	s := newSite(t)
	s.does(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "4")
		if n, err := fmt.Fprint(w, "four"); n != 4 || err != nil {
			t.Errorf("wrote %d: %v", n, err)
		}
		for range 2 {
			if _, err := fmt.Fprint(w, "+"); !errors.Is(err, http.ErrContentLength) {
				t.Errorf("more: %v", err)
			}
		}
	})
	for _, replayed := range []string{"", "true"} {
		if got := s.post(t.Context(), key1); got.body != "four" || got.err != nil || got.header.Get(idemhttp.HeaderReplayed) != replayed {
			t.Errorf("got %+v", got)
		}
	}
	s.ran(1)
}

// Case 32: what is too large to store is carried out once, and its repeats are told so.
func TestTooLarge(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 5<<20/16)
	for name, write := range map[string]func(w http.ResponseWriter){
		"at once": func(w http.ResponseWriter) { _, _ = w.Write(large) },
		"in parts": func(w http.ResponseWriter) {
			_, _ = io.Copy(w, io.LimitReader(bytes.NewReader(large), int64(len(large))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.does(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusCreated)
				write(w)
			})
			if got := s.post(t.Context(), key1); got.status != http.StatusCreated || got.body != string(large) || got.err != nil {
				t.Errorf("got %d with %d bytes, %v", got.status, len(got.body), got.err)
			}
			for range 2 {
				again := s.send(request("POST", "/orders/7/pay", "42 EUR", idemhttp.HeaderKey, key1))
				if p := refused(t, again, http.StatusGone, "OUTCOME_OMITTED"); !strings.Contains(p.Detail, "status 201") {
					t.Errorf("detail %q", p.Detail)
				}
			}
			s.ran(1)
			events := s.kinds(client.EventGranted, client.EventRecorded, client.EventReplayed, client.EventReplayed)
			if !errors.Is(events[1].Err, store.ErrOutcomeTooLarge) || !errors.Is(events[2].Err, store.ErrOutcomeOmitted) {
				t.Errorf("events %+v", events)
			}
		})
	}
}

// The limit is that of the store: body, type and status together.
func TestAlmostTooLarge(t *testing.T) {
	const most = store.MaxOutcomeBytes - len("text/plain") - len(":status") - len("201")
	for size, status := range map[int]int{most: http.StatusCreated, most + 1: http.StatusGone, store.MaxOutcomeBytes: http.StatusGone} {
		guarded(t, idemhttp.Policy{}, func(r *rig) {
			r.answers(http.StatusCreated, strings.Repeat("x", size))
			if got := r.once(); got.Code != http.StatusCreated || got.Body.Len() != size {
				t.Errorf("%d bytes: got %d with %d", size, got.Code, got.Body.Len())
			}
			equal(t, fmt.Sprintf("status of the repeat of %d bytes", size), r.once().Code, status)
			r.ran(1)
		})
	}
}

// Where the store takes less than the guard holds back, header fields are left out first, and
// then the body; the status and the encoding never.
func TestTooLargeForTheNamespace(t *testing.T) {
	for name, test := range map[string]struct {
		location, body int
		status         int
	}{"header": {900, 500, http.StatusCreated}, "body": {10, 1100, http.StatusGone}} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			if _, err := s.store.memory.CreateNamespace(t.Context(), store.Namespace{Name: "small", MaxOutcomeBytes: store.MinOutcomeBytes}); err != nil {
				t.Fatal(err)
			}
			guard, err := idemhttp.NewGuard(s.store, idemhttp.NoOwner(), idemhttp.Namespace("small"))
			if err != nil {
				t.Fatal(err)
			}
			guarded := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Encoding", "br")
				w.Header().Set("Location", "/"+strings.Repeat("x", test.location))
				w.WriteHeader(http.StatusCreated)
				_, _ = w.Write(make([]byte, test.body))
			}), idemhttp.Policy{})
			for i, status := range []int{http.StatusCreated, test.status} {
				got := httptest.NewRecorder()
				guarded.ServeHTTP(got, request("POST", "/a", "", idemhttp.HeaderKey, "k"))
				if got.Code != status || status == http.StatusCreated && got.Header().Get("Content-Encoding") != "br" || i == 1 && got.Header().Get("Location") != "" {
					t.Errorf("got %d %v", got.Code, got.Header())
				}
			}
		})
	}
}

// Case 24: the caller goes away after the effect; the handler goes on and its outcome is stored.
func TestCallerGoesAway(t *testing.T) {
	r := newRig(t, idemhttp.Policy{}, idemhttp.NoOwner())
	acting, noticed, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
	r.does(func(w http.ResponseWriter, req *http.Request) {
		close(acting)
		<-noticed
		if err := req.Context().Err(); err != nil {
			t.Errorf("the handler's context has ended: %v", err)
		}
		fmt.Fprint(w, "charged")
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		context.AfterFunc(req.Context(), func() { close(noticed) })
		r.mux.ServeHTTP(w, req)
		close(returned)
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan answer)
	go func() { left <- post(ctx, server.Client(), server.URL, key1) }()
	<-acting
	cancel()
	if got := <-left; !errors.Is(got.err, context.Canceled) {
		t.Errorf("got %+v", got)
	}
	<-returned
	r.ok(r.once(), http.StatusOK, "charged", true)
	r.ran(1)
}

// The same for a caller who is answered in the handler's place.
func TestTimeoutHandler(t *testing.T) {
	guarded(t, idemhttp.Policy{Wait: time.Minute}, func(r *rig) {
		r.does(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(5 * time.Second) // in the bubble
			fmt.Fprint(w, "charged")
		})
		late := httptest.NewRecorder()
		http.TimeoutHandler(r.mux, time.Second, "late").ServeHTTP(late, request("POST", "/orders/7/pay", "42 EUR", idemhttp.HeaderKey, key1))
		r.ok(late, http.StatusServiceUnavailable, "late", false)
		r.ok(r.once(), http.StatusOK, "charged", true)
		r.ran(1)
	})
}

func TestHTTP2(t *testing.T) {
	r := newRig(t, idemhttp.Policy{Wait: time.Minute}, idemhttp.NoOwner())
	server := httptest.NewUnstartedServer(r.mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	r.does(func(w http.ResponseWriter, req *http.Request) {
		if _, _, err := w.(http.Hijacker).Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("hijacking over %s: %v", req.Proto, err)
		}
		fmt.Fprint(w, req.Proto)
	})
	for _, replayed := range []string{"", "true"} {
		if got := post(t.Context(), server.Client(), server.URL, key1); got.body != "HTTP/2.0" || got.header.Get(idemhttp.HeaderReplayed) != replayed {
			t.Errorf("got %+v", got)
		}
	}
	r.ran(1)
}
