package fingerprint

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"math"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

const (
	// maxNestedAny is how many Any may lie in one another. Each opening copies what is
	// inside, so without a bound a small request could cost a lot.
	maxNestedAny = 16

	// maxNodes are how many steps the paths of what is not understood may have, those that
	// several begin with counted once. Beyond that, nothing of the message is understood.
	// It bounds what a message made of nothing but unknown fields costs.
	maxNodes = 1000

	flushAt  = 4 << 10  // bytes are hashed in pieces of about this size
	keepUpTo = 64 << 10 // a buffer that one large string made larger is not kept
)

// The classes of values. All integers are one, so that a field may change its width.
const (
	classInteger = 'i'
	classFloat   = 'f'
	classBytes   = 's'
	classMessage = 'm'
	classAny     = 'a'
	classList    = 'l'
	classMap     = 'p'
)

// walker hashes one message, except for what it skips, and notes what it does not
// understand.
type walker struct {
	types   *protoregistry.Types
	hash    hash.Hash
	buf     []byte  // to be hashed
	fields  []field // populated ones of the messages it is in, innermost last
	collect func(protoreflect.FieldDescriptor, protoreflect.Value) bool
	anys    int     // how many Any it is in
	at      []place // where it is, innermost last
	unknown paths   // what it met and did not understand
	nodes   int     // how many nodes that has
}

// place is a step on the way from the root, and its node among what is not understood.
// The node is made when it is needed, and then is at hand for all that is below.
type place struct {
	step step
	node *paths
}

type field struct {
	desc  protoreflect.FieldDescriptor
	value protoreflect.Value
}

type entry struct {
	key   []byte
	value protoreflect.Value
}

var walkers = sync.Pool{New: func() any {
	w := &walker{hash: sha256.New()}
	// Made once: a function literal at each message would be an allocation at each.
	w.collect = func(desc protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		w.fields = append(w.fields, field{desc, value})
		return true
	}
	return w
}}

func getWalker(types *protoregistry.Types) *walker {
	w := walkers.Get().(*walker)
	w.types = types
	return w
}

// put gives w back, with nothing in it that would keep a message alive.
func (w *walker) put() {
	if cap(w.buf) > keepUpTo {
		w.buf = nil
	}
	clear(w.fields[:cap(w.fields)])
	clear(w.at[:cap(w.at)])
	w.types, w.unknown, w.nodes = nil, paths{}, 0
	walkers.Put(w)
}

// digest returns the digest of m without what is to be skipped.
func (w *walker) digest(m protoreflect.Message, skip *paths) string {
	w.hash.Reset()
	w.buf = append(w.buf[:0], messageDomain...)
	if !skip.end {
		w.message(m, skip)
	}
	w.flush()
	w.buf = w.hash.Sum(w.buf[:0])
	return string(w.buf)
}

func (w *walker) message(m protoreflect.Message, skip *paths) {
	if m.Descriptor().FullName() == anyName {
		w.any(m, skip)
		return
	}
	w.buf = append(w.buf, classMessage)
	w.noteUnknown(m.GetUnknown())
	start := len(w.fields)
	m.Range(w.collect)
	end := len(w.fields)
	slices.SortFunc(w.fields[start:], func(a, b field) int { return cmp.Compare(a.desc.Number(), b.desc.Number()) })
	for i := start; i < end; i++ { // by index: the values in it may make the slice move
		w.field(w.fields[i], skip)
	}
	w.fields = w.fields[:start]
	w.number(0)
}

func (w *walker) field(f field, skip *paths) {
	s := step{number: f.desc.Number()}
	all, below := skip.has(s)
	if all {
		return
	}
	w.number(uint64(s.number))
	w.at = append(w.at, place{step: s})
	switch {
	case f.desc.IsList():
		w.list(f.desc, f.value.List(), below)
	case f.desc.IsMap():
		w.mapping(f.desc, f.value.Map(), below)
	default:
		w.single(f.desc, f.value, below)
	}
	w.at = w.at[:len(w.at)-1]
}

func (w *walker) list(desc protoreflect.FieldDescriptor, list protoreflect.List, skip *paths) {
	w.buf = append(w.buf, classList)
	w.number(uint64(list.Len()))
	for i := range list.Len() {
		w.single(desc, list.Get(i), skip)
	}
}

func (w *walker) mapping(desc protoreflect.FieldDescriptor, m protoreflect.Map, skip *paths) {
	entries := make([]entry, 0, m.Len())
	m.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		entries = append(entries, entry{appendScalar(nil, desc.MapKey().Kind(), key.Value()), value})
		return true
	})
	slices.SortFunc(entries, func(a, b entry) int { return bytes.Compare(a.key, b.key) })
	w.buf = append(w.buf, classMap)
	w.number(uint64(len(entries)))
	for _, e := range entries {
		w.buf = append(w.buf, e.key...)
		w.single(desc.MapValue(), e.value, skip)
	}
}

