package fingerprint

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/idemd/idemd/store"
)

// stub is what one version of a program knows of the types A, B and C: how many of the
// fields 1, 2, … of each. The first two are int64, the third is a map, the fourth a list
// of the same type, the fifth one of Any. A type of which it knows no field it does not know.
type stub struct{ a, b, c int32 }

// types are the stub's, with an Any that has no generated type.
func (s stub) types(t testing.TB) *protoregistry.Types {
	file := &descriptorpb.FileDescriptorProto{
		Name: proto.String("stub.proto"), Package: proto.String("stub"), Syntax: proto.String("proto3"),
		Dependency: []string{"google/protobuf/any.proto"},
	}
	for name, known := range map[string]int32{"A": s.a, "B": s.b, "C": s.c} {
		if known > 0 {
			file.MessageType = append(file.MessageType, stubMessage(name, known))
		}
	}
	return typesOf(t, &descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{
		protodesc.ToFileDescriptorProto(anypb.File_google_protobuf_any_proto), file,
	}})
}

func stubMessage(name string, known int32) *descriptorpb.DescriptorProto {
	m := &descriptorpb.DescriptorProto{Name: &name, NestedType: []*descriptorpb.DescriptorProto{{
		Name:    proto.String("F3Entry"),
		Options: &descriptorpb.MessageOptions{MapEntry: proto.Bool(true)},
		Field: []*descriptorpb.FieldDescriptorProto{
			stubField("key", 1, descriptorpb.FieldDescriptorProto_TYPE_STRING, ""),
			stubField("value", 2, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, ".stub."+name),
		},
	}}}
	for number := int32(1); number <= known; number++ {
		kind, typeName := descriptorpb.FieldDescriptorProto_TYPE_INT64, ""
		if number > 2 {
			kind = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
			typeName = map[int32]string{3: ".stub." + name + ".F3Entry", 4: ".stub." + name, 5: ".google.protobuf.Any"}[number]
		}
		field := stubField(fmt.Sprintf("f%d", number), number, kind, typeName)
		if number > 2 {
			field.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
		}
		m.Field = append(m.Field, field)
	}
	if known < 3 {
		m.NestedType = nil
	}
	return m
}

func stubField(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type, typeName string) *descriptorpb.FieldDescriptorProto {
	f := &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Type: &kind, Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
	if typeName != "" {
		f.TypeName = &typeName
	}
	return f
}

func varint(number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
}

func join(parts ...[]byte) []byte {
	var b []byte
	for _, part := range parts {
		b = append(b, part...)
	}
	return b
}

// requests are messages A on the wire. Many differ only in what some stubs do not know.
var requests = map[string][]byte{
	"empty":                      {},
	"1":                          varint(1, 1),
	"1 other":                    varint(1, 2),
	"1 2":                        join(varint(1, 1), varint(2, 1)),
	"2 1":                        join(varint(2, 1), varint(1, 1)),
	"1 3":                        join(varint(1, 1), delimited(3, delimited(1, []byte("k")))),
	"1 3, two entries":           join(varint(1, 1), delimited(3, delimited(1, []byte("k"))), delimited(3, delimited(1, []byte("l")))),
	"1 3, two entries, reversed": join(varint(1, 1), delimited(3, delimited(1, []byte("l"))), delimited(3, delimited(1, []byte("k")))),
	"1 3.2":                      join(varint(1, 1), delimited(3, delimited(2, varint(2, 5)))),
	"1 4.1":                      join(varint(1, 1), delimited(4, varint(1, 1))),
	"1 4.2 4.3":                  join(varint(1, 1), delimited(4, varint(2, 1)), delimited(4, delimited(3, nil))),
	"5 of A 2":                   delimited(5, packedAs("stub.A", varint(2, 1))),
	"5 of B 2":                   delimited(5, packedAs("stub.B", varint(2, 1))),
	"5 of B 2, of C 2":           join(delimited(5, packedAs("stub.B", varint(2, 1))), delimited(5, packedAs("stub.C", varint(2, 1)))),
	"5 of B 1, of B 2":           join(delimited(5, packedAs("stub.B", varint(1, 1))), delimited(5, packedAs("stub.B", varint(2, 1)))),
	"5 of A 5 of B 2":            delimited(5, packedAs("stub.A", delimited(5, packedAs("stub.B", varint(2, 1))))),
	"5 of nonsense":              delimited(5, packedAs("stub.A", []byte{0xff})),
	"6":                          varint(6, 1),
	"6, as a group":              protowire.AppendGroup(protowire.AppendTag(nil, 6, protowire.StartGroupType), 6, varint(1, 1)),
	"7":                          varint(7, 1),
	"2 of another wire type":     delimited(2, []byte("text")),
}

