package pebblestore_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

const backupDir = "/backups/one"

// withBackups makes the directory that backups are put into.
func withBackups(t testing.TB, fs vfs.FS) {
	t.Helper()
	for _, dir := range []string{"/backups", "/"} {
		if err := fs.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		d, err := fs.OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// openBackup opens the directory of a backup, restored or not.
func openBackup(fs vfs.FS, clock store.ClockSource, restored bool) (*pebblestore.Store, error) {
	opts := openOptions(fs, clock, newFatals())
	opts.Restored = restored
	return pebblestore.Open(backupDir, opts)
}

func mustRestore(t testing.TB, fs vfs.FS, clock store.ClockSource) *pebblestore.Store {
	t.Helper()
	s, err := openBackup(fs, clock, true)
	if err != nil {
		t.Fatalf("open a restored backup: %v", err)
	}
	return s
}

// allFiles returns the content of every file.
func allFiles(t testing.TB, fs vfs.FS, dir string) map[string]string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			for path, content := range allFiles(t, fs, path) {
				files[path] = content
			}
			continue
		}
		files[path] = readAll(t, fs, path)
	}
	return files
}

func backUp(t testing.TB, s *pebblestore.Store) time.Time {
	t.Helper()
	at, err := s.Backup(t.Context(), backupDir)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// A backup opens only if it is said that it is restored. Then all that is not in it, and may
// have been, is refused in every namespace.
func TestBackupOpensOnlyAsRestored(t *testing.T) {
	clock, disk := storetest.NewClock(), vfs.NewCrashableMem()
	withBackups(t, disk)
	s := mustOpen(t, disk, clock)
	newNamespaces(t, s)
	known := store.ClaimRequest{Key: store.Key{Namespace: "week", ID: "known"}, AttemptID: "one", Lease: time.Minute}
	mustAnswer(t, s, known)
	clock.Advance(time.Second)
	at := backUp(t, s)
	if !at.Equal(storetest.Start.Add(time.Second)) {
		t.Errorf("the backup is of %v", at)
	}
	lost := store.ClaimRequest{Key: store.Key{Namespace: "week", ID: "lost"}, AttemptID: "one"}
	mustAnswer(t, s, lost)
	mustClose(t, s)
	clock.Advance(10 * time.Second)

	before := allFiles(t, disk, backupDir)
	refused := func(what string, opts pebblestore.Options, says string) {
		_, err := pebblestore.Open(backupDir, opts)
		if !errors.Is(err, pebblestore.ErrBackup) || !strings.Contains(fmt.Sprint(err), says) {
			t.Errorf("%s: %v, want one that says %q", what, err, says)
		}
		after := allFiles(t, disk, backupDir)
		if fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s: the refusal has changed the directory", what)
		}
	}
	opts := openOptions(disk, clock, newFatals())
	refused("not said to be restored", opts, "serve --restored-from 2026-01-01T00:00:01Z")
	opts.Restored, opts.RestoredFrom = true, at.Add(time.Microsecond)
	refused("restored from another", opts, "it is of 2026-01-01T00:00:01Z, and not of 2026-01-01T00:00:01.000001Z")
	opts.RestoredFrom, opts.Source = at, clockAt(at.Add(-time.Minute-time.Microsecond))
	refused("a clock that is behind", opts, "behind the time of the backup")
	if got, err := pebblestore.BackupTime(disk, backupDir); err != nil || !got.Equal(at) {
		t.Errorf("the time of the backup is %v, %v", got, err)
	}

	opts.Source = clock
	restored, err := pebblestore.Open(backupDir, opts)
	if err != nil {
		t.Fatal(err)
	}
	for name, ns := range namespacesOf(t, restored) {
		if !ns.RecoveryFloor.Equal(clock.Wall()) {
			t.Errorf("namespace %q has the recovery floor %v", name, ns.RecoveryFloor)
		}
		if len(ns.Recovery) != 1 || ns.Recovery[0].Kind != store.RecoveryBegun || !ns.Recovery[0].CompleteUntil.Equal(at) {
			t.Errorf("namespace %q says of its recovery: %+v", name, ns.Recovery)
		}
	}
	// One that was created since the backup is as unknown as its keys.
	if ns, err := restored.CreateNamespace(t.Context(), store.Namespace{Name: "forgotten"}); err != nil || !ns.RecoveryFloor.Equal(clock.Wall()) {
		t.Errorf("a namespace that is created again: %+v, %v", ns, err)
	}
	mustAnswer(t, restored, known)
	check := func(s *pebblestore.Store) {
		_, err := s.Claim(t.Context(), lost)
		if !errors.Is(err, store.ErrUnknownHistory) {
			t.Errorf("a key that was forgotten: %v", err)
		}
	}
	check(restored)
	mustClose(t, restored)
	again, err := openBackup(disk, clock, false)
	if err != nil {
		t.Fatalf("open again: %v", err)
	}
	check(again)
	mustClose(t, again)

	// It is for one start: a directory that says no more that it is a backup may be another
	// copy than the one whose recovery it tells of.
	for what, opts := range map[string]pebblestore.Options{
		"from it":      {Restored: true, RestoredFrom: at},
		"from another": {Restored: true, RestoredFrom: at.Add(-time.Second)},
		"from any":     {Restored: true},
	} {
		opts.FS, opts.Source = disk, clock
		begun := "the recovery of the backup of 2026-01-01T00:00:01Z began at 2026-01-01T00:00:11Z"
		if _, err := pebblestore.Open(backupDir, opts); !errors.Is(err, pebblestore.ErrNoBackup) || !strings.Contains(fmt.Sprint(err), begun) {
			t.Errorf("said to be restored again, %s: %v, want one that says %q", what, err, begun)
		}
	}
	opts.RestoredFrom = time.Time{}
	if _, err := pebblestore.Open(dataDir, opts); !errors.Is(err, pebblestore.ErrNoBackup) || !strings.Contains(fmt.Sprint(err), "idemd recovery begin") {
		t.Errorf("the original, said to be restored: %v", err)
	}
}

