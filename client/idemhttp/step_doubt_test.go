package idemhttp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/idemhttp"
	"github.com/idemd/idemd/client/internal/step"
	keys "github.com/idemd/idemd/client/key"
	"github.com/idemd/idemd/store"
)

// way is a way to a handler, on which something may happen to its responses.
type way struct {
	to    http.Handler
	after func(*http.Response) (*http.Response, error)
	tries int
}

func (v *way) RoundTrip(r *http.Request) (*http.Response, error) {
	v.tries++
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	in := httptest.NewRequest(r.Method, r.URL.String(), strings.NewReader(string(body)))
	in.Header = r.Header.Clone()
	w := httptest.NewRecorder()
	v.to.ServeHTTP(w, in)
	response := w.Result()
	response.Request = r
	if v.after == nil {
		return response, nil
	}
	return v.after(response)
}

// A shop is a guarded route that takes one step by HTTP, and answers a status whatever comes of it.
type shop struct {
	t      *testing.T
	store  store.Store
	via    http.RoundTripper
	set    func(*http.Request, *client.Attempt) error
	status int
}

func byStepKey(r *http.Request, _ *client.Attempt) error { return idemhttp.SetStepKey(r, "charge") }

// isFinal reports whether the answer to a request is recorded.
func (s shop) isFinal() bool {
	s.t.Helper()
	g, err := idemhttp.NewGuard(s.store, idemhttp.NoOwner())
	if err != nil {
		s.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, _ := client.AttemptFrom(r.Context())
		charge := newPost(s.t, r.Context(), strings.NewReader("42 EUR"))
		if err := s.set(charge, a); err != nil {
			s.t.Error(err)
		}
		caller := &http.Client{Transport: &idemhttp.Transport{Base: s.via}}
		if response, err := caller.Do(charge); err == nil {
			_ = response.Body.Close()
		}
		w.WriteHeader(s.status)
	}), idemhttp.Policy{}))
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, request(http.MethodPost, "/orders", "x", idemhttp.HeaderKey, key1))
	if unknown := w.Header().Get(idemhttp.HeaderUnknown) == "true"; w.Code != s.status || unknown && s.status < 400 {
		s.t.Errorf("answered %d %v", w.Code, w.Header())
	}
	return w.Header().Get(idemhttp.HeaderUnknown) == ""
}

// keyOfOrder is the key that a shop's request claims.
var keyOfOrder = store.Key{Namespace: "default", Scope: "POST /orders", ID: strings.Trim(key1, `"`)}

// answers is a server that answers everything with a status and fields.
type answers struct {
	status int
	fields []string
	err    error
}

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	h := http.Header{}
	for i := 0; i < len(a.fields); i += 2 {
		h.Set(a.fields[i], a.fields[i+1])
	}
	return &http.Response{StatusCode: a.status, Header: h, Body: http.NoBody, Request: r}, a.err
}

// What an answer says of a step: a handler that answers 402 after it is final or not.
func TestWhatAnAnswerSaysOfAStep(t *testing.T) {
	id := keys.Downstream(keyOfOrder, "charge")
	ended := func(did string, status int, key string) answers {
		return answers{status: status, fields: []string{idemhttp.HeaderEnd, step.Mark(did, status, key)}}
	}
	madeOf := ended(step.Completed, 402, id)
	madeOf.status = 500
	for _, test := range []struct {
		name string
		answers
		final bool
	}{
		{"success", answers{status: 201}, true},
		{"a guard's answer", ended(step.Completed, 402, id), true},
		{"a guard's answer of any status", ended(step.Completed, 500, id), true},
		{"a guard that has released the key", ended(step.Released, 500, id), true},
		{"what was made of a guard's answer", madeOf, false},
		{"a guard's answer to another key, passed on", ended(step.Completed, 500, "another"), false},
		{"a guard that does not know", answers{status: 402, fields: []string{idemhttp.HeaderUnknown, "true"}}, false},
		{"a guard that could not store it yet", answers{status: 402, fields: []string{idemhttp.HeaderNotRecorded, "true"}}, false},
		{"a redirect", answers{status: 303, fields: []string{"Location", "/login"}}, false},
		{"refused", answers{status: 410, fields: []string{idemhttp.HeaderRefused, "KEY_EXPIRED"}}, false},
		{"nobody vouches for it", answers{status: 402}, true},
		{"rate limit", answers{status: 429}, false},
		{"not authenticated", answers{status: 401}, false},
		{"of a proxy", answers{status: 504, fields: []string{"Retry-After", "60"}}, false},
		{"no response", answers{err: io.ErrUnexpectedEOF}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, idemhttp.Policy{}, idemhttp.NoOwner())
			if got := (shop{t, r.store, test.answers, byStepKey, 402}).isFinal(); got != test.final {
				t.Errorf("%s: final %v, want %v", test.name, got, test.final)
			}
		})
	}
}