// FuzzNeverAFalseMismatch: whatever two programs know of one request, as long as they
// agree on what they both know, their fingerprints of it never say that it is another.
func FuzzNeverAFalseMismatch(f *testing.F) {
	stubs := map[stub]*protoregistry.Types{}
	for _, a := range []int32{1, 3, 5} {
		for _, b := range []int32{0, 1, 2, 5} {
			for _, c := range []int32{0, 1, 2, 5} {
				stubs[stub{a, b, c}] = stub{a, b, c}.types(f)
			}
		}
	}
	for _, wire := range requests {
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		defer skipPanicOfProtobuf(t)
		seen := map[stub]store.Fingerprint{}
		for s, types := range stubs {
			m := newMessage(t, types, "stub.A")
			if (proto.UnmarshalOptions{Resolver: types}).Unmarshal(wire, m) == nil { // or it refuses the request
				seen[s] = of(t, types, m)
			}
		}
		for s, f := range seen {
			for r, g := range seen {
				if f.Compare(g) == store.MatchDifferent {
					t.Errorf("a program that knows %v and one that knows %v see two requests", s, r)
				}
			}
		}
	})
}

// TestOldAndNewStub: every pair of programs that know {1,2}, {1,2,3} and {1,2,3,4}.
func TestOldAndNewStub(t *testing.T) {
	stubs := []*protoregistry.Types{stub{a: 2}.types(t), stub{a: 3}.types(t), stub{a: 4}.types(t)}
	f3, other3, f4 := delimited(3, delimited(1, []byte("k"))), delimited(3, delimited(1, []byte("l"))), delimited(4, nil)
	const equal, different, unknown = store.MatchEqual, store.MatchDifferent, store.MatchIncomparable
	for _, tt := range []struct {
		name string
		a, b []byte
		want [3][3]store.Match // of a as seen by the row's program, with b as seen by the column's
	}{
		{"fields that all know", varint(1, 1), varint(1, 1),
			[3][3]store.Match{{equal, equal, equal}, {equal, equal, equal}, {equal, equal, equal}}},
		{"fields that all know, another value", varint(1, 1), varint(1, 2),
			[3][3]store.Match{{different, different, different}, {different, different, different}, {different, different, different}}},
		{"3", f3, f3,
			[3][3]store.Match{{equal, unknown, unknown}, {unknown, equal, equal}, {unknown, equal, equal}}},
		{"3, another value", f3, other3,
			[3][3]store.Match{{equal, unknown, unknown}, {unknown, different, different}, {unknown, different, different}}},
		{"4", f4, f4,
			[3][3]store.Match{{equal, equal, unknown}, {equal, equal, unknown}, {unknown, unknown, equal}}},
		{"3 and 4", join(f3, f4), join(f4, f3),
			[3][3]store.Match{{equal, unknown, unknown}, {unknown, equal, unknown}, {unknown, unknown, equal}}},
		{"3 without and with 4", f3, join(f3, f4),
			[3][3]store.Match{{unknown, unknown, unknown}, {unknown, unknown, different}, {unknown, unknown, different}}},
		{"3, with another value of 1", join(varint(1, 1), f3), join(varint(1, 2), f3),
			[3][3]store.Match{{different, unknown, unknown}, {unknown, different, different}, {unknown, different, different}}},
	} {
		for i := range stubs {
			for j := range stubs {
				f := of(t, stubs[i], decode(t, stubs[i], "stub.A", tt.a))
				g := of(t, stubs[j], decode(t, stubs[j], "stub.A", tt.b))
				if got := f.Compare(g); got != tt.want[i][j] {
					t.Errorf("%s: programs %d and %d: %v, want %v", tt.name, i, j, got, tt.want[i][j])
				}
			}
		}
	}
}

