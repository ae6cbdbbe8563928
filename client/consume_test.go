package client_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	keys "github.com/idemd/idemd/client/key"
	"github.com/idemd/idemd/store"
)

// ofOrders is a queue that the default namespace remembers long enough.
var ofOrders = client.Queue{Namespace: "default", Scope: "send-receipt", MaxAge: 23 * time.Hour}

func event(id string) client.Message {
	return client.Message{ID: id, Source: "orders", Body: []byte("about " + id)}
}

// consuming runs a test in a bubble with a consumer of ofOrders.
func consuming(t *testing.T, h client.Handler, test func(*testing.T, *faultyStore, *client.Consumer), opts ...client.DoOption) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		c, err := client.NewConsumer(t.Context(), s, ofOrders, h, opts...)
		if err != nil {
			t.Fatal(err)
		}
		test(t, s, c)
	})
}

// consume has one message carried out.
func consume(t *testing.T, c *client.Consumer, m client.Message) client.Disposition {
	t.Helper()
	got := c.Consume(t.Context(), []client.Message{m})
	if len(got) != 1 {
		t.Fatalf("%d dispositions of one message", len(got))
	}
	return got[0]
}

// is checks a disposition. Its error is, or says, want.
func is(t *testing.T, got client.Disposition, action client.Action, repeat bool, want any) {
	t.Helper()
	right := false
	switch want := want.(type) {
	case nil:
		right = got.Err == nil
	case error:
		right = errors.Is(got.Err, want)
	case string:
		right = got.Err != nil && strings.Contains(got.Err.Error(), want)
	}
	if !right || got.Action != action || got.Repeat != repeat || (got.Action != client.Retry && got.After != 0) {
		t.Errorf("%v after %v, repeat %v, because of %v; want %v, %v, %v", got.Action, got.After, got.Repeat, got.Err, action, repeat, want)
	}
}

func nothing(context.Context, *client.Attempt, client.Message) error { return nil }

// One message of a batch that fails is no matter of the others, whatever it fails with, and
// however often they come.
func TestConsumeEachAlone(t *testing.T) {
	failures := map[string]error{
		"poison": status.Error(codes.FailedPrecondition, "no such order"), "broken": errors.New("connection reset"),
		"closed": client.NoEffect(errors.New("the mail server is closed")), "new version": client.NoEffect(status.Error(codes.InvalidArgument, "what is this")),
		"further on": store.Refuse(store.ErrKeyExpired, "of another key"),
	}
	var mu sync.Mutex
	runs := map[string]int{}
	h := func(_ context.Context, a *client.Attempt, m client.Message) error {
		mu.Lock()
		defer mu.Unlock()
		runs[m.ID]++
		switch {
		case a.Number != runs[m.ID]:
			t.Errorf("%s runs for the %dth time, as attempt %d", m.ID, runs[m.ID], a.Number)
		case m.ID == "panics":
			panic("no such thing")
		case m.ID == "ends":
			runtime.Goexit()
		}
		return failures[m.ID]
	}
	ids := []string{"a", "poison", "b", "broken", "panics", "ends", "closed", "c", "new version", "further on", "d"}
	consuming(t, h, func(t *testing.T, _ *faultyStore, c *client.Consumer) {
		var batch []client.Message
		for _, id := range ids {
			batch = append(batch, event(id))
		}
		batch = append(batch, client.Message{Source: "orders"}, event("e"))
		for round := range 3 {
			got, repeat := c.Consume(t.Context(), batch), round > 0
			for i, id := range ids {
				switch id {
				case "poison":
					is(t, got[i], client.DeadLetter, repeat, "no such order")
				case "broken", "closed":
					is(t, got[i], client.Retry, false, failures[id].Error())
				case "panics":
					is(t, got[i], client.Retry, false, "the handler panicked: no such thing")
				case "ends":
					is(t, got[i], client.Retry, false, nil)
				case "new version":
					is(t, got[i], client.DeadLetter, false, "what is this")
				case "further on":
					is(t, got[i], client.Retry, false, store.ErrKeyExpired)
				default:
					is(t, got[i], client.Ack, repeat, nil)
				}
			}
			is(t, got[len(ids)], client.DeadLetter, false, store.ErrKeyRequired)
			is(t, got[len(ids)+1], client.Ack, repeat, nil)
		}
		for _, id := range ids {
			want := 3
			if len(id) == 1 || id == "poison" {
				want = 1
			}
			if runs[id] != want {
				t.Errorf("%s ran %d times, want %d", id, runs[id], want)
			}
		}
	})
}

