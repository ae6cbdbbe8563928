package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/internal/pagetoken"
)

// The files of a store's directory.
const (
	fileFormat   = "FORMAT"   // what the directory is; see [identity]
	fileMark     = "MARK"     // the newest synced commit; see [marker]
	fileLock     = "LOCK"     // held by the process that has the store open
	fileCreating = "CREATING" // present while the store is being created
	fileSpare    = "SPARE"    // the next log, if that is prepared; see [spareFS]
	dirPebble    = "db"       // Pebble's files
)

// opener is the way from a directory to a Store.
type opener struct {
	dir    string
	opts   Options
	fs     vfs.FS
	id     identity
	lock   io.Closer
	db     *pebble.DB
	pruner *chainPruner
	spare  *spareFS // nil if no logs are prepared
	made   bool     // there was no store

	// What Pebble could not go on after: it stops the Store, and Open before there is one.
	mu      sync.Mutex
	store   *Store
	failure error
	failed  chan struct{} // closed after failure has been set
}

// Open opens the store in dir, and creates it if dir is empty or does not exist. The
// errors with which it refuses a directory unwrap to ErrForeignDir, ErrNewerFormat,
// ErrOlderFormat, ErrLocked, ErrBackup, ErrNoBackup, ErrNoStore or ErrDamaged; others are the operating
// system's. The caller must Close the Store. If Pebble gives up on the way, the directory stays locked until the process ends.
func Open(dir string, opts Options) (*Store, error) {
	o := &opener{dir: dir, opts: opts.withDefaults(), pruner: &chainPruner{}, failed: make(chan struct{})}
	o.fs = o.opts.FS
	var (
		s      *Store
		err    error
		opened = make(chan struct{})
	)
	go func() {
		defer close(opened)
		if s, err = o.open(); err != nil {
			o.abandon()
		}
	}()
	select {
	case <-opened:
	case <-o.failed: // what has not ended may be stuck in Pebble
		return nil, fmt.Errorf("open store in %s: %w", dir, advise(o.failure))
	}
	if err != nil {
		return nil, fmt.Errorf("open store in %s: %w", dir, advise(err))
	}
	return s, nil
}

// abandon gives back what was taken, unless Pebble has given up: then it is not known what
// it still does in the directory.
func (o *opener) abandon() {
	if o.db != nil {
		_ = o.db.Close()
	}
	o.waitSpare()
	if o.lock != nil && o.pebbleFailure() == nil {
		_ = o.lock.Close()
	}
}

// pebbleFailure returns why Pebble cannot go on, or nil.
func (o *opener) pebbleFailure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failure
}

func (o *opener) path(name string) string { return o.fs.PathJoin(o.dir, name) }

func (o *opener) open() (*Store, error) {
	if _, err := o.fs.Stat(o.path(fileFormat)); err != nil && o.opts.Restored {
		return nil, fmt.Errorf("%w: it is said that one was restored, but no whole one is here; copy it here first", ErrNoBackup)
	}
	if _, err := o.fs.Stat(o.dir); err != nil && o.opts.MustExist {
		return nil, fmt.Errorf("%w: %w; its disk may not be mounted", ErrNoStore, absent(o.dir, err))
	}
	if err := makeDir(o.fs, o.dir); err != nil {
		return nil, err
	}
	if err := o.resolveDir(); err != nil {
		return nil, err
	}
	exists, err := o.inspect()
	switch {
	case err != nil:
		return nil, err
	case !exists && o.opts.MustExist:
		return nil, fmt.Errorf("%w: the directory is empty, or a store in it was never finished; its disk may not be mounted", ErrNoStore)
	}
	if o.lock, err = lockDir(o.fs, o.path(fileLock)); err != nil {
		return nil, err
	}
	if exists, err = o.inspect(); err != nil { // again, now that nobody else changes it
		return nil, err
	}
	if o.made = !exists; o.made {
		if err := o.create(); err != nil {
			return nil, err
		}
	}
	return o.load()
}

// resolveDir makes the directory's path one that means the same as long as the store is
// open: Pebble opens files by their paths.
func (o *opener) resolveDir() error {
	if !onDisk(o.fs) {
		return nil
	}
	dir, err := filepath.EvalSymlinks(o.dir)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err == nil {
		o.dir = dir
	}
	return err
}

// inspect says whether there is a store in the directory. It changes nothing.
func (o *opener) inspect() (exists bool, err error) {
	names, err := o.fs.List(o.dir)
	if err != nil {
		return false, err
	}
	if slices.Contains(names, fileFormat) {
		if err := errors.Join(o.readIdentity(), o.checkPebbleFormat()); err != nil {
			return true, err
		}
		return true, o.checkRestored()
	}
	if slices.Contains(names, fileUnfinished) {
		return false, fmt.Errorf("%w, and was not finished: nothing can be restored from it; remove it and take another", ErrBackup)
	}
	allowed := []string{fileLock, "lost+found"}
	if slices.Contains(names, fileCreating) { // a creation was interrupted
		allowed = append(allowed, fileCreating, fileMark, fileFormat+".new", fileSpare, dirPebble)
	}
	for _, name := range names {
		if !slices.Contains(allowed, name) {
			return false, fmt.Errorf("%w: found %s; choose an empty or a new directory, or one that idemd made", ErrForeignDir, name)
		}
	}
	return false, nil
}

