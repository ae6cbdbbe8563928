package fingerprint

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// anyName is the one message type that is walked in another way than as its fields.
const anyName protoreflect.FullName = "google.protobuf.Any"

// step is one element of a path: a field, or under an Any the type that it holds. The
// type counts, because the same number means another field in another type.
type step struct {
	number   protoreflect.FieldNumber
	typeName protoreflect.FullName
}

// paths is a set of paths as a tree. What is below the end of a path adds nothing: all of
// that field or content is meant.
type paths struct {
	end   bool
	below map[step]*paths
}

// has returns what of the set is under s, and whether that is all there is under s.
func (p *paths) has(s step) (all bool, below *paths) {
	if p == nil {
		return false, nil
	}
	below = p.below[s]
	return below != nil && below.end, below
}

// under returns the node of s, made if there is none.
func (p *paths) under(s step) (node *paths, made bool) {
	node = p.below[s]
	if node != nil {
		return node, false
	}
	if p.below == nil {
		p.below = map[step]*paths{}
	}
	node = &paths{}
	p.below[s] = node
	return node, true
}

// add adds a path.
func (p *paths) add(path []step) {
	for _, s := range path {
		p, _ = p.under(s)
	}
	p.end = true
}

// addAll adds the paths of q.
func (p *paths) addAll(q *paths) {
	p.end = p.end || q.end
	for s, below := range q.below {
		node, _ := p.under(s)
		node.addAll(below)
	}
}

// version is that of fingerprints which leave these paths out.
func (p *paths) version() uint32 {
	encoded := p.encoded()
	if len(encoded) == 0 {
		return VersionMessage
	}
	b := append([]byte(pathsDomain), number(uint64(len(encoded)))...)
	sum := sha256.Sum256(append(b, bytes.Join(encoded, nil)...))
	return partial | binary.BigEndian.Uint32(sum[:])
}

// encoded returns the paths, encoded and sorted.
func (p *paths) encoded() [][]byte {
	list := p.appendEncoded(nil, 0, nil)
	slices.SortFunc(list, bytes.Compare)
	return list
}

// appendEncoded appends each path, in no order, as the count of its steps and the steps.
// Those that lead to p are given, and how many they are.
func (p *paths) appendEncoded(list [][]byte, depth uint64, soFar []byte) [][]byte {
	if p.end {
		return append(list, append(number(depth), soFar...))
	}
	for s, below := range p.below {
		list = below.appendEncoded(list, depth+1, s.append(slices.Clip(soFar)))
	}
	return list
}

func (s step) append(b []byte) []byte {
	if s.number == 0 {
		return appendBytes(append(b, 't'), string(s.typeName))
	}
	return binary.BigEndian.AppendUint64(append(b, 'n'), uint64(s.number))
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// compile turns paths of field names into a set.
func compile(desc protoreflect.MessageDescriptor, exclude []string) (*paths, error) {
	set := &paths{}
	for _, dotted := range exclude {
		path, err := resolve(desc, dotted)
		if err != nil {
			return nil, fmt.Errorf("fingerprint: exclude %q from %s: %w", dotted, desc.FullName(), err)
		}
		set.add(path)
	}
	return set, nil
}

func resolve(desc protoreflect.MessageDescriptor, dotted string) ([]step, error) {
	var path []step
	var parent protoreflect.Name
	for name := range strings.SplitSeq(dotted, ".") {
		if desc == nil {
			return nil, fmt.Errorf("field %q holds no message, so nothing in it can be named", parent)
		}
		if desc.FullName() == anyName {
			return nil, fmt.Errorf("what is inside a %s cannot be named; exclude the whole field", anyName)
		}
		field := desc.Fields().ByName(protoreflect.Name(name))
		if field == nil {
			return nil, fmt.Errorf("%s has no field %q; write names as in the .proto, with dots between them", desc.FullName(), name)
		}
		path = append(path, step{number: field.Number()})
		parent = field.Name()
		if field.IsMap() {
			field = field.MapValue()
		}
		desc = field.Message()
	}
	return path, nil
}
