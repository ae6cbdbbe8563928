package reconcile

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/idemd/idemd/store"
)

// Effect is one line of the source of truth: something that happened.
type Effect struct {
	Line   int       `json:"line"`
	ID     string    `json:"effect,omitempty"`
	At     time.Time `json:"time"`
	Scope  string    `json:"scope,omitempty"`
	Key    string    `json:"key"`
	Entity string    `json:"entity,omitempty"`
	Intent string    `json:"intent,omitempty"`
	// RecordKey is the id of the record's key from which Key was derived, if that is known.
	RecordKey string `json:"record_key,omitempty"`
}

// The columns of the file, in any order; others are left alone.
const (
	columnKey    = "key"    // the id of the key under which it happened, or what was derived of the key; empty if there was none
	columnTime   = "time"   // when it happened
	columnEffect = "effect" // its own id, by which a line that is there twice is known
	columnScope  = "scope"
	columnEntity = "entity"
	columnIntent = "intent" // what it was for, such as the order: there should be one effect of it, of each scope and entity
)

// Columns are all that are known.
var Columns = []string{columnKey, columnTime, columnEffect, columnScope, columnEntity, columnIntent}

// maxLine bounds a line of the file, and maxText the texts in it that are no part of a key.
const (
	maxLine = 64 << 10
	maxText = 1 << 10
)

// A LineError says why a line cannot be used.
type LineError struct {
	Line int
	Why  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Why) }
func (e *LineError) Unwrap() error { return e.Why }

// A reader reads effects from CSV, a line each.
type reader struct {
	r       *bufio.Reader
	line    int
	columns map[string]int
	unknown []string // columns that are left alone
}

// newReader reads the header.
func newReader(r io.Reader) (*reader, error) {
	e := &reader{r: bufio.NewReaderSize(r, maxLine), columns: map[string]int{}}
	head, err := e.fields()
	if err != nil {
		return nil, fmt.Errorf("the first line names the columns, such as effect,key,time: %w", err)
	}
	for i, name := range head {
		name = strings.TrimSpace(name)
		if lower := strings.ToLower(name); slices.Contains(Columns, lower) { // others may be in any encoding
			name = lower
		}
		if _, twice := e.columns[name]; twice {
			return nil, fmt.Errorf("the column %q is there twice", name)
		}
		e.columns[name] = i
		if !slices.Contains(Columns, name) {
			e.unknown = append(e.unknown, inUTF8(name))
		}
	}
	for _, name := range []string{columnKey, columnTime} {
		if !e.has(name) {
			return nil, fmt.Errorf("there is no column %q: the first line names the columns %s and %s, and may name %s, %s, %s, %s", name,
				columnKey, columnTime, columnEffect, columnScope, columnEntity, columnIntent)
		}
	}
	return e, nil
}

func (e *reader) has(column string) bool { _, ok := e.columns[column]; return ok }

// next returns the next effect; io.EOF after the last, and a [*LineError] for a line that cannot
// be used, after which it can go on.
func (e *reader) next() (Effect, error) {
	fields, err := e.fields()
	if err != nil {
		return Effect{}, err
	}
	if len(fields) != len(e.columns) {
		return Effect{}, &LineError{e.line, fmt.Errorf("it has %d fields, and the first line %d", len(fields), len(e.columns))}
	}
	get := func(column string) string {
		i, ok := e.columns[column]
		if !ok {
			return ""
		}
		return fields[i]
	}
	id, intent := get(columnEffect), get(columnIntent)
	if len(id) > maxText || len(intent) > maxText {
		return Effect{}, &LineError{e.line, fmt.Errorf("the columns %s and %s have at most %d bytes", columnEffect, columnIntent, maxText)}
	}
	effect := Effect{
		Line: e.line, ID: inUTF8(id), Scope: get(columnScope), Key: get(columnKey),
		Entity: get(columnEntity), Intent: inUTF8(intent),
	}
	effect.At, err = parseTime(get(columnTime))
	if err == nil {
		key := store.Key{Namespace: store.DefaultNamespace, Scope: effect.Scope, ID: cmp.Or(effect.Key, "none"), Entity: effect.Entity}
		err = key.Validate()
	}
	if err != nil {
		return Effect{}, &LineError{e.line, err}
	}
	return effect, nil
}

// inUTF8 makes of texts in any encoding some that JSON keeps, of which two are the same only if their
// bytes were: what is not UTF-8 is quoted, and so is what looks as if it were.
func inUTF8(text string) string {
	if utf8.ValidString(text) && !strings.HasPrefix(text, `"`) {
		return text
	}
	return strconv.Quote(text)
}

// fields returns those of the next line that is not empty. No field has a line break in it: so
// a quote that is not closed spoils its own line only.
func (e *reader) fields() ([]string, error) {
	for {
		line, err := e.text()
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		fields, err := csv.NewReader(bytes.NewReader(line)).Read()
		var wrong *csv.ParseError
		if errors.As(err, &wrong) {
			err = &LineError{e.line, fmt.Errorf("at byte %d: %w", wrong.Column, wrong.Err)}
		}
		return fields, err
	}
}

func (e *reader) text() ([]byte, error) {
	e.line++
	line, err := e.r.ReadSlice('\n')
	if e.line == 1 {
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = e.r.ReadSlice('\n')
		}
		return nil, &LineError{e.line, fmt.Errorf("it has more than %d bytes", maxLine)}
	case errors.Is(err, io.EOF) && len(line) > 0:
		return line, nil
	}
	return line, err
}

// timeLayouts are RFC 3339, and what databases write. A time without a zone is none.
var timeLayouts = []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999Z07"}

func parseTime(text string) (time.Time, error) {
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, text); err == nil && t.Unix() >= 0 && t.UTC().Year() <= 9999 {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time since 1970 with its zone, such as 2026-01-31T15:04:05Z or 2026-01-31 15:04:05+00", text)
}

// parts are the parts of a key, beside its id, that the file has.
func (e *reader) parts() (scope, entity bool) {
	return e.has(columnScope), e.has(columnEntity)
}