func (o *opener) readIdentity() error {
	text, err := readFile(o.fs, o.path(fileFormat))
	if err != nil {
		return err
	}
	if o.id, err = decodeIdentity(text); err != nil {
		return damaged("%w", err)
	}
	if o.id.version > formatVersion {
		return fmt.Errorf("%w: it is %d, this version knows up to %d; use a newer idemd", ErrNewerFormat, o.id.version, formatVersion)
	}
	if o.id.version < oldestVersion {
		return fmt.Errorf("%w: it is %d, this version reads %d to %d; use the idemd that wrote it, or another directory", ErrOlderFormat, o.id.version, oldestVersion, formatVersion)
	}
	return nil
}

// checkPebbleFormat refuses a database that a newer Pebble has upgraded. Pebble keeps the
// version at the end of a file's name.
func (o *opener) checkPebbleFormat() error {
	names, err := o.fs.List(o.path(dirPebble))
	if err != nil {
		return nil //nolint:nilerr // that the database is missing is found out later
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "marker.format-version.") {
			continue
		}
		version, err := strconv.ParseUint(name[strings.LastIndexByte(name, '.')+1:], 10, 32)
		if err == nil && version > uint64(pebble.FormatNewest) {
			return fmt.Errorf("%w: its database is of format %d, this version knows up to %d; use a newer idemd",
				ErrNewerFormat, version, pebble.FormatNewest)
		}
	}
	return nil
}

// create makes an empty store. Until the file FORMAT is there, a crash leaves a directory
// in which the creation starts afresh.
func (o *opener) create() error {
	if m, err := readMark(o.fs, o.path(fileMark)); err == nil && m.at.seq > 1 {
		return damaged("file %s is missing", fileFormat)
	}
	if err := writeFileSynced(o.fs, o.path(fileCreating), nil); err != nil {
		return err
	}
	if err := syncDir(o.fs, o.dir); err != nil {
		return err
	}
	if err := o.fs.RemoveAll(o.path(dirPebble)); err != nil {
		return err
	}
	if err := makeDir(o.fs, o.path(dirPebble)); err != nil {
		return err
	}
	if err := o.openDB(true); err != nil {
		return err
	}
	o.id = newIdentity()
	now := resumeClock(o.opts, commitTime{}).Now()
	first := commitTime{seq: 1, now: now, until: now}
	if err := o.writeFirstCommit(first); err != nil {
		return err
	}
	if err := createMark(o.fs, o.path(fileMark), mark{storeID: o.id.id, at: first}); err != nil {
		return err
	}
	return putIdentity(o.fs, o.dir, o.id)
}

// created removes the sign of an unfinished creation, if it is there.
func (o *opener) created() error {
	if _, err := o.fs.Stat(o.path(fileCreating)); err != nil {
		return nil
	}
	if err := o.fs.Remove(o.path(fileCreating)); err != nil {
		return err
	}
	return syncDir(o.fs, o.dir)
}

// writeFirstCommit fills the database and starts a new log: the first one was begun before
// Pebble had raised the format, and could not tell damage from its end.
func (o *opener) writeFirstCommit(first commitTime) error {
	b := o.db.NewBatch()
	id := append(make([]byte, sealLen), o.id.id...)
	seal(metaStoreID, id)
	ns := store.Namespace{Name: store.DefaultNamespace, CreatedAt: first.now, UpdatedAt: first.now}.WithDefaults()
	putCommitTime(b, first)
	putChainLow(b, first.seq)
	if err := errors.Join(b.Set(metaStoreID, id, nil), putNamespace(b, &ns)); err != nil {
		return err
	}
	if err := o.db.Apply(b, pebble.Sync); err != nil {
		return err
	}
	o.waitSpare()
	return o.db.Flush()
}

// waitSpare returns when no spare log is being written.
func (o *opener) waitSpare() {
	if o.spare != nil {
		o.spare.preparing.Wait()
	}
}

func (o *opener) openDB(create bool) (err error) {
	// Pebble's own lock is taken here, to tell its errors from others. Pebble keeps it.
	lock, err := pebble.LockDirectory(o.path(dirPebble), o.fs)
	if err != nil {
		return lockError(err)
	}
	defer lock.Close()
	log := &pebbleLogger{log: o.opts.Logger, fatal: o.pebbleFailed}
	fs := o.fs
	if size := o.opts.SpareLogBytes; size > 0 {
		o.spare = newSpareFS(o.fs, o.path(fileSpare), size)
		fs = o.spare
	}
	p := pebbleOptions(o.opts, fs, log, o.pruner)
	p.ErrorIfExists, p.ErrorIfNotExists = create, !create
	p.Lock = lock
	o.db, err = openPebble(o.path(dirPebble), p)
	return err
}

