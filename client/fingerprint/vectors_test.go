package fingerprint

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/idemd/idemd/store"
)

var update = flag.Bool("update", false, "write what the vectors come to into testdata/vectors.json")

// vector is a message on the wire, and its fingerprint in a program that knows the types
// of testdata/*.proto.
type vector struct {
	Name    string   `json:"name"`
	Type    string   `json:"type"`
	Wire    string   `json:"wire"`
	Exclude []string `json:"exclude,omitempty"`
	Version uint32   `json:"version"`
	Digest  string   `json:"digest"`
}

func readVectors(t *testing.T) []vector {
	t.Helper()
	b, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []vector
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// TestVectors: these never change. What has to be computed in another way gets another
// version.
func TestVectors(t *testing.T) {
	types := loadTypes(t)
	list := readVectors(t)
	if len(list) < 20 {
		t.Fatalf("only %d vectors", len(list))
	}
	for i, v := range list {
		wire, err := hex.DecodeString(v.Wire)
		if err != nil {
			t.Fatal(err)
		}
		f := of(t, types, decode(t, types, v.Type, wire), v.Exclude...)
		if want, _ := hex.DecodeString(v.Digest); f != (store.Fingerprint{Version: v.Version, Digest: string(want)}) {
			t.Errorf("%s: version %d, digest %x, want %d, %s", v.Name, f.Version, f.Digest, v.Version, v.Digest)
		}
		list[i].Version, list[i].Digest = f.Version, hex.EncodeToString([]byte(f.Digest))
	}
	if *update {
		write(t, list)
	}
}

func write(t *testing.T, list []vector) {
	b, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("testdata/vectors.json", append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