// TestTypeOfAnAnyIsPartOfThePath: each of two programs knows one of two types, so each
// fails to understand one Any in the list, but not the same.
func TestTypeOfAnAnyIsPartOfThePath(t *testing.T) {
	request := requests["5 of B 2, of C 2"]
	for _, known := range []int32{0, 1} { // not the type; not the field of the type
		b, c := stub{a: 5, b: 2, c: known}.types(t), stub{a: 5, b: known, c: 2}.types(t)
		f, g := of(t, b, decode(t, b, "stub.A", request)), of(t, c, decode(t, c, "stub.A", request))
		if f.Compare(g) != store.MatchIncomparable {
			t.Errorf("%x and %x, want incomparable ones", f, g)
		}
	}
}

// TestHalfUnderstoodPath: a field that is understood in one element of a list and not in
// the other is left out of both, so that what is hashed follows from the paths alone.
func TestHalfUnderstoodPath(t *testing.T) {
	types := stub{a: 5}.types(t)
	half := func(understood uint64) store.Fingerprint {
		return of(t, types, decode(t, types, "stub.A", join(
			delimited(4, varint(2, understood)), delimited(4, delimited(2, []byte("text"))))))
	}
	if f, g := half(1), half(2); f != g || f.Version == VersionMessage {
		t.Errorf("%x and %x, want equal ones that leave 4.2 out", f, g)
	}
}

// TestManyAnyInOneAnother: to open them costs a copy each, so there is a bound. Beyond
// it they are not understood.
func TestManyAnyInOneAnother(t *testing.T) {
	types := loadTypes(t)
	nested := func(depth int, inside []byte) store.Fingerprint {
		for range depth {
			inside = delimited(29, packed(inside))
		}
		return of(t, types, decode(t, types, everything, inside))
	}
	differ(t, nested(maxNestedAny, varint(1, 1)), nested(maxNestedAny, varint(1, 2)))
	if f := nested(maxNestedAny, varint(1, 1)); f.Version != VersionMessage {
		t.Errorf("%d in one another: version %x", maxNestedAny, f.Version)
	}
	f, g := nested(maxNestedAny+1, varint(1, 1)), nested(maxNestedAny+1, varint(1, 2))
	if f != g || f.Version == VersionMessage {
		t.Errorf("%d in one another: %x and %x, want equal ones that leave the innermost out", maxNestedAny+1, f, g)
	}
}

// TestManyUnknownFields: what they cost is bounded. Beyond the bound nothing is understood.
func TestManyUnknownFields(t *testing.T) {
	types := loadTypes(t)
	unknown := func(first, count protowire.Number) []byte {
		var b []byte
		for n := first; n < first+count; n++ {
			b = append(b, varint(n, 1)...)
		}
		return b
	}
	see := func(parts ...[]byte) store.Fingerprint {
		return of(t, types, decode(t, types, everything, join(parts...)))
	}
	one, other := varint(1, 1), varint(1, 2)
	differ(t, see(one, unknown(1000, maxNodes)), see(other, unknown(1000, maxNodes)))
	differ(t, see(one, unknown(1000, maxNodes), unknown(1000, maxNodes)), see(other, unknown(1000, maxNodes))) // the same twice
	nothing := see(one, unknown(1000, maxNodes+1))
	for name, f := range map[string]store.Fingerprint{
		"other value":      see(other, unknown(1000, maxNodes+1)),
		"many more":        see(unknown(1000, 10*maxNodes)),
		"other numbers":    see(unknown(2000, maxNodes+1)),
		"order":            see(unknown(1500, maxNodes), one, unknown(1000, maxNodes)),
		"in one message":   see(delimited(17, unknown(1000, maxNodes))), // and the step to it
		"in several":       see(delimited(17, unknown(1000, 500)), delimited(22, unknown(1000, 500))),
		"in an Any":        see(delimited(29, packed(unknown(1000, maxNodes-1)))), // two steps
		"and one excluded": of(t, types, decode(t, types, everything, unknown(1000, maxNodes+1)), "text"),
	} {
		if f != nothing {
			t.Errorf("%s: %x, want %x, which says nothing", name, f, nothing)
		}
	}
	for name, f := range map[string]store.Fingerprint{
		"in one message": see(one, delimited(17, unknown(1000, maxNodes-1))),
		"in a list":      see(one, delimited(25, unknown(1000, 500)), delimited(25, unknown(1000, maxNodes-1))),
		"in an Any":      see(one, delimited(29, packed(unknown(1000, maxNodes-2)))),
	} {
		if f.Compare(nothing) != store.MatchIncomparable {
			t.Errorf("%s: nothing is understood, though the bound is not reached", name)
		}
	}
	if sum := sha256.Sum256([]byte(messageDomain)); nothing.Digest != string(sum[:]) {
		t.Errorf("digest %x, want %x, that of nothing", nothing.Digest, sum)
	}
}

