package idemhttp_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/idemhttp"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// Case 7, and what belongs to the request: one key names one request of one route.
func TestOneKey(t *testing.T) {
	guarded(t, idemhttp.Policy{Methods: []string{"POST", "PUT"}}, func(r *rig) {
		r.once()
		r.ok(r.send(request("POST", "/refunds", "42 EUR", idemhttp.HeaderKey, key1)), http.StatusCreated, "receipt-1", false)
		r.ok(r.send(request("PUT", "/refunds", "42 EUR", idemhttp.HeaderKey, key1)), http.StatusCreated, "receipt-1", false)
		r.ran(3)
		for name, other := range map[string]*http.Request{
			"path":    request("POST", "/orders/8/pay", "42 EUR"),
			"escaped": request("POST", "/orders/%37/pay", "42 EUR"),
			"query":   request("POST", "/orders/7/pay?currency=EUR", "42 EUR"),
			"type":    request("POST", "/orders/7/pay", "42 EUR", "Content-Type", "text/plain"),
			"no body": request("POST", "/orders/7/pay", ""),
			"a byte":  request("POST", "/orders/7/pay", "4"),
			"longer":  request("POST", "/orders/7/pay", "42 EUR "),
		} {
			other.Header.Set(idemhttp.HeaderKey, key1)
			if got := r.send(other); got.Code != http.StatusUnprocessableEntity {
				t.Errorf("with another %s it is answered %d", name, got.Code)
			}
		}
		r.ok(r.post(key1, "User-Agent", "another"), http.StatusCreated, "receipt-1", true)
		r.ran(3)
	})
}

func TestOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, idemhttp.Policy{}, idemhttp.Owner(func(r *http.Request) (string, error) {
			switch name := r.Header.Get("X-User"); name {
			case "denied":
				return "", store.ErrPermissionDenied
			case "away":
				return "", store.ErrUnavailable
			case "wrong":
				return "", errors.New("secret")
			default:
				return name, nil
			}
		}))
		r.ok(r.post(key1, "X-User", "ann"), http.StatusCreated, "receipt-1", false)
		r.ok(r.post(key1, "X-User", "bob"), http.StatusCreated, "receipt-1", false)
		r.ok(r.post(key1, "X-User", "ann"), http.StatusCreated, "receipt-1", true)
		r.ran(2)
		refused(t, r.post(key1), http.StatusUnauthorized, "UNAUTHENTICATED")
		refused(t, r.post(key1, "X-User", "denied"), http.StatusForbidden, "PERMISSION_DENIED")
		refused(t, r.post(key1, "X-User", "away"), http.StatusServiceUnavailable, "STORE_UNAVAILABLE")
		if got := r.post(key1, "X-User", "wrong"); got.Code != http.StatusUnauthorized || strings.Contains(got.Body.String(), "secret") {
			t.Errorf("got %d %s", got.Code, got.Body)
		}
		r.ran(2)
	})
}

func TestNotGuarded(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		for range 2 {
			r.ok(r.send(request("GET", "/refunds", "", idemhttp.HeaderKey, key1)), http.StatusCreated, "receipt-1", false)
		}
		r.kinds()
		for range 2 {
			r.ok(r.send(request("POST", "/refunds", "")), http.StatusCreated, "receipt-1", false)
		}
		r.kinds(client.EventNoKey, client.EventNoKey)
		r.ran(4)
	})
}

