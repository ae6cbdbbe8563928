package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

func TestNewConsumerRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		setRetention := func(of store.Namespace, retention time.Duration) {
			t.Helper()
			of.Retention = retention
			if _, err := s.inner.UpdateNamespace(t.Context(), of); err != nil {
				t.Fatal(err)
			}
		}
		check := func(name string, maxAge time.Duration, want error) {
			t.Helper()
			_, err := client.NewConsumer(t.Context(), s, client.Queue{Namespace: name, Scope: "x", MaxAge: maxAge, Owned: name == "shop"}, nothing)
			if !errors.Is(err, want) {
				t.Errorf("%s, %v: %v, want %v", name, maxAge, err, want)
			}
		}
		shop := store.Namespace{Name: "shop", Tier: store.TierMonth, Retention: 24 * time.Hour, Entity: store.EntityRequired}
		shop, err := s.inner.CreateNamespace(t.Context(), shop)
		if err != nil {
			t.Fatal(err)
		}
		const day = 24 * time.Hour
		check("shop", day-time.Minute, nil) // the skew of an intent time
		check("shop", day-time.Minute+1, client.ErrRetentionTooShort)
		check("shop", 14*day, client.ErrRetentionTooShort)
		setRetention(shop, 15*day)
		check("shop", 14*day, nil) // from now on
		setRetention(shop, day)
		check("shop", 14*day, client.ErrRetentionTooShort)
		setRetention(shop, time.Minute)
		check("shop", 54*time.Second, nil)
		check("shop", 55*time.Second, client.ErrRetentionTooShort)

		_, err = s.inner.CreateNamespace(t.Context(), store.Namespace{Name: "one", Entity: store.EntityForbidden})
		check("one", time.Hour, err)
		check("default", time.Hour, nil)
		check("none", time.Hour, store.ErrNamespaceUnknown)
		s.fail("claim", store.Refuse(store.ErrUnavailable, ""))
		check("default", time.Hour, store.ErrUnavailable)
		s.fail("claim", nil)
		s.fail("release", store.Refuse(store.ErrPermissionDenied, ""))
		check("default", time.Hour, store.ErrPermissionDenied)
		s.fail("release", nil)

		_, err = client.NewConsumer(t.Context(), s, client.Queue{Namespace: "shop", Scope: "x", MaxAge: 14 * day, Owned: true}, nothing)
		if err == nil || !strings.Contains(err.Error(), "35 days at most") {
			t.Errorf("%v, which does not say what to do", err)
		}
	})
}

// Whether messages have an Entity is asked with the rest: else each of them would be refused.
func TestNewConsumerEntity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		for _, test := range []struct {
			rule            store.EntityRule
			owned, notOwned error
		}{
			{store.EntityOptional, nil, nil},
			{store.EntityRequired, nil, store.ErrInvalidArgument},
			{store.EntityForbidden, store.ErrInvalidArgument, nil},
		} {
			name := fmt.Sprintf("rule-%d", test.rule)
			if _, err := s.inner.CreateNamespace(t.Context(), store.Namespace{Name: name, Entity: test.rule}); err != nil {
				t.Fatal(err)
			}
			for owned, want := range map[bool]error{true: test.owned, false: test.notOwned} {
				q := client.Queue{Namespace: name, Scope: "x", MaxAge: time.Hour, Owned: owned}
				_, err := client.NewConsumer(t.Context(), s, q, nothing)
				if !errors.Is(err, want) || err != nil && !strings.Contains(err.Error(), "Owned") {
					t.Errorf("%s, owned %v: %v, want %v", name, owned, err, want)
				}
			}
		}
	})
}

// One that dies while it asks leaves no key that a person would have to settle.
func TestNewConsumerHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		s.fail("release", store.Refuse(store.ErrUnavailable, ""))
		if _, err := client.NewConsumer(t.Context(), s, ofOrders, nothing, client.Hold()); !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
		page, err := s.inner.ListRecords(t.Context(), store.ListRequest{Namespace: "default", PageSize: 10})
		if err != nil || len(page.Records) != 1 || page.Records[0].LapsePolicy != store.Takeover {
			t.Errorf("%+v, %v", page.Records, err)
		}
	})
}

// A namespace with a recovery floor takes messages that are newer, and so a consumer.
func TestNewConsumerRecoveryFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		ns, err := s.inner.GetNamespace(t.Context(), "default")
		if err != nil {
			t.Fatal(err)
		}
		ns.RecoveryFloor = time.Now()
		if _, err := s.inner.UpdateNamespace(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
		if _, err := client.NewConsumer(t.Context(), s, ofOrders, nothing); !errors.Is(err, store.ErrUnknownHistory) {
			t.Errorf("just restored: %v, want UNKNOWN_HISTORY", err)
		}
		time.Sleep(2 * time.Minute)
		c, err := client.NewConsumer(t.Context(), s, ofOrders, nothing)
		if err != nil {
			t.Fatal(err)
		}
		m := event("1")
		m.Time = time.Now().Add(-90 * time.Second)
		got := consume(t, c, m)
		is(t, got, client.Retry, false, store.ErrUnknownHistory) // until an operator lifts the floor
		m = event("2")
		m.Time = time.Now()
		is(t, consume(t, c, m), client.Ack, false, nil)
	})
}

func TestNewConsumerRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		find := func(context.Context, *client.Attempt) (string, bool, error) { return "", false, nil }
		for name, test := range map[string]struct {
			change func(*client.Queue)
			opts   []client.DoOption
		}{
			"Scope":        {change: func(q *client.Queue) { q.Scope = "" }},
			"MaxAge":       {change: func(q *client.Queue) { q.MaxAge = 0 }},
			"Concurrency":  {change: func(q *client.Queue) { q.Concurrency = -1 }},
			"namespace":    {change: func(q *client.Queue) { q.Namespace = "No Name" }},
			"Recover":      {opts: []client.DoOption{client.Recover(find)}},
			"RecordFirst":  {opts: []client.DoOption{client.RecordFirst("sent")}},
			"IntentTime":   {opts: []client.DoOption{client.IntentTime(time.Now())}},
			"ProviderKeys": {opts: []client.DoOption{client.ProviderKeys(0)}},
			"lease":        {opts: []client.DoOption{client.Lease(time.Hour)}},
		} {
			q := ofOrders
			if test.change != nil {
				test.change(&q)
			}
			c, err := client.NewConsumer(t.Context(), s, q, nothing, test.opts...)
			if c != nil || !errors.Is(err, store.ErrInvalidArgument) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := client.NewConsumer(t.Context(), s, ofOrders, nil); !errors.Is(err, store.ErrInvalidArgument) {
			t.Errorf("no handler: %v", err)
		}
		if s.count("claim") > 4 {
			t.Errorf("asked %d times about what can be seen here", s.count("claim"))
		}
	})
}
