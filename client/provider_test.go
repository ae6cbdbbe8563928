package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

const keyRetention = 24 * time.Hour

// bank is a system of somebody else: it answers a key that it knows with what it did, and
// forgets keys after keyRetention.
type bank struct {
	charges int
	known   map[string]time.Time // by key, when it first came
	asked   int                  // under any key
	tells   string               // what its look-up answers: "done", "not done", "cannot tell"
}

func newBank(tells string) *bank { return &bank{known: map[string]time.Time{}, tells: tells} }

// charge is told a key and charges, unless it knows the key.
func (b *bank) charge(key string) {
	b.asked++
	if first, ok := b.known[key]; ok && time.Since(first) < keyRetention {
		return
	}
	b.known[key] = time.Now()
	b.charges++
}

var errBankAway = errors.New("the bank does not answer")

func (b *bank) find() (found bool, err error) {
	if b.tells == "cannot tell" {
		return false, errBankAway
	}
	return b.tells == "done", nil
}

// provided is what comes of a repeat, so long after an attempt that charged, or not, and
// lost the reply.
type provided struct {
	after   time.Duration
	tells   string // empty: nobody can be asked
	charged bool   // the first attempt reached the bank

	charges int  // in all
	sent    bool // the repeat was
	err     error
}

const within, past = keyRetention - store.MaxSkew - time.Second, keyRetention - store.MaxSkew

func (p provided) String() string {
	return fmt.Sprintf("%v, %s, charged %v", p.after, p.tells, p.charged)
}

var providerCases = []provided{
	// As long as the bank knows the key a repeat is sent under it, unless it was found.
	{after: 0, tells: "", charged: true, charges: 1, sent: true},
	{after: within, tells: "", charged: true, charges: 1, sent: true},
	{after: within, tells: "", charged: false, charges: 1, sent: true},
	{after: within, tells: "done", charged: true, charges: 1},
	{after: within, tells: "not done", charged: false, charges: 1, sent: true},
	{after: within, tells: "not done", charged: true, charges: 1, sent: true}, // a look-up that lags
	{after: within, tells: "cannot tell", charged: true, charges: 1, sent: true},
	{after: within, tells: "cannot tell", charged: false, charges: 1, sent: true},
	// Past that nothing is sent that would charge again.
	{after: past, tells: "", charged: true, charges: 1, err: store.ErrKeyUnresolved},
	{after: past, tells: "", charged: false, charges: 0, err: store.ErrKeyUnresolved},
	{after: past, tells: "done", charged: true, charges: 1},
	{after: past, tells: "not done", charged: false, charges: 1, sent: true},
	{after: past, tells: "cannot tell", charged: true, charges: 1, err: errBankAway},
	{after: past, tells: "cannot tell", charged: false, charges: 0, err: errBankAway},
}

// longKept is a key whose outcome is kept longer than the bank keeps keys.
func longKept(t *testing.T, s *faultyStore) store.Key {
	t.Helper()
	ns := store.Namespace{Name: "shop", Tier: store.TierWeek, Retention: 7 * 24 * time.Hour}
	if _, err := s.inner.CreateNamespace(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return store.Key{Namespace: "shop", ID: "order-1"}
}

func TestProviderKeys(t *testing.T) {
	for _, test := range providerCases {
		t.Run(test.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test.checkDo(t) })
		})
	}
}

func (p provided) checkDo(t *testing.T) {
	s, b := newStore(t), newBank(p.tells)
	key := longKept(t, s)
	opts := []client.DoOption{client.ProviderKeys(keyRetention)}
	if p.tells != "" {
		opts = append(opts, client.Recover(func(context.Context, *client.Attempt) (string, bool, error) {
			found, err := b.find()
			return "found", found, err
		}))
	}
	charge := func(reaches, answers bool) (client.Result[string], error) {
		return client.Do(t.Context(), s, key, nil, func(_ context.Context, a *client.Attempt) (string, error) {
			if reaches {
				b.charge(a.DownstreamKey("charge"))
			}
			if !answers {
				return "", errors.New("connection reset")
			}
			return "charged", nil
		}, opts...)
	}
	if _, err := charge(p.charged, false); err == nil {
		t.Fatal("the first attempt learnt something")
	}
	b.asked = 0
	time.Sleep(p.after)
	for range 2 { // what cannot be settled stays so
		got, err := charge(true, true)
		want := "found"
		if p.sent {
			want = "charged"
		}
		if !errors.Is(err, p.err) || err == nil && got.Value != want {
			t.Errorf("the repeat gets %q, %v, want %q, %v", got.Value, err, want, p.err)
		}
	}
	p.check(t, b, s.inspect(t, key).Record)
}