func TestHandlerReadsTheBody(t *testing.T) {
	guarded(t, idemhttp.Policy{MaxBody: 6}, func(r *rig) {
		r.does(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(w, req.Body)
			fmt.Fprint(w, " of ", req.PathValue("id"))
		})
		r.ok(r.once(), http.StatusOK, "42 EUR of 7", false)
		large := request("POST", "/orders/7/pay", "420 EUR", idemhttp.HeaderKey, "k2")
		equal(t, "title", refused(t, r.send(large), http.StatusRequestEntityTooLarge, "INVALID_ARGUMENT").Title, "Request body is too large")
		broken := request("POST", "/orders/7/pay", "", idemhttp.HeaderKey, "k3")
		broken.Body = io.NopCloser(io.MultiReader(strings.NewReader("4"), errReader{}))
		refused(t, r.send(broken), http.StatusBadRequest, "INVALID_ARGUMENT")
		r.ran(1)
	})
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// Cases 26 and 27, and what else the ends of a handler mean for its key.
func TestEndings(t *testing.T) {
	status := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	for name, test := range map[string]struct {
		do        http.HandlerFunc
		event     client.EventKind
		unsettled bool // what the next attempt is told
	}{
		"503":          {status(503), client.EventUnknown, true},
		"500":          {status(500), client.EventUnknown, true},
		"401":          {status(401), client.EventUnknown, true},
		"403":          {status(403), client.EventUnknown, true},
		"408":          {status(408), client.EventUnknown, true},
		"409":          {status(409), client.EventUnknown, true},
		"412":          {status(412), client.EventUnknown, true}, // If-Match is not compared: a repeat may have another
		"428":          {status(428), client.EventUnknown, true},
		"425":          {status(425), client.EventUnknown, true},
		"429":          {status(429), client.EventReleased, false}, // the policy lists it
		"507":          {status(507), client.EventReleased, false},
		"no effect":    {func(w http.ResponseWriter, r *http.Request) { idemhttp.NoEffect(r); w.WriteHeader(502) }, client.EventReleased, false},
		"nested guard": {nested, client.EventUnknown, true},
	} {
		t.Run(name, func(t *testing.T) {
			guarded(t, idemhttp.Policy{NoEffect: []int{429, 507}}, func(r *rig) {
				r.does(test.do)
				first := r.once()
				if first.Code < 400 || first.Header().Get(idemhttp.HeaderReplayed) != "" {
					t.Errorf("the first is answered %d", first.Code)
				}
				var told *client.Attempt
				r.does(func(_ http.ResponseWriter, req *http.Request) { told, _ = client.AttemptFrom(req.Context()) })
				r.ok(r.once(), http.StatusOK, "", false)
				if told == nil || told.Unsettled != test.unsettled || told.Number != 2 {
					t.Errorf("the next attempt is told %+v", told)
				}
				next := client.EventGranted
				if test.unsettled {
					next = client.EventTakeover
				}
				events := r.kinds(client.EventGranted, test.event, next, client.EventRecorded)
				if why := events[1].Err; test.unsettled && (why == nil || !strings.Contains(why.Error(), fmt.Sprint("HTTP ", first.Code))) || !test.unsettled && why != nil {
					t.Errorf("the event says %v", why)
				}
				r.ok(r.once(), http.StatusOK, "", true)
				r.ran(2)
			})
		})
	}
}

// nested passes the refusal of a guard further on to its caller.
func nested(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set(idemhttp.HeaderRefused, "FINGERPRINT_MISMATCH")
	w.WriteHeader(http.StatusUnprocessableEntity)
}

// While it is in doubt whether an earlier attempt acted, no refusal is final; a success is.
func TestInDoubt(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		r.answers(http.StatusBadGateway, "")
		r.once()
		r.answers(http.StatusUnprocessableEntity, "already paid")
		for range 2 {
			r.ok(r.once(), http.StatusUnprocessableEntity, "already paid", false)
		}
		r.answers(http.StatusOK, "paid")
		r.ok(r.once(), http.StatusOK, "paid", false)
		r.ok(r.once(), http.StatusOK, "paid", true)
		r.ran(4)
	})
}

// A handler that has looked, and found nothing of an earlier attempt, is believed in what it says of
// its own.
func TestNothingFound(t *testing.T) {
	for _, test := range []struct {
		status int
		stored bool
	}{{422, true}, {404, true}, {409, false}, {503, false}} {
		guarded(t, idemhttp.Policy{}, func(r *rig) {
			r.answers(http.StatusBadGateway, "")
			r.once()
			r.does(func(w http.ResponseWriter, req *http.Request) {
				idemhttp.NothingFound(req)
				w.WriteHeader(test.status)
				fmt.Fprint(w, "declined")
			})
			r.ok(r.once(), test.status, "declined", false)
			r.ok(r.once(), test.status, "declined", test.stored)
			r.ran(map[bool]int{true: 2, false: 3}[test.stored])
		})
	}
	idemhttp.NothingFound(httptest.NewRequest(http.MethodPost, "/", nil)) // nobody to say it to
}

