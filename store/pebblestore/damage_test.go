package pebblestore_test

import (
	"errors"
	"log/slog"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

// A damaged table that a compaction has to read stops the store. Without that, Pebble
// would try for ever, and hold up every write once too many tables wait.
func TestDamageFoundByACompaction(t *testing.T) {
	var current atomic.Value
	hangGuard(t, 3*time.Minute, func() string { return current.Load().(string) })
	large := makeLargeSpecimen(t)
	for name, s := range map[string]specimen{"many tables": large, "one table": large.compacted(t)} {
		stopped := 0
		for _, file := range s.files.names() {
			if path.Ext(file) != ".sst" {
				continue
			}
			for _, d := range damages(file, s.files[file], often(40)) {
				what := name + ": " + file + " " + d.what
				current.Store(what)
				if s.compactDamaged(t, what, s.files.with(file, d.content)) {
					stopped++
				}
			}
		}
		if stopped == 0 {
			t.Errorf("%s: no damage was met by a compaction: this test does not reach it", name)
		}
	}
}

// compactDamaged writes to a damaged store until its tables must have been compacted, and
// reports whether that stopped it, when it was opened or later.
func (s specimen) compactDamaged(t *testing.T, what string, files image) (stopped bool) {
	fs, fatal, lines := vfs.NewMem(), newFatals(), &lineCounter{}
	files.write(t, fs, dataDir)
	opts := openOptions(fs, clockAt(s.wall), fatal)
	opts.Logger = slog.New(slog.NewTextHandler(lines, nil))
	opened, err := pebblestore.Open(dataDir, opts)
	if err != nil {
		if problem := unclear(err); problem != "" {
			t.Errorf("%s: refused, but %s: %v", what, problem, err)
		}
		return strings.Contains(err.Error(), "background work failed")
	}
	for i := 0; i < 40 && !stopped; i++ { // each outcome becomes a table
		stopped = errors.Is(fillDamaged(t, opened, i), store.ErrUnavailable)
	}
	s.ask(t, what, opened)
	closeErr := opened.Close()
	if stopped {
		fatal.wait()
	}
	for _, err := range append(fatal.all(), closeErr) {
		if err != nil && (!errors.Is(err, pebblestore.ErrDamaged) || !strings.Contains(err.Error(), "backup")) {
			t.Errorf("%s: stopped with %v; want that it is damaged, and what to do", what, err)
		}
	}
	if stopped != (closeErr != nil) && len(fatal.all()) == 0 {
		t.Errorf("%s: stopped %v, and Close says %v", what, stopped, closeErr)
	}
	if n := lines.n.Load(); n > 200 {
		t.Errorf("%s: %d lines were logged", what, n)
	}
	return stopped
}

// fillDamaged completes a key, unless the store cannot tell whether it is there.
func fillDamaged(t *testing.T, b store.Store, i int) error {
	claim, err := b.Claim(t.Context(), store.ClaimRequest{Key: fillKey(i), AttemptID: "one"})
	if err == nil {
		_, err = b.Complete(t.Context(), store.CompleteRequest{
			Key: fillKey(i), AttemptID: "one", Fence: claim.Granted.Fence, Outcome: fillOutcome(i),
		})
	}
	if err != nil && !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrRecordCorrupt) {
		t.Errorf("key %d: %v", i, err)
	}
	return err
}

type lineCounter struct{ n atomic.Int64 }

func (c *lineCounter) Write(p []byte) (int, error) {
	c.n.Add(1)
	return len(p), nil
}