// A copy of a restored store, which was put in its place later, is not taken for the backup that
// was restored.
func TestCopyOfARestoredStore(t *testing.T) {
	c := crashingBackup(t)
	s := mustRestore(t, c.disk, c.clock)
	for name := range namespacesOf(t, s) {
		if _, err := s.LiftRecovery(t.Context(), store.LiftRecoveryRequest{Namespace: name, LeasesEnded: true, Reason: "all settled"}); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, s)
	kept := c.disk.CrashClone(vfs.CrashCloneCfg{})
	if s, err := openBackup(kept, c.clock, true); !errors.Is(err, pebblestore.ErrNoBackup) {
		t.Errorf("said to be restored: %v", err)
		if err == nil {
			mustClose(t, s)
		}
	}
	s, err := openBackup(kept, c.clock, false) // as idemd recovery begin does
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	if _, err := s.BeginRecovery(t.Context(), store.BeginRecoveryRequest{CompleteUntil: c.clock.Wall(), Reason: "a copy"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), lostClaim); !errors.Is(err, store.ErrUnknownHistory) {
		t.Errorf("a key that may be lost: %v", err)
	}
}

// What is acknowledged before a backup begins is in it, whoever goes on meanwhile, and what
// is in it is one instant of the store.
func TestBackupUnderLoad(t *testing.T) {
	clock, disk := storetest.NewClock(), vfs.NewCrashableMem()
	withBackups(t, disk)
	s := mustOpen(t, disk, clock)
	const clients = 8
	var (
		acked   [clients]atomic.Int64
		stopped atomic.Bool
		wg      sync.WaitGroup
		started = make(chan struct{}, clients)
	)
	key := func(client, n int) store.Key {
		return store.Key{Namespace: store.DefaultNamespace, ID: fmt.Sprintf("%d/%d", client, n)}
	}
	for client := range clients {
		wg.Go(func() {
			for n := 0; !stopped.Load(); n++ {
				claim := store.ClaimRequest{Key: key(client, n), AttemptID: "one"}
				granted, err := s.Claim(t.Context(), claim)
				if err != nil || granted.Granted == nil {
					t.Errorf("claim %v: %+v, %v", claim.Key, granted, err)
					return
				}
				outcome := &store.Outcome{Body: []byte(strings.Repeat("x", 500))}
				if _, err := s.Complete(t.Context(), store.CompleteRequest{Key: claim.Key, AttemptID: "one", Fence: granted.Granted.Fence, Outcome: outcome}); err != nil {
					t.Error(err)
					return
				}
				if acked[client].Add(1) == 50 {
					started <- struct{}{}
				}
			}
		})
	}
	for range clients {
		<-started
	}
	var before [clients]int
	for client := range clients {
		before[client] = int(acked[client].Load())
	}
	backUp(t, s)
	stopped.Store(true)
	wg.Wait()
	mustClose(t, s)

	restored := mustRestore(t, disk, clock)
	defer mustClose(t, restored)
	for client := range clients {
		n := 0
		for ; n < int(acked[client].Load()); n++ {
			answer, err := restored.Lookup(t.Context(), store.LookupRequest{Key: key(client, n)})
			if err != nil || answer.State != store.StateCompleted {
				break
			}
		}
		if n < before[client] {
			t.Errorf("client %d: %d of %d that were acknowledged are in the backup", client, n, before[client])
		}
		// A client's next key comes after its last: nothing is in the backup beyond a gap.
		for n++; n < int(acked[client].Load()); n++ {
			if _, err := restored.Lookup(t.Context(), store.LookupRequest{Key: key(client, n)}); !errors.Is(err, store.ErrKeyNotFound) {
				t.Errorf("client %d: key %d is in the backup beyond a gap: %v", client, n, err)
			}
		}
	}
}

