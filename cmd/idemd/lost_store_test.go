package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// A store whose disk is not mounted is a directory that is missing or empty. Nobody may take the new
// store that is made there for the old one without having been told.
func TestServeSaysThatTheStoreIsNew(t *testing.T) {
	for name, test := range map[string]struct {
		flags []string
		warns bool
	}{
		"named":     {flags: []string{"--data-dir=data"}, warns: true},
		"not named": {}, // who only tries it has no other
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			admin := freeAddr(t)
			args := append([]string{"--admin-addr=" + admin}, test.flags...)
			s := serveOn(t, args...)
			if got := strings.Join(s.banner, "\n"); strings.Count(got, ", new: it knows no key") != 1 {
				t.Errorf("the first start says\n%s", got)
			}
			if got := strings.Contains(s.stderr.String(), "made a new, empty store: it knows no key"); got != test.warns {
				t.Errorf("warned %v, want %v:\n%s", got, test.warns, s.stderr.String())
			}
			s.stop()
			s = serveOn(t, args...)
			if got := strings.Join(s.banner, "\n") + s.stderr.String(); strings.Contains(got, "new") {
				t.Errorf("the second start says\n%s", got)
			}
			notice := get(t, "http://"+admin+"/healthz") // a restart does not end it
			if got := strings.Contains(notice, "the store was made new at "); got != test.warns {
				t.Errorf("noticed %v, want %v: %s", got, test.warns, notice)
			}
			s.run(t, "recovery", "begin", "--nothing-known", "--reason=it is lost").ok(t)
			if notice := get(t, "http://"+admin+"/healthz"); strings.Contains(notice, "made new") {
				t.Errorf("after a recovery has begun: %s", notice)
			}
		})
	}
}

// A region's name that is mistyped is a region without keys, where one is named that a database has not.
func TestServeSaysThatTheRegionIsNew(t *testing.T) {
	dsn := pgtest.Shared(t).NewDatabase(t)
	run(t, "migrate", "up", "--store="+dsn).ok(t)
	admin := freeAddr(t)
	args := []string{"--store=" + dsn, "--admin-addr=" + admin}
	s := serveOn(t, args...)
	if got := strings.Join(s.banner, "\n"); !strings.Contains(got, "local, new: it knows no key") {
		t.Errorf("the first start says\n%s", got)
	}
	if got := s.stderr.String(); !strings.Contains(got, "made a new, empty store: it knows no key") || !strings.Contains(got, "region local") {
		t.Errorf("the first start logs\n%s", got)
	}
	s.stop()
	s = serveOn(t, args...)
	if got := strings.Join(s.banner, "\n") + s.stderr.String(); strings.Contains(got, "new") {
		t.Errorf("the second start says\n%s", got)
	}
	if notice := get(t, "http://"+admin+"/healthz"); !strings.Contains(notice, "region local was made new in the database at ") {
		t.Errorf("noticed %s", notice)
	}
	s.stop()
	refused := []string{"no such region in the database", `"locl"`, "region local", "--region or IDEMD_REGION", "migrate up"}
	run(t, "serve", "--store="+dsn, "--region=locl", "--grpc-addr=127.0.0.1:0", "--admin-addr=", "--log-level=error").fails(t, exitFailed, refused...)
	run(t, "migrate", "up", "--store="+dsn, "--region=eu").ok(t) // said by name
	s = serveOn(t, append(args, "--region=eu")...)
	if got := strings.Join(s.banner, "\n"); !strings.Contains(got, "eu, new: it knows no key") {
		t.Errorf("another region says\n%s", got)
	}
	if notice := get(t, "http://"+admin+"/healthz"); !strings.Contains(notice, "region eu was made new in the database at ") {
		t.Errorf("noticed %s", notice)
	}
}

// What a topology names is a region that somebody means, but its first start says that it is new.
func TestServeSaysThatARegionOfATopologyIsNew(t *testing.T) {
	dsn := migrated(t)
	file := filepath.Join(t.TempDir(), "topology.yaml")
	text := "regions:\n  eu: {address: \"127.0.0.1:1\"}\nplacements:\n  \"*\": fixed eu\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serveOn(t, "--store="+dsn, "--region=eu", "--topology="+file)
	if got := strings.Join(s.banner, "\n"); !strings.Contains(got, "eu, new: it knows no key") {
		t.Errorf("it says\n%s", got)
	}
}