// Whatever comes between a service that has acted and who called it, what that makes of it is not final.
func TestStepWithoutAnAnswer(t *testing.T) {
	recovered := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if recover() != nil {
					w.WriteHeader(http.StatusInternalServerError)
				}
			}()
			next.ServeHTTP(w, r)
		})
	}
	first := true
	for name, test := range map[string]struct {
		do    http.HandlerFunc
		after func(*http.Response) (*http.Response, error)
		runs  int
	}{
		"the response is lost": {
			do:    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) },
			after: func(*http.Response) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, runs: 1,
		},
		"it panics": {do: func(http.ResponseWriter, *http.Request) { panic("nil map") }, runs: 1},
		"it streams its refusal": {do: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusPaymentRequired)
			w.(http.Flusher).Flush()
		}, runs: 1},
		"it does not know, and is away then": {
			do: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
			after: func(r *http.Response) (*http.Response, error) {
				if first {
					first = false
					return r, nil
				}
				return nil, errors.New("connection refused")
			}, runs: 6,
		},
	} {
		guarded(t, idemhttp.Policy{}, func(r *rig) {
			r.does(test.do)
			if (shop{t, r.store, &way{to: recovered(r.mux), after: test.after}, byStepKey, 402}).isFinal() {
				t.Errorf("%s: the 402 is final", name)
			}
			if r.mu.Lock(); r.runs < 1 || r.runs > test.runs {
				t.Errorf("%s: it ran %d times", name, r.runs)
			}
			r.mu.Unlock()
		})
	}
}

// That a request did nothing says nothing of the one before it, of which nobody knows.
func TestNoEffectOfAnUnsettledStep(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		runs := 0
		r.does(func(w http.ResponseWriter, req *http.Request) {
			if runs++; runs > 1 {
				idemhttp.NoEffect(req)
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		if (shop{t, r.store, &way{to: r.mux}, byStepKey, 402}).isFinal() || runs < 2 {
			t.Errorf("%d runs, and the 402 is final", runs)
		}
	})
}

// However the key of a step is given to a request, the step is not taken again when its outcome is forgotten.
func TestStepIsNotTakenAgain(t *testing.T) {
	for name, set := range map[string]func(*http.Request, *client.Attempt) error{
		"SetStepKey": byStepKey,
		"SetKey":     func(r *http.Request, a *client.Attempt) error { return idemhttp.SetKey(r, a.DownstreamKey("charge")) },
		"WithKey": func(r *http.Request, a *client.Attempt) error {
			*r = *r.WithContext(idemhttp.WithKey(r.Context(), a.DownstreamKey("charge")))
			return nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, idemhttp.Policy{}, idemhttp.NoOwner(), idemhttp.Namespace("short"))
			if _, err := r.store.memory.CreateNamespace(t.Context(), store.Namespace{Name: "short", Retention: time.Hour}); err != nil {
				t.Fatal(err)
			}
			var refused string
			via := &way{to: r.mux, after: func(r *http.Response) (*http.Response, error) {
				refused = r.Header.Get(idemhttp.HeaderRefused)
				return r, nil
			}}
			for range 2 {
				(shop{t, r.store, via, set, 500}).isFinal()
				time.Sleep(3 * time.Hour)
			}
			if r.ran(1); refused != "KEY_EXPIRED" {
				t.Errorf("%s: the second time it is refused with %q", name, refused)
			}
		})
	}
}