// busyKeys are the kit's, and many more that few calls meet.
func busyKeys() []store.Key {
	var keys []store.Key
	for i := range 12 {
		for _, key := range testKeys {
			key.ID += fmt.Sprint(i)
			keys = append(keys, key)
		}
	}
	return keys
}

// After a restore every key answers as the table says of what was known at the backup under a
// floor, and no key that was granted since is granted as if nobody had.
func TestRestoredBackupGrantsNothingAnew(t *testing.T) {
	seeds := uint64(6)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { restoreHistory(t, seed) })
	}
}

func restoreHistory(t *testing.T, seed uint64) {
	clock, disk := storetest.NewClock(), vfs.NewCrashableMem()
	withBackups(t, disk)
	s := mustOpen(t, disk, clock)
	r := newRig(t, s, clock)
	r.history.keys = busyKeys()
	round := func(n uint64) {
		r.round(t, seed*100+n, 3, 40)
		r.advance(t, time.Duration(3+n)*time.Second)
	}
	for n := range uint64(3) {
		round(n)
	}
	backUp(t, s)
	atBackup := r.history.base
	for n := range uint64(4) {
		round(10 + n)
	}
	lostFences := map[store.Key]int64{}
	for key, row := range r.history.base {
		lostFences[key] = row.Record.Fence
	}
	claimed := r.holders.grants
	mustClose(t, s)
	clock.Advance(time.Hour)

	restored := mustRestore(t, disk, clock)
	defer mustClose(t, restored)
	h := r.history.next(atBackup, storeNow(t, restored))
	h.namespaces = namespacesOf(t, restored)
	rng := rand.New(rand.NewPCG(seed, 7))
	for _, key := range h.keys {
		fingerprint := fingerprintOf(key)
		requests := []store.ClaimRequest{
			{Key: key, AttemptID: "after the restore", Fingerprint: fingerprint},
			{Key: key, AttemptID: "made before", Fingerprint: fingerprint, IntentTime: h.now.Add(-30 * time.Minute)},
			{Key: key, AttemptID: "made after the restore", Fingerprint: fingerprint, IntentTime: h.now},
		}
		for _, grant := range claimed[key] {
			requests = append(requests, store.ClaimRequest{Key: key, AttemptID: grant.attempt, Fingerprint: fingerprint})
		}
		rng.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
		for _, req := range requests {
			answer, err := restored.Claim(t.Context(), req)
			text := render(withoutHeld(answer), err)
			h.observeCall(req, text)
			if answer.Granted == nil {
				continue
			}
			if len(claimed[key]) > 0 && !answer.Granted.Unsettled {
				t.Errorf("%+v was granted before and is again, unmarked: %s\nat the backup: %s", req, text, render(atBackup[key], nil))
			}
			if answer.Granted.AttemptNumber > 1 && answer.Granted.Fence <= lostFences[key] && atBackup[key].Record.AttemptID != req.AttemptID {
				t.Errorf("%+v: fence %d was handed out before, up to %d", req, answer.Granted.Fence, lostFences[key])
			}
		}
	}
	h.check(t, "after the restore")
}

func withoutHeld(answer store.ClaimAnswer) store.ClaimAnswer {
	if answer.Granted != nil {
		granted := *answer.Granted
		granted.HeldFor = 0
		answer.Granted = &granted
	}
	return answer
}

// observeCall records a call that has been answered.
func (h *history) observeCall(req any, answer string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq += 2
	h.calls = append(h.calls, &call{req: req, now: h.now, start: h.seq - 1, end: h.seq, answer: answer})
}

// lostClaim is a key that is granted after the backup.
var lostClaim = store.ClaimRequest{Key: store.Key{Namespace: "week", ID: "lost"}, AttemptID: "one"}

