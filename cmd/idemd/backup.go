package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

// backupTime is how long a backup may take beyond the timeout: tables are copied if the backup is on
// another file system.
const backupTime = 10 * time.Minute

// backupCmd makes a backup of an embedded store.
type backupCmd struct {
	remoteFlags
	Name    string  `arg:"" help:"Name of the backup: a directory to make below the server's --backup-root. With --data-dir: the directory itself."`
	DataDir *string `env:"-" placeholder:"DIR" help:"Back up a store that no server has open."`
	Keep    *uint32 `env:"-" placeholder:"N" help:"Then remove the store's oldest backups beside this one, until N are left with it (all)."`
}

// Run is called by kong.
func (c *backupCmd) Run(s *session) error {
	if c.Keep != nil && *c.Keep < 1 {
		return usageError("--keep: at least 1, the backup that is made")
	}
	if c.DataDir != nil {
		return c.offline(s)
	}
	return c.callFor(s, backupTime, "if in doubt, make another, of another name", func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewAdminServiceClient(conn).Backup(ctx, &idemdv1.BackupRequest{Name: c.Name, Keep: c.keep()})
		if err != nil {
			return err
		}
		return c.print(s, resp)
	})
}

// keep is how many are kept; 0: all.
func (c *backupCmd) keep() uint32 {
	if c.Keep == nil {
		return 0
	}
	return *c.Keep
}

func (c *backupCmd) print(s *session, resp *idemdv1.BackupResponse) error {
	return c.show(s, resp, func(p *page) {
		p.heading("backup")
		p.field("directory", resp.GetDirectory())
		p.when("of", resp.GetAt())
		for _, name := range resp.GetRemoved() {
			p.field("removed", name)
		}
	})
}

// offline opens the store for the time of the backup.
func (c *backupCmd) offline(s *session) error {
	dir, err := filepath.Abs(c.Name)
	if err != nil {
		return err
	}
	return withStore(*c.DataDir, func(db *pebblestore.Store) error {
		made, err := backUp(s.ctx, db, dir, int(c.keep()))
		if err != nil {
			return err
		}
		return c.print(s, &idemdv1.BackupResponse{Directory: dir, At: timestamppb.New(made.At), Removed: made.Removed})
	})
}

// withStore opens an embedded store that is there and that no server has open.
func withStore(dir string, do func(*pebblestore.Store) error) error {
	return withStoreOr(dir, pebblestore.Options{MustExist: true}, do)
}

// withStoreOr opens an embedded store that no server has open.
func withStoreOr(dir string, opts pebblestore.Options, do func(*pebblestore.Store) error) (err error) {
	opts.MaintainEvery = -1
	db, err := pebblestore.Open(dir, opts)
	if err != nil {
		return fmt.Errorf("--data-dir %s: %w", dir, err)
	}
	defer func() {
		if closed := db.Close(); err == nil {
			err = closed
		}
	}()
	return do(db)
}

// backups makes backups below a directory, which is named for that when the server is started:
// who may ask for one from elsewhere cannot write anywhere else.
func backups(db *pebblestore.Store, root *string) server.BackupFunc {
	if root == nil {
		return nil
	}
	return func(ctx context.Context, name string, keep int) (server.MadeBackup, error) {
		dir, err := filepath.Abs(filepath.Join(*root, name))
		if err != nil {
			return server.MadeBackup{}, err
		}
		return backUp(ctx, db, dir, keep)
	}
}

// backUp makes a backup, and then removes old ones beside it if it is said how many are kept.
func backUp(ctx context.Context, db *pebblestore.Store, dir string, keep int) (made server.MadeBackup, err error) {
	made.Directory = dir
	if made.At, err = db.Backup(ctx, dir); err != nil || keep == 0 {
		return made, err
	}
	if made.Removed, err = db.KeepBackups(ctx, dir, keep); err != nil {
		detail := fmt.Sprintf("the backup %s of %s was made, but not every old one was removed: %v", dir, made.At.UTC().Format(time.RFC3339Nano), err)
		return made, &store.Error{Sentinel: store.ErrUnavailable, Detail: detail, Cause: err}
	}
	return made, nil
}

// restoredFlags say that a data directory was restored.
type restoredFlags struct {
	BackupRoot   *string `placeholder:"DIR" help:"Where operators' backups are put, each in a directory of its own (nowhere)."`
	RestoredFrom string  `env:"-" placeholder:"RFC3339|backup" help:"For the first start only: the data directory was restored from the backup of this time, or from whichever it is. Keys that it may have forgotten are refused."`
}

// checkRoot refuses a directory in which no backup can be made. It is not made here: it may be on a
// disk that is not mounted.
func (f *restoredFlags) checkRoot(dataDir string) error {
	switch {
	case f.BackupRoot == nil:
		return nil
	case *f.BackupRoot == "":
		return usageError("--backup-root is empty: name a directory, or leave it out")
	}
	root, err := filepath.EvalSymlinks(*f.BackupRoot)
	if err == nil {
		root, err = filepath.Abs(root)
	}
	var info os.FileInfo
	if err == nil {
		info, err = os.Stat(root)
	}
	switch {
	case err != nil:
		return usageError("--backup-root: %w; make the directory first, where it survives the loss of --data-dir", err)
	case !info.IsDir():
		return usageError("--backup-root %s is not a directory", *f.BackupRoot)
	}
	data, err := filepath.Abs(dataDir)
	if real, linkErr := filepath.EvalSymlinks(data); linkErr == nil {
		data = real
	}
	if err == nil && pebblestore.Inside(data, root) {
		return usageError("--backup-root %s is inside of --data-dir; name a directory that survives the loss of that", *f.BackupRoot)
	}
	return nil
}

// apply sets the options of the store.
func (f *restoredFlags) apply(opts *pebblestore.Options) error {
	opts.Restored = f.RestoredFrom != ""
	if !opts.Restored || f.RestoredFrom == "backup" {
		return nil
	}
	var at instant
	if err := at.UnmarshalText([]byte(f.RestoredFrom)); err != nil {
		return usageError("--restored-from: %v, or backup", err)
	}
	opts.RestoredFrom = at.Time
	return nil
}
