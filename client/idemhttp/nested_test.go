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
