package idemhttp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/client/idemhttp"
	"github.com/idemd/idemd/store"
)

// scripted is a server that answers each request with the next status, or with an error.
type scripted struct {
	statuses []int // 0: the connection breaks; the last one is for all that follow
	after    string
	got      []*http.Request
	bodies   []string
	closed   int // bodies of responses
}

var errBroken = errors.New("the connection broke")

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		_ = r.Body.Close()
	}
	status := s.statuses[min(len(s.got), len(s.statuses)-1)]
	s.got, s.bodies = append(s.got, r), append(s.bodies, string(body))
	if status == 0 {
		return nil, errBroken
	}
	header := http.Header{}
	if s.after != "" {
		header.Set("Retry-After", s.after)
	}
	return &http.Response{StatusCode: status, Header: header, Request: r, Body: &counted{strings.NewReader("answer"), s}}, nil
}

type counted struct {
	io.Reader
	of *scripted
}

func (c *counted) Close() error {
	c.of.closed++
	return nil
}

func newPost(t *testing.T, ctx context.Context, body io.Reader) *http.Request { //nolint:revive // t is first in tests
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://example.com/orders/7/pay", body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTransportSendsAgain(t *testing.T) {
	for name, test := range map[string]struct {
		statuses []int
		after    string
		body     io.Reader
		sent     int
		least    time.Duration
	}{
		"answered":            {[]int{201}, "", strings.NewReader("42"), 1, 0},
		"broken once":         {[]int{0, 201}, "", strings.NewReader("42"), 2, 0},
		"broken for good":     {[]int{0}, "", strings.NewReader("42"), 5, 0},
		"in flight":           {[]int{409, 409, 201}, "3", strings.NewReader("42"), 3, 6 * time.Second},
		"a conflict":          {[]int{409}, "", strings.NewReader("42"), 1, 0},
		"away":                {[]int{503, 502, 504, 201}, "", strings.NewReader("42"), 4, 0},
		"away for good":       {[]int{503}, "1", strings.NewReader("42"), 5, 4 * time.Second},
		"away for long":       {[]int{503}, "3600", strings.NewReader("42"), 1, 0},
		"a limit":             {[]int{429, 201}, "1", strings.NewReader("42"), 2, time.Second},
		"a failure":           {[]int{500}, "1", strings.NewReader("42"), 1, 0},
		"mismatch":            {[]int{422}, "1", strings.NewReader("42"), 1, 0},
		"no body":             {[]int{0, 201}, "", nil, 2, 0},
		"a body that is read": {[]int{0, 201}, "", io.MultiReader(strings.NewReader("42")), 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{statuses: test.statuses, after: test.after}
				start := time.Now()
				r := newPost(t, t.Context(), test.body)
				resp, err := (&idemhttp.Transport{Base: s}).RoundTrip(r) //nolint:bodyclose // there is no connection
				last := test.statuses[min(test.sent, len(test.statuses))-1]
				switch {
				case last == 0 && (!errors.Is(err, errBroken) || resp != nil):
					t.Errorf("got %v, %v", resp, err)
				case last != 0 && (err != nil || resp.StatusCode != last):
					t.Errorf("got %v, %v, want %d", resp, err, last)
				}
				if resp != nil {
					if b, _ := io.ReadAll(resp.Body); string(b) != "answer" {
						t.Errorf("body %q", b)
					}
				}
				if len(s.got) != test.sent || time.Since(start) < test.least || time.Since(start) > test.least+4*time.Second {
					t.Errorf("sent %d times in %v, want %d in %v", len(s.got), time.Since(start), test.sent, test.least)
				}
				for i, sent := range s.got {
					if key := sent.Header.Get(idemhttp.HeaderKey); key == "" || key != s.got[0].Header.Get(idemhttp.HeaderKey) || s.bodies[i] != s.bodies[0] {
						t.Errorf("%d: key %q, body %q", i, key, s.bodies[i])
					}
				}
				if r.Header.Get(idemhttp.HeaderKey) != "" {
					t.Error("the caller's request was changed")
				}
			})
		})
	}
}

func TestTransportKeepsToTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s := &scripted{statuses: []int{409}, after: "2"}
		resp, err := (&idemhttp.Transport{Base: s}).RoundTrip(newPost(t, ctx, nil)) //nolint:bodyclose // there is no connection
		if err != nil || resp.StatusCode != 409 || len(s.got) != 1 || ctx.Err() != nil {
			t.Errorf("got %v, %v, sent %d times", resp, err, len(s.got))
		}
	})
}

func TestTransportKeys(t *testing.T) {
	send := func(r *http.Request) (string, error) {
		s := &scripted{statuses: []int{201}}
		_, err := (&idemhttp.Transport{Base: s}).RoundTrip(r) //nolint:bodyclose // there is no connection
		if len(s.got) == 0 {
			return "", err
		}
		return s.got[0].Header.Get(idemhttp.HeaderKey), err
	}
	ctx := idemhttp.WithKey(t.Context(), `order "7"`)
	fromContext := newPost(t, ctx, nil)
	own := newPost(t, ctx, nil)
	if err := idemhttp.SetKey(own, "order-8"); err != nil {
		t.Fatal(err)
	}
	bare := newPost(t, t.Context(), nil)
	bare.Header.Set(idemhttp.HeaderKey, "order-9")
	get := newPost(t, ctx, nil)
	get.Method = http.MethodGet
	for want, r := range map[string]*http.Request{`"order \"7\""`: fromContext, `"order-8"`: own, "order-9": bare, "": get} {
		if got, err := send(r); got != want || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	one, _ := send(newPost(t, t.Context(), nil))
	two, _ := send(newPost(t, t.Context(), nil))
	if one == two || len(one) < 22 {
		t.Errorf("drawn: %s and %s", one, two)
	}
	for _, id := range []string{"", "é", "a\n", strings.Repeat("a", 256)} {
		if err := idemhttp.SetKey(own, id); !errors.Is(err, store.ErrInvalidArgument) {
			t.Errorf("key %q: %v", id, err)
		}
		body := &closing{Reader: strings.NewReader("42")}
		r := newPost(t, idemhttp.WithKey(t.Context(), id), body)
		if got, err := send(r); got != "" || !errors.Is(err, store.ErrInvalidArgument) || !body.closed {
			t.Errorf("key %q of a context: sent as %q, %v, body closed: %v", id, got, err, body.closed)
		}
	}
}

// A key that somebody has given is that of the request, whatever its method, and it is sent again under
// it. One is drawn only where a method asks for it.
func TestTransportKeysOfOtherMethods(t *testing.T) {
	for _, method := range []string{http.MethodPut, http.MethodDelete} {
		for how, prepare := range map[string]func(*http.Request) *http.Request{
			"context": func(r *http.Request) *http.Request { return r.WithContext(idemhttp.WithKey(r.Context(), "order-1")) },
			"header":  func(r *http.Request) *http.Request { r.Header.Set(idemhttp.HeaderKey, `"order-1"`); return r },
			"none":    func(r *http.Request) *http.Request { return r },
		} {
			t.Run(method+" "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newPost(t, t.Context(), strings.NewReader("42"))
					r.Method = method
					s := &scripted{statuses: []int{0, 503, 200}}
					resp, err := (&idemhttp.Transport{Base: s}).RoundTrip(prepare(r)) //nolint:bodyclose // there is no connection
					want, sent := `"order-1"`, 3
					if how == "none" {
						want, sent = "", 1
					}
					if len(s.got) != sent || (err == nil) != (sent == 3) || (resp != nil) != (sent == 3) {
						t.Errorf("sent %d times: %v, %v", len(s.got), resp, err)
					}
					for _, got := range s.got {
						equal(t, "key", got.Header.Get(idemhttp.HeaderKey), want)
					}
				})
			})
		}
	}
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// One key goes along with a request that is redirected with its method and body, be it drawn or
// given. After 303 there is a GET, which needs none.
func TestTransportRedirects(t *testing.T) {
	var keys, methods, bodies []string
	mux := http.NewServeMux()
	mux.HandleFunc("/{status}", func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get(idemhttp.HeaderKey))
		status := map[string]int{"303": 303, "307": 307, "308": 308}[r.PathValue("status")]
		http.Redirect(w, r, "/to", status)
	})
	mux.HandleFunc("/to", func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		keys, methods, bodies = append(keys, r.Header.Get(idemhttp.HeaderKey)), append(methods, r.Method), append(bodies, string(b))
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	caller := &http.Client{Transport: &idemhttp.Transport{Base: server.Client().Transport}}
	for _, status := range []string{"307", "308", "303"} {
		for _, ctx := range []context.Context{t.Context(), idemhttp.WithKey(t.Context(), "k")} {
			keys, methods, bodies = nil, nil, nil
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/"+status, bytes.NewReader([]byte("42")))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := caller.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			method, body, key := http.MethodPost, "42", keys[0]
			if status == "303" {
				method, body, key = http.MethodGet, "", ""
			}
			if keys[0] == "" || len(keys) != 2 || keys[1] != key || methods[0] != method || bodies[0] != body {
				t.Errorf("%s: keys %q, then %s %q", status, keys, methods[0], bodies[0])
			}
		}
	}
}