// check looks at what was done at the bank, and recorded.
func (p provided) check(t *testing.T, b *bank, rec *store.Record) {
	t.Helper()
	if b.charges != p.charges || (b.asked > 0) != p.sent || b.asked > 1 {
		t.Errorf("%d charges, and the repeats were sent %d times, want %d and %v", b.charges, b.asked, p.charges, p.sent)
	}
	if settled := rec.State == store.StateCompleted; settled != (p.err == nil) || !settled && !rec.Unsettled() {
		t.Errorf("the record is %v, unsettled %v", rec.State, rec.Unsettled())
	}
}

// An operator who looked settles what could not be sent again.
func TestProviderKeysPastAreResolved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBank("")
		key := longKept(t, s)
		provided{after: past, charged: true, charges: 1, err: store.ErrKeyUnresolved}.again(t, s, b, key)
		_, err := s.inner.Resolve(t.Context(), store.ResolveRequest{
			Key: key, AnyFence: true, Actor: "ann", Reason: "looked at the bank",
			Outcome: &store.Outcome{Body: []byte("charged before"), BodyType: "text/plain; charset=utf-8"},
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err := client.Do(t.Context(), s, key, nil, func(context.Context, *client.Attempt) (string, error) { panic("never runs") })
		if err != nil || got.Value != "charged before" {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// again makes a first attempt and, later, a repeat, and returns what the repeat gets.
func (p provided) again(t *testing.T, s *faultyStore, b *bank, key store.Key) {
	t.Helper()
	opts := []client.DoOption{client.ProviderKeys(keyRetention)}
	act := func(_ context.Context, a *client.Attempt) (string, error) {
		b.charge(a.DownstreamKey("charge"))
		return "", errors.New("connection reset")
	}
	_, _ = client.Do(t.Context(), s, key, nil, act, opts...)
	time.Sleep(p.after)
	if _, err := client.Do(t.Context(), s, key, nil, act, opts...); !errors.Is(err, p.err) {
		t.Errorf("got %v, want %v", err, p.err)
	}
	if b.charges != p.charges {
		t.Errorf("%d charges, want %d", b.charges, p.charges)
	}
}

// The age is that of the first attempt, however many came in between; also of one that an
// operator ended just now, which makes the last fence a young one.
func TestProviderKeysCountFromTheFirstAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBank("")
		key := longKept(t, s)
		opts := []client.DoOption{client.ProviderKeys(keyRetention), client.Lease(15 * time.Minute)}
		lost := func(_ context.Context, a *client.Attempt) (string, error) {
			b.charge(a.DownstreamKey("charge"))
			return "", errors.New("connection reset")
		}
		for range 3 {
			_, _ = client.Do(t.Context(), s, key, nil, lost, opts...)
			time.Sleep(7 * time.Hour)
		}
		if b.asked != 3 || b.charges != 1 {
			t.Fatalf("sent %d times, charged %d", b.asked, b.charges)
		}
		claimed, err := s.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "stuck"})
		if err != nil || claimed.Granted == nil {
			t.Fatalf("%+v, %v", claimed, err)
		}
		time.Sleep(4 * time.Hour)
		if _, err := s.inner.ForceRelease(t.Context(), store.ForceReleaseRequest{Key: key, AnyFence: true, Actor: "ann", Reason: "stuck"}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Do(t.Context(), s, key, nil, lost, opts...); !errors.Is(err, store.ErrKeyUnresolved) || b.charges != 1 {
			t.Errorf("25 h after the first attempt: %v, %d charges", err, b.charges)
		}
	})
}