// Case 33.
func TestPanic(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		r.does(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "half")
			panic(http.ErrAbortHandler)
		})
		var got any
		recorder := httptest.NewRecorder()
		func() {
			defer func() { got = recover() }()
			r.mux.ServeHTTP(recorder, request("POST", "/orders/7/pay", "42 EUR", idemhttp.HeaderKey, key1))
		}()
		if got != any(http.ErrAbortHandler) || recorder.Body.Len() > 0 {
			t.Errorf("panic %v, body %q", got, recorder.Body)
		}
		r.kinds(client.EventGranted, client.EventUnknown)
		if rec := r.record(); rec == nil || rec.State != store.StateInProgress || rec.ReleasedWith != store.EffectUnknown {
			t.Errorf("the record is %+v", rec)
		}
	})
}

func TestHold(t *testing.T) {
	guarded(t, idemhttp.Policy{Hold: true}, func(r *rig) {
		r.answers(http.StatusInternalServerError, "")
		r.once()
		refused(t, r.once(), http.StatusConflict, "KEY_UNRESOLVED")
		r.ran(1)
		settle := func(o *store.Outcome, id string) {
			_, err := r.store.memory.Resolve(t.Context(), store.ResolveRequest{Key: keyOf(id), AnyFence: true, Outcome: o, Actor: "ops", Reason: "looked"})
			if err != nil {
				t.Fatal(err)
			}
		}
		settle(&store.Outcome{Body: []byte("paid"), BodyType: "text/plain"}, key1)
		got := r.once()
		r.ok(got, http.StatusOK, "paid", true)
		equal(t, "type", got.Header().Get("Content-Type"), "text/plain")

		r.post("k2")
		settle(&store.Outcome{Status: []byte{0x08, 0x05, 0x12, 0x02, 'n', 'o'}}, "k2") // NOT_FOUND: no
		got = r.post("k2")
		if got.Code != http.StatusNotFound || !strings.Contains(got.Body.String(), `"detail":"no"`) || got.Header().Get(idemhttp.HeaderReplayed) != "true" {
			t.Errorf("got %d %s", got.Code, got.Body)
		}
	})
}

func TestWait(t *testing.T) {
	guarded(t, idemhttp.Policy{Wait: time.Minute}, func(r *rig) {
		r.does(func(w http.ResponseWriter, _ *http.Request) { time.Sleep(30 * time.Second); fmt.Fprint(w, "done") })
		go r.once()
		synctest.Wait()
		start := time.Now()
		r.ok(r.once(), http.StatusOK, "done", true)
		if took := time.Since(start); took != 30*time.Second {
			t.Errorf("it waited %v", took)
		}
		r.ran(1)
	})
}

// Case 19: of many that come at once one acts, and the others get what came of it.
func TestMany(t *testing.T) {
	guarded(t, idemhttp.Policy{Wait: time.Minute}, func(r *rig) {
		r.does(func(w http.ResponseWriter, _ *http.Request) { time.Sleep(time.Second); fmt.Fprint(w, "done") })
		got := make(chan *httptest.ResponseRecorder)
		const many = 200
		for range many {
			go func() { got <- r.once() }()
		}
		replays := 0
		for range many {
			one := <-got
			r.ok(one, http.StatusOK, "done", one.Header().Get(idemhttp.HeaderReplayed) != "")
			if one.Header().Get(idemhttp.HeaderReplayed) != "" {
				replays++
			}
		}
		if replays != many-1 {
			t.Errorf("%d replays, want %d", replays, many-1)
		}
		r.ran(1)
	})
}

// Case 38: fail closed.
func TestStoreDown(t *testing.T) {
	for err, reason := range map[error]string{
		store.ErrUnavailable: "STORE_UNAVAILABLE", store.ErrHomeUnreachable: "STORE_UNAVAILABLE", store.ErrNamespaceMoving: "NAMESPACE_MOVING",
		store.ErrOverloaded: "OVERLOADED", store.ErrQuota: "QUOTA", store.ErrInternal: "INTERNAL",
		store.ErrNamespaceUnknown: "STORE_UNAVAILABLE", store.ErrPermissionDenied: "STORE_UNAVAILABLE", store.ErrUnauthenticated: "STORE_UNAVAILABLE",
	} {
		guarded(t, idemhttp.Policy{}, func(r *rig) {
			r.store.fail("claim", &store.Error{Sentinel: err, Detail: "inside", RetryAfter: 1500 * time.Millisecond})
			got := r.once()
			refused(t, got, http.StatusServiceUnavailable, reason)
			equal(t, "Retry-After", got.Header().Get("Retry-After"), "2")
			r.ran(0)
			r.store.fail("claim", nil)
			if reason == "STORE_UNAVAILABLE" && strings.Contains(got.Body.String(), "inside") {
				t.Errorf("the caller is told %s", got.Body)
			}
		})
	}
}

