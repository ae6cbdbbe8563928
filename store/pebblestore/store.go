package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/internal/pagetoken"
)

// Store is an embedded store in one directory. Make it with [Open].
type Store struct {
	opts Options
	made bool // by Open, in a directory that had none
	dir  string
	id   identity
	db   *pebble.DB
	lock io.Closer
	// waitSpare returns when nothing is written to the directory past Pebble any more.
	waitSpare func()
	marker    *marker
	pruner    *chainPruner
	intake    *intake
	known     namespaceSet
	pages     pagetoken.Sealer
	clock     *clock

	ending  atomic.Bool // set before the last commit
	settled *settled
	durable atomic.Pointer[commitTime] // the newest commit that is synced

	// Fail-stop: failed is closed after failure has been set.
	failOnce sync.Once
	failed   chan struct{}
	failure  error

	// Direct is held for reading by those who read Pebble past the loop, and for writing
	// by Close for a moment.
	direct     sync.RWMutex
	closed     bool // guarded by direct
	maintain   sync.Mutex
	backups    sync.Mutex // held while one is made
	inspecting readers    // of one key
	listing    readers    // of rows of all namespaces, which takes long
	background sync.WaitGroup
	cancel     context.CancelFunc // ends the background work
	looping    sync.WaitGroup     // the loop

	closeOnce sync.Once
	closeErr  error
}

var _ store.Backend = (*Store)(nil)

// Made reports whether [Open] has made the store, so that it knows no key from before: whoever
// expected an old one there must be told.
func (s *Store) Made() bool { return s.made }

// fail stops the store for good: nothing is answered any more but ErrUnavailable.
func (s *Store) fail(err error) {
	s.failOnce.Do(func() {
		s.failure = advise(err)
		close(s.failed)
		s.intake.close()
		s.opts.Logger.Error("the store has stopped; end the process", "error", s.failure)
		go s.opts.Fatal(s.failure)
	})
}

// failureOr returns why the store has stopped, or other if it has not.
func (s *Store) failureOr(other error) error {
	select {
	case <-s.failed:
		return unavailable(s.failure)
	default:
		return other
	}
}

// past runs what reads Pebble past the loop, in a goroutine of its own: once Pebble has
// given up it keeps its locks, and who waits for one of them waits for ever.
func past[T any](s *Store, read func() (T, error)) (T, error) {
	var (
		value T
		err   error
		ended = make(chan struct{})
	)
	go func() {
		defer close(ended)
		s.direct.RLock()
		defer s.direct.RUnlock()
		if s.closed {
			err = errClosed
			return
		}
		value, err = read()
	}()
	select {
	case <-ended:
		return value, err
	case <-s.failed:
		var none T
		return none, s.failureOr(errClosed)
	}
}

// closeLimit is how long Close waits, for a disk that hangs for example.
const closeLimit = 10 * time.Second

// Close answers what is queued, syncs, and closes the directory. After a failure it leaves
// the directory, its lock included, as it is until the process ends, and returns the
// failure. It gives up after ten seconds; nothing acknowledged is lost then. Calling it
// again returns the same.
func (s *Store) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Store) close() error {
	ended := make(chan error, 1)
	go func() { ended <- s.shutDown() }()
	select {
	case err := <-ended:
		return err
	case <-s.failed: // what has not ended may be stuck in Pebble
		return s.stoppedBy()
	case <-time.After(closeLimit):
		return fmt.Errorf("the store could not be closed within %v: the disk does not answer; end the process, nothing acknowledged is lost", closeLimit)
	}
}

// shutDown ends everything in order. It may never return after a failure.
func (s *Store) shutDown() error {
	s.stop()
	if err := s.stoppedBy(); err != nil {
		return err
	}
	closeErr := errors.Join(s.marker.close(), s.db.Close())
	s.waitSpare()
	if err := s.stoppedBy(); err != nil {
		return err
	}
	return errors.Join(closeErr, s.lock.Close())
}

// stoppedBy returns why the store has stopped, or nil, for those who run it.
func (s *Store) stoppedBy() error {
	if s.failureOr(nil) == nil {
		return nil
	}
	return fmt.Errorf("the store has stopped: %w", s.failure)
}

// stop ends the goroutines, the loop last.
func (s *Store) stop() {
	s.cancel()
	s.background.Wait()
	s.direct.Lock()
	s.closed = true
	s.direct.Unlock()
	s.ending.Store(true)
	s.intake.close()
	s.looping.Wait()
}
