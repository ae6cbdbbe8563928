package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

// namespace has a retention that is longer than a message can wait anywhere.
const (
	namespace = "shop"
	retention = 7 * 24 * time.Hour
)

// A Stage is what plays have in common: an idemd in memory and the shop's database. It is for one goroutine at
// a time; each play is an order of its own.
type Stage struct {
	dir    string
	db     *database
	idemd  *pebblestore.Store
	orders int
}

// Open makes a stage. dsn names a PostgreSQL database for the shop, in which all tables are temporary; empty is an SQLite
// file, which Close removes.
func Open(ctx context.Context, dsn string) (*Stage, error) {
	dir, err := os.MkdirTemp("", "idemd-demo-")
	if err != nil {
		return nil, err
	}
	s := &Stage{dir: dir}
	if err := s.open(ctx, dsn); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Stage) open(ctx context.Context, dsn string) (err error) {
	if s.db, err = openDatabase(ctx, dsn, s.dir); err != nil {
		return err
	}
	s.idemd, err = pebblestore.Open("idemd", pebblestore.Options{FS: vfs.NewMem(), MaintainEvery: -1})
	if err != nil {
		return err
	}
	_, err = s.idemd.CreateNamespace(ctx, store.Namespace{Name: namespace, Retention: retention})
	return err
}

// Close ends the stage, and leaves nothing behind.
func (s *Stage) Close() error {
	errs := []error{client.Drain(context.Background())}
	if s.idemd != nil {
		errs = append(errs, s.idemd.Close())
	}
	if s.db != nil {
		errs = append(errs, s.db.close())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// Play plays the payment of one order.
func (s *Stage) Play(ctx context.Context, broken, guards Set) (Result, error) {
	s.orders++
	p := &play{Stage: s, order: fmt.Sprintf("order-%d", s.orders), broken: broken, guards: guards, fired: Set{}, tapped: time.Now()}
	if broken[hopProvider] {
		p.tapped = p.tapped.Add(-redrive) // so that the message comes again now
	}
	if err := p.all(ctx); err != nil {
		return Result{}, err
	}
	return p.result, nil
}
