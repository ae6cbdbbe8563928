package main

import (
	"context"
	"database/sql"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/idemd/idemd/client/internal/natstest"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
	"github.com/idemd/idemd/store/storetest"
)

// No test leaves a goroutine behind. The one that waits for the PostgreSQL of all tests ends with the process.
func TestMain(m *testing.M) {
	if os.Getenv(commandVariable) != "" {
		main()
		return
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	if plan := os.Getenv(relayVariable); plan != "" {
		relayProcess(plan)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/idemd/idemd/store/sqlstore/pgtest.startProcess.func1"))
}

// shop is a database, a queue and an idemd of a test's own.
type shop struct {
	*testing.T
	dsn, nats string
	db        *sql.DB
	queue     *queue
	idemd     *storetest.Memory
}

func newShop(t *testing.T) *shop {
	idemd := storetest.NewMemory(store.SystemClock{})
	if _, err := idemd.CreateNamespace(t.Context(), store.Namespace{Name: namespace, Retention: 7 * 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	s := &shop{T: t, dsn: pgtest.Shared(t).NewDatabase(t), nats: natstest.Start(t), idemd: idemd}
	var err error
	if s.db, err = sql.Open("pgx", s.dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.db.Close() })
	for range 2 { // its statements can be repeated
		if err := migrate(t.Context(), s.db); err != nil {
			t.Fatal(err)
		}
	}
	q, closeQueue, err := openQueue(t.Context(), s.nats)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeQueue)
	s.queue = q
	return s
}

// start runs a part of the shop until it is stopped.
func (s *shop) start(part func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := part(ctx); err != nil {
			s.Error(err)
		}
	})
	return sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
}

func (s *shop) startRelay(to message.Publisher, patience time.Duration) (stop func()) {
	return s.start(relay{db: s.db, to: to, patience: patience}.run)
}

func (s *shop) count(table string) (n int) {
	s.Helper()
	if err := s.db.QueryRow("SELECT count(*) FROM " + table).Scan(&n); err != nil {
		s.Fatal(err)
	}
	return n
}

func (s *shop) untilSent() {
	s.Helper()
	natstest.Until(s, "the outbox is empty", func() bool { return s.count("watermill_outbox") == 0 })
}

// published is every message that is in the stream, oldest first.
func (s *shop) published() (all []jetstream.Msg) {
	s.Helper()
	reader, err := s.queue.stream.OrderedConsumer(s.Context(), streamName, jetstream.OrderedConsumerConfig{})
	if err != nil {
		s.Fatal(err)
	}
	for left := reader.CachedInfo().NumPending; left > 0; {
		m, err := reader.Next()
		if err != nil {
			s.Fatal(err)
		}
		meta, err := m.Metadata()
		if err != nil {
			s.Fatal(err)
		}
		all, left = append(all, m), meta.NumPending
	}
	return all
}

// receipts has everything that is in the queue carried out, and returns the keys that receipts were sent under.
func (s *shop) receipts() (sent []string) {
	s.Helper()
	stop := s.start(func(ctx context.Context) error {
		return work(ctx, s.queue, s.idemd, func(key string, _ payment) error {
			sent = append(sent, key)
			return nil
		})
	})
	natstest.Until(s, "every delivery is settled", func() bool {
		info, err := s.queue.pending.Info(s.Context())
		return err == nil && info.NumPending == 0 && info.NumAckPending == 0
	})
	stop()
	return sent
}
