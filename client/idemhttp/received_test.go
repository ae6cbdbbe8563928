package idemhttp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/idemhttp"
	"github.com/idemd/idemd/store"
)

// says is a handler that answers with its own name and the scope of its key.
func says(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		attempt, _ := client.AttemptFrom(r.Context())
		fmt.Fprint(w, name, " ", attempt.Key.Scope)
	}
}

// guardOf makes another guard over the store of a rig.
func (r *rig) guardOf(opts ...idemhttp.Option) *idemhttp.Guard {
	r.t.Helper()
	guard, err := idemhttp.NewGuard(r.store, append(opts, idemhttp.NoOwner(), idemhttp.OnEvent(r.told))...)
	if err != nil {
		r.t.Fatal(err)
	}
	return guard
}

// below is a mux under a prefix, with one guarded route.
func (r *rig) below(pattern, name string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(pattern, r.guardOf().Handler(says(name), idemhttp.Policy{Required: true}))
	return mux
}

// A mux inside another matches what is left of the path: what the outer one took off it tells the
// routes apart all the same.
func TestStrippedPrefix(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		r.mux = http.NewServeMux()
		r.mux.Handle("/charges/", http.StripPrefix("/charges", r.below("POST /{id}", "charged")))
		r.mux.Handle("/refunds/", http.StripPrefix("/refunds", r.below("POST /{id}", "refunded")))
		v := r.below("POST /orders/{id}", "v")
		r.mux.Handle("/v1/", http.StripPrefix("/v1", v))
		r.mux.Handle("/v2/", http.StripPrefix("/v2", v))
		r.mux.Handle("/alone/", http.StripPrefix("/alone/42", r.guardOf().Handler(says("alone"), idemhttp.Policy{})))
		for _, test := range [][2]string{
			{"/charges/42", "charged POST /charges/{id}"},
			{"/refunds/42", "refunded POST /refunds/{id}"},
			{"/v1/orders/42", "v POST /v1/orders/{id}"},
			{"/v2/orders/42", "v POST /v2/orders/{id}"},
			{"/alone/42", "alone POST /alone/42/alone/ /alone/42"}, // that pattern is from before the prefix was taken
		} {
			for _, replayed := range []bool{false, true} {
				r.ok(r.send(request("POST", test[0], "", idemhttp.HeaderKey, key1)), http.StatusOK, test[1], replayed)
			}
		}
		for _, other := range []string{"/charges/43", "/charges/%34%32", "/charges/42?a=1"} {
			refused(t, r.send(request("POST", other, "", idemhttp.HeaderKey, key1)), http.StatusUnprocessableEntity, "FINGERPRINT_MISMATCH")
		}
	})
}

// A proxy may send the whole address, and HTTP/2 has no request line: the path is the same.
func TestReceivedPath(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		r.mux = http.NewServeMux()
		r.mux.Handle("/charges/", http.StripPrefix("/charges", r.below("POST /{id}", "charged")))
		first := r.send(request("POST", "/charges/42?a=1", "", idemhttp.HeaderKey, key1))
		r.ok(first, http.StatusOK, "charged POST /charges/{id}", false)
		r.ok(r.send(request("POST", "http://example.com/charges/42?a=1", "", idemhttp.HeaderKey, key1)), http.StatusOK, first.Body.String(), true)
	})
	for _, http2 := range []bool{false, true} {
		r := newRig(t, idemhttp.Policy{}, idemhttp.NoOwner())
		top := http.NewServeMux()
		top.Handle("/charges/", http.StripPrefix("/charges", r.below("POST /{id}", "charged")))
		top.Handle("/refunds/", http.StripPrefix("/refunds", r.below("POST /{id}", "refunded")))
		server := httptest.NewUnstartedServer(top)
		server.EnableHTTP2 = http2
		server.StartTLS()
		for path, want := range map[string]string{"/charges": "charged POST /charges/{id}", "/refunds": "refunded POST /refunds/{id}"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path+"/42", strings.NewReader("42 EUR"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(idemhttp.HeaderKey, key1)
			if got := sent(server.Client(), req); got.body != want || got.header.Get(idemhttp.HeaderReplayed) != "" {
				t.Errorf("HTTP/2 %v: got %+v, want %s", http2, got, want)
			}
		}
		server.Close()
	}
}

