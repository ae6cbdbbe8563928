package key

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/idemd/idemd/store"
)

func TestNew(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for range 10_000 {
		id := New()
		if !form.MatchString(id) {
			t.Fatalf("%q is no UUID of version 7 (RFC 9562)", id)
		}
		if seen[id] {
			t.Fatalf("%q was drawn twice", id)
		}
		seen[id] = true
	}
}

// Each of the 74 bits that are drawn is drawn.
func TestNewIsRandom(t *testing.T) {
	ones, zeros := make([]byte, 32), make([]byte, 32)
	for range 200 {
		for i, digit := range strings.ReplaceAll(New(), "-", "") {
			n := byte(strings.IndexRune("0123456789abcdef", digit))
			ones[i] |= n
			zeros[i] |= ^n & 0xf
		}
	}
	fixed := "0000000000007000" + "8000000000000000"
	for i := 12; i < 32; i++ {
		varies := ones[i] & zeros[i]
		want := byte(0xf)
		switch fixed[i] {
		case '7':
			want = 0
		case '8':
			want = 0x3
		}
		if varies != want {
			t.Errorf("of digit %d the bits %04b vary, want %04b", i, varies, want)
		}
	}
}

// The time in a key is the clock's, also if that goes back to another year.
func TestNewHasItsTime(t *testing.T) {
	_ = New()
	synctest.Test(t, func(t *testing.T) { // in 2000
		for range 3 {
			if made := Time(New()); !made.Equal(time.Now()) {
				t.Errorf("the key says %v, want %v", made, time.Now())
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// Of a UUID with one character changed, the time is known if it still is one of version 7.
func TestTimeOfWhatIsNoUUID(t *testing.T) {
	form := regexp.MustCompile(`^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-7[0-9A-Fa-f]{3}-[89ABab][0-9A-Fa-f]{3}-[0-9A-Fa-f]{12}$`)
	rapid.Check(t, func(t *rapid.T) {
		id := []byte(New())
		at := rapid.SampledFrom([]int{0, 8, 9, 13, 14, 18, 19, 23, 24, 35}).Draw(t, "at")
		id[at] = rapid.SampledFrom([]byte("07Aafg-\x00\xff")).Draw(t, "character")
		if got := !Time(string(id)).IsZero(); got != form.Match(id) {
			t.Errorf("%q has a time: %v", id, got)
		}
		if more := string(id) + "0"; !Time(more).IsZero() {
			t.Errorf("%q has a time", more)
		}
	})
}

// texts are short and of few letters, so that many share a beginning or an end, some of them
// control bytes and what is not UTF-8.
func texts() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.SampledFrom([]byte("ab/@\x00\x01\xff")), 0, 5).Draw(t, "text"))
	})
}

func parents() *rapid.Generator[string] {
	return texts().Filter(func(s string) bool { return s != "" })
}

// Two steps have one key only if they are one step of one parent; also where one's end is the
// other's beginning.
func TestChildrenDoNotCollide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parent, step := parents().Draw(t, "parent"), texts().Draw(t, "step")
		other, otherStep := parents().Draw(t, "other"), texts().Draw(t, "other step")
		if (Child(parent, step) == Child(other, otherStep)) != (parent == other && step == otherStep) {
			t.Errorf("(%q, %q) and (%q, %q)", parent, step, other, otherStep)
		}
		seen := map[string]int{}
		for i, text := 1, parent+step; i <= len(text); i++ {
			k := Child(text[:i], text[i:])
			if at, is := seen[k]; is {
				t.Errorf("%q split at %d and at %d", text, at, i)
			}
			seen[k] = i
		}
	})
}

