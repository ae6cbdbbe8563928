package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemd/idemd/cmd/idemd/internal/reconcile"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

// The exit codes of reconcile, beside 0 and [exitNoAnswer]. They are documented in README.md, beside this file.
const (
	exitFindings   = 1 // something is not as it should be
	exitIncomplete = 2 // not all could be compared
)

// reconcileMemory is how many bytes of rows are put in order in memory.
const reconcileMemory = 64 << 20

// reconcileCmd compares what happened with what is recorded.
type reconcileCmd struct {
	remoteFlags
	Effects      string  `required:"" env:"-" placeholder:"FILE|-" help:"What happened, by a source of truth, in CSV; or - for standard input. Its first line names the columns: key, time; effect, scope, entity, intent if there are any."`
	Namespace    string  `default:"default" help:"Namespace (${default})."`
	Scope        string  `help:"Only keys of this scope; that of effects whose scope the file does not say."`
	Entity       string  `help:"Only keys of this entity; that of effects whose entity the file does not say."`
	Since        instant `placeholder:"RFC3339" help:"Judge what happened from then on (the time of the oldest effect)."`
	Until        instant `placeholder:"RFC3339" help:"Judge what happened until then (the time of the newest effect)."`
	Step         string  `placeholder:"STEP" help:"The column key has what DownstreamKey of the client derived for this step, such as charge: what the provider was given. One step a file."`
	OnePerEntity bool    `help:"An entity, such as an order, should have one effect in each scope."`
	MetricsFile  string  `placeholder:"FILE" help:"Write the counts there too, for node_exporter's textfile collector."`
	DataDir      *string `env:"-" placeholder:"DIR" help:"Compare with an embedded store that no server has open."`
}

// Run is called by kong.
func (c *reconcileCmd) Run(s *session) error {
	err := c.run(s)
	var coded exitError
	var refused *store.Error
	switch {
	case err == nil, errors.As(err, &coded):
		return err
	case unanswered(err):
		return exitError{withReason(err), exitNoAnswer}
	case errors.As(err, &refused):
		return exitError{withReason(err), exitIncomplete}
	}
	return exitError{err, exitIncomplete}
}

// errFindings is that of findings, which were shown.
var errFindings = exitError{errShown, exitFindings}

func (c *reconcileCmd) run(s *session) error {
	file, err := c.open(s)
	if err != nil {
		return err
	}
	defer file.Close()
	if c.DataDir != nil {
		return withStore(*c.DataDir, func(db *pebblestore.Store) error { return c.compare(s, db, file) })
	}
	idemd, err := c.dialClient()
	if err != nil {
		return err
	}
	defer idemd.Close()
	return c.compare(s, patient{idemd, time.Duration(c.Timeout)}, file)
}

func (c *reconcileCmd) open(s *session) (io.ReadCloser, error) {
	if c.Effects == "-" {
		return io.NopCloser(s.stdin), nil
	}
	f, err := os.Open(c.Effects)
	if err != nil {
		return nil, usageError("--effects: %v", err)
	}
	return f, nil
}

func (c *reconcileCmd) compare(s *session, source reconcile.Source, file io.Reader) error {
	counts, err := reconcile.Run(s.ctx, source, file, reconcile.Options{
		Namespace: c.Namespace, Scope: c.Scope, Entity: c.Entity, Since: c.Since.Time, Until: c.Until.Time,
		OnePerEntity: c.OnePerEntity, Step: c.Step, Memory: reconcileMemory,
	}, func(wrong *reconcile.LineError) error {
		_, err := fmt.Fprintln(s.stderr, oneLine(wrong.Error()))
		return err
	}, func(f reconcile.Finding) error { return c.finding(s, f) })
	if unknown := counts.UnknownColumns; len(unknown) > 0 {
		_, shown := fmt.Fprintf(s.stderr, "idemd: unknown columns are left alone: %s; the known ones are %s\n", keyTexts(unknown), strings.Join(reconcile.Columns, ", "))
		err = errors.Join(err, shown)
	}
	switch {
	case errors.Is(err, reconcile.ErrNoWindow):
		return usageError("--effects: %w; give --since and --until", err)
	case errors.Is(err, reconcile.ErrBackwards):
		return usageError("--since, --until: %w", err)
	case err != nil:
		return fmt.Errorf("not compared: %w", err)
	}
	if err := c.summary(s, &counts); err != nil {
		return err
	}
	if c.MetricsFile != "" {
		if err := prometheus.WriteToTextfile(c.MetricsFile, reconcileMetrics(c.Namespace, &counts, time.Now())); err != nil {
			return usageError("--metrics-file: %w", err)
		}
	}
	if err := c.hint(s, &counts); err != nil {
		return err
	}
	switch {
	case counts.BadLines > 0:
		return exitError{fmt.Errorf("%d lines could not be used: what they say is missing, and keys may seem to have no effect", counts.BadLines), exitIncomplete}
	case counts.Found() > 0:
		return errFindings
	case counts.Judged() == 0:
		return exitError{errors.New("nothing was judged: no effect and no record of that scope and entity lies in that time, or they are too old; that is no sign that all is well"), exitIncomplete}
	}
	return nil
}

