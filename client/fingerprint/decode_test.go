package fingerprint

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// reader reads back what a walker wrote. That it can is the proof that two messages
// which differ are never hashed as the same bytes.
type reader struct {
	b     []byte
	types *protoregistry.Types
}

func (r *reader) class() byte {
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) number() uint64 {
	n := binary.BigEndian.Uint64(r.b)
	r.b = r.b[8:]
	return n
}

func (r *reader) bytes() []byte {
	n := r.number()
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) message(m protoreflect.Message) {
	if r.class() == classAny {
		r.any(m)
		return
	}
	for {
		number := protoreflect.FieldNumber(r.number())
		if number == 0 {
			return
		}
		desc := m.Descriptor().Fields().ByNumber(number)
		if desc == nil {
			xt, err := r.types.FindExtensionByNumber(m.Descriptor().FullName(), number)
			if err != nil {
				panic(err)
			}
			desc = xt.TypeDescriptor()
		}
		r.field(m, desc)
	}
}

func (r *reader) field(m protoreflect.Message, desc protoreflect.FieldDescriptor) {
	switch {
	case desc.IsList():
		r.class()
		list := m.Mutable(desc).List()
		for range r.number() {
			list.Append(r.single(desc, list.NewElement))
		}
	case desc.IsMap():
		r.class()
		entries := m.Mutable(desc).Map()
		for range r.number() {
			key := r.single(desc.MapKey(), nil).MapKey()
			entries.Set(key, r.single(desc.MapValue(), entries.NewValue))
		}
	default:
		m.Set(desc, r.single(desc, func() protoreflect.Value { return m.NewField(desc) }))
	}
}

func (r *reader) single(desc protoreflect.FieldDescriptor, empty func() protoreflect.Value) protoreflect.Value {
	if desc.Message() != nil {
		v := empty()
		r.message(v.Message())
		return v
	}
	switch r.class(); desc.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(string(r.bytes()))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(r.bytes())
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(math.Float64frombits(r.number())))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(math.Float64frombits(r.number()))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(r.number() == 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(int64(r.number())))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(r.number()))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(r.number())
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(int64(r.number()))
	default:
		return protoreflect.ValueOfInt32(int32(int64(r.number())))
	}
}

// any packs what is inside once more, in the one way of [proto.MarshalOptions.Deterministic].
func (r *reader) any(m protoreflect.Message) {
	name := string(r.bytes())
	if name == "" {
		return
	}
	mt, err := r.types.FindMessageByName(protoreflect.FullName(name))
	if err != nil {
		panic(err)
	}
	inside := mt.New()
	r.message(inside)
	content, err := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(inside.Interface())
	if err != nil {
		panic(err)
	}
	fields := m.Descriptor().Fields()
	m.Set(fields.ByNumber(1), protoreflect.ValueOfString(name))
	m.Set(fields.ByNumber(2), protoreflect.ValueOfBytes(content))
}

// FuzzMessagesThatDifferHaveOtherDigests reads the message back from the bytes that are
// hashed. What can be read back was not mixed up with any other message.
func FuzzMessagesThatDifferHaveOtherDigests(f *testing.F) {
	types := loadTypes(f)
	for _, text := range []string{
		``, `i32:-1 i64:2 u32:3 u64:4 s32:-5 s64:6 f32:7 f64:8 sf32:9 sf64:-10 single:-0.0 twice:inf flag:true text:"é" raw:"\xff"`,
		`colour:COLOUR_GREEN child{child{maybe_number:0 maybe_text:""}} choice_child{} numbers:[1,0,1] texts:["",""] doubles:[0,-0.0]`,
		`children{} children{i32:1} labels{key:"a" value:"b"} labels{} by_number{key:-1 value{flag:true}} by_flag{} by_u64{key:1 value:COLOUR_RED}`,
		`payload{} payloads{[a/idemd.fingerprint.test.Edition]{implicit:3}} payload_by_name{value{[a/idemd.fingerprint.test.Everything]{payload{}}}}`,
	} {
		f.Add(encode(f, parse(f, types, everything, text)), uint8(0))
	}
	f.Add(encode(f, parse(f, types, proto2, `must:"" number:0 Part{} Item{count:1} sizes:[SIZE_LARGE] [idemd.fingerprint.test.relatives]{}`)), uint8(1))
	f.Add(encode(f, parse(f, types, edition, `explicit:0 implicit:1 delimited{delimited{}} expanded:[1,2]`)), uint8(2))
	f.Fuzz(func(t *testing.T, wire []byte, which uint8) {
		defer skipPanicOfProtobuf(t)
		m := newMessage(t, types, []string{everything, proto2, edition}[which%3])
		unmarshal := proto.UnmarshalOptions{Resolver: types, AllowPartial: true}
		if unmarshal.Unmarshal(wire, m) != nil || of(t, types, m).Version != VersionMessage {
			t.Skip("not a message, or not all of it is understood")
		}
		back := m.ProtoReflect().New()
		r := reader{b: bytes.TrimPrefix(hashed(types, m), []byte(messageDomain)), types: types}
		r.message(back)
		repack(types, m.ProtoReflect())
		if len(r.b) > 0 || !sameWire(t, m, back.Interface()) {
			t.Fatalf("read back as %v, want %v; left over: %x", back, m, r.b)
		}
	})
}

// sameWire reports whether a and b are the same on the wire, but for the bits of a NaN.
func sameWire(t *testing.T, a, b proto.Message) bool {
	deterministic := proto.MarshalOptions{Deterministic: true, AllowPartial: true}
	x, err := deterministic.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := deterministic.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Equal(x, y) || len(x) == len(y) && proto.Equal(a, b)
}

// repack packs each Any in m as a reader does.
func repack(types *protoregistry.Types, m protoreflect.Message) {
	if m.Descriptor().FullName() == anyName {
		repackAny(types, m)
		return
	}
	m.Range(func(desc protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case desc.IsList() && desc.Message() != nil:
			for i := range v.List().Len() {
				repack(types, v.List().Get(i).Message())
			}
		case desc.IsMap() && desc.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				repack(types, v.Message())
				return true
			})
		case !desc.IsList() && !desc.IsMap() && desc.Message() != nil:
			repack(types, v.Message())
		}
		return true
	})
}

func repackAny(types *protoregistry.Types, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	url, content := m.Get(fields.ByNumber(1)).String(), m.Get(fields.ByNumber(2)).Bytes()
	name := url[strings.LastIndexByte(url, '/')+1:]
	m.Clear(fields.ByNumber(1))
	if name == "" {
		return
	}
	m.Set(fields.ByNumber(1), protoreflect.ValueOfString(name))
	mt, err := types.FindMessageByName(protoreflect.FullName(name))
	if err != nil {
		panic(err)
	}
	inside := mt.New()
	if err := (proto.UnmarshalOptions{Resolver: types, AllowPartial: true}).Unmarshal(content, inside.Interface()); err != nil {
		panic(err)
	}
	repack(types, inside)
	content, err = proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(inside.Interface())
	if err != nil {
		panic(err)
	}
	m.Set(fields.ByNumber(2), protoreflect.ValueOfBytes(content))
}
