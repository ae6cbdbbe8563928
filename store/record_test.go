package store_test

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/idemd/idemd/store"
)

// The digest is stored with records and sent to operators: it must never change.
func TestOutcomeDigestIsFixed(t *testing.T) {
	outcome := store.Outcome{
		Status: []byte{8, 5}, Body: []byte("body"), BodyType: "t",
		Header:  []store.MetadataEntry{{Name: "h", Value: []byte{0xff}}},
		Trailer: nil,
	}
	text := "idemd.outcome.v1" +
		"\x00\x00\x00\x00\x00\x00\x00\x02\x08\x05" +
		"\x00\x00\x00\x00\x00\x00\x00\x01t" +
		"\x00\x00\x00\x00\x00\x00\x00\x04body" +
		"\x00" +
		"\x00\x00\x00\x00\x00\x00\x00\x01" + "\x00\x00\x00\x00\x00\x00\x00\x01h" + "\x00\x00\x00\x00\x00\x00\x00\x01\xff" +
		"\x00\x00\x00\x00\x00\x00\x00\x00"
	want := sha256.Sum256([]byte(text))
	if got := outcome.Digest(); got != want {
		t.Errorf("digest %s, want %s", hex.EncodeToString(got[:]), hex.EncodeToString(want[:]))
	}
}

func TestOutcomeDigestTellsOutcomesApart(t *testing.T) {
	entry := func(name, value string) []store.MetadataEntry {
		return []store.MetadataEntry{{Name: name, Value: []byte(value)}}
	}
	outcomes := []store.Outcome{
		{},
		{Body: []byte("x")},
		{Status: []byte("x")},
		{BodyType: "x"},
		{BodyOmitted: true},
		{Header: entry("a", "bc")},
		{Header: entry("ab", "c")},
		{Trailer: entry("a", "bc")},
		{Header: append(entry("a", "b"), entry("c", "d")...)},
		{Header: append(entry("c", "d"), entry("a", "b")...)},
	}
	seen := map[store.OutcomeDigest]int{}
	for i, outcome := range outcomes {
		digest := outcome.Digest()
		if j, ok := seen[digest]; ok {
			t.Errorf("outcomes %d and %d have one digest", i, j)
		}
		seen[digest] = i
	}
	if (&store.Outcome{Body: []byte{}}).Digest() != (&store.Outcome{}).Digest() {
		t.Error("an empty and an absent body differ")
	}
}
