package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// An entry is one charge in the ledger. Fence is that of the attempt that made it; zero if
// it was not guarded.
type entry struct {
	ID        string `json:"id"`
	Reference string `json:"reference"`
	Cents     int64  `json:"cents"`
	Card      string `json:"card"`
	Fence     int64  `json:"fence,omitempty"`
}

// A provider takes the money.
type provider interface {
	// charge makes one charge more, each time it is called.
	charge(ctx context.Context, e entry) (entry, error)
	// find returns the charges with a reference of ours, oldest first.
	find(ctx context.Context, reference string) ([]entry, error)
}

var (
	errDeclined  = errors.New("the card was declined")
	errReplyLost = errors.New("the connection to the provider broke")
)

// A ledger is a provider in a file, which outlives whoever charges: what was charged stays
// charged, also after kill -9. Several processes may append to it. It does not deduplicate.
//
// (A provider that does would be given [client.Attempt.DownstreamKey], the same for every
// attempt of an intent. That is the better guard, where there is one.)
type ledger struct{ file *os.File }

func openLedger(path string) (*ledger, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	return &ledger{file}, nil
}

func (l *ledger) close() error { return l.file.Close() }

func (l *ledger) charge(ctx context.Context, e entry) (entry, error) {
	if e.Card == cardDeclined {
		return entry{}, errDeclined
	}
	if err := ctx.Err(); err != nil {
		return entry{}, err
	}
	e.ID = "ch_" + rand.Text()[:6]
	if err := l.append(e); err != nil {
		return entry{}, err
	}
	if e.Card == cardReplyLost {
		made, err := l.find(ctx, e.Reference)
		if err != nil || len(made) == 1 {
			return entry{}, errReplyLost
		}
	}
	return e, nil
}

// append returns when the entry is on disk. It is written by one call, so that entries of
// several processes do not mix.
func (l *ledger) append(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		return err
	}
	return l.file.Sync()
}

func (l *ledger) find(ctx context.Context, reference string) ([]entry, error) {
	all, err := l.all(ctx)
	var found []entry
	for _, e := range all {
		if e.Reference == reference {
			found = append(found, e)
		}
	}
	return found, err
}

func (l *ledger) all(ctx context.Context) ([]entry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(l.file.Name())
	if err != nil {
		return nil, err
	}
	var all []entry
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // another process is just writing it
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%s holds a line that is no entry: %w", l.file.Name(), err)
		}
		all = append(all, e)
	}
	return all, nil
}
