package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

// world is an embedded store and a ledger. Every step takes a second.
type world struct {
	t     *testing.T
	clock *storetest.Clock
	store *pebblestore.Store
	file  strings.Builder
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, clock: storetest.NewClock()}
	var err error
	w.store, err = pebblestore.Open("data", pebblestore.Options{FS: vfs.NewMem(), Source: w.clock, MaintainEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.store.Close() })
	w.file.WriteString("\ufeffEffect, note,time,key,scope,entity,intent\n")
	return w
}

func (w *world) now() time.Time { return w.clock.Wall().UTC() }

// claim claims a key of scope charge and entity acme, and lets a second pass.
func (w *world) claim(id string) (store.Key, int64) {
	w.t.Helper()
	key := store.Key{Namespace: store.DefaultNamespace, Scope: "charge", ID: id, Entity: "acme"}
	answer, err := w.store.Claim(context.Background(), store.ClaimRequest{Key: key, AttemptID: "a", Lease: time.Minute})
	if err != nil || answer.Granted == nil {
		w.t.Fatal(answer, err)
	}
	w.clock.Advance(time.Second)
	return key, answer.Granted.Fence
}

// done claims a key, has effects happen, and completes it.
func (w *world) done(id, intent string, effects ...string) {
	w.t.Helper()
	w.doneWith(id, intent, nil, effects...)
}