// What an event is: its id within its source, for one purpose and owner.
func TestConsumeKey(t *testing.T) {
	var got []store.Key
	h := func(_ context.Context, a *client.Attempt, _ client.Message) error {
		got = append(got, a.Key)
		return nil
	}
	consuming(t, h, func(t *testing.T, _ *faultyStore, c *client.Consumer) {
		for _, m := range []client.Message{{ID: "1", Source: "a"}, {ID: "1", Source: "b"}, {ID: "1", Source: "a", Entity: "customer-7"}} {
			is(t, consume(t, c, m), client.Ack, false, nil)
			is(t, consume(t, c, m), client.Ack, true, nil)
		}
		equalValues(t, got, []store.Key{
			{Namespace: "default", Scope: "send-receipt", ID: keys.Event("a", "1")},
			{Namespace: "default", Scope: "send-receipt", ID: keys.Event("b", "1")},
			{Namespace: "default", Scope: "send-receipt", ID: keys.Event("a", "1"), Entity: "customer-7"},
		})
	})
}

// The same id with another body is another event, which was lost or never made; no body at all
// is one body, however a library of the queue puts it.
func TestConsumeOtherBody(t *testing.T) {
	consuming(t, nothing, func(t *testing.T, _ *faultyStore, c *client.Consumer) {
		m := event("1")
		is(t, consume(t, c, m), client.Ack, false, nil)
		m.Body = []byte("about something else")
		is(t, consume(t, c, m), client.DeadLetter, false, store.ErrFingerprintMismatch)

		empty := client.Message{ID: "2"}
		is(t, consume(t, c, empty), client.Ack, false, nil)
		empty.Body = []byte{}
		is(t, consume(t, c, empty), client.Ack, true, nil)
	})
}

// A delivery that comes while another one is handled is to come again.
func TestConsumeInFlight(t *testing.T) {
	running, done := make(chan struct{}), make(chan struct{})
	h := func(context.Context, *client.Attempt, client.Message) error {
		close(running) // a second run would panic
		<-done
		return nil
	}
	consuming(t, h, func(t *testing.T, _ *faultyStore, c *client.Consumer) {
		first := make(chan client.Disposition, 1)
		go func() { first <- consume(t, c, event("1")) }()
		<-running
		got := consume(t, c, event("1"))
		is(t, got, client.Retry, false, store.ErrKeyInProgress)
		if got.After != time.Second {
			t.Errorf("to be retried after %v, want the store's hint, 1s", got.After)
		}
		close(done)
		is(t, <-first, client.Ack, false, nil)
		is(t, consume(t, c, event("1")), client.Ack, true, nil)
	})
}

// What is too late to be known is not run again, if it says when it was made.
func TestConsumeTooLate(t *testing.T) {
	runs := 0
	h := func(context.Context, *client.Attempt, client.Message) error { runs++; return nil }
	consuming(t, h, func(t *testing.T, _ *faultyStore, c *client.Consumer) {
		dated, undated := event("dated"), event("undated")
		dated.Time = time.Now()
		is(t, consume(t, c, dated), client.Ack, false, nil)
		is(t, consume(t, c, undated), client.Ack, false, nil)
		time.Sleep(14 * 24 * time.Hour) // somebody redrives
		is(t, consume(t, c, dated), client.DeadLetter, false, store.ErrKeyExpired)
		is(t, consume(t, c, undated), client.Ack, false, nil) // taken for new: MaxAge was not true
		if runs != 3 {
			t.Errorf("ran %d times, want 3", runs)
		}
	})
}