func TestFailOpen(t *testing.T) {
	guarded(t, idemhttp.Policy{FailOpen: true}, func(r *rig) {
		r.store.fail("claim", store.ErrUnavailable)
		for range 2 {
			r.ok(r.once(), http.StatusCreated, "receipt-1", false)
		}
		r.ran(2)
		r.kinds(client.EventFailedOpen, client.EventFailedOpen)
		r.store.fail("claim", store.ErrOverloaded) // whoever refuses is there
		refused(t, r.once(), http.StatusServiceUnavailable, "OVERLOADED")
		r.ran(2)
	})
}

// What this process knows itself needs no store: nothing acts beside it, or after it.
func TestFailOpenWithTheOutcomeInHand(t *testing.T) {
	guarded(t, idemhttp.Policy{FailOpen: true}, func(r *rig) {
		r.does(func(w http.ResponseWriter, _ *http.Request) {
			for _, operation := range []string{"claim", "renew", "complete"} {
				r.store.fail(operation, store.ErrUnavailable)
			}
			refused(t, r.once(), http.StatusConflict, "KEY_IN_PROGRESS")
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, "receipt-1")
		})
		r.ok(r.once(), http.StatusCreated, "receipt-1", false)
		r.ok(r.once(), http.StatusCreated, "receipt-1", true)
		refused(t, r.send(request("POST", "/orders/7/pay", "43 EUR", idemhttp.HeaderKey, key1)), http.StatusUnprocessableEntity, "FINGERPRINT_MISMATCH")
		r.kinds(client.EventGranted, client.EventInProgress, client.EventNotRecorded, client.EventReplayed, client.EventMismatch)
		r.ran(1)
		for _, operation := range []string{"claim", "renew", "complete"} {
			r.store.fail(operation, nil)
		}
	})
}

func TestRefusals(t *testing.T) {
	for err, want := range map[error]struct {
		status int
		reason string
	}{
		store.ErrKeyExpired:     {http.StatusGone, "KEY_EXPIRED"},
		store.ErrUnknownHistory: {http.StatusConflict, "UNKNOWN_HISTORY"},
		store.ErrRecordCorrupt:  {http.StatusInternalServerError, "RECORD_CORRUPT"},
	} {
		guarded(t, idemhttp.Policy{}, func(r *rig) {
			r.store.fail("claim", store.Refuse(err, "said"))
			refused(t, r.once(), want.status, want.reason)
			r.ran(0)
		})
	}
}

func TestIntentTime(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		old := time.Now().Add(-48 * time.Hour).UTC().Format(time.RFC3339)
		refused(t, r.post(key1, idemhttp.HeaderIntentTime, old), http.StatusGone, "KEY_EXPIRED")
		refused(t, r.post(key1, idemhttp.HeaderIntentTime, "yesterday"), http.StatusBadRequest, "INVALID_ARGUMENT")
		refused(t, r.post(key1, idemhttp.HeaderIntentTime, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)), http.StatusBadRequest, "INVALID_ARGUMENT")
		r.ran(0)
		r.ok(r.post(key1, idemhttp.HeaderIntentTime, time.Now().UTC().Format(time.RFC3339)), http.StatusCreated, "receipt-1", false)
	})
}

// Case 25: the answer is given, marked, and recorded under the lease.
func TestNotRecorded(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		r.store.fail("complete", store.ErrUnavailable)
		got := r.once()
		r.ok(got, http.StatusCreated, "receipt-1", false)
		equal(t, idemhttp.HeaderNotRecorded, got.Header().Get(idemhttp.HeaderNotRecorded), "true")
		refused(t, r.once(), http.StatusConflict, "KEY_IN_PROGRESS")
		r.store.fail("complete", nil)
		time.Sleep(10 * time.Second) // in the bubble
		r.ok(r.once(), http.StatusCreated, "receipt-1", true)
		r.kinds(client.EventGranted, client.EventNotRecorded, client.EventInProgress, client.EventRecorded, client.EventReplayed)
		r.ran(1)
	})
}

