package sqlstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// TestNothingIsAnsweredThatAFailoverCanLose: a commit that no synchronous standby has can be
// read all the same. What follows from it is not answered before a standby has it.
func TestNothingIsAnsweredThatAFailoverCanLose(t *testing.T) {
	server := pgtest.New(t, pgtest.Durable)
	dsn := server.NewDatabase(t)
	const waitsForNone = "&options=-c%20synchronous_commit%3Dlocal"
	opts := Options{MaintainEvery: -1, Timing: Timing{MaxStatement: 300 * time.Millisecond}}
	migrateUp(t, dsn, opts)
	execute(t, dial(t, dsn), "ALTER SYSTEM SET synchronous_standby_names = 'missing'")
	server.Restart(t, pgtest.FastShutdown)
	defer func() {
		execute(t, dial(t, dsn+waitsForNone), "ALTER SYSTEM RESET synchronous_standby_names")
		server.Restart(t, pgtest.FastShutdown)
	}()
	writer := open(t, dsn+waitsForNone, opts)
	defer closeStore(t, writer)
	key := store.Key{Namespace: store.DefaultNamespace, ID: "k"}
	claimed, err := writer.Claim(t.Context(), store.ClaimRequest{Key: key, AttemptID: "a"})
	if err != nil || claimed.Granted == nil {
		t.Fatalf("claim: %+v, %v", claimed, err)
	}

	reader := open(t, dsn, opts)
	defer closeStore(t, reader)
	for name, ask := range map[string]func(ctx context.Context) error{
		"lookup": func(ctx context.Context) error {
			_, err := reader.Lookup(ctx, store.LookupRequest{Key: key})
			return err
		},
		"inspect": func(ctx context.Context) error { _, err := reader.InspectRecord(ctx, key); return err },
		"claim": func(ctx context.Context) error {
			_, err := reader.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: "b"})
			return err
		},
		"renew": func(ctx context.Context) error {
			_, err := reader.Renew(ctx, store.RenewRequest{Key: key, AttemptID: "b", Fence: 1})
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		if err := ask(ctx); !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s was answered from a commit that no standby has: %v", name, err)
		}
		cancel()
	}
	got, err := writer.Lookup(t.Context(), store.LookupRequest{Key: key})
	if err != nil || got.Fence != claimed.Granted.Fence {
		t.Errorf("lookup by who need not wait: %+v, %v", got, err)
	}
}

// TestBarrierFollowsTheServer: whether there is a synchronous standby may change at any time, by a
// reload or because another server has taken over. The next refresh of the catalog sees it.
func TestBarrierFollowsTheServer(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t, pgtest.Fast)
	r := newRigOn(t, server.NewDatabase(t))
	r.migrate()
	s := r.replica()
	wantEqual(t, "barrier without a standby", s.dialect.barrier(), "")
	for _, step := range []struct {
		change string
		want   bool
	}{{"SET synchronous_standby_names = 'missing'", true}, {"RESET synchronous_standby_names", false}} {
		r.exec("ALTER SYSTEM " + step.change)
		r.exec("SELECT pg_reload_conf()")
		for late := time.Now().Add(20 * time.Second); (s.dialect.barrier() != "") != step.want; {
			r.must(s.catalog.refresh(t.Context()))
			if time.Now().After(late) {
				t.Fatalf("%s is not seen", step.change)
			}
		}
	}
}