// What the namespace should know, by the queue's MaxAge, and does not is no message's fault: a backlog waits until somebody
// has mended that, and is lost to the dead letters no sooner than the queue would have given it up.
func TestConsumeForgottenTooSoon(t *testing.T) {
	consuming(t, nothing, func(t *testing.T, s *faultyStore, c *client.Consumer) {
		ns, err := s.inner.GetNamespace(t.Context(), "default")
		if err != nil {
			t.Fatal(err)
		}
		retain := func(retention time.Duration) {
			t.Helper()
			ns.Retention = retention
			if _, err := s.inner.UpdateNamespace(t.Context(), ns); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(24 * time.Hour)
		retain(time.Hour)
		young, old := event("young"), event("old")
		young.Time, old.Time = time.Now().Add(1-ofOrders.MaxAge), time.Now().Add(-ofOrders.MaxAge)
		got := consume(t, c, young)
		is(t, got, client.Retry, false, store.ErrKeyExpired)
		if got.After != time.Minute {
			t.Errorf("to be retried after %v, want 1m", got.After)
		}
		is(t, consume(t, c, old), client.DeadLetter, false, store.ErrKeyExpired)
		young.Time = time.Now().Add(-2 * time.Hour)
		is(t, consume(t, c, young), client.Retry, false, store.ErrKeyExpired)
		retain(24 * time.Hour)
		time.Sleep(24 * time.Hour) // what the short retention may have forgotten it is not known for
		young.Time = time.Now().Add(-2 * time.Hour)
		is(t, consume(t, c, young), client.Ack, false, nil)
	})
}

// An event of a producer whose clock is ahead waits until it is made, and not for long at a time;
// a time that cannot be is no clock's.
func TestConsumeTooEarly(t *testing.T) {
	consuming(t, nothing, func(t *testing.T, _ *faultyStore, c *client.Consumer) {
		m := event("1")
		m.Time = time.Now().Add(20 * time.Minute)
		for _, after := range []time.Duration{15 * time.Minute, 5 * time.Minute} {
			got := consume(t, c, m)
			is(t, got, client.Retry, false, store.ErrInvalidArgument)
			if got.After != after {
				t.Errorf("to be retried after %v, want %v", got.After, after)
			}
			time.Sleep(got.After)
		}
		is(t, consume(t, c, m), client.Ack, false, nil)

		now := time.Now()
		for name, at := range map[string]time.Time{
			"MaxAge":        now.Add(ofOrders.MaxAge),
			"after MaxAge":  now.Add(ofOrders.MaxAge + 1),
			"a century":     now.AddDate(100, 0, 0),
			"ms as seconds": time.Unix(now.UnixMilli(), 0),
			"the last":      time.Unix(math.MaxInt64/2, 0),
			"before 1970":   time.Unix(-1, 0),
			"the first":     time.Time{}.Add(1),
		} {
			m.ID, m.Time = name, at
			want := client.DeadLetter
			if name == "MaxAge" {
				want = client.Retry
			}
			is(t, consume(t, c, m), want, false, store.ErrInvalidArgument)
		}
	})
}

// What an operator has set up otherwise is no message's fault: all are retried, and none is lost.
func TestConsumeSetUpChanged(t *testing.T) {
	for name, change := range map[string]func(*store.Namespace){
		"entity required": func(ns *store.Namespace) { ns.Entity = store.EntityRequired },
		"max lease":       func(ns *store.Namespace) { ns.MaxLease = 5 * time.Minute },
	} {
		t.Run(name, func(t *testing.T) {
			consuming(t, nothing, func(t *testing.T, s *faultyStore, c *client.Consumer) {
				ns, err := s.inner.GetNamespace(t.Context(), "default")
				if err != nil {
					t.Fatal(err)
				}
				before := ns
				change(&ns)
				if _, err := s.inner.UpdateNamespace(t.Context(), ns); err != nil {
					t.Fatal(err)
				}
				dated, wrong := event("dated"), event("wrong")
				dated.Time = time.Now()
				wrong.Entity = strings.Repeat("e", store.MaxEntityBytes+1)
				for _, m := range []client.Message{event("1"), dated} {
					got := consume(t, c, m)
					is(t, got, client.Retry, false, store.ErrInvalidArgument)
					if got.After != time.Minute {
						t.Errorf("to be retried after %v, want 1m", got.After)
					}
				}
				is(t, consume(t, c, wrong), client.DeadLetter, false, store.ErrInvalidArgument)
				if _, err := s.inner.UpdateNamespace(t.Context(), before); err != nil {
					t.Fatal(err)
				}
				is(t, consume(t, c, dated), client.Ack, false, nil)
			}, client.Lease(10*time.Minute))
		})
	}
}

// A store that says nothing holds a batch up once, and not with each of its messages.
func TestConsumeStoreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &distantStore{faultyStore: newStore(t)}
		c, err := client.NewConsumer(t.Context(), s, ofOrders, nothing)
		if err != nil {
			t.Fatal(err)
		}
		batch := make([]client.Message, 160)
		for i := range batch {
			batch[i] = event(fmt.Sprint(i))
		}
		s.away.Store(int64(time.Hour))
		began := time.Now()
		for _, d := range c.Consume(t.Context(), batch) {
			is(t, d, client.Retry, false, store.ErrUnavailable)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("a batch of ten rounds took %v", took)
		}
		s.away.Store(int64(2 * time.Second)) // farther than it was; but it answers
		is(t, consume(t, c, event("slow")), client.Retry, false, store.ErrUnavailable)
		time.Sleep(10 * time.Second)
		is(t, consume(t, c, event("slow")), client.Ack, false, nil)
		if err := client.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Without idemd nothing runs; once it has run, that idemd cannot be told takes nothing back.
func TestConsumeStoreDown(t *testing.T) {
	down := store.Refuse(store.ErrUnavailable, "")
	runs := 0
	h := func(context.Context, *client.Attempt, client.Message) error { runs++; return nil }
	consuming(t, h, func(t *testing.T, s *faultyStore, c *client.Consumer) {
		s.fail("claim", down)
		got := consume(t, c, event("1"))
		is(t, got, client.Retry, false, store.ErrUnavailable)
		if runs != 0 || got.After < time.Second/2 || got.After >= time.Second {
			t.Errorf("ran %d times, to be retried after %v", runs, got.After)
		}
		s.fail("claim", store.NamespaceUnknown("default"))
		is(t, consume(t, c, event("1")), client.Retry, false, store.ErrNamespaceUnknown) // ours, not the message's

		s.fail("claim", nil)
		s.fail("complete", down)
		s.fail("renew", down)
		is(t, consume(t, c, event("1")), client.Ack, false, nil)
		is(t, consume(t, c, event("1")), client.Retry, false, store.ErrKeyInProgress) // as far as idemd knows
		time.Sleep(time.Minute)                                                       // the lease is over, and this process knows
		s.fail("complete", nil)
		is(t, consume(t, c, event("1")), client.Ack, true, nil)
		if err := client.Drain(t.Context()); err != nil || runs != 1 {
			t.Errorf("ran %d times, and draining ended with %v", runs, err)
		}
		is(t, consume(t, c, event("1")), client.Ack, true, nil)
	})
}

// An end that is not known: the next run is told, and an answer that stays is not believed then.
func TestConsumeUnsettled(t *testing.T) {
	var told []bool
	h := func(_ context.Context, a *client.Attempt, _ client.Message) error {
		told = append(told, a.Unsettled)
		switch len(told) {
		case 1:
			return errors.New("connection reset")
		case 2:
			return status.Error(codes.AlreadyExists, "already paid")
		default:
			return nil
		}
	}
	consuming(t, h, func(t *testing.T, _ *faultyStore, c *client.Consumer) {
		is(t, consume(t, c, event("1")), client.Retry, false, "connection reset")
		is(t, consume(t, c, event("1")), client.Retry, false, "already paid")
		is(t, consume(t, c, event("1")), client.Ack, false, nil)
		equalValues(t, told, []bool{false, true, true})
	})
	told = nil
	consuming(t, h, func(t *testing.T, _ *faultyStore, c *client.Consumer) {
		is(t, consume(t, c, event("1")), client.Retry, false, "connection reset")
		got := consume(t, c, event("1"))
		is(t, got, client.Retry, false, store.ErrKeyUnresolved)
		if len(told) != 1 || got.After != time.Minute {
			t.Errorf("ran %d times, to be retried after %v", len(told), got.After)
		}
	}, client.Hold())
}

// A system of somebody else is not sent what it may have forgotten.
func TestConsumeProviderKeys(t *testing.T) {
	runs := 0
	h := func(context.Context, *client.Attempt, client.Message) error {
		runs++
		return errors.New("connection reset")
	}
	consuming(t, h, func(t *testing.T, _ *faultyStore, c *client.Consumer) {
		m := event("1")
		is(t, consume(t, c, m), client.Retry, false, "connection reset")
		is(t, consume(t, c, m), client.Retry, false, "connection reset")
		time.Sleep(2 * time.Hour)
		is(t, consume(t, c, m), client.Retry, false, store.ErrKeyUnresolved)
		if runs != 2 {
			t.Errorf("ran %d times, want 2", runs)
		}
	}, client.ProviderKeys(2*time.Hour))
}

// A handler whose lease is lost is stopped, and what it did then is the other one's to tell.
func TestConsumeLeaseLost(t *testing.T) {
	first := true
	var cause error
	h := func(ctx context.Context, a *client.Attempt, _ client.Message) error {
		if !first {
			return nil
		}
		first = false
		<-ctx.Done()
		cause = context.Cause(ctx)
		time.Sleep(10 * time.Second) // somebody else takes over meanwhile
		return nil
	}
	consuming(t, h, func(t *testing.T, s *faultyStore, c *client.Consumer) {
		s.fail("renew", store.Refuse(store.ErrUnavailable, ""))
		got := make(chan client.Disposition, 1)
		go func() { got <- consume(t, c, event("1")) }()
		time.Sleep(31 * time.Second)
		is(t, consume(t, c, event("1")), client.Ack, false, nil)
		is(t, <-got, client.Retry, false, store.ErrStaleFence)
		is(t, consume(t, c, event("1")), client.Ack, true, nil)
		if !errors.Is(cause, client.ErrLeaseLost) {
			t.Errorf("stopped because of %v", cause)
		}
	})
}

// No more messages run at once than are allowed, and none is begun when the end has come.
func TestConsumeConcurrency(t *testing.T) {
	for _, test := range []struct{ set, want int }{{0, 16}, {3, 3}, {1, 1}} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			running, most, runs := 0, 0, 0
			h := func(ctx context.Context, _ *client.Attempt, _ client.Message) error {
				mu.Lock()
				running, runs = running+1, runs+1
				most = max(most, running)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				running--
				mu.Unlock()
				return ctx.Err()
			}
			q := ofOrders
			q.Concurrency = test.set
			c, err := client.NewConsumer(t.Context(), newStore(t), q, h)
			if err != nil {
				t.Fatal(err)
			}
			var batch []client.Message
			for i := range 40 {
				batch = append(batch, event(fmt.Sprint(i)))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
			defer cancel()
			got := map[client.Action]int{}
			for _, d := range c.Consume(ctx, batch) {
				got[d.Action]++
			}
			if most != test.want || runs != min(2*test.want, 40) || got[client.Ack] != test.want || got[client.Retry] != 40-test.want {
				t.Errorf("at most %d at once, %d ran, then %v; want %d", most, runs, got, test.want)
			}
		})
	}
}

