package idemhttp_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/idemhttp"
)

// A request that a handler makes for a step carries the step's key, the same from every attempt, and since when it
// may have been sent.
func TestSetStepKey(t *testing.T) {
	request := func(ctx context.Context, step string) http.Header {
		r := newPost(t, ctx, nil)
		if err := idemhttp.SetStepKey(r, step); err != nil {
			t.Error(err)
		}
		return r.Header
	}
	var sent []http.Header
	var derived string
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		r.does(func(w http.ResponseWriter, req *http.Request) {
			a, _ := client.AttemptFrom(req.Context())
			derived = `"` + a.DownstreamKey("charge") + `"`
			sent = append(sent, request(req.Context(), "charge"), request(req.Context(), "ship"))
			w.WriteHeader(http.StatusBadGateway)
		})
		r.once()
		time.Sleep(time.Hour)
		r.once()
	})
	key, made := idemhttp.HeaderKey, idemhttp.HeaderIntentTime
	if len(sent) != 4 || sent[0].Get(key) != derived || sent[2].Get(key) != derived || sent[1].Get(key) == derived {
		t.Errorf("sent %v, want the key %s", sent, derived)
	}
	for _, header := range sent {
		if since, err := time.Parse(time.RFC3339Nano, header.Get(made)); err != nil || header.Get(made) != sent[0].Get(made) || since.IsZero() {
			t.Errorf("sent %v after %v: %v", header, sent[0], err)
		}
	}
	if alone := request(t.Context(), "charge"); len(alone) != 0 {
		t.Errorf("where nothing is guarded %v is sent", alone)
	}
}

// What a handler makes of a step that idemd has refused further on is no final answer, unless it is a success.
func TestStepRefused(t *testing.T) {
	away := &refusing{}
	caller := &http.Client{Transport: &idemhttp.Transport{Base: away}}
	for status, stored := range map[int]bool{http.StatusPaymentRequired: false, http.StatusOK: true} {
		guarded(t, idemhttp.Policy{}, func(r *rig) {
			r.does(func(w http.ResponseWriter, req *http.Request) {
				step := newPost(t, req.Context(), nil)
				if err := idemhttp.SetStepKey(step, "charge"); err != nil {
					t.Error(err)
				}
				response, err := caller.Do(step)
				if err != nil {
					t.Error(err)
					return
				}
				defer response.Body.Close()
				if got := response.Header.Get(idemhttp.HeaderRefused); got != "KEY_EXPIRED" {
					t.Errorf("the step is refused with %q", got)
				}
				w.WriteHeader(status)
			})
			r.ok(r.once(), status, "", false)
			r.ok(r.once(), status, "", stored)
		})
	}
}

// refusing is a server that refuses.
type refusing struct{}

func (*refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusGone, Header: http.Header{idemhttp.HeaderRefused: {"KEY_EXPIRED"}}, Body: http.NoBody, Request: r}, nil
}

// A refusal of what is no step of the intent says nothing of it.
func TestRefusedOtherwise(t *testing.T) {
	caller := &http.Client{Transport: &idemhttp.Transport{Base: &refusing{}}}
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		r.does(func(w http.ResponseWriter, req *http.Request) {
			response, err := caller.Do(newPost(t, req.Context(), nil)) // a key is drawn
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			w.WriteHeader(http.StatusPaymentRequired)
		})
		r.ok(r.once(), http.StatusPaymentRequired, "", false)
		r.ok(r.once(), http.StatusPaymentRequired, "", true)
	})
}

// Nor does a status that a policy lists say anything of a step that was refused; and the response says that
// it is not final.
func TestStepRefusedBeforeANoEffectStatus(t *testing.T) {
	guarded(t, idemhttp.Policy{NoEffect: []int{503}}, func(r *rig) {
		refused, unsettled := true, false
		r.does(func(w http.ResponseWriter, req *http.Request) {
			a, _ := client.AttemptFrom(req.Context())
			if a.StepUnknown(a.DownstreamKey("charge")); !refused {
				a.StepAnswered(a.DownstreamKey("charge"))
			}
			refused, unsettled = false, a.Unsettled
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		if first := r.once(); first.Header().Get(idemhttp.HeaderUnknown) != "true" {
			t.Errorf("the first is answered %v", first.Header())
		}
		second := r.once() // which had no effect; what the first had is not known still
		if second.Header().Get(idemhttp.HeaderUnknown) != "true" || !unsettled {
			t.Errorf("the second is told %v, and answered %v", unsettled, second.Header())
		}
	})
}
