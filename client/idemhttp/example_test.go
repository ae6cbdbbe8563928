package idemhttp_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/idemhttp"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// A route is guarded by wrapping its handler, and called with one key for the order.
func Example() {
	idemd := storetest.NewMemory(store.SystemClock{}) // elsewhere: client.Dial
	guard, err := idemhttp.NewGuard(idemd, idemhttp.NoOwner())
	if err != nil {
		log.Fatal(err)
	}
	var charges atomic.Int64
	charge := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", fmt.Sprintf("/payments/%d", charges.Add(1)))
		w.WriteHeader(http.StatusCreated)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", guard.Handler(http.HandlerFunc(charge), idemhttp.Policy{Required: true}))
	server := httptest.NewServer(mux)
	defer server.Close()

	caller := &http.Client{Transport: &idemhttp.Transport{Base: server.Client().Transport}}
	post := func(key, body string) {
		request, err := http.NewRequest(http.MethodPost, server.URL+"/payments", strings.NewReader(body))
		if err != nil {
			log.Fatal(err)
		}
		if err := idemhttp.SetKey(request, key); err != nil {
			log.Fatal(err)
		}
		response, err := caller.Do(request)
		if err != nil {
			log.Fatal(err)
		}
		defer response.Body.Close()
		var problem struct{ Title string }
		text, _ := io.ReadAll(response.Body)
		_ = json.Unmarshal(text, &problem) // if it is one
		fmt.Printf("%d %q replayed:%q %q\n", response.StatusCode, response.Header.Get("Location"), response.Header.Get(idemhttp.HeaderReplayed), problem.Title)
	}
	post("order-1001", "42 EUR")
	post("order-1001", "42 EUR")
	post("order-1001", "43 EUR")
	// Output:
	// 201 "/payments/1" replayed:"" ""
	// 201 "/payments/1" replayed:"true" ""
	// 422 "" replayed:"" "Idempotency-Key is already used"
}

// A handler that is told to check looks the effect up by its own reference before it acts.
func ExampleGuard_Handler() {
	guard, err := idemhttp.NewGuard(storetest.NewMemory(store.SystemClock{}), idemhttp.NoOwner())
	if err != nil {
		log.Fatal(err)
	}
	charged := false // at the provider
	pay := func(w http.ResponseWriter, r *http.Request) {
		if attempt, ok := client.AttemptFrom(r.Context()); ok && attempt.Unsettled {
			if charged {
				fmt.Fprintln(w, "charged, as an earlier attempt had")
				return
			}
			idemhttp.NothingFound(r) // so that a "card declined" of this attempt is stored
		}
		charged = true
		http.Error(w, "no answer from the provider", http.StatusBadGateway)
	}
	guarded := guard.Handler(http.HandlerFunc(pay), idemhttp.Policy{Required: true})
	for range 2 {
		request := httptest.NewRequest(http.MethodPost, "/pay", strings.NewReader("42 EUR"))
		_ = idemhttp.SetKey(request, "order-1001")
		recorder := httptest.NewRecorder()
		guarded.ServeHTTP(recorder, request)
		fmt.Print(recorder.Code, " ", recorder.Body)
	}
	// Output:
	// 502 no answer from the provider
	// 200 charged, as an earlier attempt had
}