// With Ordered what is one entity's runs as it came, up to the first that fails.
func TestConsumeOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		ran := map[string]string{}
		broken := true
		h := func(_ context.Context, _ *client.Attempt, m client.Message) error {
			time.Sleep(time.Duration(10-len(m.ID)) * time.Second) // later ones would be quicker
			mu.Lock()
			defer mu.Unlock()
			ran[m.Entity] += m.ID + " "
			if m.ID == "xx" && broken {
				return client.NoEffect(errors.New("not now"))
			}
			return nil
		}
		q := ofOrders
		q.Ordered = true
		c, err := client.NewConsumer(t.Context(), newStore(t), q, h)
		if err != nil {
			t.Fatal(err)
		}
		var batch []client.Message
		for _, id := range []string{"x", "xx", "xxx", "xxxx"} {
			for _, entity := range []string{"a", "b"} {
				batch = append(batch, client.Message{ID: entity + id, Source: "orders", Entity: entity})
			}
		}
		batch[3].ID, batch[2].ID = "xx", "axx" // b's second fails
		start := time.Now()
		got := c.Consume(t.Context(), batch)
		if took := time.Since(start); took > 27*time.Second {
			t.Errorf("took %v: the two entities waited for each other", took)
		}
		equalValues(t, ran, map[string]string{"a": "ax axx axxx axxxx ", "b": "bx xx "})
		for i, d := range got {
			switch i {
			case 3:
				is(t, d, client.Retry, false, "not now")
			case 5, 7:
				is(t, d, client.Retry, false, "message 3 of the batch")
			default:
				is(t, d, client.Ack, false, nil)
			}
		}
		broken = false
		ran = map[string]string{}
		for i, d := range c.Consume(t.Context(), batch) {
			is(t, d, client.Ack, i != 3 && i != 5 && i != 7, nil)
		}
		equalValues(t, ran, map[string]string{"b": "xx bxxx bxxxx "})
	})
}
