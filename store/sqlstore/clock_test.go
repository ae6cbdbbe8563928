package sqlstore

import (
	"bytes"
	"log/slog"
	"regexp"
	"testing"
	"time"
)

// The wall clock is compared with each reading of the database's, whatever the reading took.
func TestClocksFarApart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.migrate()
	wall, took := timeOf(began), time.Duration(0)
	r.opts.Wall = func() time.Time { wall = wall.Add(took); return wall }
	logged := &bytes.Buffer{}
	r.opts.Logger = slog.New(slog.NewTextHandler(logged, nil))
	s := r.replica()
	for _, step := range []struct {
		ahead, took time.Duration
		suspect     bool
		says        string // a new line of the log
	}{
		{ahead: maxApart},
		{ahead: maxApart + time.Second, suspect: true, says: "level=ERROR"},
		{ahead: maxApart + time.Minute, suspect: true},
		{ahead: -maxApart, says: "level=INFO"},
		{ahead: -maxApart - time.Second, suspect: true, says: "level=ERROR"},
		{ahead: -time.Second, took: time.Hour, says: "level=INFO"}, // asked a second before, answered an hour later
		{ahead: -2 * time.Hour, took: time.Hour, suspect: true, says: "level=ERROR"},
	} {
		logged.Reset()
		wall, took = timeOf(began).Add(step.ahead), 0
		if step.took > 0 {
			wall, took = wall.Add(-step.took), step.took
		}
		r.must(s.catalog.refresh(t.Context()))
		wantEqual(t, step.ahead.String(), s.clockSuspect(), step.suspect)
		wantEqual(t, "the log when ahead by "+step.ahead.String(), regexp.MustCompile("level=[A-Z]+").FindString(logged.String()), step.says)
	}
}
