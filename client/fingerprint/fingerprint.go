package fingerprint

import (
	"crypto/sha256"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/idemd/idemd/store"
)

// Versions of fingerprints made here. A version with the highest bit set is that of a
// message of which something was left out, and tells what.
const (
	VersionMessage uint32 = 1
	VersionBytes   uint32 = 2

	partial uint32 = 1 << 31
)

const (
	messageDomain = "idemd.fingerprint.v1"
	pathsDomain   = "idemd.fingerprint.paths.v1"
)

// Digester makes the fingerprints of one type of message. It can be used by any number
// of goroutines.
type Digester struct {
	name    protoreflect.FullName
	exclude *paths
	version uint32 // of a message that is understood
	types   *protoregistry.Types
}

// New returns a Digester for messages of one type which leaves some fields out: those
// that may differ from one repeat to the next. They are paths of field names such as
// "trace.id". A path goes through lists, and from a map to the fields of its values. An
// unknown path is an error.
func New(desc protoreflect.MessageDescriptor, exclude ...string) (*Digester, error) {
	set, err := compile(desc, exclude)
	if err != nil {
		return nil, err
	}
	return &Digester{desc.FullName(), set, set.version(), protoregistry.GlobalTypes}, nil
}

// Fingerprint returns the fingerprint of a message of d's type. It fails only for one of
// another type. That of nil is the empty one: no fingerprint.
func (d *Digester) Fingerprint(m proto.Message) (store.Fingerprint, error) {
	if m == nil {
		return store.Fingerprint{}, nil
	}
	message := m.ProtoReflect()
	if name := message.Descriptor().FullName(); name != d.name {
		return store.Fingerprint{}, fmt.Errorf("fingerprint: the message is a %s, and the digester was made for %s", name, d.name)
	}
	if !message.IsValid() { // a nil pointer
		return store.Fingerprint{}, nil
	}
	return d.fingerprint(message), nil
}

func (d *Digester) fingerprint(m protoreflect.Message) store.Fingerprint {
	w := getWalker(d.types)
	defer w.put()
	digest := w.digest(m, d.exclude)
	if w.nodes == 0 {
		return store.Fingerprint{Version: d.version, Digest: digest}
	}
	// Not everything was understood. A path that was not understood in one element of a
	// list may have been in another, and is to be left out everywhere: once more.
	skip := &paths{end: w.nodes > maxNodes}
	skip.addAll(d.exclude)
	skip.addAll(&w.unknown)
	return store.Fingerprint{Version: skip.version(), Digest: w.digest(m, skip)}
}

// Message returns the fingerprint of m. See [New], which is to be preferred where fields
// are left out of many messages of one type.
func Message(m proto.Message, exclude ...string) (store.Fingerprint, error) {
	if m == nil {
		return store.Fingerprint{}, nil
	}
	d, err := New(m.ProtoReflect().Descriptor(), exclude...)
	if err != nil {
		return store.Fingerprint{}, err
	}
	return d.Fingerprint(m)
}

// Bytes returns the fingerprint of a request that is no message: the SHA-256 of its
// bytes. That of nil is the empty one: no fingerprint. A request that is there and has
// no bytes is not nil.
func Bytes(b []byte) store.Fingerprint {
	if b == nil {
		return store.Fingerprint{}
	}
	sum := sha256.Sum256(b)
	return store.Fingerprint{Version: VersionBytes, Digest: string(sum[:])}
}