// The same of keys that have four parts, wherever their parts are split.
func TestDownstreamKeysDoNotCollide(t *testing.T) {
	keys := rapid.Custom(func(t *rapid.T) store.Key {
		return store.Key{
			Namespace: texts().Draw(t, "namespace"), Scope: texts().Draw(t, "scope"),
			ID: parents().Draw(t, "id"), Entity: texts().Draw(t, "entity"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, step := keys.Draw(t, "key"), texts().Draw(t, "step")
		b, otherStep := a, step
		// One byte moves from one part to the next.
		parts := []*string{&b.Namespace, &b.Scope, &b.ID, &b.Entity, &otherStep}
		from := rapid.IntRange(0, 3).Draw(t, "from")
		text := *parts[from]
		if text == "" || (from == 2 && len(text) == 1) {
			return
		}
		*parts[from], *parts[from+1] = text[:len(text)-1], text[len(text)-1:]+*parts[from+1]
		if Downstream(a, step) == Downstream(b, otherStep) {
			t.Errorf("%+v, %q and %+v, %q", a, step, b, otherStep)
		}
	})
}

// What one function makes no other one makes, also of the same arguments.
func TestFunctionsDoNotCollide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parent, n := parents().Draw(t, "parent"), rapid.IntRange(-2, 20).Draw(t, "n")
		text := rapid.SampledFrom([]string{"1", "2", "", "a"}).Draw(t, "text")
		seen := map[string]string{}
		for name, k := range map[string]string{
			"Child": Child(parent, text), "Attempt": Attempt(parent, n), "Event": Event(parent, text+"1"),
			"Downstream": Downstream(store.Key{ID: parent}, text), "parent": parent,
		} {
			if seen[k] != "" {
				t.Errorf("%s and %s", name, seen[k])
			}
			seen[k] = name
		}
		if m := rapid.IntRange(-2, 20).Draw(t, "m"); (Attempt(parent, n) == Attempt(parent, m)) != (n == m) {
			t.Errorf("attempts %d and %d of %q", n, m, parent)
		}
	})
}

// Two runs have one key only if they are of one job and instant, whatever the zone.
func TestSlotsDoNotCollide(t *testing.T) {
	times := rapid.Custom(func(t *rapid.T) time.Time {
		zone := time.FixedZone("", rapid.IntRange(-14*3600, 14*3600).Draw(t, "zone"))
		unit := rapid.SampledFrom([]int64{1, 1e6, 1e9, 60e9, 3600e9}).Draw(t, "unit")
		return time.Unix(1_800_000_000, rapid.Int64Range(0, 3).Draw(t, "n")*unit).In(zone)
	})
	rapid.Check(t, func(t *rapid.T) {
		job, other := parents().Draw(t, "job"), parents().Draw(t, "other")
		at, otherAt := times.Draw(t, "at"), times.Draw(t, "other at")
		if (Slot(job, at) == Slot(other, otherAt)) != (job == other && at.Equal(otherAt)) {
			t.Errorf("%q at %v and %q at %v", job, at, other, otherAt)
		}
		if got := Slot(job, at); got != Slot(job, at.UTC()) || len(got) > len(job)+31 {
			t.Errorf("%q at %v is %q", job, at, got)
		}
	})
}

// A key that is derived from nothing would be one that all share who forgot it.
func TestOfNothing(t *testing.T) {
	for name, k := range map[string]string{
		"Child": Child("", "charge"), "Attempt": Attempt("", 1), "Event": Event("orders", ""),
		"Slot without a job": Slot("", time.Now()), "Slot without a time": Slot("nightly", time.Time{}),
		"Downstream": Downstream(store.Key{Namespace: "default", Scope: "s", Entity: "e"}, "charge"),
	} {
		if k != "" {
			t.Errorf("%s makes %q of nothing", name, k)
		}
	}
}

// Whatever is derived is a valid id, as long as what is in it.
func TestKeysAreValid(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	for _, id := range []string{
		New(), Child(long, "\x00"), Attempt("a", 1), Event(long, long), Downstream(store.Key{ID: "x"}, ""),
		Slot(strings.Repeat("j", 224), time.Unix(1_800_000_000, 123_456_789)),
	} {
		k := store.Key{Namespace: store.DefaultNamespace, ID: id}
		if err := k.Validate(); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// TestImports: the standard library and store, so that it can be used where neither gRPC nor
// the rest of the client is.
func TestImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	if got := strings.Fields(string(out)); len(got) != 2 || got[0] != "github.com/idemd/idemd/store" {
		t.Errorf("package key reaches %v", got)
	}
}