// What a handler passes on of a guard further on that does not know is no final answer of its own.
func TestUnknownPassedOn(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		r.does(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(idemhttp.HeaderUnknown, "true")
			w.WriteHeader(http.StatusPaymentRequired)
		})
		r.ok(r.once(), http.StatusPaymentRequired, "", false)
		r.ok(r.once(), http.StatusPaymentRequired, "", false)
	})
}

// Nor does what it passes on vouch for what it has not stored; and of a success it takes nothing away.
func TestEndPassedOn(t *testing.T) {
	for status, stored := range map[int]bool{http.StatusServiceUnavailable: false, http.StatusCreated: true} {
		guarded(t, idemhttp.Policy{}, func(r *rig) {
			r.does(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(idemhttp.HeaderEnd, step.Mark(step.Completed, status, strings.Trim(key1, `"`)))
				w.Header().Set(idemhttp.HeaderUnknown, "true")
				w.WriteHeader(status)
			})
			first := r.once()
			if h := first.Result().Header; h.Get(idemhttp.HeaderEnd) != "" || h.Get(idemhttp.HeaderUnknown) == "true" == stored {
				t.Errorf("%d says %v", status, h)
			}
			r.ok(r.once(), status, "", stored)
		})
	}
}

// A refusal that is too large to store is final all the same.
func TestTooLargeRefusal(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		r.does(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = w.Write(make([]byte, store.MaxOutcomeBytes+1))
		})
		r.once()
		refused(t, r.once(), http.StatusGone, "OUTCOME_OMITTED")
		r.ran(1)
	})
}

// What an item of a batch says of itself is not about the batch, also in a context without an attempt.
func TestNoEffectOfAnItem(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		r.does(func(w http.ResponseWriter, req *http.Request) {
			if req.Header.Get(idemhttp.HeaderKey) == "" {
				idemhttp.NoEffect(req)
				return
			}
			item := request(http.MethodPost, req.URL.Path, "x").WithContext(client.WithoutAttempt(req.Context()))
			r.mux.ServeHTTP(httptest.NewRecorder(), item)
			w.WriteHeader(http.StatusCreated)
		})
		r.ok(r.once(), http.StatusCreated, "", false)
		r.ok(r.once(), http.StatusCreated, "", true)
	})
}

// A gateway is told to check, and does nothing but a step: what the guard further on has stored is final at once, what
// somebody else says is not.
func TestOnlySteps(t *testing.T) {
	for _, vouched := range []bool{true, false} {
		guarded(t, idemhttp.Policy{}, func(r *rig) {
			r.answers(http.StatusPaymentRequired, "declined")
			lost := true
			via := &way{to: r.mux, after: func(response *http.Response) (*http.Response, error) {
				if lost {
					return nil, io.ErrUnexpectedEOF
				}
				if !vouched {
					response.Header.Del(idemhttp.HeaderEnd)
				}
				return response, nil
			}}
			set := func(req *http.Request, a *client.Attempt) error {
				a.OnlySteps("charge")
				return byStepKey(req, a)
			}
			s := shop{t, r.store, via, set, http.StatusPaymentRequired}
			if s.isFinal() {
				t.Error("final without an answer")
			}
			lost = false
			if got := s.isFinal(); got != vouched {
				t.Errorf("vouched for %v: final %v", vouched, got)
			}
			r.ran(1)
		})
	}
}

