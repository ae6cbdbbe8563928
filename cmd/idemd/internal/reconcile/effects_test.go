package reconcile

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/store/storetest"
)

// ledger compares another file than that of the world.
func (w *world) ledger(file string, o Options) (Counts, []string, []string) {
	w.t.Helper()
	w.file.Reset()
	w.file.WriteString(file)
	o.Memory = 1 << 20
	return w.reconcile(o)
}

// TestBytesAreCompared checks that texts in another encoding than UTF-8 are the same only if
// their bytes are, and that a part of a key in one is named: idemd has no such key.
func TestBytesAreCompared(t *testing.T) {
	w := newWorld(t)
	w.done("k1", "")
	w.done("k2", "")
	at := w.now().Format(time.RFC3339)
	const header = "effect,key,time,scope,entity,intent\n"
	for name, test := range map[string]struct {
		lines, want string
	}{
		"effects":  {"ch_\xe9,k1,AT,charge,acme,\nch_\xe8,k1,AT,charge,acme,\nch,k2,AT,charge,acme,\n", `two_effects_for_key [completed charge/k1/acme true] "ch_\xe9"@k1(2) "ch_\xe8"@k1(3)`},
		"as shown": {"ch_\xe9,k1,AT,charge,acme,\n\"\"\"ch_\\xe9\"\"\",k1,AT,charge,acme,\nch,k2,AT,charge,acme,\n", `two_effects_for_key [completed charge/k1/acme true] "ch_\xe9"@k1(2) "\"ch_\\xe9\""@k1(3)`},
		"the same": {"ch_\xe9,k1,AT,charge,acme,\nch_\xe9,k1,AT,charge,acme,\nch,k2,AT,charge,acme,\n", ""},
		"intents":  {"a,k1,AT,charge,acme,order \xe9\nb,k2,AT,charge,acme,order \xe8\n", ""},
		"intent":   {"a,k1,AT,charge,acme,order \xe9\nb,k2,AT,charge,acme,order \xe9\n", "two_effects_for_intent a@k1(2) b@k2(3)"},
	} {
		_, found, bad := w.ledger(header+strings.ReplaceAll(test.lines, "AT", at), Options{Since: storetest.Start, Until: w.now()})
		if strings.Join(found, "\n") != test.want || len(bad) > 0 {
			t.Errorf("%s: %q, want %q; bad lines %q", name, found, test.want, bad)
		}
	}
	for _, line := range []string{"a,\xe9,AT,charge,acme,", "a,k1,AT,\xe9,acme,", "a,k1,AT,charge,\xe9,", "a,,AT,\xe9,acme,", "a,,AT,charge,\xe9,"} {
		_, _, bad := w.ledger(header+strings.ReplaceAll(line, "AT", at), Options{Since: storetest.Start, Until: w.now()})
		if len(bad) != 1 || !strings.HasPrefix(bad[0], "line 2: ") || !strings.Contains(bad[0], "not valid UTF-8") {
			t.Errorf("%q: bad lines %q", line, bad)
		}
	}
}

// TestTimesThatCannotBe checks that they are named, and that the rest is compared.
func TestTimesThatCannotBe(t *testing.T) {
	w := newWorld(t)
	w.done("k1", "")
	for _, at := range []string{"9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00+01:00", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z"} {
		counts, _, bad := w.ledger("key,time\nk1,"+w.now().Add(-time.Second).Format(time.RFC3339)+"\nk1,"+at+"\n", Options{})
		if len(bad) != 1 || !strings.HasPrefix(bad[0], "line 3: ") || counts.EffectsJudged != 1 {
			t.Errorf("%s: %+v, %q", at, counts, bad)
		}
	}
}

// TestByteOrderMark has a header as spreadsheets and PowerShell write it.
func TestByteOrderMark(t *testing.T) {
	w := newWorld(t)
	w.done("k1", "")
	at := w.now().Add(-time.Second).Format(time.RFC3339)
	counts, _, bad := w.ledger("\ufeff\"key\",\"time\"\r\n\"k1\",\""+at+"\"\r\n", Options{})
	if counts.EffectsJudged != 1 || len(bad) > 0 {
		t.Errorf("%+v, %q", counts, bad)
	}
}

// TestColumnsThatAreNotThere checks that what is not compared, as the file lacks a column or calls it otherwise, is told.
func TestColumnsThatAreNotThere(t *testing.T) {
	w := newWorld(t)
	w.done("k1", "")
	at := w.now().Add(-time.Second).Format(time.RFC3339)
	for _, test := range []struct {
		header  string
		o       Options
		unknown []string
		not     map[string]string
	}{
		{"key,time,effect,scope,entity,intent", Options{}, nil, map[string]string{}},
		{"key,time,Effect,scope,entity, Intent_ID,ref\xe9,ref\xe8", Options{}, []string{"Intent_ID", `"ref\xe9"`, `"ref\xe8"`}, map[string]string{"two_effects_for_intent": "no column intent"}},
		{"key,time", Options{}, nil, map[string]string{
			"effects_repeated": "no column effect", "two_effects_for_intent": "no column intent", "scope": "no column scope", "entity": "no column entity",
		}},
		{"key,time,effect,entity", Options{OnePerEntity: true}, nil, map[string]string{"scope": "no column scope"}},
		{"key,time,effect,intent", Options{Scope: "charge"}, nil, map[string]string{"entity": "no column entity"}},
		{"key,time,effect,intent", Options{Entity: "acme"}, nil, map[string]string{"scope": "no column scope"}},
		{"key,time,effect", Options{Step: "charge"}, nil, map[string]string{"two_effects_for_intent": "no column intent"}},
	} {
		line := "k1," + at + strings.Repeat(",", strings.Count(test.header, ",")-1)
		counts, _, bad := w.ledger(test.header+"\n"+line+"\n", test.o)
		if !slices.Equal(counts.UnknownColumns, test.unknown) || !maps.Equal(counts.NotCompared, test.not) || len(bad) > 0 {
			t.Errorf("%s, %+v: unknown %q, not compared %q, bad lines %q", test.header, test.o, counts.UnknownColumns, counts.NotCompared, bad)
		}
		if _, not := test.not["effects_repeated"]; not != (counts.EffectsRepeated == nil) {
			t.Errorf("%s: %v effects repeated", test.header, counts.EffectsRepeated)
		}
	}
}
