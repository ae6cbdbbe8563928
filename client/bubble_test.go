package client_test

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// bubbleClock is the time of a synctest bubble.
type bubbleClock struct{ start time.Time }

func (c bubbleClock) Wall() time.Time          { return time.Now() }
func (c bubbleClock) Monotonic() time.Duration { return time.Since(c.start) }

// faultyStore is a store in memory whose calls can be made to fail, and are counted.
type faultyStore struct {
	*store.Waiter
	inner *storetest.Memory

	mu    sync.Mutex
	fails map[string]error // by operation, until it is taken out
	calls map[string]int
}

func newStore(t testing.TB) *faultyStore {
	inner := storetest.NewMemory(bubbleClock{time.Now()})
	s := &faultyStore{Waiter: store.NewWaiter(inner, store.WaiterOptions{}), inner: inner, fails: map[string]error{}, calls: map[string]int{}}
	t.Cleanup(func() {
		if err := client.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return s
}

// fail makes an operation fail; with nil it works again.
func (s *faultyStore) fail(operation string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails[operation] = err
}

func (s *faultyStore) count(operation string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[operation]
}

func (s *faultyStore) called(operation string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[operation]++
	return s.fails[operation]
}

func (s *faultyStore) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	if err := s.called("claim"); err != nil {
		return store.ClaimAnswer{}, err
	}
	return s.Waiter.Claim(ctx, req)
}

func (s *faultyStore) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	if err := s.called("renew"); err != nil {
		return store.RenewAnswer{}, err
	}
	return s.Waiter.Renew(ctx, req)
}

func (s *faultyStore) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	if err := s.called("complete"); err != nil {
		return store.CompleteAnswer{}, err
	}
	return s.Waiter.Complete(ctx, req)
}

func (s *faultyStore) Release(ctx context.Context, req store.ReleaseRequest) (store.ReleaseAnswer, error) {
	if err := s.called("release"); err != nil {
		return store.ReleaseAnswer{}, err
	}
	return s.Waiter.Release(ctx, req)
}

// inspect returns what the store knows of the key.
func (s *faultyStore) inspect(t testing.TB, key store.Key) store.Inspection {
	t.Helper()
	got, err := s.inner.InspectRecord(t.Context(), key)
	if err != nil {
		t.Fatalf("InspectRecord: %v", err)
	}
	return got
}

// eventLog keeps the events of a test.
type eventLog struct {
	mu   sync.Mutex
	list []client.Event
}

func (l *eventLog) add(e client.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, e)
}

// take returns the kinds of the events since the last take.
func (l *eventLog) take() []client.EventKind {
	l.mu.Lock()
	defer l.mu.Unlock()
	var kinds []client.EventKind
	for _, e := range l.list {
		kinds = append(kinds, e.Kind)
	}
	l.list = nil
	return kinds
}

// last is the newest event since the last take.
func (l *eventLog) last() client.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == 0 {
		return client.Event{}
	}
	return l.list[len(l.list)-1]
}

// says checks the errors of the events since the last take.
func (l *eventLog) says(t *testing.T, want ...error) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) != len(want) {
		t.Errorf("%d events, want %d", len(l.list), len(want))
		return
	}
	for i, e := range l.list {
		if !errors.Is(e.Err, want[i]) {
			t.Errorf("%v says %v, want %v", e.Kind, e.Err, want[i])
		}
	}
}

// equalValues compares messages as messages.
func equalValues[T any](t *testing.T, got, want T) {
	t.Helper()
	if m, ok := any(want).(proto.Message); ok {
		if !proto.Equal(any(got).(proto.Message), m) {
			t.Errorf("got %v, want %v", got, want)
		}
		return
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
