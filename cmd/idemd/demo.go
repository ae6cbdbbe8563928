package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/idemd/idemd/cmd/idemd/internal/demo"
)

// demoCmd plays a payment over the hops of its way.
type demoCmd struct {
	Break    []string `placeholder:"HOP" help:"Which hops break, each once: ${breaks}; all or none (all)."`
	Guard    []string `placeholder:"GUARD" help:"Which guards are on: ${guards}; all or none (all)."`
	Matrix   bool     `help:"Play every break with every guard, with pairs of guards, and with all but one; print payment rows, charges and receipts of each."`
	Database *string  `placeholder:"URL" help:"The shop's database, PostgreSQL: postgres://USER@HOST:PORT/DATABASE, in which only temporary tables are made. A password is better in IDEMD_DATABASE, PGPASSWORD or ~/.pgpass. (An SQLite file, which is removed.)"`
}

// Help is called by kong.
func (c *demoCmd) Help() string {
	var text strings.Builder
	text.WriteString("One order, which is to be one payment row, one charge and one receipt. It goes from the app over a balancer to the service, which commits the payment with a message in its outbox; a relay publishes that to a queue; a worker has the provider charge; and the provider sends an event, for which a receipt goes out by mail.\n\nThe hops, and how they break:\n\n")
	list(&text, demo.Breaks)
	text.WriteString("\nThe guards:\n\n")
	list(&text, demo.Guards)
	return text.String()
}

func list(text *strings.Builder, names []demo.Name) {
	for _, n := range names {
		fmt.Fprintf(text, "    %-14s%s\n", n.Name, n.What)
	}
}

// demoNames are those that the help of the flags lists.
func demoNames(names []demo.Name) string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = n.Name
	}
	return strings.Join(list, ", ")
}

// Run is called by kong.
func (c *demoCmd) Run(s *session) (err error) {
	broken, guards, err := c.chosen()
	if err != nil {
		return err
	}
	dsn := ""
	if c.Database != nil {
		if dsn = strings.TrimSpace(*c.Database); dsn == "" {
			return usageError("--database is empty: name it, postgres://USER@HOST:PORT/DATABASE, or leave it out")
		}
	}
	p, err := c.play(s.ctx, dsn, broken, guards)
	switch {
	case err != nil && s.ctx.Err() != nil:
		return errors.New("interrupted: nothing of the demo is left")
	case err != nil:
		return err
	}
	return p.print(s.stdout)
}

// play plays, and returns what is to be printed of it. Nothing of the play is left by then: who prints may be ended by
// that, as by a pipe to head.
func (c *demoCmd) play(ctx context.Context, dsn string, broken, guards demo.Set) (p *page, err error) {
	stage, err := demo.Open(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stage.Close()) }()
	if c.Matrix {
		table, err := demo.Matrix(ctx, stage)
		return matrixPage(table), err
	}
	result, err := stage.Play(ctx, broken, guards)
	return resultPage(&result), err
}

// chosen are the breaks and guards of the command line.
func (c *demoCmd) chosen() (broken, guards demo.Set, err error) {
	if c.Matrix && (c.Break != nil || c.Guard != nil) {
		return nil, nil, usageError("--matrix plays all of --break and --guard: leave them out")
	}
	if broken, err = demo.Choose(demo.Breaks, orAll(c.Break)); err != nil {
		return nil, nil, usageError("--break: %w", err)
	}
	if guards, err = demo.Choose(demo.Guards, orAll(c.Guard)); err != nil {
		return nil, nil, usageError("--guard: %w", err)
	}
	return broken, guards, nil
}

func orAll(names []string) []string {
	if names == nil {
		return []string{"all"}
	}
	return names
}

func matrixPage(table [][]string) *page {
	p := &page{}
	p.heading("payment rows, charges and receipts of one order, by the hop that is broken and the guards that are on")
	for _, cells := range table {
		p.line("%s", strings.Join(cells, "\t"))
	}
	return p
}

func resultPage(r *demo.Result) *page {
	p := &page{}
	p.line("payment rows\t%d", r.Payments)
	p.line("charges\t%d", r.Charges)
	p.line("receipts\t%d", r.Receipts)
	demoLines(p, "repeated", r.Repeated)
	demoLines(p, "guarded", r.Guarded)
	return p
}

func demoLines(p *page, heading string, lines []demo.Line) {
	if len(lines) == 0 {
		p.heading("%s: nothing", heading)
		return
	}
	p.heading("%s:", heading)
	for _, line := range lines {
		p.field(line.Who, line.What)
	}
}
