// Package pagetoken seals where a listing goes on: that may be at another tenant's key, and who
// could choose where a page begins could find out where those are.
package pagetoken

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/idemd/idemd/store"
)

// Sealer seals places with a secret of the store's.
type Sealer struct{ aead cipher.AEAD }

// New returns a sealer with the secret, of any length.
func New(secret []byte) Sealer {
	key := sha256.Sum256(secret)
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // of the key's length
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // of the block's length
	}
	return Sealer{aead}
}

// Random returns a sealer whose tokens count as long as it lives.
func Random() Sealer {
	secret := make([]byte, sha256.Size)
	_, _ = rand.Read(secret) // does not fail
	return New(secret)
}

// Seal returns the token of a page that ends at a place, for the next one of the same listing.
func (s Sealer) Seal(req store.ListRequest, place []byte) string {
	return hex.EncodeToString(s.aead.Seal(nil, nil, place, listing(req)))
}

// Open returns the place that the request's token holds.
func (s Sealer) Open(req store.ListRequest) ([]byte, error) {
	sealed, err := hex.DecodeString(req.PageToken)
	if err == nil {
		var place []byte
		if place, err = s.aead.Open(nil, nil, sealed, listing(req)); err == nil {
			return place, nil
		}
	}
	return nil, store.Refuse(store.ErrInvalidArgument, "page token is not one that this listing gave, or the server has been started since; begin anew")
}

// listing is what a token is bound to. A page may have another size than the one before.
func listing(req store.ListRequest) []byte {
	return fmt.Appendf(nil, "%q %d %t %q %q", req.Namespace, req.Filter.State, req.Filter.Lapsed, req.Filter.Scope, req.Filter.Entity)
}