// hint says what is likely if the keys of the file are other keys than those of the records.
func (c *reconcileCmd) hint(s *session, n *reconcile.Counts) error {
	if n.EffectsRecorded > 0 || n.EffectsJudged == 0 {
		return nil
	}
	text := "no effect is under a key of a record: if the column key has what DownstreamKey made of the keys, say of which --step"
	if c.Step != "" {
		text = "no effect is under what was derived for the step " + keyText(c.Step) + " of a record's key: --namespace is that of whoever gave the provider the key, and --step as it is in the program"
	}
	_, err := fmt.Fprintln(s.stderr, "idemd: "+text)
	return err
}

// finding prints a finding.
func (c *reconcileCmd) finding(s *session, f reconcile.Finding) error {
	if c.Output == "json" {
		return printLine(s, f)
	}
	p := &page{}
	p.heading("%s", strings.ReplaceAll(string(f.Kind), "_", " "))
	if r := f.Record; r != nil {
		text := fmt.Sprintf("%s, %s, fence %d, granted %s", keyWords(r.Scope, r.Key, r.Entity), r.State, r.Fence, r.GrantedAt.Format(time.RFC3339Nano))
		if !r.EndedAt.IsZero() {
			text += ", ended " + r.EndedAt.Format(time.RFC3339Nano)
		}
		p.field("record", text)
	}
	for _, e := range f.Effects {
		text := fmt.Sprintf("effect %s at %s, %s", keyText(e.ID), e.At.Format(time.RFC3339Nano), keyWords(e.Scope, e.Key, e.Entity))
		if e.RecordKey != "" {
			text += ", derived from " + keyText(e.RecordKey)
		}
		if e.Intent != "" {
			text += ", intent " + keyText(e.Intent)
		}
		p.field(fmt.Sprintf("line %d", e.Line), text)
	}
	if f.More > 0 {
		p.field("and", fmt.Sprintf("%d more", f.More))
	}
	if f.Kind == reconcile.EffectOfFailedKey || f.Kind == reconcile.EffectOfUnsettledKey {
		c.nextText(s, p, &f)
	}
	return p.print(s.stdout)
}

// nextText says what to run next about a key whose record denies an effect.
func (c *reconcileCmd) nextText(s *session, p *page, f *reconcile.Finding) {
	key := keyFlags{Namespace: c.Namespace, Scope: f.Record.Scope, ID: f.Record.Key, Entity: f.Record.Entity}
	record := func(name string, args ...string) string {
		return s.command(slices.Concat([]string{"record", name}, c.reach(), key.args(), args)...)
	}
	if c.DataDir != nil {
		p.field("first", "start the server on "+keyText(*c.DataDir)+": what follows asks it (--addr says where it listens)")
	}
	p.field("look", record("inspect"))
	if f.Kind == reconcile.EffectOfUnsettledKey {
		p.field("settle", record("resolve", "--fence", fmt.Sprint(f.Record.Fence), "--outcome", "what happened", "--reason", "WHY"))
	}
}

func keyTexts(texts []string) string {
	shown := make([]string, len(texts))
	for i, text := range texts {
		shown[i] = keyText(text)
	}
	return strings.Join(shown, ", ")
}

// keyWords names a key by what is known of it.
func keyWords(scope, id, entity string) string {
	text := "key " + keyText(id)
	if id == "" {
		text = "no key"
	}
	if scope != "" {
		text += ", scope " + keyText(scope)
	}
	if entity != "" {
		text += ", entity " + keyText(entity)
	}
	return text
}