func (w *world) doneWith(id, intent string, status []byte, effects ...string) {
	w.t.Helper()
	key, fence := w.claim(id)
	for _, effect := range effects {
		w.effect(effect, id, intent)
	}
	_, err := w.store.Complete(context.Background(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: fence, Outcome: &store.Outcome{Status: status}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.clock.Advance(time.Second)
}

// effect writes a line of the ledger.
func (w *world) effect(effect, key, intent string) {
	fmt.Fprintf(&w.file, "%s,\"a, \"\"note\"\"\",%s,%s,charge,acme,%s\n", effect, w.now().Format("2006-01-02 15:04:05.999999-07"), key, intent)
	w.clock.Advance(time.Second)
}

func (w *world) reconcile(o Options) (Counts, []string, []string) {
	w.t.Helper()
	o.Namespace, o.Dir = store.DefaultNamespace, w.t.TempDir()
	var found, bad []string
	counts, err := Run(w.t.Context(), w.store, strings.NewReader(w.file.String()), o,
		func(e *LineError) error { bad = append(bad, e.Error()); return nil },
		func(f Finding) error { found = append(found, words(f)); return nil })
	if err != nil {
		w.t.Fatal(err)
	}
	slices.Sort(found)
	return counts, found, bad
}

// words is a finding in short.
func words(f Finding) string {
	text := string(f.Kind)
	if f.Record != nil {
		text += fmt.Sprintf(" [%s %s/%s/%s %v]", f.Record.State, f.Record.Scope, f.Record.Key, f.Record.Entity, f.Record.Fence > 0 && !f.Record.GrantedAt.IsZero())
	}
	for _, e := range f.Effects {
		text += fmt.Sprintf(" %s@%s(%d)", e.ID, e.Key, e.Line)
	}
	if f.More > 0 {
		text += fmt.Sprintf(" +%d", f.More)
	}
	return text
}

// TestFindings goes through everything that is found, and everything that is none.
func TestFindings(t *testing.T) {
	w := newWorld(t)
	w.effect("e-old", "forgotten", "") // 2, two days ago
	w.clock.Advance(48 * time.Hour)
	w.done("fine", "order-1", "e-1") // 3
	w.done("nothing-came-of-it", "order-2")
	w.doneWith("declined", "", failure(t))
	w.done("twice", "order-3", "e-2", "e-3")    // 4, 5
	w.done("first", "order-4", "e-4")           // 6
	w.done("again", "order-4", "e-5")           // 7
	w.effect("e-6", "never-claimed", "order-5") // 8
	w.effect("e-7", "", "order-6")              // 9
	key, fence := w.claim("released")
	w.effect("e-8", "released", "") // 10
	if _, err := w.store.Release(t.Context(), store.ReleaseRequest{Key: key, AttemptID: "a", Fence: fence, Effect: store.EffectNone}); err != nil {
		t.Fatal(err)
	}
	w.claim("lapsed")
	w.effect("e-9", "lapsed", "") // 11
	w.clock.Advance(time.Hour)
	w.file.WriteString("no,such,line\n")                                     // 12
	w.file.WriteString("e-bad,,yesterday,k,charge,acme,\n")                  // 13
	w.file.WriteString("e-bad,\"open,2026-01-31T00:00:00Z,k,charge,acme,\n") // 14
	w.file.WriteString("\n" + strings.Repeat("x", 2*maxLine) + "\n")         // 15, 16
	w.file.WriteString("e-bad,," + w.now().Format(time.RFC3339) + ",k\x01,charge,acme,\n")
	w.effect("e-1", "fine", "order-1") // 18: the same as before
	w.claim("running")
	w.done("after-the-file", "order-7")
	other := w.file.String()

	want := []string{
		"effect_of_released_key [released charge/released/acme true] e-8@released(10)",
		"effect_of_unsettled_key [lapsed charge/lapsed/acme true] e-9@lapsed(11)",
		"effect_without_key e-6@never-claimed(8)",
		"effect_without_key e-7@(9)",
		"key_without_effect [completed charge/nothing-came-of-it/acme true]",
		"two_effects_for_intent e-4@first(6) e-5@again(7)",
		"two_effects_for_key [completed charge/twice/acme true] e-2@twice(4) e-3@twice(5)",
	}
	for _, memory := range []int{1 << 20, 1} { // nothing on disk, and each row in a file of its own
		counts, found, bad := w.reconcile(Options{Memory: memory})
		if !slices.Equal(found, want) {
			t.Errorf("memory %d:\n%s\nwant:\n%s", memory, strings.Join(found, "\n"), strings.Join(want, "\n"))
		}
		if len(bad) != 5 || !strings.HasPrefix(bad[0], "line 12: it has 3 fields") || !strings.HasPrefix(bad[1], `line 13: "yesterday" is not a time`) ||
			!strings.HasPrefix(bad[2], "line 14: at byte 49: ") || !strings.HasPrefix(bad[3], "line 16: it has more than") || !strings.HasPrefix(bad[4], "line 17: ") {
			t.Errorf("bad lines: %q", bad)
		}
		if !counts.Before.After(storetest.Start.Add(24*time.Hour)) || counts.Since != storetest.Start || counts.Found() != 7 {
			t.Errorf("counts: %+v", counts)
		}
		counts.Since, counts.Until, counts.Before, counts.Findings = time.Time{}, time.Time{}, time.Time{}, nil
		if !reflect.DeepEqual(counts, wantCounts) {
			t.Errorf("counts:\n%+v\nwant:\n%+v", counts, wantCounts)
		}
	}

	// Only what lies in the time that is asked for.
	since := storetest.Start.Add(50 * time.Hour)
	if _, found, _ := w.reconcile(Options{Memory: 1 << 20, Since: since, Until: since.Add(time.Hour)}); len(found) > 0 {
		t.Errorf("after all of it: %q", found)
	}
	// An entity as the intent: all of these are of one.
	_, found, _ := w.reconcile(Options{Memory: 1 << 20, OnePerEntity: true})
	if len(found) != len(want)+1 {
		t.Errorf("one per entity: %q", found)
	}
	// A file without scopes and entities: the id alone is compared.
	w.file.Reset()
	for i, line := range strings.Split(other, "\n") {
		if fields := strings.Split(line, ","); len(fields) >= 7 && i > 0 && i < 11 {
			fmt.Fprintf(&w.file, "%s,%s,%s\n", fields[len(fields)-4], fields[0], fields[len(fields)-5])
		} else if i == 0 {
			w.file.WriteString("key,effect,time\n")
		}
	}
	_, found, bad := w.reconcile(Options{Memory: 1 << 20})
	want = slices.DeleteFunc(want, func(f string) bool { return strings.HasPrefix(f, string(TwoEffectsForIntent)) })
	if !slices.Equal(found, want) || len(bad) > 0 {
		t.Errorf("the id alone:\n%s\n%q", strings.Join(found, "\n"), bad)
	}
}

var wantCounts = Counts{
	BadLines: 5,
	Effects:  11, EffectsJudged: 9, EffectsTooOld: 1, EffectsRepeated: new(1), EffectsRecorded: 7,
	Records: 10, RecordsJudged: 6, RecordsFailed: 1, RecordsUnsettled: 2, RecordsReleased: 1, RecordsOutside: 1,
	UnknownColumns: []string{"note"}, NotCompared: map[string]string{},
}

func TestFilesThatCannotBeRead(t *testing.T) {
	w := newWorld(t)
	for file, want := range map[string]string{
		"":                             "the first line names the columns",
		"key,when\n":                   `no column "time"`,
		"key,time,key\n":               "twice",
		"key,time\n":                   ErrNoWindow.Error(),
		"key,time\n\"a\n":              ErrNoWindow.Error(), // its line was reported
		strings.Repeat("x", 2*maxLine): "more than",
		"a\"b,key,time\n":              "at byte",
	} {
		_, err := Run(t.Context(), w.store, strings.NewReader(file), Options{Namespace: "default", Dir: t.TempDir(), Memory: 1 << 20},
			func(*LineError) error { return nil }, func(Finding) error { return nil })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", file, err, want)
		}
	}
	_, err := Run(t.Context(), w.store, strings.NewReader("key,time\n"), Options{Namespace: "none-such", Since: w.now(), Until: w.now(), Dir: t.TempDir()}, nil, nil)
	if err == nil || !strings.Contains(err.Error(), "none-such") {
		t.Errorf("a namespace that is not there: %v", err)
	}
}

// TestNoTime checks that a time that ends before it begins is refused, and not found to be well.
func TestNoTime(t *testing.T) {
	w := newWorld(t)
	w.done("twice", "", "e-1", "e-2")
	for name, o := range map[string]Options{
		"both":  {Since: w.now(), Until: w.now().Add(-1)},
		"since": {Since: w.now().Add(time.Hour)},
		"until": {Until: w.now().Add(-time.Hour)},
	} {
		o.Namespace, o.Dir, o.Memory = "default", t.TempDir(), 1<<20
		_, err := Run(t.Context(), w.store, strings.NewReader(w.file.String()), o, nil, func(Finding) error { return nil })
		if !errors.Is(err, ErrBackwards) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBlankCells checks that an empty cell is that of the options, and that nothing else is.
func TestBlankCells(t *testing.T) {
	w := newWorld(t)
	w.done("twice", "", "e-1", "e-2")
	w.done("other", "", "e-3")
	ledger := w.file.String()
	for blank, want := range map[string]int{",charge,acme,": 1, ",,acme,": 1, ",charge,,": 1, ",,,": 1, ",refund,acme,": 0} {
		w.file.Reset()
		w.file.WriteString(strings.ReplaceAll(ledger, ",charge,acme,", blank))
		counts, found, _ := w.reconcile(Options{Memory: 1 << 20, Scope: "charge", Entity: "acme", Since: storetest.Start, Until: w.now()})
		if blank == ",refund,acme," {
			if counts.EffectsOutside != 3 || counts.Findings[KeyWithoutEffect] != 2 {
				t.Errorf("%s: %+v, %q", blank, counts, found)
			}
			continue
		}
		if counts.EffectsOutside != 0 || counts.Judged() != 5 || len(found) != want {
			t.Errorf("%s: %+v, %q", blank, counts, found)
		}
	}
}

// TestNothingIsLeft checks that rows on disk are in no directory: whatever ends this process, they are gone.
func TestNothingIsLeft(t *testing.T) {
	m := many{n: 100, now: storetest.Start}
	dir := t.TempDir()
	reported := 0
	_, err := Run(t.Context(), m, m.ledger(), Options{Namespace: "default", Dir: dir, Memory: 1000}, nil, func(Finding) error {
		reported++
		if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
			t.Errorf("%d files, %v", len(left), err)
		}
		return nil
	})
	if err != nil || reported == 0 {
		t.Error(reported, err)
	}
}

// TestManyEffectsOfOneKey checks that a finding stays small.
func TestManyEffectsOfOneKey(t *testing.T) {
	w := newWorld(t)
	effects := make([]string, 100)
	for i := range effects {
		effects[i] = fmt.Sprint("e", i%50, "-", i/50)
	}
	w.done("hot", "order-1", effects[:30]...)
	_, found, _ := w.reconcile(Options{Memory: 1})
	if len(found) != 1 || !strings.HasSuffix(found[0], " +10") || strings.Count(found[0], "@hot") != MaxShown {
		t.Errorf("%q", found)
	}
}

// many is a source of n records, and the ledger that fits them but for the last.
type many struct {
	n   int
	now time.Time
}

func (m many) GetNamespace(context.Context, string) (store.Namespace, error) {
	return store.Namespace{Name: "default", Retention: store.DefaultRetention}, nil
}

func (m many) InspectRecord(context.Context, store.Key) (store.Inspection, error) {
	return store.Inspection{Record: &store.Record{Outcome: &store.Outcome{}}}, nil
}

func (m many) ListRecords(_ context.Context, req store.ListRequest) (store.RecordPage, error) {
	from := 0
	_, _ = fmt.Sscan(req.PageToken, &from)
	page := store.RecordPage{Now: m.now}
	for i := from; i < min(from+req.PageSize, m.n); i++ {
		at := m.now.Add(-time.Hour)
		page.Records = append(page.Records, &store.Record{
			Key:   store.Key{Namespace: "default", Scope: "charge", ID: fmt.Sprint("order-", i), Entity: fmt.Sprint("customer-", i%1000)},
			State: store.StateCompleted, Fence: int64(i + 1), GrantedAt: at, EndedAt: at,
		})
	}
	if from+req.PageSize < m.n {
		page.NextPageToken = fmt.Sprint(from + req.PageSize)
	}
	return page, nil
}

func (m many) ledger() io.Reader {
	r, w := io.Pipe()
	go func() {
		at := m.now.Add(-time.Hour).Format(time.RFC3339)
		_, _ = fmt.Fprintf(w, "effect,key,time,scope,entity,intent\nlast,other,%s,charge,c,order\n", at)
		for i := m.n - 2; i >= 0; i-- {
			_, _ = fmt.Fprintf(w, "ch_%d,order-%d,%s,charge,customer-%d,order-%d\n", i, i, at, i%1000, i)
		}
		_ = w.Close()
	}()
	return r
}

// TestMany holds more effects against more records than are kept in memory.
func TestMany(t *testing.T) {
	m := many{n: 20_000, now: storetest.Start}
	if testing.Short() {
		m.n = 2000
	}
	var found []string
	o := Options{Namespace: "default", Dir: t.TempDir(), Memory: m.n * 100}
	counts, err := Run(t.Context(), m, m.ledger(), o, nil, func(f Finding) error { found = append(found, words(f)); return nil })
	want := fmt.Sprintf("key_without_effect [completed charge/order-%d/customer-%d true]", m.n-1, (m.n-1)%1000)
	if err != nil || counts.Effects != m.n || counts.Records != m.n || len(found) != 1 || found[0] != want {
		t.Errorf("%+v, %v, %q", counts, err, found)
	}
}

func TestSorter(t *testing.T) {
	s := sorter{dir: t.TempDir(), limit: 1000}
	defer s.close()
	var want [][]byte
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		row := make([]byte, rng.IntN(40))
		for i := range row {
			row[i] = byte(rng.Uint32())
		}
		want = append(want, row)
		if err := s.add(row); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(want, bytes.Compare)
	if len(s.runs) < 10 {
		t.Fatalf("only %d files", len(s.runs))
	}
	i := 0
	for row, err := range s.sorted() {
		if err != nil || !bytes.Equal(row, want[i]) {
			t.Fatalf("row %d: %x, %v, want %x", i, row, err, want[i])
		}
		i++
	}
	if i != len(want) {
		t.Errorf("%d rows, want %d", i, len(want))
	}
}
