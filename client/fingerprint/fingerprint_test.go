package fingerprint

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idemd/idemd/store"
)

// TestMapOrder: entries in another order are the same request, wherever the map is; the
// order of a list counts.
func TestMapOrder(t *testing.T) {
	types := loadTypes(t)
	entries := []string{`labels{key:"a" value:"1"}`, `labels{key:"b" value:"2"}`, `labels{key:"" value:"3"}`, `labels{key:"aa"}`,
		`by_number{key:-1 value{i32:1}}`, `by_number{key:7}`, `by_flag{key:true value:1.5}`, `by_flag{key:false}`}
	plain, fewer := encodeAll(t, entries), encodeAll(t, entries[1:])
	shuffled := encodeAll(t, shuffle(entries))
	for name, wrap := range map[string]func([]byte) []byte{
		"in the message":         func(b []byte) []byte { return b },
		"in a repeated message":  func(b []byte) []byte { return delimited(25, b) },
		"in a value of a map":    func(b []byte) []byte { return delimited(27, delimited(2, b)) },
		"in an Any":              func(b []byte) []byte { return delimited(29, packed(b)) },
		"in an Any in an Any":    func(b []byte) []byte { return delimited(29, packed(delimited(29, packed(b)))) },
		"in an Any in a list":    func(b []byte) []byte { return delimited(30, packed(b)) },
		"in an Any in a map":     func(b []byte) []byte { return delimited(31, delimited(2, packed(b))) },
		"in a message in an Any": func(b []byte) []byte { return delimited(29, packed(delimited(17, b))) },
	} {
		t.Run(name, func(t *testing.T) {
			f := of(t, types, decode(t, types, everything, wrap(plain)))
			g := of(t, types, decode(t, types, everything, wrap(shuffled)))
			if f != g || f.Version != VersionMessage {
				t.Errorf("%v and %v, want equal ones of version %d", f, g, VersionMessage)
			}
			differ(t, f, of(t, types, decode(t, types, everything, wrap(fewer))))
		})
	}
	differ(t, of(t, types, parse(t, types, everything, `texts:["a","b"]`)), of(t, types, parse(t, types, everything, `texts:["b","a"]`)))
}

