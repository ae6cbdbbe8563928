package store

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Key identifies one intent. All four fields are identity: two keys are the same
// intent only if all four are equal byte for byte. Nothing is case-folded, trimmed
// or Unicode-normalised.
type Key struct {
	// Namespace is the tenant and policy boundary.
	Namespace string
	// Scope is the operation, for example the gRPC full method. It may be empty.
	// The same ID in two scopes is two keys.
	Scope string
	// ID is what the caller made once for the intent and sends with every repeat.
	ID string
	// Entity is the account, customer or order that owns the intent. It may be
	// empty. It keeps two end users' equal IDs apart and decides the home region.
	Entity string
}

// KeyDigest is the SHA-256 of a key's encoding. Stores index records by it.
type KeyDigest [sha256.Size]byte

// Digest returns the SHA-256 of [Key.AppendEncoded].
func (k Key) Digest() KeyDigest {
	var buf [256]byte
	return sha256.Sum256(k.AppendEncoded(buf[:0]))
}

// AppendEncoded appends the canonical encoding of k to b: each field as its length
// in bytes (unsigned varint) followed by its bytes, in the order namespace, scope,
// id, entity. Lengths, not separators, delimit the fields, so the encoding is
// injective whatever bytes the fields hold.
func (k Key) AppendEncoded(b []byte) []byte {
	for _, field := range [...]string{k.Namespace, k.Scope, k.ID, k.Entity} {
		b = binary.AppendUvarint(b, uint64(len(field)))
		b = append(b, field...)
	}
	return b
}

var errKeyEncoding = errors.New("not the encoding of a key")

// DecodeKey reverses [Key.AppendEncoded]. It accepts exactly the encodings that
// AppendEncoded produces.
func DecodeKey(b []byte) (Key, error) {
	var fields [4]string
	for i := range fields {
		n, width := binary.Uvarint(b)
		if width <= 0 || n > uint64(len(b)-width) {
			return Key{}, fmt.Errorf("%w: field %d of 4 is cut short", errKeyEncoding, i+1)
		}
		if width > 1 && b[width-1] == 0 {
			return Key{}, fmt.Errorf("%w: field %d of 4 has a padded length", errKeyEncoding, i+1)
		}
		fields[i] = string(b[width : width+int(n)])
		b = b[width+int(n):]
	}
	if len(b) > 0 {
		return Key{}, fmt.Errorf("%w: %d bytes follow the last field", errKeyEncoding, len(b))
	}
	return Key{Namespace: fields[0], Scope: fields[1], ID: fields[2], Entity: fields[3]}, nil
}
