package idemhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/idemd/idemd/client/idemhttp"
)

// A cutter is a proxy that has requests carried out, and then breaks the connection that they
// came by instead of passing the response on: it does so with POSTs as long as cuts are left.
type cutter struct {
	net.Listener
	site *site

	mu    sync.Mutex
	cuts  int
	posts int // that came
	conns map[net.Conn]bool
	done  sync.WaitGroup
}

func newCutter(t *testing.T, s *site, cuts int) *cutter {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: lis, site: s, cuts: cuts, conns: map[net.Conn]bool{}}
	c.done.Go(c.accept)
	t.Cleanup(func() {
		_ = lis.Close()
		c.mu.Lock()
		for conn := range c.conns {
			_ = conn.Close()
		}
		c.mu.Unlock()
		c.done.Wait()
		s.server.Client().CloseIdleConnections()
	})
	return c
}

func (c *cutter) url() string { return "http://" + c.Addr().String() }

func (c *cutter) accept() {
	for {
		conn, err := c.Accept()
		if err != nil {
			return
		}
		c.mu.Lock()
		c.conns[conn] = true
		c.mu.Unlock()
		c.done.Go(func() { c.serve(conn) })
	}
}

func (c *cutter) serve(conn net.Conn) {
	defer func() {
		c.mu.Lock()
		delete(c.conns, conn)
		c.mu.Unlock()
		_ = conn.Close()
	}()
	requests := bufio.NewReader(conn)
	for {
		r, err := http.ReadRequest(requests)
		if err != nil || c.pass(conn, r) != nil {
			return
		}
	}
}

var errCut = errors.New("cut")

func (c *cutter) pass(conn net.Conn, r *http.Request) error {
	target, err := url.Parse(c.site.server.URL)
	if err != nil {
		return err
	}
	r.URL.Scheme, r.URL.Host, r.RequestURI = target.Scheme, target.Host, ""
	resp, err := c.site.server.Client().Transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pay") && c.cut() {
		return errCut
	}
	return resp.Write(conn)
}

func (c *cutter) cut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.posts++
	if c.cuts == 0 {
		return false
	}
	c.cuts--
	return true
}

func (c *cutter) came(t *testing.T, want int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.posts != want {
		t.Errorf("%d requests came, want %d", c.posts, want)
	}
}

func (s *site) once(t *testing.T, got answer) {
	t.Helper()
	if got.err != nil || got.status != http.StatusCreated || got.body != "receipt-1" || got.header.Get(idemhttp.HeaderReplayed) != "true" {
		t.Errorf("got %+v, want the replayed receipt", got)
	}
	s.ran(1)
}

// The transport sends again what got no answer.
func TestCutConnection(t *testing.T) {
	s := newSite(t)
	c := newCutter(t, s, 3)
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	got := post(t.Context(), &http.Client{Transport: &idemhttp.Transport{Base: base}}, c.url(), "")
	s.once(t, got)
	c.came(t, 4)
}

// net/http itself sends a request with a key again if the connection that was kept breaks, and
// one without a key not.
func TestNetHTTPResends(t *testing.T) {
	for _, key := range []string{key1, ""} {
		s := newSite(t)
		c := newCutter(t, s, 0)
		base := &http.Transport{}
		defer base.CloseIdleConnections()
		caller := &http.Client{Transport: base}
		if warm := post(t.Context(), caller, c.url(), ""); warm.err != nil { // its connection is kept
			t.Fatal(warm.err)
		}
		s.mu.Lock()
		s.runs = 0
		s.mu.Unlock()
		c.mu.Lock()
		c.cuts, c.posts = 1, 0
		c.mu.Unlock()
		got := post(t.Context(), caller, c.url(), key)
		if key == "" {
			if got.err == nil {
				t.Errorf("without a key: %+v", got)
			}
			s.ran(1)
			c.came(t, 1)
			continue
		}
		s.once(t, got)
		c.came(t, 2)
	}
}

// A client that, like browsers do, sends a request again on a new connection if the one that was
// kept is reset before anything came back, whatever its method.
func TestBrowserResends(t *testing.T) {
	s := newSite(t)
	c := newCutter(t, s, 1)
	text := "POST /orders/7/pay HTTP/1.1\r\nHost: example.com\r\nIdempotency-Key: " + key1 + "\r\nContent-Length: 6\r\n\r\n42 EUR"
	var got answer
	for range 2 {
		if got = sendRaw(t.Context(), c.Addr().String(), text); got.err == nil {
			break
		}
	}
	s.once(t, got)
	c.came(t, 2)
}

func sendRaw(ctx context.Context, addr, text string) answer {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return answer{err: err}
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		return answer{err: err}
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(body), err: err}
}

// A resender is the transport of a reverse proxy that takes the first responses for lost, and
// sends the request to the next server.
type resender struct {
	base    http.RoundTripper
	targets []*url.URL
	lost    int
}

func (p *resender) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		again := r.Clone(r.Context())
		again.Body = io.NopCloser(bytes.NewReader(body))
		again.URL.Host = p.targets[try%len(p.targets)].Host
		resp, err := p.base.RoundTrip(again)
		if try == p.lost || err != nil {
			return resp, err
		}
		_ = resp.Body.Close()
	}
}

// A reverse proxy sends each request three times, to two servers of one service.
func TestResendingProxy(t *testing.T) {
	s := newSite(t)
	second := httptest.NewServer(s.mux)
	defer second.Close()
	first, err := url.Parse(s.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	other, err := url.Parse(second.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(first) },
		Transport: &resender{base: s.server.Client().Transport, targets: []*url.URL{first, other}, lost: 2},
	})
	defer proxy.Close()
	s.once(t, post(t.Context(), proxy.Client(), proxy.URL, key1))
}

// The proxy gives up on the first server while that acts: the second tells it to wait, and the
// caller's transport does.
func TestProxyResendsWhileTheFirstActs(t *testing.T) {
	r := newRig(t, idemhttp.Policy{}, idemhttp.NoOwner())
	acting, refusedOnce, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	r.does(func(w http.ResponseWriter, _ *http.Request) {
		close(acting)
		<-refusedOnce
		defer close(done)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "receipt-1")
	})
	tries := 0
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		tries++
		if tries > 1 {
			r.mux.ServeHTTP(w, req)
			return
		}
		body, _ := io.ReadAll(req.Body)
		again := func() *http.Request {
			again := req.Clone(context.WithoutCancel(req.Context()))
			again.Body = io.NopCloser(bytes.NewReader(body))
			return again
		}
		go r.send(again()) // nobody waits for it any more
		<-acting
		r.mux.ServeHTTP(w, again())
		close(refusedOnce)
		<-done
	}))
	defer proxy.Close()
	got := post(t.Context(), &http.Client{Transport: &idemhttp.Transport{Base: proxy.Client().Transport}}, proxy.URL, key1)
	if got.err != nil || got.status != http.StatusCreated || got.header.Get(idemhttp.HeaderReplayed) != "true" || tries != 2 {
		t.Errorf("got %+v after %d tries", got, tries)
	}
	r.ran(1)
}