// checkFloors opens what a crash has left and checks that nothing is granted that was
// forgotten. A backup opens if it is said to be restored, and a store if it is not.
func checkFloors(t *testing.T, c crash, restored bool) {
	t.Helper()
	at, err := pebblestore.BackupTime(c.fs, backupDir)
	if err != nil {
		t.Errorf("%s: %v", c.where, err)
		return
	}
	s, err := openBackup(c.fs, clockAt(c.wall), restored)
	if refusal := map[bool]error{false: pebblestore.ErrBackup, true: pebblestore.ErrNoBackup}[restored]; restored == at.IsZero() {
		if !errors.Is(err, refusal) {
			t.Errorf("%s: open, said to be restored %t: %v, want %v", c.where, restored, err, refusal)
		}
		return
	}
	if err != nil {
		t.Errorf("%s: open, restored %t: %v", c.where, restored, err)
		return
	}
	defer mustClose(t, s)
	for name, ns := range namespacesOf(t, s) {
		if ns.RecoveryFloor.IsZero() {
			t.Errorf("%s: restored %t: namespace %q has no floor", c.where, restored, name)
		}
	}
	if answer, err := s.Claim(t.Context(), lostClaim); !errors.Is(err, store.ErrUnknownHistory) {
		t.Errorf("%s: restored %t: a lost key: %+v, %v", c.where, restored, answer, err)
	}
}

// crashingBackup makes a store with a backup and a key that is lost with it, on a disk whose
// next operations can be crashed at.
func crashingBackup(t *testing.T) *crasher {
	clock, disk := storetest.NewClock(), vfs.NewCrashableMem()
	withBackups(t, disk)
	s := mustOpen(t, disk, clock)
	newNamespaces(t, s)
	mustAnswer(t, s, store.ClaimRequest{Key: testKeys[0], AttemptID: "one"})
	backUp(t, s)
	mustAnswer(t, s, lostClaim)
	mustClose(t, s)
	clock.Advance(time.Minute)
	c := newCrasher(disk, clock, 1, 0, 0, 50, 100)
	c.record(&history{})
	return c
}

// A crash at any step of the first start after a restore leaves a backup or a store with its
// recovery floors.
func TestCrashesDuringRestore(t *testing.T) {
	c := crashingBackup(t)
	c.crashEvery(1)
	s := mustRestore(t, c.fs(), c.clock)
	c.crashNow("after the restore", 0)
	c.crashEvery(0)
	mustClose(t, s)
	crashes := c.take()
	backups, stores := 0, 0
	for _, crash := range crashes {
		if at, err := pebblestore.BackupTime(crash.fs, backupDir); err == nil && at.IsZero() {
			stores++
		} else if err == nil {
			backups++
		}
		other := crash
		other.fs = crash.fs.CrashClone(vfs.CrashCloneCfg{})
		checkFloors(t, crash, false)
		checkFloors(t, other, true)
	}
	if backups < 10 || stores < 1 {
		t.Errorf("of %d crashes %d left a backup and %d a store: this tests too little", len(crashes), backups, stores)
	}
}

// A crash while a backup is made leaves one that is refused or whole, and the store as it was.
func TestCrashesDuringBackup(t *testing.T) {
	clock, disk := storetest.NewClock(), vfs.NewCrashableMem()
	withBackups(t, disk)
	c := newCrasher(disk, clock, 1, 0, 0, 50, 100)
	s := mustOpen(t, c.fs(), clock)
	newNamespaces(t, s)
	mustAnswer(t, s, store.ClaimRequest{Key: testKeys[0], AttemptID: "one"})
	c.record(&history{})
	c.crashEvery(1)
	backUp(t, s)
	c.crashNow("after the backup", 0)
	c.crashEvery(0)
	mustClose(t, s)
	var whole, unfinished int
	crashes := c.take()
	for i, crash := range crashes {
		restored, err := openBackup(crash.fs, clockAt(crash.wall), true)
		switch {
		case err == nil:
			whole++
			if _, err := restored.Lookup(t.Context(), store.LookupRequest{Key: testKeys[0]}); err != nil {
				t.Errorf("%s: a key is not in the backup: %v", crash.where, err)
			}
			mustClose(t, restored)
		case errors.Is(err, pebblestore.ErrNoBackup):
			unfinished++
		default:
			t.Errorf("%s: %v", crash.where, err)
		}
		if i == len(crashes)-1 && err != nil {
			t.Errorf("%s: %v", crash.where, err)
		}
		original := mustOpen(t, crash.fs, clockAt(crash.wall))
		if _, err := original.Lookup(t.Context(), store.LookupRequest{Key: testKeys[0]}); err != nil {
			t.Errorf("%s: a key is not in the store: %v", crash.where, err)
		}
		mustClose(t, original)
		if names, _ := crash.fs.List(dataDir); strings.Contains(fmt.Sprint(names), "STAGING") {
			t.Errorf("%s: leftovers: %v", crash.where, names)
		}
	}
	if whole == 0 || unfinished < 10 {
		t.Errorf("of %d crashes %d left a whole backup, %d an unfinished one: this tests too little", len(crashes), whole, unfinished)
	}
}