// pebbleFailed is told that Pebble cannot go on.
func (o *opener) pebbleFailed(err error) {
	o.mu.Lock()
	s := o.store
	if s == nil && o.failure == nil {
		o.failure = err
		close(o.failed)
	}
	o.mu.Unlock()
	if s != nil {
		s.fail(err)
	}
}

// publish makes s the one that is told of Pebble's failures from now on, unless there was one.
func (o *opener) publish(s *Store) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failure == nil {
		o.store = s
	}
	return o.failure
}

// load opens an existing store, checks that no acknowledged commit is missing, and starts
// the goroutines.
func (o *opener) load() (*Store, error) {
	m, err := readMark(o.fs, o.path(fileMark))
	if err != nil {
		return nil, openError(err)
	}
	if m.storeID != o.id.id {
		return nil, damaged("file %s is of another store", fileMark)
	}
	if err := errors.Join(o.created(), o.removeLeftovers()); err != nil {
		return nil, err
	}
	if o.db == nil {
		if err := o.openDB(false); err != nil {
			return nil, openError(err)
		}
	}
	newest, err := o.verify(m)
	if err != nil {
		return nil, openError(err)
	}
	l, err := o.loop(newest)
	if err != nil {
		return nil, openError(err)
	}
	m.at = newest
	if o.opts.Restored && o.id.backup.IsZero() {
		return nil, refuseRestored(l)
	}
	if err := o.raiseVersion(); err != nil {
		return nil, err
	}
	if !o.id.backup.IsZero() {
		if err := o.recover(l, &m); err != nil {
			return nil, err
		}
	}
	return o.start(l, m)
}

// raiseVersion has the directory say that it is of this version, before anything is written that
// an older release cannot read: that refuses it then, and does not take it for damaged.
func (o *opener) raiseVersion() error {
	if o.id.version == formatVersion {
		return nil
	}
	was := o.id.version
	o.id.version = formatVersion
	if err := putIdentity(o.fs, o.dir, o.id); err != nil {
		return err
	}
	o.opts.Logger.Info("the store is of this release's format from now on; older releases refuse it", "format", formatVersion, "was", was)
	return nil
}

// verify checks the database against itself and the mark.
func (o *opener) verify(m mark) (commitTime, error) {
	value, closer, err := o.db.Get(metaStoreID)
	if err != nil {
		return commitTime{}, fmt.Errorf("the store's id cannot be read: %w", err)
	}
	defer closer.Close()
	id, err := unseal(metaStoreID, value)
	if err != nil || string(id) != o.id.id {
		return commitTime{}, errors.Join(errors.New("the database is of another store"), err)
	}
	newest, err := verifyChain(o.db)
	if err != nil {
		return commitTime{}, err
	}
	if newest.seq < m.at.seq {
		return commitTime{}, fmt.Errorf("commits %d to %d, up to %v, were synced and are missing", newest.seq+1, m.at.seq, m.at.now)
	}
	return newest, nil
}

// loop reads what the loop keeps in memory.
func (o *opener) loop(newest commitTime) (*loop, error) {
	namespaces, err := loadNamespaces(o.db)
	if err != nil {
		return nil, err
	}
	membership, err := loadMembership(o.db, o.id.id)
	if err != nil {
		return nil, err
	}
	buckets, err := loadBuckets(o.db)
	if err != nil {
		return nil, fmt.Errorf("the buckets cannot be read: %w", err)
	}
	return &loop{
		cache:      newCache(o.opts.CacheBytes / 2),
		buckets:    buckets,
		namespaces: namespaces,
		membership: membership,
		newest:     newest,
	}, nil
}

// start makes the Store and its goroutines.
func (o *opener) start(l *loop, m mark) (*Store, error) {
	s := &Store{
		pages: pagetoken.Random(),
		opts:  o.opts, made: o.made, dir: o.dir, id: o.id, db: o.db, lock: o.lock, waitSpare: o.waitSpare, pruner: o.pruner,
		intake: newIntake(), clock: resumeClock(o.opts, l.newest), settled: newSettled(o.opts.CacheBytes / 2), failed: make(chan struct{}),
	}
	l.s = s
	s.known.set(l.namespaces, l.newest.seq)
	durable := l.newest
	s.durable.Store(&durable)
	o.pruner.applied.Store(l.newest.seq)
	var err error
	if s.marker, err = startMarker(o.fs, o.path(fileMark), m, s.fail); err != nil {
		return nil, err
	}
	if err := o.publish(s); err != nil {
		s.marker.halt()
		return nil, err
	}
	s.marker.advance(l.newest)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	ids := l.buckets.all()
	s.looping.Go(l.run)
	s.background.Go(func() { s.fillFilters(ctx, ids) })
	if every := o.opts.MaintainEvery; every > 0 {
		s.background.Go(func() { s.maintainEvery(ctx, every) })
	}
	return s, nil
}
