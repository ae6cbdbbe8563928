package main

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/client/key"
)

// keyCommands are the commands that do what the functions of package key do with the same arguments.
var keyCommands = map[string]func(args []string) []string{
	"Child":   func(args []string) []string { return append([]string{"child", "--"}, args...) },
	"Attempt": func(args []string) []string { return append([]string{"attempt", "--"}, args...) },
	"Event":   func(args []string) []string { return append([]string{"event", "--"}, args...) },
	"Slot":    func(args []string) []string { return append([]string{"slot", "--"}, args...) },
	"Downstream": func(args []string) []string {
		return []string{"step", "--namespace=" + args[0], "--scope=" + args[1], "--id=" + args[2], "--entity=" + args[3], "--", args[4]}
	},
}

// TestKeyVectors: the commands print what package key derives, byte for byte, and refuse what it derives nothing of.
func TestKeyVectors(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "client", "key", "testdata", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Function     string
		Arguments    []string
		ArgumentsHex []string `json:"arguments_hex"`
		Key          string
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, v := range vectors {
		command := keyCommands[v.Function]
		if command == nil {
			continue // Time, which derives no key
		}
		seen[v.Function]++
		for _, digits := range v.ArgumentsHex {
			b, err := hex.DecodeString(digits)
			if err != nil {
				t.Fatal(err)
			}
			v.Arguments = append(v.Arguments, string(b))
		}
		got := run(t, append([]string{"key"}, command(v.Arguments)...)...)
		switch {
		case v.ArgumentsHex != nil:
			got.fails(t, exitUsage, "not valid UTF-8", "a key is UTF-8")
		case v.Key == "":
			got.fails(t, exitUsage, "is empty")
		case got.ok(t) != v.Key+"\n":
			t.Errorf("%s%q prints %q, want %q", v.Function, v.Arguments, got.stdout, v.Key)
		}
	}
	for name := range keyCommands {
		if seen[name] < 4 {
			t.Errorf("only %d vectors of %s", seen[name], name)
		}
	}
}

// TestKeyNew: each key that is drawn is another one.
func TestKeyNew(t *testing.T) {
	one, two := run(t, "key", "new").ok(t), run(t, "key", "new").ok(t)
	if one == two {
		t.Errorf("%q was drawn twice", one)
	}
	if made := key.Time(strings.TrimSuffix(one, "\n")); time.Since(made) > time.Minute {
		t.Errorf("%q was made at %v, want just now", one, made)
	}
}

// TestKeyRefusals: what would be a key that nobody has is refused, with what to give.
func TestKeyRefusals(t *testing.T) {
	for line, want := range map[string][]string{
		"key step --id=a --namespace=Gateway wallet": {"namespace"},
		"key step wallet":                       {"--id"},
		"key step --id=a":                       {"<step>", "idemd key step --help"},
		"key child a":                           {"<step>", "idemd key child --help"},
		"key attempt a two":                     {`"two"`, "decimal digits"},
		"key attempt a 010":                     {`"010"`, "decimal digits"}, // else 8, or 10
		"key attempt a 0x2":                     {`"0x2"`, "decimal digits"},
		"key attempt a 99999999999999999999":    {"decimal digits"},
		"key slot nightly now":                  {`"now"`, "RFC 3339"},
		"key slot nightly 0001-01-01T00:00:00Z": {"a time that they do not know"},
		"key slot " + strings.Repeat("j", 240) + " 2026-10-28T02:00:00Z": {"255"},
	} {
		run(t, strings.Fields(line)...).fails(t, exitUsage, want...)
	}
}

// TestKeyOfRun: what a command is given as the provider's key by `idemd run` is the key of a step, run.
func TestKeyOfRun(t *testing.T) {
	s := serve(t, t.TempDir())
	given := run(t, "run", "--addr="+s.addr, "--key=nightly@2026-10-28T02:00Z", "--entity=acme", "--", "sh", "-c", "echo $IDEMD_RUN_DOWNSTREAM_KEY").ok(t)
	if derived := run(t, "key", "step", "--id=nightly@2026-10-28T02:00Z", "--entity=acme", "run").ok(t); derived != given {
		t.Errorf("the command was given %q, and %q is derived", given, derived)
	}
}

// TestHelpNamesKey: whoever has to name a key that was derived is told what derives it.
func TestHelpNamesKey(t *testing.T) {
	for _, command := range []string{"lookup", "record inspect", "record digest", "record resolve", "claim"} {
		help := run(t, append(strings.Fields(command), "--help")...).ok(t)
		if !regexp.MustCompile(`derived\s+by\s+idemd\s+key\b`).MatchString(help) {
			t.Errorf("%s --help does not name idemd key:\n%s", command, help)
		}
	}
}