// Cases 13, 14 and 23: whoever outlives its lease is cancelled, and what it answers does not count.
func TestLeaseLost(t *testing.T) {
	guarded(t, idemhttp.Policy{Lease: time.Second}, func(r *rig) {
		r.store.fail("renew", store.ErrUnavailable)
		var cause error
		r.does(func(w http.ResponseWriter, req *http.Request) {
			<-req.Context().Done()
			cause = req.Context().Err()
			time.Sleep(time.Second)
			r.answers(http.StatusCreated, "second")
			r.ok(r.once(), http.StatusCreated, "second", false)
			w.Header().Set("Location", "/first")
			fmt.Fprint(w, "first")
		})
		late := r.once()
		refused(t, late, http.StatusConflict, "STALE_FENCE")
		if cause == nil || late.Header().Get("Location") != "" {
			t.Errorf("cause %v, header %v", cause, late.Header())
		}
		r.ok(r.once(), http.StatusCreated, "second", true)
	})
}

func TestObserve(t *testing.T) {
	guarded(t, idemhttp.Policy{Required: true, MaxBody: 10, Hold: true}, func(r *rig) {
		for range 2 {
			r.ok(r.once(), http.StatusCreated, "receipt-1", false)
			synctest.Wait()
		}
		r.send(request("POST", "/orders/7/pay", "another", idemhttp.HeaderKey, key1))
		r.send(request("POST", "/orders/7/pay", ""))
		r.does(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
		large := "more than ten bytes"
		r.ok(r.send(request("POST", "/orders/7/pay", large, idemhttp.HeaderKey, "k2")), http.StatusOK, large, false)
		r.ran(5)
		for _, e := range r.kinds(client.EventGranted, client.EventRecorded, client.EventReplayed, client.EventMismatch, client.EventNoKey, client.EventRefused) {
			if !e.Observed || e.Scope != "POST /orders/{id}/pay" || e.Namespace != "default" {
				t.Errorf("event %+v", e)
			}
		}
	}, idemhttp.Observe())
}

// The guard inside must not be told by the guard outside to wait for itself.
func TestInstalledTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guard, err := idemhttp.NewGuard(storetest.NewMemory(bubbleClock{time.Now()}), idemhttp.NoOwner())
		if err != nil {
			t.Fatal(err)
		}
		ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		twice := guard.Handler(guard.Handler(ok, idemhttp.Policy{}), idemhttp.Policy{})
		for range 2 {
			recorder := httptest.NewRecorder()
			twice.ServeHTTP(recorder, request("POST", "/a", "", idemhttp.HeaderKey, "k"))
			if recorder.Code != http.StatusInternalServerError || !strings.Contains(recorder.Body.String(), "twice") {
				t.Errorf("got %d %s", recorder.Code, recorder.Body)
			}
		}
		once := httptest.NewRecorder() // nothing is stored of it
		guard.Handler(ok, idemhttp.Policy{}).ServeHTTP(once, request("POST", "/a", "", idemhttp.HeaderKey, "k"))
		equal(t, "status", once.Code, http.StatusOK)
	})
}

func TestSetUp(t *testing.T) {
	s := storetest.NewMemory(store.SystemClock{})
	for name, opts := range map[string][]idemhttp.Option{
		"no owner said": {},
		"two owners":    {idemhttp.NoOwner(), idemhttp.Owner(func(*http.Request) (string, error) { return "", nil })},
		"namespace":     {idemhttp.NoOwner(), idemhttp.Namespace("No Name")},
		"no service":    {idemhttp.NoOwner(), idemhttp.Service("")},
		"service":       {idemhttp.NoOwner(), idemhttp.Service("two words")},
		"long service":  {idemhttp.NoOwner(), idemhttp.Service(strings.Repeat("a", 64))},
	} {
		if _, err := idemhttp.NewGuard(s, opts...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	guard, err := idemhttp.NewGuard(s, idemhttp.NoOwner())
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	for name, policy := range map[string]idemhttp.Policy{
		"cookie": {Replay: []string{"set-cookie"}}, "authorization": {Replay: []string{"Authorization"}}, "length": {Replay: []string{"content-length"}},
		"lease": {Lease: time.Millisecond}, "wait": {Wait: time.Hour}, "2xx": {NoEffect: []int{200}}, "body": {MaxBody: -1},
		"no method": {Methods: []string{}}, "lower case": {Methods: []string{"put"}}, "a space": {Methods: []string{"PUT "}}, "empty": {Methods: []string{"POST", ""}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			guard.Handler(http.NotFoundHandler(), policy)
		}()
	}
}