// What changes the path in another way than by taking off its beginning explains nothing: then
// both are compared, the path that came and what was made of it.
func TestRewrittenPath(t *testing.T) {
	rewrites := func(rewrite func(*http.Request)) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				changed := r.Clone(r.Context())
				rewrite(changed)
				next.ServeHTTP(w, changed)
			})
		}
	}
	for name, test := range map[string]struct {
		rewrite     func(*http.Request)
		first, then *http.Request
	}{
		"one for all": {func(r *http.Request) { r.URL.Path, r.URL.RawPath = "/pay/7", "" }, request("POST", "/charges", ""), request("POST", "/refunds", "")},
		"of the host": {
			func(r *http.Request) { r.URL.Path = "/pay/" + r.Host },
			request("POST", "http://a.example.com/pay", ""), request("POST", "http://b.example.com/pay", ""),
		},
		"into the query": {
			func(r *http.Request) { r.URL.RawQuery, r.URL.Path = "kind="+r.URL.Path[1:], "/pay/7" },
			request("POST", "/charges", ""), request("POST", "/refunds", ""),
		},
		"query of the host": {
			func(r *http.Request) { r.URL.RawQuery = "tenant=" + r.Host },
			request("POST", "http://a.example.com/pay/7", ""), request("POST", "http://b.example.com/pay/7", ""),
		},
	} {
		t.Run(name, func(t *testing.T) {
			guarded(t, idemhttp.Policy{}, func(r *rig) {
				inner := r.below("POST /pay/{id}", "paid")
				r.mux = http.NewServeMux()
				r.mux.Handle("/", rewrites(test.rewrite)(inner))
				test.first.Header.Set(idemhttp.HeaderKey, key1)
				test.then.Header.Set(idemhttp.HeaderKey, key1)
				r.ok(r.send(test.first), http.StatusOK, "paid POST /pay/{id}", false)
				refused(t, r.send(test.then), http.StatusUnprocessableEntity, "FINGERPRINT_MISMATCH")
				r.ok(r.send(test.first), http.StatusOK, "paid POST /pay/{id}", true)
			})
		})
	}
}

// A request that was made in the process, and did not come by a server, has no path as received.
func TestMadeInProcess(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		made := func() *http.Request {
			req := request("POST", "/orders/7/pay", "42 EUR", idemhttp.HeaderKey, key1)
			req.RequestURI = ""
			return req
		}
		r.ok(r.send(made()), http.StatusCreated, "receipt-1", false)
		r.ok(r.once(), http.StatusCreated, "receipt-1", true)
		r.ran(1)
	})
}

// A gateway passes the key on to what guards the same method and pattern: of two services.
func TestServices(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		behind := http.NewServeMux()
		behind.Handle("POST /orders", r.guardOf(idemhttp.Service("orders")).Handler(says("behind"), idemhttp.Policy{}))
		gateway := func(w http.ResponseWriter, req *http.Request) {
			behind.ServeHTTP(w, req)
			says(", gateway")(w, req)
		}
		r.mux = http.NewServeMux()
		r.mux.Handle("POST /orders", r.guardOf(idemhttp.Service("gateway")).Handler(http.HandlerFunc(gateway), idemhttp.Policy{}))
		want := "behind orders POST /orders, gateway gateway POST /orders"
		r.ok(r.send(request("POST", "/orders", "", idemhttp.HeaderKey, key1)), http.StatusOK, want, false)
		r.ok(r.send(request("POST", "/orders", "", idemhttp.HeaderKey, key1)), http.StatusOK, want, true)
		got := httptest.NewRecorder()
		behind.ServeHTTP(got, request("POST", "/orders", "", idemhttp.HeaderKey, key1))
		r.ok(got, http.StatusOK, "behind orders POST /orders", true)
	})
}

// Hosts do not count, as one site may have several, unless the policy lists Host, which net/http
// keeps beside the header.
func TestHost(t *testing.T) {
	for status, fields := range map[int][]string{http.StatusCreated: nil, http.StatusUnprocessableEntity: {"host"}} {
		guarded(t, idemhttp.Policy{Fingerprint: fields}, func(r *rig) {
			r.send(request("POST", "http://a.example.com/orders/7/pay", "", idemhttp.HeaderKey, key1))
			equal(t, "status", r.send(request("POST", "http://b.example.com/orders/7/pay", "", idemhttp.HeaderKey, key1)).Code, status)
			equal(t, "status", r.send(request("POST", "http://a.example.com/orders/7/pay", "", idemhttp.HeaderKey, key1)).Code, http.StatusCreated)
		})
	}
}

// A router that tells the mux nothing of its routes, such as gorilla/mux, below one pattern for all:
// the path is what tells them apart, even where fingerprints cannot be compared.
func TestRouterWithoutPatterns(t *testing.T) {
	for pattern, scope := range map[string]string{
		"/": "POST / ", "POST /": "POST / ", "/{rest...}": "POST /{rest...} ", "example.com/": "POST example.com/ ",
		"/orders/": "POST /orders/ ", "": "POST ",
	} {
		guarded(t, idemhttp.Policy{}, func(r *rig) {
			routes := map[string]http.Handler{
				"/orders/7/charge": r.guardOf().Handler(says("charged"), idemhttp.Policy{}),
				"/orders/7/refund": r.guardOf().Handler(says("refunded"), idemhttp.Policy{Fingerprint: []string{"Content-Type", "X-Reason"}}),
			}
			router := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { routes[r.URL.Path].ServeHTTP(w, r) })
			top := http.Handler(router)
			if pattern != "" {
				mux := http.NewServeMux()
				mux.Handle(pattern, router)
				top = mux
			}
			for path, said := range map[string]string{"/orders/7/charge": "charged", "/orders/7/refund": "refunded"} {
				for _, replayed := range []bool{false, true} {
					got := httptest.NewRecorder()
					top.ServeHTTP(got, request("POST", path, "", idemhttp.HeaderKey, key1))
					r.ok(got, http.StatusOK, said+" "+scope+path, replayed)
				}
			}
			got := httptest.NewRecorder() // spelled otherwise it is no new request
			routes["/orders/7/charge"].ServeHTTP(got, asReceived(request("POST", "/orders/%37/charge", "", idemhttp.HeaderKey, key1), pattern))
			refused(t, got, http.StatusUnprocessableEntity, "FINGERPRINT_MISMATCH")
		})
	}
}