// A request that is carried out in the process of another one, without a key, is another intent: its steps are not
// that one's.
func TestStepsOfARequestWithoutAKey(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		caller := &http.Client{Transport: &idemhttp.Transport{Base: &way{to: r.mux}}}
		mux, guard := http.NewServeMux(), r.guardOf()
		mux.Handle("POST /item", guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			charge := newPost(t, req.Context(), strings.NewReader("42 EUR"))
			if _, ok := client.AttemptFrom(req.Context()); ok {
				t.Error("it has the attempt of the batch")
			}
			if err := idemhttp.SetStepKey(charge, "charge"); err != nil {
				t.Error(err)
			}
			response, err := caller.Do(charge)
			if err != nil {
				t.Error(err)
				return
			}
			_ = response.Body.Close()
			w.WriteHeader(http.StatusCreated)
		}), idemhttp.Policy{}))
		mux.Handle("POST /batch", guard.Handler(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			for range 3 {
				item := httptest.NewRequest(http.MethodPost, "/item", strings.NewReader("x")).WithContext(req.Context())
				mux.ServeHTTP(httptest.NewRecorder(), item)
			}
		}), idemhttp.Policy{}))
		mux.ServeHTTP(httptest.NewRecorder(), request(http.MethodPost, "/batch", "x", idemhttp.HeaderKey, key1))
		r.ran(3)
	})
}

// A request of another context than its attempt's is a step all the same, if that is made of the attempt's.
func TestStepInAContextMadeOfTheAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, idemhttp.Policy{}, idemhttp.NoOwner())
		set := func(req *http.Request, a *client.Attempt) error {
			*req = *req.WithContext(context.WithoutCancel(req.Context()))
			return byStepKey(req, a)
		}
		if (shop{t, r.store, &refusing{}, set, 402}).isFinal() {
			t.Error("the 402 is final")
		}
	})
}

// A body that breaks is no answer; one that the handler does not read is not missed.
func TestStepWhoseBodyBreaks(t *testing.T) {
	for read, final := range map[bool]bool{true: false, false: true} {
		guarded(t, idemhttp.Policy{}, func(r *rig) {
			caller := &http.Client{Transport: &idemhttp.Transport{Base: &bodies{io.MultiReader(strings.NewReader("{"), iotest.ErrReader(io.ErrUnexpectedEOF))}}}
			r.does(func(w http.ResponseWriter, req *http.Request) {
				charge := newPost(t, req.Context(), nil)
				if err := idemhttp.SetStepKey(charge, "charge"); err != nil {
					t.Error(err)
				}
				response, err := caller.Do(charge)
				if err != nil {
					t.Error(err)
					return
				}
				defer response.Body.Close()
				if a, _ := client.AttemptFrom(req.Context()); !a.StepInDoubt() {
					t.Error("answered before the body has come")
				}
				if read {
					_, _ = io.ReadAll(response.Body)
				} else {
					_ = response.Body.Close()
				}
				w.WriteHeader(http.StatusPaymentRequired)
			})
			r.ok(r.once(), http.StatusPaymentRequired, "", false)
			r.ok(r.once(), http.StatusPaymentRequired, "", final)
		})
	}
}

// bodies is a server that answers 200 with a body.
type bodies struct{ io.Reader }

func (b *bodies) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(b.Reader), Request: r}, nil
}

// A step that is served in the process is one like any other.
func TestStepInTheProcess(t *testing.T) {
	for status, final := range map[int]bool{http.StatusBadGateway: false, http.StatusUnprocessableEntity: true, http.StatusOK: true} {
		guarded(t, idemhttp.Policy{}, func(r *rig) {
			r.does(func(w http.ResponseWriter, req *http.Request) {
				a, _ := client.AttemptFrom(req.Context())
				if a.Key.Scope != "POST /orders/{id}/pay" {
					w.WriteHeader(status)
					return
				}
				charge := request(http.MethodPost, "/refunds", "x").WithContext(req.Context())
				if err := idemhttp.SetStepKey(charge, "charge"); err != nil {
					t.Error(err)
				}
				r.mux.ServeHTTP(httptest.NewRecorder(), charge)
				w.WriteHeader(http.StatusPaymentRequired)
			})
			r.ok(r.once(), http.StatusPaymentRequired, "", false)
			r.ok(r.once(), http.StatusPaymentRequired, "", final)
		})
	}
}