// A wait for the holder counts, once: two minutes of it are past a retention of three, less
// the one for clocks that differ.
func TestProviderKeysCountTheWait(t *testing.T) {
	for retention, acts := range map[time.Duration]int{3 * time.Minute: 0, 3*time.Minute + 2*time.Second: 1} {
		synctest.Test(t, func(t *testing.T) {
			s := newStore(t)
			key, made := longKept(t, s), time.Now()
			if _, err := s.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "dies", Lease: 2 * time.Minute, IntentTime: made}); err != nil {
				t.Fatal(err)
			}
			fn, runs := returns("", nil)
			_, err := client.Do(t.Context(), s, key, nil, fn, client.ProviderKeys(retention), client.IntentTime(made), client.Wait(5*time.Minute))
			if errors.Is(err, store.ErrKeyUnresolved) != (acts == 0) || *runs != acts || time.Since(made) < 2*time.Minute {
				t.Errorf("%v: after %v: %v, ran %d times", retention, time.Since(made), err, *runs)
			}
		})
	}
}

// A final error stays in doubt while nobody has looked: "already paid" may be about the first attempt.
func TestProviderKeysInDoubt(t *testing.T) {
	paid := status.Error(codes.FailedPrecondition, "already paid")
	for tells, want := range map[string]store.State{"": store.StateInProgress, "cannot tell": store.StateInProgress, "not done": store.StateCompleted} {
		t.Run(tells, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, b := newStore(t), newBank(tells)
				opts := []client.DoOption{client.ProviderKeys(keyRetention)}
				if tells != "" {
					opts = append(opts, client.Recover(func(context.Context, *client.Attempt) (string, bool, error) {
						found, err := b.find()
						return "", found, err
					}))
				}
				for _, err := range []error{errors.New("connection reset"), paid} {
					fn, _ := returns("", err)
					_, _ = client.Do(t.Context(), s, orderKey, nil, fn, opts...)
				}
				if got := s.inspect(t, orderKey).Record.State; got != want {
					t.Errorf("state %v, want %v", got, want)
				}
			})
		})
	}
}

// A caller that has gone sends nothing blind.
func TestProviderKeysCallerGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		opts := []client.DoOption{client.ProviderKeys(keyRetention)}
		lost, _ := returns("", errors.New("connection reset"))
		_, _ = client.Do(t.Context(), s, orderKey, nil, lost, opts...)
		ctx, cancel := context.WithCancel(t.Context())
		fn, runs := returns("", nil)
		hangs := client.Recover(func(ctx context.Context, _ *client.Attempt) (string, bool, error) {
			cancel()
			return "", false, ctx.Err()
		})
		if _, err := client.Do(ctx, s, orderKey, nil, fn, append(opts, hangs)...); !errors.Is(err, context.Canceled) || *runs != 0 {
			t.Errorf("%v, ran %d times", err, *runs)
		}
	})
}

func TestProviderKeysSetUp(t *testing.T) {
	for name, opts := range map[string][]client.DoOption{
		"no retention": {client.ProviderKeys(0)},
		"a minute":     {client.ProviderKeys(time.Minute)},
	} {
		s, stop := memory()
		fn, runs := returns("", nil)
		if _, err := client.Do(t.Context(), s, orderKey, nil, fn, opts...); !errors.Is(err, store.ErrInvalidArgument) || *runs != 0 {
			t.Errorf("%s: %v, ran %d times", name, err, *runs)
		}
		stop()
	}
}