func asReceived(r *http.Request, pattern string) *http.Request {
	r.Pattern = pattern
	return r
}

// Which patterns tell one route from another, and which need the path beside them.
func TestScope(t *testing.T) {
	strip := func(prefix string) func(http.Handler) http.Handler {
		return func(h http.Handler) http.Handler { return http.StripPrefix(prefix, h) }
	}
	none := func(h http.Handler) http.Handler { return h }
	rewritten := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			changed := r.Clone(r.Context())
			changed.URL.Path, changed.URL.RawPath = "/changed", ""
			h.ServeHTTP(w, changed)
		})
	}
	for _, test := range []struct {
		outer   string
		between func(http.Handler) http.Handler
		inner   string // none: the guard is right there
		path    string
		scope   string
	}{
		{"/orders/{id}/pay", none, "", "/orders/7/pay", "POST /orders/{id}/pay"},
		{"/orders/{id}/pay", none, "", "/%6frders/%37/pay", "POST /orders/{id}/pay"},
		{"POST /orders", none, "", "/orders", "POST /orders"},
		{"example.com/orders", none, "", "/orders", "POST example.com/orders"},
		{"/{$}", none, "", "/", "POST /{$}"},
		{"/a/{$}", none, "", "/a/", "POST /a/{$}"},
		{"/a/", none, "", "/a/", "POST /a/"},
		{"/a/", none, "", "/a/b", "POST /a/ /a/b"},
		{"/a/", none, "", "/%61/%62%2Fc%c3%a9", "POST /a/ /a/b%2Fc%C3%A9"},
		{"/a/{rest...}", none, "", "/a/b", "POST /a/{rest...} /a/b"},
		{"/v1/orders/{id}", strip("/v1"), "", "/v1/orders/7", "POST /v1/orders/{id}"},
		{"/v1/", strip("/v1"), "", "/v1/orders/7", "POST /v1/v1/ /v1/orders/7"}, // that pattern too
		{"/v1/", strip("/v1"), "/orders/{id}", "/v1/orders/7", "POST /v1/orders/{id}"},
		{"/v1/", strip("/v1"), "/", "/v1/orders/7", "POST /v1/ /v1/orders/7"},
		{"/", rewritten, "/changed", "/a", "POST /changed"},
		{"/", rewritten, "/", "/a", "POST / /a /changed"},
		{"/", rewritten, "", "/a", "POST / /a /changed"},
	} {
		guarded(t, idemhttp.Policy{}, func(r *rig) {
			h := r.guardOf().Handler(says(""), idemhttp.Policy{})
			if test.inner != "" {
				inner := http.NewServeMux()
				inner.Handle(test.inner, h)
				h = inner
			}
			r.mux = http.NewServeMux()
			r.mux.Handle(test.outer, test.between(h))
			r.ok(r.send(request("POST", test.path, "", idemhttp.HeaderKey, key1)), http.StatusOK, " "+test.scope, false)
		})
	}
}

// A path is as long as a caller makes it: what is longer than a scope may be is told apart by its hash.
func TestLongScope(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		seen := map[string]bool{}
		for _, end := range []string{"a", "b"} {
			for _, prefix := range []string{"/api/", "/t/"} {
				r.mux = http.NewServeMux()
				r.mux.Handle("/api/", r.guardOf().Handler(says(""), idemhttp.Policy{}))
				r.mux.HandleFunc("/t/{tenant}/", func(w http.ResponseWriter, req *http.Request) {
					http.StripPrefix("/t/"+req.PathValue("tenant"), r.below("POST /é", "")).ServeHTTP(w, req)
				})
				path := prefix + strings.Repeat("long", 100) + end + "/%C3%A9"
				first := r.send(request("POST", path, "", idemhttp.HeaderKey, key1))
				scope := strings.TrimSpace(first.Body.String())
				r.ok(first, http.StatusOK, " "+scope, false)
				if len(scope) > store.MaxScopeBytes || !strings.HasPrefix(scope, "POST "+prefix) || seen[scope] {
					t.Errorf("scope %q", scope)
				}
				seen[scope] = true
				r.ok(r.send(request("POST", path, "", idemhttp.HeaderKey, key1)), http.StatusOK, " "+scope, true)
			}
		}
	})
}
