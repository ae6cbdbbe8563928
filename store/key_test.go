package store_test

import (
	"encoding/hex"
	"testing"

	"github.com/idemd/idemd/store"
)

func TestKeyEncodingKeepsFieldsApart(t *testing.T) {
	keys := []store.Key{
		{Namespace: "a", Scope: "b", ID: "c", Entity: "d"},
		{Namespace: "ab", ID: "c", Entity: "d"},
		{Namespace: "a", Scope: "bc", Entity: "d"},
		{Namespace: "a", Scope: "b", ID: "cd"},
		{Namespace: "a", ID: "bc", Entity: "d"},
		{Namespace: "a", Scope: "B", ID: "c", Entity: "d"},
		{Namespace: "a", Scope: "\u00e9", ID: "c"},
		{Namespace: "a", Scope: "e\u0301", ID: "c"},
	}
	seen := map[store.KeyDigest]store.Key{}
	for _, key := range keys {
		digest := key.Digest()
		if other, ok := seen[digest]; ok {
			t.Errorf("%+v and %+v have one digest", key, other)
		}
		seen[digest] = key
	}
}

// The encoding is on disk and in other languages' clients: it must never change.
func TestKeyEncodingIsFixed(t *testing.T) {
	key := store.Key{Namespace: "default", Scope: "/pay.v1.Pay/Charge", ID: "order-1", Entity: "acct-7"}
	want := "07" + hex.EncodeToString([]byte("default")) +
		"12" + hex.EncodeToString([]byte("/pay.v1.Pay/Charge")) +
		"07" + hex.EncodeToString([]byte("order-1")) +
		"06" + hex.EncodeToString([]byte("acct-7"))
	if got := hex.EncodeToString(key.AppendEncoded(nil)); got != want {
		t.Errorf("encoded as %s, want %s", got, want)
	}
}

func FuzzKeyEncoding(f *testing.F) {
	f.Add("default", "/pay.v1.Pay/Charge", "order-1", "acct-7", []byte{})
	f.Add("", "", "", "", []byte{0, 0, 0, 0})
	f.Add("a", "b", "c", "d", []byte{0x81, 0x00, 'a', 0, 0, 0})
	f.Fuzz(func(t *testing.T, namespace, scope, id, entity string, raw []byte) {
		key := store.Key{Namespace: namespace, Scope: scope, ID: id, Entity: entity}
		decoded, err := store.DecodeKey(key.AppendEncoded(nil))
		if err != nil || decoded != key {
			t.Fatalf("%+v came back as %+v, %v", key, decoded, err)
		}
		// What decodes at all is exactly what encodes to it, so no two keys share an encoding.
		if decoded, err := store.DecodeKey(raw); err == nil {
			if again := decoded.AppendEncoded(nil); string(again) != string(raw) {
				t.Fatalf("%x decoded to %+v, which encodes to %x", raw, decoded, again)
			}
		}
	})
}