// A recovery that has begun is what there is to do about a new region.
func TestRecoveryEndsTheNoticeOfANewRegion(t *testing.T) {
	db, err := sqlstore.Open(t.Context(), migrated(t), sqlstore.Options{MaintainEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	notice := noticeNewRegion(db, "local")
	if text := notice(); text == "" {
		t.Error("no notice")
	}
	if _, err := db.BeginRecovery(t.Context(), store.BeginRecoveryRequest{CompleteUntil: store.KnowsNothing, Reason: "it is lost"}); err != nil {
		t.Fatal(err)
	}
	if text := notice(); text != "" {
		t.Errorf("after a recovery has begun: %s", text)
	}
}

// With --must-exist a missing store is an error, and nothing is made.
func TestServeMustExist(t *testing.T) {
	empty := t.TempDir()
	for _, dir := range []string{empty, filepath.Join(empty, "missing")} {
		run(t, "serve", "--data-dir="+dir, "--must-exist", "--grpc-addr=127.0.0.1:0", "--admin-addr=").fails(t, exitFailed, dir, "no store is there", "mount it",
			"very first start leave --must-exist (IDEMD_MUST_EXIST) out", "idemd recovery begin --data-dir "+dir+" --nothing-known --reason WHY")
	}
	if entries, err := os.ReadDir(empty); err != nil || len(entries) != 0 {
		t.Errorf("made %v, %v", entries, err)
	}
	data := filepath.Join(t.TempDir(), "data")
	serve(t, data).stop()
	serve(t, data, "--must-exist")

	dsn := migrated(t)
	got := run(t, "serve", "--store="+dsn, "--region=elsewhere", "--must-exist", "--grpc-addr=127.0.0.1:0", "--admin-addr=", "--log-level=error")
	got.fails(t, exitFailed, "no such region in the database", "elsewhere", "name one of these with --region", "migrate up")
	serveOn(t, "--store="+dsn, "--must-exist")
}

// A recovery is not begun in a directory that is damaged: it is moved away first, for what can still be read of it.
func TestRecoveryBeginsBesideADamagedStore(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	serve(t, data).stop()
	if err := os.Remove(filepath.Join(data, "MARK")); err != nil {
		t.Fatal(err)
	}
	begin := []string{"recovery", "begin", "--data-dir=" + data, "--reason=it is damaged", "--nothing-known"}
	run(t, begin...).fails(t, exitFailed, "store is damaged", "mv "+data+" "+data+".damaged", "keep it", "--nothing-known")
	if err := os.Rename(data, data+".damaged"); err != nil {
		t.Fatal(err)
	}
	if got := run(t, begin...); got.code != exitOK {
		t.Errorf("beside it: %d\n%s", got.code, got.stderr)
	}
}

// Where the store is gone for good, its recovery begins in a new one before anybody is granted anything.
func TestRecoveryBeginsWhereNothingIsKnown(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	begin := []string{"recovery", "begin", "--data-dir=" + data, "--reason=the disk is gone"}
	run(t, append(begin, "--from=2026-01-31T15:04:05Z")...).fails(t, exitFailed, "no store is there", "--nothing-known")
	run(t, begin...).fails(t, exitUsage, "--from", "--nothing-known")
	run(t, append(begin, "--nothing-known", "--from=2026-01-31T15:04:05Z")...).fails(t, exitUsage, "--from", "--nothing-known")
	begin = append(begin, "--nothing-known")
	got := run(t, begin...)
	if got.code != exitOK || !strings.Contains(got.stderr, "made a new, empty store in "+data) || !strings.Contains(got.stdout, "known before it") {
		t.Fatalf("begin: %d\n%s%s", got.code, got.stdout, got.stderr)
	}
	run(t, begin...).ok(t) // as often as one likes, in the store that is there now

	s := serve(t, data, "--must-exist")
	s.run(t, "claim", "--id=old", "--attempt=a").fails(t, exitFailed, "UNKNOWN_HISTORY")
	s.run(t, "namespace", "create", "payments").ok(t)
	s.run(t, "claim", "--namespace=payments", "--id=old", "--attempt=a").fails(t, exitFailed, "UNKNOWN_HISTORY")
	lift := []string{"recovery", "lift", "--namespace=default", "--reason=settled", "--leases-ended"}
	s.run(t, lift...).fails(t, exitFailed, "NOT_CONFIRMED", "--nothing-known")
	s.run(t, append(lift, "--nothing-known")...).ok(t)
	s.run(t, "claim", "--id=old", "--attempt=a").ok(t)
	if got := s.run(t, "recovery", "begin", "--nothing-known", "--reason=it was another store").ok(t); !strings.Contains(got, "known before it") {
		t.Errorf("asked of a server: %s", got)
	}
}