// TestNilEmptyOneByte: no request, an empty one and a small one are three.
func TestNilEmptyOneByte(t *testing.T) {
	ofMessage := func(m proto.Message) store.Fingerprint {
		f, err := Message(m)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	for name, f := range map[string]store.Fingerprint{
		"nil message": ofMessage(nil), "nil pointer": ofMessage((*wrapperspb.BytesValue)(nil)), "nil bytes": Bytes(nil),
	} {
		if f != (store.Fingerprint{}) {
			t.Errorf("%s: %v, want no fingerprint", name, f)
		}
	}
	for name, list := range map[string][]store.Fingerprint{
		"message": {ofMessage(nil), ofMessage(&wrapperspb.BytesValue{}), ofMessage(wrapperspb.Bytes([]byte{0}))},
		"bytes":   {Bytes(nil), Bytes([]byte{}), Bytes([]byte{0})},
	} {
		for i, f := range list {
			for j, g := range list {
				want := store.MatchDifferent
				if i == j {
					want = store.MatchEqual
				}
				if got := f.Compare(g); got != want {
					t.Errorf("%s: %d and %d compare as %v, want %v", name, i, j, got, want)
				}
			}
		}
	}
}

// TestPresence: an optional field that is not set, and one that is set to zero, are two.
func TestPresence(t *testing.T) {
	types := loadTypes(t)
	for _, tt := range []struct{ name, a, b string }{
		{everything, ``, `maybe_number:0`},
		{everything, ``, `maybe_text:""`},
		{everything, ``, `child{}`},
		{everything, ``, `choice_number:0`},
		{everything, `choice_number:0`, `choice_text:""`},
		{everything, ``, `payload{}`},
		{everything, `child{}`, `child{maybe_number:0}`},
		{proto2, ``, `number:42`}, // the default
		{proto2, ``, `must:""`},
		{proto2, ``, `Part{}`},
		{edition, ``, `explicit:0`},
		{edition, ``, `delimited{}`},
	} {
		f := of(t, types, parse(t, types, tt.name, tt.a))
		differ(t, f, of(t, types, parse(t, types, tt.name, tt.b)))
		if t.Failed() {
			t.Fatalf("%s: %q and %q", tt.name, tt.a, tt.b)
		}
	}
	for _, tt := range []struct{ name, a string }{{everything, `i32:0 text:"" flag:false`}, {edition, `implicit:0`}} {
		if f, g := of(t, types, parse(t, types, tt.name, ``)), of(t, types, parse(t, types, tt.name, tt.a)); f != g {
			t.Errorf("%s: %q is not as empty as it is on the wire", tt.name, tt.a)
		}
	}
}

// TestBytesHashed writes out what is hashed, class by class.
func TestBytesHashed(t *testing.T) {
	types := loadTypes(t)
	n := func(n string) string { return strings.Repeat("0", 16-len(n)) + n }
	end := n("")
	const m, i, f, s, l, p, a = "6d", "69", "66", "73", "6c", "70", "61"
	for _, tt := range []struct{ name, text, want string }{
		{everything, ``, m + end},
		{everything, `i32:-1`, m + n("1") + i + "ffffffffffffffff" + end},
		{everything, `u32:4294967295`, m + n("3") + i + n("ffffffff") + end},
		{everything, `u64:18446744073709551615`, m + n("4") + i + "ffffffffffffffff" + end},
		{everything, `s64:-2`, m + n("6") + i + "fffffffffffffffe" + end},
		{everything, `f64:258`, m + n("8") + i + n("102") + end},
		{everything, `flag:true`, m + n("d") + i + n("1") + end},
		{everything, `colour:COLOUR_GREEN`, m + n("10") + i + "fffffffffffffffe" + end},
		{everything, `single:1.5`, m + n("b") + f + "3ff8000000000000" + end},
		{everything, `twice:-0.0`, m + n("c") + f + "8000000000000000" + end},
		{everything, `twice:nan`, m + n("c") + f + "7ff8000000000000" + end},
		{everything, `text:"ab"`, m + n("e") + s + n("2") + "6162" + end},
		{everything, `raw:"ab"`, m + n("f") + s + n("2") + "6162" + end},
		{everything, `child{flag:true} i32:1`, m + n("1") + i + n("1") + n("11") + m + n("d") + i + n("1") + end + end},
		{everything, `numbers:[2,1]`, m + n("17") + l + n("2") + i + n("2") + i + n("1") + end},
		{everything, `labels{key:"b"} labels{key:"a" value:"c"} labels{key:""}`, m + n("1a") + p + n("3") +
			s + n("0") + s + n("0") + s + n("1") + "61" + s + n("1") + "63" + s + n("1") + "62" + s + n("0") + end},
		{everything, `by_number{key:-1} by_number{key:1}`, m + n("1b") + p + n("2") + i + n("1") + m + end + i + "ffffffffffffffff" + m + end + end},
		{everything, `payload{}`, m + n("1d") + a + n("") + end},
		{everything, `payload{[x.y/idemd.fingerprint.test.Edition]{implicit:3}}`, m + n("1d") + a + n("1e") + hex.EncodeToString([]byte(edition)) +
			m + n("2") + i + n("3") + end + end},
		{proto2, `Part{name:"a"}`, m + n("3") + m + n("1") + s + n("1") + "61" + end + end},
		{proto2, `[idemd.fingerprint.test.nickname]:"a" size:SIZE_LARGE`, m + n("5") + i + n("2") + n("64") + s + n("1") + "61" + end},
	} {
		got, found := strings.CutPrefix(string(hashed(types, parse(t, types, tt.name, tt.text))), "idemd.fingerprint.v1")
		if !found || hex.EncodeToString([]byte(got)) != tt.want {
			t.Errorf("%s\n got %x\nwant %s", tt.text, got, tt.want)
		}
	}
}

// TestDigestIsOfTheBytesHashed, also where they are hashed in several pieces.
func TestDigestIsOfTheBytesHashed(t *testing.T) {
	types := loadTypes(t)
	for _, text := range []string{
		``, `i32:1`,
		`text:"` + strings.Repeat("x", flushAt-100) + `" raw:"` + strings.Repeat("y", 3*flushAt) + `" maybe_text:"z"`,
		strings.Repeat(`numbers:7 children{i32:1} labels{key:"a"} children{}`, 2000),
		`text:"` + strings.Repeat("x", keepUpTo+1) + `"`,
	} {
		m := parse(t, types, everything, text)
		sum := sha256.Sum256(hashed(types, m))
		if got := of(t, types, m); got != (store.Fingerprint{Version: VersionMessage, Digest: string(sum[:])}) {
			t.Errorf("%.40s: %x, want %x", text, got.Digest, sum)
		}
	}
}

// TestNaN: all are one; a value that is less special is not taken for it.
func TestNaN(t *testing.T) {
	f, err := Message(wrapperspb.Double(math.NaN()))
	if err != nil {
		t.Fatal(err)
	}
	for _, bits := range []uint64{0x7ff0000000000001, 0xfff8000000000000, 0xffffffffffffffff} {
		g, err := Message(wrapperspb.Double(math.Float64frombits(bits)))
		if err != nil {
			t.Fatal(err)
		}
		if g != f {
			t.Errorf("NaN of bits %x is another", bits)
		}
	}
	for _, v := range []float64{math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), math.MaxFloat64} {
		g, err := Message(wrapperspb.Double(v))
		if err != nil {
			t.Fatal(err)
		}
		differ(t, f, g)
	}
}