func (c *reconcileCmd) summary(s *session, n *reconcile.Counts) error {
	if c.Output == "json" {
		return printLine(s, map[string]*reconcile.Counts{"summary": n})
	}
	p := &page{}
	p.heading("compared: %d findings", n.Found())
	for _, kind := range reconcile.Kinds {
		p.field(strings.ReplaceAll(string(kind), "_", " "), orNotCompared(n, string(kind), n.Findings[kind]))
	}
	for _, part := range []string{reconcile.KeyScope, reconcile.KeyEntity} {
		if n.NotCompared[part] != "" {
			p.field(part, orNotCompared(n, part, 0))
		}
	}
	p.field("judged", fmt.Sprintf("%s to %s", n.Since.Format(time.RFC3339Nano), n.Until.Format(time.RFC3339Nano)))
	repeated := "repeated " + orNotCompared(n, reconcile.EffectsRepeated, 0)
	if n.EffectsRepeated != nil {
		repeated = fmt.Sprintf("%d repeated", *n.EffectsRepeated)
	}
	p.field("effects", fmt.Sprintf("%d: %d judged, %d outside, %d too old, %s", n.Effects, n.EffectsJudged, n.EffectsOutside, n.EffectsTooOld, repeated))
	p.field("too old without record", "before "+n.Before.Format(time.RFC3339)+", as records may have expired")
	p.field("records", fmt.Sprintf("%d: %d judged (%d failed), %d outside, %d unsettled, %d released", n.Records,
		n.RecordsJudged, n.RecordsFailed, n.RecordsOutside, n.RecordsUnsettled, n.RecordsReleased))
	if n.BadLines > 0 {
		p.field("bad lines", n.BadLines)
	}
	return p.print(s.stdout)
}

// orNotCompared is a count, or why there is none.
func orNotCompared(n *reconcile.Counts, what string, count int) string {
	if why := n.NotCompared[what]; why != "" {
		return "not compared: " + why
	}
	return strconv.Itoa(count)
}

func printLine(s *session, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s.stdout, "%s\n", text); err != nil {
		return unwritten(err)
	}
	return nil
}

// reconcileMetrics has the counts as gauges: each run replaces them. What is not compared has none.
func reconcileMetrics(namespace string, n *reconcile.Counts, now time.Time) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	gauge := func(name, help, label string, values map[string]int) {
		vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"namespace", label})
		registry.MustRegister(vec)
		for value, count := range values {
			vec.WithLabelValues(namespace, value).Set(float64(count))
		}
	}
	findings := map[string]int{}
	for _, kind := range reconcile.Kinds {
		if n.NotCompared[string(kind)] == "" {
			findings[string(kind)] = n.Findings[kind]
		}
	}
	gauge("idemd_reconcile_findings", "What was not as it should be.", "finding", findings)
	effects := map[string]int{"judged": n.EffectsJudged, "outside": n.EffectsOutside, "too_old": n.EffectsTooOld, "bad_line": n.BadLines}
	if n.EffectsRepeated != nil {
		effects["repeated"] = *n.EffectsRepeated
	}
	gauge("idemd_reconcile_effects", "Effects of the source of truth.", "verdict", effects)
	gauge("idemd_reconcile_records", "Records of the namespace.", "verdict", map[string]int{
		"judged": n.RecordsJudged, "outside": n.RecordsOutside, "unsettled": n.RecordsUnsettled, "released": n.RecordsReleased,
	})
	last := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "idemd_reconcile_last_run_timestamp_seconds", Help: "When they were last compared."}, []string{"namespace"})
	registry.MustRegister(last)
	last.WithLabelValues(namespace).Set(float64(now.Unix()))
	return registry
}

// patient gives each call as long as the user said.
type patient struct {
	reconcile.Source
	timeout time.Duration
}

func (p patient) ListRecords(ctx context.Context, req store.ListRequest) (store.RecordPage, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.Source.ListRecords(ctx, req)
}

func (p patient) InspectRecord(ctx context.Context, key store.Key) (store.Inspection, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.Source.InspectRecord(ctx, key)
}

func (p patient) GetNamespace(ctx context.Context, name string) (store.Namespace, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.Source.GetNamespace(ctx, name)
}