// A key does not go to where net/http takes no credentials: neither it nor the key of the context,
// which may be the same for other requests, is that host's to know. Without a key the request is
// sent once.
func TestTransportRedirectsElsewhere(t *testing.T) {
	for name, test := range map[string]struct {
		via  []string // the hosts that redirect, and the one that answers
		sent int      // to the last
		key  bool
	}{
		"the same":     {[]string{"example.com", "example.com"}, 5, true},
		"a port":       {[]string{"example.com", "example.com:8080"}, 5, true},
		"a subdomain":  {[]string{"example.com", "a.example.com"}, 5, true},
		"capitals":     {[]string{"example.com", "Example.COM"}, 1, false},
		"the parent":   {[]string{"a.example.com", "example.com"}, 1, false},
		"another":      {[]string{"example.com", "example.net"}, 1, false},
		"a longer one": {[]string{"example.com", "another-example.com"}, 1, false},
		"and back":     {[]string{"example.com", "example.net", "example.com"}, 1, false},
		"a zone":       {[]string{"example.com", "[fe80::1%25.example.com]"}, 1, false},
		"addresses":    {[]string{"127.0.0.1", "127.0.0.2"}, 1, false},
	} {
		for how, prepare := range map[string]func(*http.Request) *http.Request{
			"drawn":   func(r *http.Request) *http.Request { return r },
			"context": func(r *http.Request) *http.Request { return r.WithContext(idemhttp.WithKey(r.Context(), "k")) },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					route := &redirects{via: test.via}
					r := newPost(t, t.Context(), strings.NewReader("42"))
					r.URL.Host = test.via[0]
					r.Header.Set("Authorization", "secret")
					resp, err := (&http.Client{Transport: &idemhttp.Transport{Base: route}}).Do(prepare(r))
					if err != nil {
						t.Fatal(err)
					}
					_ = resp.Body.Close()
					last := route.got[len(route.got)-1]
					key, first := last.Header.Get(idemhttp.HeaderKey), route.got[0].Header.Get(idemhttp.HeaderKey)
					if test.key && key != first || !test.key && key != "" || first == "" {
						t.Errorf("the key is %q, then %q", first, key)
					}
					if (last.Header.Get("Authorization") != "") != test.key {
						t.Error("net/http treats credentials otherwise")
					}
					equal(t, "times sent", len(route.got)-len(test.via)+1, test.sent)
				})
			})
		}
	}
}

// redirects sends requests from one host to the next, and the last one is away.
type redirects struct {
	via []string
	got []*http.Request
}

func (s *redirects) RoundTrip(r *http.Request) (*http.Response, error) {
	s.got = append(s.got, r)
	resp := &http.Response{StatusCode: http.StatusServiceUnavailable, Header: http.Header{}, Request: r, Body: http.NoBody}
	if at := len(s.got); at < len(s.via) {
		resp.StatusCode = http.StatusTemporaryRedirect
		resp.Header.Set("Location", "http://"+s.via[at]+"/"+strings.Repeat("a", at))
	}
	return resp, nil
}