// The same for a guarded method, whose hook says it.
func TestProviderKeysOfGuard(t *testing.T) {
	for _, test := range providerCases {
		t.Run(test.String(), func(t *testing.T) {
			b := newBank(test.tells)
			hook := client.RecoverHook{}
			if test.tells != "" {
				hook = client.RecoverCall(func(context.Context, *testv1.ChargeRequest, *client.Attempt) (*testv1.ChargeResponse, bool, error) {
					found, err := b.find()
					return &testv1.ChargeResponse{Receipt: "found"}, found, err
				})
			}
			o := rigOptions{guard: []client.GuardOption{
				client.NoOwner(), client.Namespace("shop"), client.RecoverMethod(chargeMethod, hook.ProviderKeys(keyRetention)),
			}}
			rigged(t, o, func(t *testing.T, r *rig) { test.checkGuard(t, r, b) })
		})
	}
}

func (p provided) checkGuard(t *testing.T, r *rig, b *bank) {
	longKept(t, r.store.faultyStore)
	charge := func(reaches, answers bool) reply {
		r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
			a, _ := client.AttemptFrom(ctx)
			if reaches {
				b.charge(a.DownstreamKey("charge"))
			}
			if !answers {
				return nil, status.Error(codes.Unavailable, "connection reset")
			}
			return &testv1.ChargeResponse{Receipt: "charged"}, nil
		})
		return r.charge(&testv1.ChargeRequest{Account: "a"}, client.MetadataKey, key1)
	}
	charge(p.charged, false)
	b.asked = 0
	time.Sleep(p.after)
	got := charge(true, true)
	switch {
	case p.err == nil:
		r.ok(got, map[bool]string{true: "charged", false: "found"}[p.sent], false)
	case errors.Is(p.err, store.ErrKeyUnresolved):
		refused(t, got.err, codes.FailedPrecondition, "KEY_UNRESOLVED")
	case status.Code(got.err) != codes.Unavailable:
		t.Error(got.err)
	}
	p.check(t, b, r.recordOfKey(store.Key{Namespace: "shop", Scope: chargeMethod, ID: key1}))
}

// forgetful is a store that knows only that an earlier attempt may have acted, and not since when.
type forgetful struct{ store.Store }

func (s forgetful) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	answer, err := s.Store.Claim(ctx, req)
	if err == nil && answer.Granted != nil && answer.Granted.Unsettled {
		g := *answer.Granted
		g.UnsettledSince = store.LongAgo
		answer.Granted = &g
	}
	return answer, err
}

// Where nobody knows since when a key is unsettled, the intent time says how old it can be; and without
// one nothing is sent again blind.
func TestProviderKeysOfAForgetfulStore(t *testing.T) {
	for name, test := range map[string]struct {
		opts []client.DoOption
		runs int
	}{
		"no intent time": {nil, 1},
		"young":          {[]client.DoOption{client.IntentTime(time.Now().Add(-time.Hour))}, 2},
		"old":            {[]client.DoOption{client.IntentTime(time.Now().Add(-keyRetention))}, 1},
	} {
		s, fn := newStore(t), func(context.Context, *client.Attempt) (string, error) { return "", errors.New("connection reset") }
		runs := 0
		key, counted := longKept(t, s), func(ctx context.Context, a *client.Attempt) (string, error) { runs++; return fn(ctx, a) }
		opts := slices.Concat(test.opts, []client.DoOption{client.ProviderKeys(keyRetention)})
		_, first := client.Do(t.Context(), forgetful{s}, key, nil, counted, opts...)
		_, again := client.Do(t.Context(), forgetful{s}, key, nil, counted, opts...)
		if runs != test.runs || errors.Is(first, store.ErrKeyUnresolved) || errors.Is(again, store.ErrKeyUnresolved) != (test.runs == 1) {
			t.Errorf("%s: ran %d times: %v, then %v", name, runs, first, again)
		}
	}
}

func TestVerifyProviderKeys(t *testing.T) {
	declared := client.Unguarded(auditMethod, importMethod, watchMethod)
	equalLines(t, verify(t, client.NoOwner(), declared, client.RecoverMethod(chargeMethod, client.RecoverHook{}.ProviderKeys(keyRetention))))
	equalLines(t, verify(t, client.NoOwner(), declared, client.RecoverMethod(chargeMethod, client.RecoverHook{}.ProviderKeys(time.Second))),
		chargeMethod+"|retention of 1s|more than 1m0s")
}