// single walks what is neither list nor map, though it may be an element of one.
func (w *walker) single(desc protoreflect.FieldDescriptor, value protoreflect.Value, skip *paths) {
	if desc.Message() != nil {
		w.message(value.Message(), skip)
	} else {
		w.buf = appendScalar(w.buf, desc.Kind(), value)
	}
	if len(w.buf) >= flushAt {
		w.flush()
	}
}

// any walks what is inside an Any, so that the bytes it was packed into do not count.
func (w *walker) any(m protoreflect.Message, skip *paths) {
	w.noteUnknown(m.GetUnknown())
	fields := m.Descriptor().Fields()
	url := m.Get(fields.ByNumber(1)).String()
	content := m.Get(fields.ByNumber(2)).Bytes()
	name := url[strings.LastIndexByte(url, '/')+1:]
	w.buf = appendBytes(append(w.buf, classAny), name)

	s := step{typeName: protoreflect.FullName(name)}
	all, below := skip.has(s)
	if all || name == "" && len(content) == 0 {
		return
	}
	inside := w.open(s.typeName, content)
	if inside == nil {
		w.note(s)
		return
	}
	w.at = append(w.at, place{step: s})
	w.anys++
	w.message(inside, below)
	w.anys--
	w.at = w.at[:len(w.at)-1]
}

// open returns what is inside an Any, nil if it is not understood.
func (w *walker) open(name protoreflect.FullName, content []byte) protoreflect.Message {
	if w.anys >= maxNestedAny {
		return nil
	}
	t, err := w.types.FindMessageByName(name)
	if err != nil {
		return nil
	}
	m := t.New()
	if err := (proto.UnmarshalOptions{AllowPartial: true, Resolver: w.types}).Unmarshal(content, m.Interface()); err != nil {
		return nil
	}
	return m
}

// noteUnknown notes the fields that the message it is in has, and its descriptor has not.
func (w *walker) noteUnknown(unknown protoreflect.RawFields) {
	for len(unknown) > 0 {
		n, _, size := protowire.ConsumeField(unknown)
		if size < 0 { // never from the wire; somebody set it by hand
			n, size = 0, len(unknown)
		}
		unknown = unknown[size:]
		w.note(step{number: n})
	}
}

// note notes that what s leads to from here is not understood.
func (w *walker) note(s step) {
	if w.nodes > maxNodes {
		return // enough is known
	}
	w.under(w.here(), s).end = true
}

// here returns the node of where the walker is.
func (w *walker) here() *paths {
	known := len(w.at) // places that have their node
	for known > 0 && w.at[known-1].node == nil {
		known--
	}
	node := &w.unknown
	if known > 0 {
		node = w.at[known-1].node
	}
	for i := known; i < len(w.at); i++ {
		node = w.under(node, w.at[i].step)
		w.at[i].node = node
	}
	return node
}

func (w *walker) under(node *paths, s step) *paths {
	below, made := node.under(s)
	if made {
		w.nodes++
	}
	return below
}

func (w *walker) number(n uint64) { w.buf = binary.BigEndian.AppendUint64(w.buf, n) }

func (w *walker) flush() {
	w.hash.Write(w.buf)
	w.buf = w.buf[:0]
}

func appendScalar(b []byte, kind protoreflect.Kind, value protoreflect.Value) []byte {
	switch kind {
	case protoreflect.StringKind:
		return appendBytes(append(b, classBytes), value.String())
	case protoreflect.BytesKind:
		return appendBytes(append(b, classBytes), value.Bytes())
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return binary.BigEndian.AppendUint64(append(b, classFloat), floatBits(value.Float()))
	default:
		return binary.BigEndian.AppendUint64(append(b, classInteger), integerBits(kind, value))
	}
}

func appendBytes[T string | []byte](b []byte, value T) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(value)))
	return append(b, value...)
}

func integerBits(kind protoreflect.Kind, value protoreflect.Value) uint64 {
	switch kind {
	case protoreflect.BoolKind:
		if value.Bool() {
			return 1
		}
		return 0
	case protoreflect.EnumKind:
		return uint64(int64(value.Enum()))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return value.Uint()
	default:
		return uint64(value.Int())
	}
}

// floatBits makes every NaN one: its other bits do not survive all that a message passes.
func floatBits(f float64) uint64 {
	if math.IsNaN(f) {
		return 0x7ff8000000000000
	}
	return math.Float64bits(f)
}
