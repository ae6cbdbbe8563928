package pebblestore

import (
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
)

// Options are all optional.
type Options struct {
	// FS holds the directory. Nil: the operating system's.
	FS vfs.FS
	// Source is what the store's clock is made from. Nil: [store.SystemClock].
	Source store.ClockSource
	// Logger gets what an operator should see. Nil: nothing is logged.
	Logger *slog.Logger
	// Observer is told what happens, for metrics. Nil: nobody is.
	Observer Observer
	// Fatal is called once, in a goroutine of its own, when the store has stopped because
	// of a failed write or sync, or (ErrDamaged) of damage that Pebble met in the
	// background. The process should end: what of the last commits is on disk is not
	// known, and only opening the directory again tells. Nil: nothing.
	Fatal func(error)

	// Restored says that the directory was restored from a backup, of the time RestoredFrom if
	// that is set. What was recorded since the backup is forgotten, so Open then sets the
	// recovery floor of every namespace to the present: keys that may have been forgotten are
	// refused with ErrUnknownHistory. Without it a backup is refused with ErrBackup, and with it
	// anything else with ErrNoBackup, so that it is said for one start only: what was restored is
	// no backup from then on.
	Restored     bool
	RestoredFrom time.Time

	// MustExist refuses, with ErrNoStore, to make a store where there is none: the disk that it is on
	// may not be mounted.
	MustExist bool

	// CacheBytes bounds the records kept decoded. Zero: 24 MiB.
	CacheBytes int
	// BlockCacheBytes bounds Pebble's cache of file blocks and its memory tables together.
	// Zero: 64 MiB.
	BlockCacheBytes int64
	// MemTableBytes is the size of one of Pebble's memory tables. Mostly there are two, at
	// most four. Zero: 16 MiB.
	MemTableBytes uint64
	// SpareLogBytes is the size of the log file that is written ahead, so that a sync of
	// it is quick. Zero: a little more than MemTableBytes if FS is nil, none if it is not.
	// Negative: none.
	SpareLogBytes int64
	// MaintainEvery is how often the store looks for buckets to drop. Zero: one
	// minute. Negative: never, only Maintain does.
	MaintainEvery time.Duration
}

// Observer is told what happens in a store. Its methods must be quick, and are called by
// several goroutines.
type Observer interface {
	// Committed: a batch of operations was synced; took is from the commit to the sync.
	// Operations that changed nothing and needed no commit are not in it.
	Committed(operations, bytes int, took time.Duration)
	// Damaged: a stored value was found damaged or unreadable.
	Damaged(err error)
	// WallAhead: the store read its clock, and the wall clock is ahead of it by that much,
	// or behind if it is negative.
	WallAhead(ahead time.Duration)
}

type noObserver struct{}

func (noObserver) Committed(int, int, time.Duration) {}
func (noObserver) Damaged(error)                     {}
func (noObserver) WallAhead(time.Duration)           {}

func (o Options) withDefaults() Options {
	if o.MemTableBytes == 0 {
		o.MemTableBytes = 16 << 20
	}
	if o.FS == nil {
		o.FS = vfs.Default
		if o.SpareLogBytes == 0 {
			o.SpareLogBytes = int64(o.MemTableBytes) * 11 / 10 // what Pebble makes room for
		}
	}
	if o.Source == nil {
		o.Source = store.SystemClock{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	if o.Fatal == nil {
		o.Fatal = func(error) {}
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 24 << 20
	}
	if o.BlockCacheBytes == 0 {
		o.BlockCacheBytes = 64 << 20
	}
	if o.MaintainEvery == 0 {
		o.MaintainEvery = time.Minute
	}
	return o
}