// A backup with a file that is missing, cut or (of those that say what the rest is) damaged
// is refused.
func TestDamagedBackupIsRefused(t *testing.T) {
	c := crashingBackup(t)
	files := allFiles(t, c.disk, backupDir)
	for name, content := range files {
		base := name[strings.LastIndexByte(name, '/')+1:]
		if strings.HasPrefix(base, "OPTIONS") || strings.HasPrefix(base, "marker") || strings.HasSuffix(base, ".log") {
			continue // not needed, without content, or, as the memory was flushed, without a commit
		}
		damages := map[string]func(string) *string{
			"missing": func(string) *string { return nil },
			"cut":     func(s string) *string { s = s[:len(s)/2]; return &s },
		}
		if base == "FORMAT" || base == "MARK" {
			damages["zeroed"] = func(s string) *string { s = strings.Repeat("\x00", len(s)); return &s }
		}
		if base == "MARK" {
			delete(damages, "cut") // one of two equal slots is enough
		}
		for what, damage := range damages {
			fs := c.disk.CrashClone(vfs.CrashCloneCfg{})
			if err := fs.Remove(name); err != nil {
				t.Fatal(err)
			}
			if text := damage(content); text != nil {
				writeAll(t, fs, name, *text)
			}
			s, err := openBackup(fs, c.clock, true)
			if err == nil {
				t.Errorf("%s %s: opened", name, what)
				mustClose(t, s)
			}
		}
	}
}

func readAll(t testing.TB, fs vfs.FS, name string) string {
	t.Helper()
	info, err := fs.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, info.Size())
	if _, err := f.ReadAt(b, 0); err != nil && len(b) > 0 {
		t.Fatal(err)
	}
	return string(b)
}

func writeAll(t testing.TB, fs vfs.FS, name, content string) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// Backups are refused where they cannot be or would be no use, and leave nothing behind when
// they fail.
func TestBackupIsRefused(t *testing.T) {
	clock, disk := storetest.NewClock(), vfs.NewCrashableMem()
	withBackups(t, disk)
	c := newCrasher(disk, clock, 1, 0)
	s := mustOpen(t, c.fs(), clock)
	defer mustClose(t, s)
	for dir, says := range map[string]string{
		"/backups":         "exists",
		dataDir:            "inside of the store's own",
		dataDir + "/one":   "inside of the store's own",
		"/backups/no/such": "the directory above it",
	} {
		if _, err := s.Backup(t.Context(), dir); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("backup to %s: %v, want one that says %q", dir, err, says)
		}
	}
	full := errors.New("the disk is full")
	c.beforeEach(func(op errorfs.Op) error {
		if strings.HasPrefix(op.Path, backupDir+"/MARK") {
			return full
		}
		return nil
	})
	if _, err := s.Backup(t.Context(), backupDir); !errors.Is(err, full) {
		t.Errorf("backup on a full disk: %v", err)
	}
	c.beforeEach(func(errorfs.Op) error { return nil })
	if names, _ := disk.List("/backups"); len(names) != 0 {
		t.Errorf("a failed backup left %v", names)
	}
	backUp(t, s)
	if _, err := s.Backup(t.Context(), backupDir); err == nil {
		t.Error("a backup replaced another")
	}
}

// What was there is left alone, also a link that leads nowhere.
func TestFailedBackupRemovesNothingOfOthers(t *testing.T) {
	s, err := pebblestore.Open(filepath.Join(t.TempDir(), "data"), pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, s)
	link := filepath.Join(t.TempDir(), "monday")
	if err := os.Symlink("nowhere", link); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Backup(t.Context(), link); !errors.Is(err, fs.ErrExist) {
		t.Errorf("backup to a link: %v", err)
	}
	if to, err := os.Readlink(link); err != nil || to != "nowhere" {
		t.Errorf("the link: %q, %v", to, err)
	}
}
