package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/idemd/idemd/store/sqlstore"
)

// migrateCmd prepares databases.
type migrateCmd struct {
	Status migrateStatusCmd `cmd:"" help:"Show which version the database's schema has; exit with 4 if this release needs migrate up."`
	Up     migrateUpCmd     `cmd:"" help:"Make what this release needs in the database; what is there already is left alone."`
	Print  migratePrintCmd  `cmd:"" help:"Print the statements that up would run, and those that make a bucket."`
}

type migrateStatusCmd struct {
	databaseFlags
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json (${default})."`
}

// Run is called by kong.
func (c *migrateStatusCmd) Run(s *session) error {
	return c.migrate(s.ctx, func(m *sqlstore.Migrator) error {
		status, err := m.Status(s.ctx)
		if err != nil {
			return err
		}
		if err := c.print(s, status); err != nil {
			return err
		}
		if status.Version < status.Release || len(status.Incomplete) > 0 {
			return exitError{errShown, exitPending}
		}
		return nil
	})
}

func (c *migrateStatusCmd) print(s *session, status sqlstore.SchemaStatus) error {
	if c.Output == "json" {
		err := json.NewEncoder(s.stdout).Encode(map[string]any{
			"schema": status.Version, "release": status.Release, "pending": append([]string{}, status.Pending...),
			"incomplete": append([]string{}, status.Incomplete...),
		})
		if err != nil {
			return unwritten(err)
		}
		return nil
	}
	p := &page{}
	p.line("%s", schemaText(status))
	p.field("database", c.place())
	p.field("schema", status.Version)
	p.field("this release", status.Release)
	for _, name := range status.Pending {
		p.field("pending", name)
	}
	for _, table := range status.Incomplete {
		p.field("incomplete", table)
	}
	return p.print(s.stdout)
}

// schemaText is the status in a few words.
func schemaText(status sqlstore.SchemaStatus) string {
	switch {
	case status.Version < status.Release:
		return "older than this release: run idemd migrate up before this release serves"
	case status.Version > status.Release:
		return "newer than this release"
	case len(status.Incomplete) > 0:
		return "up to date, but buckets lack columns of this release: run idemd migrate up before this release serves"
	default:
		return "up to date"
	}
}

type migrateUpCmd struct {
	databaseFlags
}

// Run is called by kong.
func (c *migrateUpCmd) Run(s *session) error {
	return c.migrate(s.ctx, func(m *sqlstore.Migrator) error {
		made, err := m.Up(s.ctx)
		if err != nil {
			return err
		}
		p := &page{}
		if len(made) == 0 {
			p.line("up to date: nothing was to be done")
		} else {
			p.line("migrated: %s", strings.Join(made, ", "))
		}
		p.field("database", c.place())
		p.field("region", c.Region)
		return p.print(s.stdout)
	})
}

// migrate connects, and lets do use the migrator.
func (f *databaseFlags) migrate(ctx context.Context, do func(*sqlstore.Migrator) error) error {
	if err := f.check(); err != nil {
		return err
	}
	m, err := opened(ctx, f, func(ctx context.Context) (*sqlstore.Migrator, error) {
		return sqlstore.NewMigrator(ctx, *f.Store, sqlstore.Options{Region: f.Region})
	})
	if err != nil {
		return err
	}
	defer m.Close()
	err = do(m)
	var coded exitError
	if err != nil && !errors.As(err, &coded) {
		return f.explain(err)
	}
	return err
}

type migratePrintCmd struct {
	Dialect string   `enum:"postgres,cockroach" default:"postgres" help:"For postgres or cockroach (${default})."`
	Regions []string `default:"local" placeholder:"A,B,…" help:"Regions whose bucket tables are shown (${default})."`
}

// Run is called by kong. It needs no database.
func (c *migratePrintCmd) Run(s *session) error {
	for _, region := range c.Regions {
		if err := sqlstore.CheckRegion(region); err != nil {
			return usageError("--regions: %w", err)
		}
	}
	if err := sqlstore.PrintMigrations(s.stdout, c.Dialect, c.Regions); err != nil {
		return unwritten(err)
	}
	return nil
}
