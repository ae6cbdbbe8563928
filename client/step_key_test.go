package client_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	keys "github.com/idemd/idemd/client/key"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
	"github.com/idemd/idemd/store/storetest"
)

// sentBy is the outgoing metadata of a call that ctx makes through the caller's interceptor.
func sentBy(ctx context.Context, t *testing.T, opts ...grpc.CallOption) metadata.MD {
	t.Helper()
	var sent metadata.MD
	call := client.UnaryClientInterceptor()
	err := call(ctx, chargeMethod, &testv1.ChargeRequest{}, &testv1.ChargeResponse{}, nil,
		func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			sent, _ = metadata.FromOutgoingContext(ctx)
			return nil
		}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

// A step's call carries a key of its own, and no more: neither the key that came in, also if
// the handler passes all its metadata on, nor anything in baggage.
func TestStepKeyTravels(t *testing.T) {
	var sent []metadata.MD
	var since string
	guarded(t, func(t *testing.T, r *rig) {
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			in, _ := metadata.FromIncomingContext(ctx)
			sent = append(sent,
				sentBy(ctx, t, client.StepKey(ctx, "charge")),
				sentBy(ctx, t, client.StepKey(ctx, "ship")),
				sentBy(metadata.NewOutgoingContext(ctx, in), t, client.StepKey(ctx, "charge")),
				sentBy(metadata.AppendToOutgoingContext(ctx, client.MetadataIntentTime, "2026-01-31T15:04:05Z"), t, client.StepKey(ctx, "charge")))
			a, _ := client.AttemptFrom(ctx)
			since = a.Since.Format(time.RFC3339Nano)
			return &testv1.ChargeResponse{}, nil
		})
		got := r.charge(&testv1.ChargeRequest{Account: "a"}, client.MetadataKey, key1, client.MetadataIntentTime, "2000-01-01T00:00:00Z", "baggage", "user=7", "traceparent", "00-1-2-01")
		r.ok(got, "", false)
	})
	intent := store.Key{Namespace: "default", Scope: chargeMethod, ID: key1}
	for i, step := range []string{"charge", "ship", "charge", "charge"} {
		want, made := []string{keys.Downstream(intent, step)}, since
		if got := sent[i].Get(client.MetadataKey); !slices.Equal(got, want) {
			t.Errorf("call %d carries the key %q, want %q", i, got, want)
		}
		if i == 3 {
			made = "2026-01-31T15:04:05Z" // the call's own
		}
		if got := sent[i].Get(client.MetadataIntentTime); !slices.Equal(got, []string{made}) {
			t.Errorf("call %d carries the intent time %q, want %q", i, got, made)
		}
		if i < 2 && len(sent[i]) != 2 {
			t.Errorf("call %d carries %v besides", i, slices.Collect(maps.Keys(sent[i])))
		}
	}
	if got := sent[2].Get("baggage"); !slices.Equal(got, []string{"user=7"}) {
		t.Errorf("passed on, the baggage is %q", got)
	}
}

// Where nothing guards there is no intent to take a step of: the call is on its own.
func TestStepKeyWithoutAttempt(t *testing.T) {
	seen := map[string]bool{}
	for range 2 {
		got := sentBy(t.Context(), t, client.StepKey(t.Context(), "charge")).Get(client.MetadataKey)
		if len(got) != 1 || got[0] == "" || seen[got[0]] {
			t.Errorf("the call carries the key %q", got)
		}
		seen[got[0]] = true
	}
}

// In the function of Do too, the same for every attempt.
func TestStepKeyOfDo(t *testing.T) {
	s, stop := memory()
	defer stop()
	var got []string
	for range 2 {
		_, _ = client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, _ *client.Attempt) (string, error) {
			got = append(got, sentBy(ctx, t, client.StepKey(ctx, "charge")).Get(client.MetadataKey)...)
			return "", context.DeadlineExceeded
		})
	}
	if want := keys.Downstream(orderKey, "charge"); !slices.Equal(got, []string{want, want}) {
		t.Errorf("the attempts call under %q, want %q twice", got, want)
	}
}

// A key may be unsettled for longer than a step's outcome is kept: then the step is refused, and not taken again.
func TestStepOutlivedByItsIntent(t *testing.T) {
	for name, opts := range map[string][]client.DoOption{"act then record": nil, "record then act": {client.RecordFirst("sent")}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, mails := newStore(t), 0
				outer := longKept(t, s)
				carryOut := func() (step error) {
					_, _ = client.Do(t.Context(), s, outer, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
						mail := store.Key{Namespace: "default", Scope: "mail", ID: a.DownstreamKey("mail")}
						_, step = client.Do(ctx, s, mail, nil, func(context.Context, *client.Attempt) (string, error) { mails++; return "sent", nil }, opts...)
						return "", errors.New("the database is away")
					})
					return step
				}
				for range 3 { // kept for a day since the first
					if err := carryOut(); err != nil || mails != 1 {
						t.Errorf("%v, %d mails", err, mails)
					}
					time.Sleep(7 * time.Hour)
				}
				time.Sleep(4 * time.Hour)
				if err := carryOut(); !errors.Is(err, store.ErrKeyExpired) || mails != 1 {
					t.Errorf("after 25 h: %v, %d mails", err, mails)
				}
			})
		})
	}
}

// intents keeps the intent times of claims.
type intents struct {
	store.Store
	made []time.Time
}

func (s *intents) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	s.made = append(s.made, req.IntentTime)
	return s.Store.Claim(ctx, req)
}

