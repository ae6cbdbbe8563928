package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A page marks what it shows of a file with its path from the repository's root, in the line before the code block.
var excerpt = regexp.MustCompile("(?m)^<!-- excerpt (\\S+) -->\n```[a-z]+\n((?s:.*?))^```$")

// TestReadmeExcerpts looks for what pages show of programs, line by line, in these programs.
func TestReadmeExcerpts(t *testing.T) {
	found := 0
	for _, page := range readmePages(t) {
		excerpts := excerpt.FindAllStringSubmatch(page.text, -1)
		if marks := strings.Count(page.text, "<!-- excerpt "); marks != len(excerpts) {
			t.Errorf("%s: found %d excerpts behind %d marks", page.name, len(excerpts), marks)
		}
		for _, match := range excerpts {
			source, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(match[1])))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains("\n"+string(source), "\n"+match[2]) {
				t.Errorf("%s: this is not in %s:\n%s", page.name, match[1], match[2])
			}
		}
		found += len(excerpts)
	}
	if found == 0 {
		t.Error("no page shows anything of a file")
	}
}
