package sqlstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/internal/pagetoken"
)

// Store is a key store in a database. Make it with [Open]. Its methods may be called by any
// number of goroutines, and any number of Stores may share the database.
type Store struct {
	opts    Options
	pool    *pgxpool.Pool
	dialect dialect
	texts   texts
	clock   *dbClock
	catalog *catalog
	seal    *sealer
	pages   pagetoken.Sealer

	batches batches
	turns   turns

	// ending ends the background work and refuses what comes.
	ending     context.Context
	end        context.CancelFunc
	background sync.WaitGroup

	// endMaintaining ends the maintenance of the buckets; nil if none runs.
	endMaintaining context.CancelFunc
	maintaining    sync.WaitGroup
	kept           keptBuckets
	troubles       troubles
	forgetting     forgetting

	made   bool // nobody had served the region before
	madeAt time.Time
}

var (
	_ store.Backend = (*Store)(nil)

	errClosed = store.Refuse(store.ErrUnavailable, "the store is closed")
)

// Open opens the store in the database that dsn names, a URL or a list of settings as libpq
// has them. The database must have the schema of this release (`idemd migrate up`).
func Open(ctx context.Context, dsn string, opts Options) (*Store, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	pool, dialect, err := connect(ctx, dsn, opts)
	if err != nil {
		return nil, err
	}
	s := &Store{
		opts: opts, pool: pool, dialect: dialect, texts: newTexts(opts),
		clock: newDBClock(opts),
	}
	s.ending, s.end = context.WithCancel(context.Background())
	s.catalog = newCatalog(pool, s.texts, s.clock, opts.Logger)
	s.catalog.watch, s.catalog.damaged = dialect.watch, opts.Observer.Damaged
	s.seal = newSealer(pool, dialect, opts, s.clock, s.catalog)
	s.batches = s.newBatches()
	if err := s.begin(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// begin reads the catalog, makes what is missing, and begins the background work.
func (s *Store) begin(ctx context.Context) error {
	if err := checkSchema(ctx, s.pool); err != nil {
		return err
	}
	if err := s.checkExists(ctx); err != nil {
		return err
	}
	if err := s.catalog.refresh(ctx); err != nil {
		return err
	}
	if err := s.checkRights(ctx); err != nil {
		return err
	}
	if err := s.beMember(ctx); err != nil {
		return err
	}
	if err := s.provide(ctx); err != nil {
		s.opts.Logger.Error("buckets are missing or incomplete; it will be tried again", "error", err)
	}
	s.start()
	return nil
}

// statementContext bounds what is sent to the database. It does not end with the caller's:
// a statement that has been sent is carried out, and others may share it.
func (s *Store) statementContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(s.ending), s.opts.Timing.MaxStatement+time.Second)
}

// Made reports whether Open began the region: nobody had served it from this database before, and
// the store knows no key.
func (s *Store) Made() bool { return s.made }

// MadeAt is when the region was begun, by the database's clock; zero if that is not known, as of one
// that an earlier release began.
func (s *Store) MadeAt() time.Time { return s.madeAt }

// Close lets what has been sent end, and closes the connections. Operations that come later
// are refused with ErrUnavailable. Calling it again does nothing.
func (s *Store) Close() error {
	s.stopMaintaining()
	s.end()
	s.batches.close()
	s.background.Wait()
	s.pool.Close()
	return nil
}

// closed returns a refusal if the store is closed.
func (s *Store) closed() error {
	if s.ending.Err() != nil {
		return errClosed
	}
	return nil
}
