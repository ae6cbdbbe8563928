package fingerprint

import (
	"strings"
	"testing"

	"github.com/idemd/idemd/store"
)

// TestExclude: what is left out makes no difference, and all else does, wherever it is.
func TestExclude(t *testing.T) {
	types := loadTypes(t)
	for _, tt := range []struct{ exclude, a, same, other string }{
		{"text", `i32:1 text:"a"`, `i32:1 text:"b"`, `i32:2 text:"a"`},
		{"text", `i32:1 text:"a"`, `i32:1`, `text:"a"`},
		{"maybe_number", ``, `maybe_number:0`, `i32:1`},
		{"child", `child{i32:1} i32:1`, `i32:1`, `child{i32:1}`},
		{"child.text", `child{text:"a" i32:1}`, `child{i32:1}`, `child{text:"a" i32:2}`},
		{"child.child.text", `child{child{text:"a"}}`, `child{child{}}`, `child{text:"a" child{}}`},
		{"choice_text", `choice_text:"a"`, ``, `choice_number:1`},
		{"texts", `texts:["a","b"]`, `texts:["c"]`, `text:"a"`},
		{"children.text", `children{i32:1} children{text:"a"}`, `children{i32:1 text:"b"} children{}`, `children{i32:1}`},
		{"labels", `labels{key:"a"}`, `labels{key:"b"}`, `text:"a"`},
		{"by_number.text", `by_number{key:1 value{text:"a"}}`, `by_number{key:1 value{text:"b"}}`, `by_number{key:2 value{text:"a"}}`},
		{"by_number.children.text", `by_number{key:1 value{children{text:"a"}}}`, `by_number{key:1 value{children{}}}`, `by_number{key:1 value{}}`},
		{"payload", `payload{[a/idemd.fingerprint.test.Edition]{}}`, ``, `payloads{}`},
	} {
		f := of(t, types, parse(t, types, everything, tt.a), tt.exclude)
		if g := of(t, types, parse(t, types, everything, tt.same), tt.exclude); f != g {
			t.Errorf("without %s, %q is not %q", tt.exclude, tt.same, tt.a)
		}
		g := of(t, types, parse(t, types, everything, tt.other), tt.exclude)
		if f.Compare(g) != store.MatchDifferent {
			t.Errorf("without %s, %q is %q", tt.exclude, tt.other, tt.a)
		}
	}
	group := parse(t, types, proto2, `Item{note:"a"} Item{count:1}`)
	if f, g := of(t, types, group, "item.note"), of(t, types, parse(t, types, proto2, `Item{} Item{count:1 note:"b"}`), "item.note"); f != g {
		t.Error("a path does not go through a group")
	}
}

func TestBadExclude(t *testing.T) {
	types := loadTypes(t)
	for exclude, want := range map[string]string{
		"":                `has no field ""`,
		"txt":             `exclude "txt" from idemd.fingerprint.test.Everything: idemd.fingerprint.test.Everything has no field "txt"`,
		"child.txt":       `idemd.fingerprint.test.Everything has no field "txt"`,
		"child.":          `has no field ""`,
		".child":          `has no field ""`,
		"maybeNumber":     `has no field "maybeNumber"`, // the name in JSON
		"text.length":     `field "text" holds no message`,
		"labels.value":    `field "labels" holds no message`,
		"by_number.value": `has no field "value"`, // straight to the value's fields
		"children.0.text": `has no field "0"`,
		"payload.value":   "what is inside a google.protobuf.Any cannot be named",
		"payloads.i32":    "what is inside a google.protobuf.Any cannot be named",
	} {
		_, err := Message(newMessage(t, types, everything), "i32", exclude)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want something with %q", exclude, err, want)
		}
	}
}

// TestExcludeIsPartOfTheVersion: one program leaves a field out already and another does
// not yet. That must not look like two requests.
func TestExcludeIsPartOfTheVersion(t *testing.T) {
	types := loadTypes(t)
	m := parse(t, types, everything, `i32:1 text:"a"`)
	not, yet := of(t, types, m), of(t, types, m, "text")
	if not.Compare(yet) != store.MatchIncomparable {
		t.Errorf("they compare as %v", not.Compare(yet))
	}
	for _, tt := range []struct{ a, b []string }{
		{[]string{"text"}, []string{"text", "text"}},
		{[]string{"i32", "text"}, []string{"text", "i32"}},
		{[]string{"child"}, []string{"child.text", "child"}},
		{[]string{"child"}, []string{"child", "child.text"}},
	} {
		if f, g := of(t, types, m, tt.a...), of(t, types, m, tt.b...); f != g {
			t.Errorf("%q and %q are not the same paths", tt.a, tt.b)
		}
	}
}

// TestExcludedAndUnknownAreOne: a program which does not know a field, and one which
// knows it and leaves it out, make the same fingerprint.
func TestExcludedAndUnknownAreOne(t *testing.T) {
	older, newer := stub{a: 2}.types(t), stub{a: 3}.types(t)
	wire := requests["1 3"]
	f, g := of(t, older, decode(t, older, "stub.A", wire)), of(t, newer, decode(t, newer, "stub.A", wire), "f3")
	if f != g || f.Version == VersionMessage {
		t.Errorf("%x and %x", f, g)
	}
	// With another unknown field beside it.
	wire = join(wire, varint(7, 1))
	f, g = of(t, older, decode(t, older, "stub.A", wire)), of(t, newer, decode(t, newer, "stub.A", wire), "f3")
	if f != g {
		t.Errorf("%x and %x", f, g)
	}
}
