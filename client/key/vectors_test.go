package key

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
)

// vector is a call of a function of this package, and its result. The file was made by a
// program in another language.
type vector struct {
	Function     string   `json:"function"`
	Arguments    []string `json:"arguments"`
	ArgumentsHex []string `json:"arguments_hex"` // in place of arguments that are not UTF-8
	Key          string   `json:"key"`
	Time         string   `json:"time"` // of Time; empty: not known
}

// TestVectors: these never change. What has to be derived in another way gets another tag.
func TestVectors(t *testing.T) {
	b, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []vector
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, v := range list {
		args := v.arguments(t)
		got, want := v.call(t, args), v.Key
		if v.Function == "Time" {
			want = v.Time
		}
		if got != want {
			t.Errorf("%s%q is %q, want %q", v.Function, args, got, want)
		}
		seen[v.Function]++
	}
	for _, name := range []string{"Child", "Attempt", "Event", "Downstream", "Slot", "Time"} {
		if seen[name] < 4 {
			t.Errorf("only %d vectors of %s", seen[name], name)
		}
	}
}

func (v *vector) arguments(t *testing.T) []string {
	args := v.Arguments
	for _, text := range v.ArgumentsHex {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, string(b))
	}
	return args
}

func (v *vector) call(t *testing.T, args []string) string {
	switch v.Function {
	case "Child":
		return Child(args[0], args[1])
	case "Attempt":
		n, err := strconv.Atoi(args[1])
		if err != nil {
			t.Fatal(err)
		}
		return Attempt(args[0], n)
	case "Event":
		return Event(args[0], args[1])
	case "Downstream":
		return Downstream(store.Key{Namespace: args[0], Scope: args[1], ID: args[2], Entity: args[3]}, args[4])
	case "Slot":
		scheduled, err := time.Parse(time.RFC3339Nano, args[1])
		if err != nil {
			t.Fatal(err)
		}
		return Slot(args[0], scheduled)
	case "Time":
		made := Time(args[0])
		if made.IsZero() {
			return ""
		}
		return made.UTC().Format(time.RFC3339Nano)
	default:
		t.Fatalf("there is no %s", v.Function)
		return ""
	}
}