// TestTypeURLHost: where a type URL leads does not count, the type does.
func TestTypeURLHost(t *testing.T) {
	one, err := structpb.NewStruct(map[string]any{"a": 1, "b": []any{"x", nil, true}})
	if err != nil {
		t.Fatal(err)
	}
	pack := func(m proto.Message, host string) store.Fingerprint {
		a, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		a.TypeUrl = host + string(m.ProtoReflect().Descriptor().FullName())
		f, err := Message(a) // an Any may also be the request itself
		if err != nil {
			t.Fatal(err)
		}
		if f.Version != VersionMessage {
			t.Errorf("host %q: version %x", host, f.Version)
		}
		return f
	}
	f := pack(one, "type.googleapis.com/")
	for _, host := range []string{"", "/", "types.example.com/v2/"} {
		if g := pack(one, host); g != f {
			t.Errorf("host %q makes a difference", host)
		}
	}
	differ(t, pack(wrapperspb.Int32(1), ""), pack(wrapperspb.Int64(1), ""))
	differ(t, pack(wrapperspb.Int32(1), ""), pack(wrapperspb.Int32(2), ""))
}

func TestOtherTypeThanTheDigesters(t *testing.T) {
	d, err := New(wrapperspb.Int32(0).ProtoReflect().Descriptor())
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Fingerprint(wrapperspb.Int64(0))
	if err == nil || !strings.Contains(err.Error(), "google.protobuf.Int64Value, and the digester was made for google.protobuf.Int32Value") {
		t.Errorf("got %v", err)
	}
	f, err := d.Fingerprint(nil)
	if err != nil || f != (store.Fingerprint{}) {
		t.Errorf("nil: %v, %v, want no fingerprint", f, err)
	}
}

// TestBytesAndMessagesCannotBeCompared: a call over HTTP and one over gRPC, one key.
func TestBytesAndMessagesCannotBeCompared(t *testing.T) {
	f, err := Message(wrapperspb.String("a"))
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Compare(Bytes([]byte(`"a"`))); got != store.MatchIncomparable {
		t.Errorf("they compare as %v", got)
	}
}

func differ(t *testing.T, f, g store.Fingerprint) {
	t.Helper()
	if got := f.Compare(g); got != store.MatchDifferent {
		t.Errorf("%x and %x compare as %v, want different", f, g, got)
	}
}

// delimited is one length-delimited field on the wire.
func delimited(number protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
}

// packed is an Any, on the wire, of a message Everything.
func packed(content []byte) []byte { return packedAs(everything, content) }

func packedAs(name string, content []byte) []byte {
	return append(delimited(1, []byte("type.googleapis.com/"+name)), delimited(2, content)...)
}

// encodeAll puts messages Everything one behind the other: on the wire, that is one.
func encodeAll(t *testing.T, texts []string) []byte {
	types := loadTypes(t)
	var b []byte
	for _, text := range texts {
		b = append(b, encode(t, parse(t, types, everything, text))...)
	}
	return b
}

func shuffle(list []string) []string {
	shuffled := append([]string(nil), list...)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(list), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	return shuffled
}