// Only of a step of the attempt around it is it known when a Do was first asked for, if it does not say so.
func TestIntentTimeOfSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &intents{Store: newStore(t)}
		said, since := time.Now().Add(-time.Hour), time.Time{}
		_, err := client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
			since = a.Since
			do := func(id string, opts ...client.DoOption) {
				key := store.Key{Namespace: "default", Scope: "mail", ID: id}
				if _, err := client.Do(ctx, s, key, nil, func(context.Context, *client.Attempt) (string, error) { return "", nil }, opts...); err != nil {
					t.Error(err)
				}
			}
			do(a.DownstreamKey("mail"))
			do(a.DownstreamKey("sms"), client.IntentTime(said))
			do("another-intent")
			do(keys.Downstream(orderKey, "letter")) // which the attempt has not derived
			return "", nil
		})
		want := []time.Time{{}, since, said, {}, {}}
		if err != nil || since.IsZero() || !slices.EqualFunc(s.made, want, time.Time.Equal) {
			t.Errorf("%v, the intent times are %v, want %v", err, s.made, want)
		}
	})
}

// A step of an attempt that has another around it is a step of its own intent, wherever it is taken.
func TestStepInsideAnotherDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &intents{Store: newStore(t)}
		var since time.Time
		none := func(context.Context, *client.Attempt) (string, error) { return "", nil }
		_, err := client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, outer *client.Attempt) (string, error) {
			since = outer.Since
			time.Sleep(time.Second)
			inner := store.Key{Namespace: "default", Scope: "other", ID: "intent"}
			_, err := client.Do(ctx, s, inner, nil, func(ctx context.Context, _ *client.Attempt) (string, error) {
				_, err := client.Do(ctx, s, store.Key{Namespace: "default", Scope: "mail", ID: outer.DownstreamKey("mail")}, nil, none)
				return "", err
			})
			return "", err
		})
		if want := []time.Time{{}, {}, since}; err != nil || !slices.EqualFunc(s.made, want, time.Time.Equal) {
			t.Errorf("%v, the intent times are %v, want %v", err, s.made, want)
		}
	})
}

// aheadClock is a store's clock that is ahead of this machine's.
type aheadClock struct{ bubbleClock }

func (c aheadClock) Wall() time.Time { return c.bubbleClock.Wall().Add(10 * time.Minute) }

// Whoever takes the step may have another idemd, whose clock is right.
func TestStepTimeOfAStoreThatIsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, first := storetest.NewMemory(aheadClock{bubbleClock{time.Now()}}), time.Now()
		for range 2 {
			_, err := client.Do(t.Context(), s, orderKey, nil, func(_ context.Context, a *client.Attempt) (string, error) {
				if got := a.StepTime(); !got.Equal(first) || !a.Since.Equal(first.Add(10*time.Minute)) {
					t.Errorf("the step time is %v, since %v; it was first tried at %v", got, a.Since, first)
				}
				return "", errors.New("connection reset")
			})
			if err == nil {
				t.Error("no error")
			}
			time.Sleep(time.Hour)
		}
	})
}

// Under Observe steps are taken again whatever was recorded.
func TestNoStepTime(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			if a, ok := client.AttemptFrom(ctx); !ok || !a.StepTime().IsZero() {
				t.Errorf("an observed attempt has the step time %v", a.StepTime())
			}
			return &testv1.ChargeResponse{}, nil
		})
		r.ok(r.charge(&testv1.ChargeRequest{Account: "a"}, client.MetadataKey, key1), "", false)
	}, client.Observe())
}

// A step that idemd has refused further on may have been taken: the refusal can be told, and a failure
// that a handler makes of it, as of a declined card, is no final answer. What it found out otherwise is.
func TestStepRefused(t *testing.T) {
	refusal := storepb.ToStatus(store.Refuse(store.ErrKeyExpired, "it is too old")).Err()
	byCall := func(ctx context.Context, _ store.Store, _ *client.Attempt) error {
		return client.UnaryClientInterceptor()(ctx, chargeMethod, &testv1.ChargeRequest{}, &testv1.ChargeResponse{}, nil,
			func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return refusal }, client.StepKey(ctx, "charge"))
	}
	byDo := func(ctx context.Context, s store.Store, a *client.Attempt) error {
		step := store.Key{Namespace: "default", Scope: "charge", ID: a.DownstreamKey("charge")}
		_, err := client.Do(ctx, s, step, nil, func(context.Context, *client.Attempt) (string, error) { return "", nil },
			client.IntentTime(time.Now().Add(-48*time.Hour)))
		return err
	}
	for name, take := range map[string]func(context.Context, store.Store, *client.Attempt) error{"call": byCall, "Do": byDo} {
		for _, test := range []struct {
			answer error
			want   store.State
		}{
			{status.Error(codes.FailedPrecondition, "declined"), store.StateInProgress}, // lapsed
			{nil, store.StateCompleted},
			{client.NoEffect(errors.New("not begun")), store.StateReleased},
		} {
			s := newStore(t)
			_, _ = client.Do(t.Context(), s, orderKey, nil, func(ctx context.Context, a *client.Attempt) (string, error) {
				err := take(ctx, s, a)
				if name == "call" { // whose error is no answer about the key of whoever makes it
					if errors.Is(err, store.ErrKeyExpired) || status.Code(err) != codes.FailedPrecondition {
						t.Errorf("the call's error is %v", err)
					}
					err = client.Refusal(err)
				}
				if !errors.Is(err, store.ErrKeyExpired) {
					t.Errorf("%s: the step is refused with %v", name, err)
				}
				return "", test.answer
			})
			if got := s.inspect(t, orderKey).Record.State; got != test.want {
				t.Errorf("%s: after a refused step and %v the record is %v, want %v", name, test.answer, got, test.want)
			}
		}
	}
}
