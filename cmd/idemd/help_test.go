package main

import (
	"strings"
	"testing"
)

// Of flags that exclude each other a command needs one: its usage must not show them as if it needed all.
func TestHelpShowsAlternatives(t *testing.T) {
	for command, usage := range map[string]string{
		"record resolve":       "(--fence=N | --any-fence)",
		"record force-release": "(--fence=N | --any-fence)",
		"recovery begin":       "(--from=RFC3339 | --nothing-known)",
		"recovery lift":        "(--namespace=STRING | --for-new)",
	} {
		got := run(t, append(strings.Fields(command), "--help")...).ok(t)
		if line, _, _ := strings.Cut(got, "\n"); !strings.Contains(line, usage) {
			t.Errorf("%s --help begins with %q, want %s in it", command, line, usage)
		}
	}
}
