package idemhttp_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/idemhttp"
	"github.com/idemd/idemd/store"
)

// passedOn is a request as a handler passes it on in the process, to another path.
func passedOn(r *http.Request, path string) *http.Request {
	inside := r.Clone(r.Context())
	inside.URL.Path, inside.ContentLength, inside.Body = path, 4, io.NopCloser(strings.NewReader("part"))
	return inside
}

// What a guard inside refuses says nothing of what the handler outside has done.
func TestGuardInsideRefuses(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		r.does(func(w http.ResponseWriter, req *http.Request) {
			inside := passedOn(req, "/orders/8/pay") // another order, and the same key
			inside.RequestURI = inside.URL.Path
			fmt.Fprint(w, "paid, but for ", r.send(inside).Code)
		})
		r.ok(r.once(), http.StatusOK, "paid, but for 500", false)
		r.kinds(client.EventGranted, client.EventRefused, client.EventRecorded)
		r.ok(r.once(), http.StatusOK, "paid, but for 500", true)
		r.ran(1)
	})
}

// Under a pattern that takes many paths each of them has keys of its own, also for what a handler
// passes on in the process.
func TestPassedOnInProcess(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		r.does(func(w http.ResponseWriter, req *http.Request) {
			if req.PathValue("rest") != "batch" {
				fmt.Fprint(w, "a part")
				return
			}
			inside := httptest.NewRecorder()
			r.mux.ServeHTTP(inside, passedOn(req, "/api/part"))
			fmt.Fprint(w, "a batch of ", inside.Body)
		})
		r.mux.Handle("POST /api/{rest...}", r.guardOf().Handler(http.HandlerFunc(r.serve), idemhttp.Policy{Required: true}))
		batch := func() *httptest.ResponseRecorder {
			return r.send(request("POST", "/api/batch", "x", idemhttp.HeaderKey, key1))
		}
		r.ok(batch(), http.StatusOK, "a batch of a part", false)
		r.ok(batch(), http.StatusOK, "a batch of a part", true)
		r.ran(2)
	})
}

// What a handler says is about its own request, and not about the one that another was serving when it
// made that in the process.
func TestSayingsOfAnotherRequest(t *testing.T) {
	for name, prepare := range map[string]func(*rig, *http.Request){
		"without a key": func(_ *rig, inside *http.Request) { inside.Header = http.Header{} },
		"failed open": func(r *rig, inside *http.Request) {
			inside.Header = http.Header{idemhttp.HeaderKey: {"k2"}}
			r.store.fail("claim", store.ErrUnavailable)
		},
	} {
		t.Run(name, func(t *testing.T) {
			guarded(t, idemhttp.Policy{FailOpen: true}, func(r *rig) {
				inner := r.guardOf().Handler(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { idemhttp.NoEffect(req) }), idemhttp.Policy{FailOpen: true})
				r.does(func(w http.ResponseWriter, req *http.Request) {
					inside := passedOn(req, "/parts")
					prepare(r, inside)
					inner.ServeHTTP(httptest.NewRecorder(), inside)
					fmt.Fprint(w, "paid")
				})
				r.ok(r.once(), http.StatusOK, "paid", false)
				r.store.fail("claim", nil)
				r.ok(r.once(), http.StatusOK, "paid", true)
				r.ran(1)
			})
		})
	}
}
