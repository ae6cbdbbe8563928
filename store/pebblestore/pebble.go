package pebblestore

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// pebbleOptions sets Pebble up. The newest format is named because an older one cannot
// tell a damaged end of a log from its end. Log gets Pebble's fatal errors too.
func pebbleOptions(o Options, fs vfs.FS, log *pebbleLogger, pruner *chainPruner) *pebble.Options {
	p := &pebble.Options{
		FS:                          guardedFS{fs, log},
		FormatMajorVersion:          pebble.FormatNewest,
		CacheSize:                   o.BlockCacheBytes,
		MemTableSize:                o.MemTableBytes,
		MemTableStopWritesThreshold: 4,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		MaxOpenFiles:                512,
		FlushDelayDeleteRange:       10 * time.Second, // after which a dropped bucket's files go
		Logger:                      log,
		EventListener: &pebble.EventListener{
			BackgroundError: log.backgroundFailed,
			DataCorruption:  func(info pebble.DataCorruptionInfo) { log.Errorf("%v", info) },
			FlushBegin:      func(pebble.FlushInfo) { pruner.flushBegin() },
			FlushEnd: func(info pebble.FlushInfo) {
				if info.Err == nil {
					pruner.flushEnd()
				}
			},
		},
	}
	for i := range p.Levels {
		p.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	return p
}

// pebbleLogger is Pebble's log, and where it reports that it cannot go on.
type pebbleLogger struct {
	log   *slog.Logger
	fatal func(error)
}

func (l *pebbleLogger) Infof(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug("pebble: " + fmt.Sprintf(format, args...))
	}
}

func (l *pebbleLogger) Errorf(format string, args ...any) {
	l.log.Error("pebble: " + fmt.Sprintf(format, args...))
}

// backgroundFailed is told that a flush or compaction failed, because the disk is full or a
// table is damaged for example. Pebble would try again at once and without end, and
// stall all writes once too much waits for it.
func (l *pebbleLogger) backgroundFailed(err error) { l.Fatalf("background work failed: %v", err) }

// Fatalf never returns, because Pebble counts on that: it holds locks, and what it would do
// next would be built on a write that failed.
func (l *pebbleLogger) Fatalf(format string, args ...any) {
	l.fatal(gaveUp(format, args...))
	select {}
}

// openPebble opens the database. On some damaged files Pebble panics.
func openPebble(dir string, o *pebble.Options) (db *pebble.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			db, err = nil, gaveUp("%v", p)
		}
	}()
	return pebble.Open(dir, o)
}
