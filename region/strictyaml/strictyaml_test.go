package strictyaml

import (
	"slices"
	"strings"
	"testing"
)

type file struct {
	Names []string          `yaml:"names"`
	Of    map[string]string `yaml:"of"`
}

func TestDecode(t *testing.T) {
	var f file
	if err := Decode([]byte("# ours\nnames: [a, 'null', '~', \"\"]\nof:\n  x: y\n"), &f); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.Names, []string{"a", "null", "~", ""}) || len(f.Of) != 1 || f.Of["x"] != "y" {
		t.Errorf("%+v", f)
	}
	for _, text := range []string{"", "\n# nothing\n"} {
		if err := Decode([]byte(text), &f); err != nil || len(f.Names) != 4 {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestWhatIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"names: [a]\nmore: 1":       "line 2: field more not found",
		"names: [a]\nnames: [b]":    "already",
		"names: [a]\n---\nnames: 1": "more than one document",
		"names: [":                  "line 1",
		"names: {a: b}":             "line 1",
		"names: [a, ~]":             "line 1: a value is missing",
		"names:\n  - a\n  -\n  - b": "line 3: a value is missing",
		"names: [null]":             "line 1: a value is missing",
		"names:":                    "line 1: a value is missing",
		"of:\n  x: y\n  z:":         "line 3: a value is missing",
		"of: {? , x: y}":            "a value is missing",
		"null":                      "line 1: a value is missing",
		"a: &a [~]\nnames: *a":      "line 1: a value is missing",
		"names: !!null x":           "line 1",
	} {
		var f file
		if err := Decode([]byte(text), &f); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %q; read %+v", text, err, want, f)
		}
	}
}
