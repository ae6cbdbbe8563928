package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// page is a text answer: headings, fields under them, and lines as they are.
type page struct{ b strings.Builder }

// heading starts a section.
func (p *page) heading(format string, args ...any) { p.line(format, args...) }

func (p *page) line(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

// field adds a name and its value.
func (p *page) field(name string, value any) { p.line("  %s\t%v", name, value) }

// when adds a field with a time, unless the time is absent.
func (p *page) when(name string, t *timestamppb.Timestamp) {
	if t != nil {
		p.field(name, formatTime(t))
	}
}

// unsettledSince adds the field with since when a key is unsettled, if it is.
func (p *page) unsettledSince(m storepb.UnsettledMessage) {
	since := m.GetUnsettledSince()
	switch {
	case !m.GetUnsettled():
	case since == nil || since.AsTime().Equal(store.LongAgo):
		p.field("unsettled since", "not known: an earlier release did not keep it")
	default:
		p.field("unsettled since", formatTime(since))
	}
}

// until adds a field with a time that is still to come.
func (p *page) until(name string, t *timestamppb.Timestamp, remaining *durationpb.Duration) {
	p.field(name, fmt.Sprintf("%s (in %v)", formatTime(t), remaining.AsDuration().Round(time.Millisecond)))
}

// outcome adds the fields of a stored outcome.
func (p *page) outcome(o *idemdv1.Outcome) {
	p.field("outcome", statusText(o.GetStatus()))
	switch {
	case o.GetBodyOmitted():
		p.field("body", "not stored: it was too large, or an operator only said that it happened")
	case len(o.GetBody()) > 0:
		p.field("body", bodyText(o.GetBody()))
		p.field("type", shown(o.GetBodyType()))
	}
	for _, entry := range o.GetHeader() {
		p.field("header", shown(entry.GetName())+": "+opaque(entry.GetValue()).String())
	}
	for _, entry := range o.GetTrailer() {
		p.field("trailer", shown(entry.GetName())+": "+opaque(entry.GetValue()).String())
	}
}

// print writes the page with its fields aligned.
func (p *page) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = io.WriteString(tw, p.b.String()) // kept until Flush, which has the error
	if err := tw.Flush(); err != nil {
		return unwritten(err)
	}
	return nil
}

func formatTime(t *timestamppb.Timestamp) string {
	return t.AsTime().Format("2006-01-02T15:04:05.000000Z07:00")
}

// bodyText shows a body that is text, on one line, and describes any other.
func bodyText(body []byte) string {
	if printable(body) {
		return string(body)
	}
	if printable(bytes.Map(blankToSpace, body)) {
		return strconv.Quote(string(body))
	}
	return fmt.Sprintf("%d bytes, sha256 %x", len(body), sha256.Sum256(body))
}

func blankToSpace(r rune) rune {
	if r == '\n' || r == '\r' || r == '\t' {
		return ' '
	}
	return r
}