// TestUnknownExtension: one that is not linked into the program is an unknown field.
func TestUnknownExtension(t *testing.T) {
	all, none := loadTypes(t), new(protoregistry.Types)
	mt, err := all.FindMessageByName(proto2)
	if err != nil {
		t.Fatal(err)
	}
	if err := none.RegisterMessage(mt); err != nil {
		t.Fatal(err)
	}
	wire := encode(t, parse(t, all, proto2, `must:"x" [idemd.fingerprint.test.nickname]:"a"`))
	f, g := of(t, all, decode(t, all, proto2, wire)), of(t, none, decode(t, none, proto2, wire))
	if f.Version != VersionMessage || f.Compare(g) != store.MatchIncomparable {
		t.Errorf("%x and %x, want the first understood and the two incomparable", f, g)
	}
	inAny := encode(t, &anypb.Any{TypeUrl: proto2, Value: wire})
	f, g = of(t, all, decode(t, all, "google.protobuf.Any", inAny)), of(t, none, decode(t, all, "google.protobuf.Any", inAny))
	if f.Version != VersionMessage || f.Compare(g) != store.MatchIncomparable {
		t.Errorf("in an Any: %x and %x, want the first understood and the two incomparable", f, g)
	}
}

// TestVersionOfPaths writes out what the version is made of.
func TestVersionOfPaths(t *testing.T) {
	for _, tt := range []struct {
		name  string
		paths [][]step
		want  string
	}{
		{"one", [][]step{{{number: 3}}}, "1|1 n3"},
		{"sorted and once", [][]step{{{number: 30}}, {{number: 4}}, {{number: 30}}}, "2|1 n4|1 n30"},
		{"shorter first", [][]step{{{number: 1}, {number: 2}}, {{number: 3}}}, "2|1 n3|2 n1 n2"},
		{"one in another", [][]step{{{number: 1}, {number: 2}}, {{number: 1}}, {{number: 1}, {number: 3}}}, "1|1 n1"},
		{"the root", [][]step{{}, {{number: 1}}}, "1|0"},
		{"a type", [][]step{{{number: 5}, {typeName: "a.B"}, {number: 1}}}, "1|3 n5 ta.B n1"},
	} {
		var set paths
		for _, path := range tt.paths {
			set.add(path)
		}
		var got []string
		for _, b := range set.encoded() {
			got = append(got, string(b))
		}
		if text := readable(got); text != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
		}
	}
}

// readable turns encoded paths into text.
func readable(encoded []string) string {
	var out strings.Builder
	fmt.Fprint(&out, len(encoded))
	for _, b := range encoded {
		r := reader{b: []byte(b)}
		fmt.Fprintf(&out, "|%d", r.number())
		for len(r.b) > 0 {
			if class := r.class(); class == 't' {
				fmt.Fprintf(&out, " t%s", r.bytes())
			} else {
				fmt.Fprintf(&out, " %c%d", class, r.number())
			}
		}
	}
	return out.String()
}
