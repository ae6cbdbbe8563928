package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A readmePage is a Markdown file of the repository.
type readmePage struct {
	name string // its path from the repository's root, with slashes
	text string
}

// readmePages are all pages, so that none is left out of the tests.
func readmePages(t *testing.T) (pages []readmePage) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		pages = append(pages, readmePage{filepath.ToSlash(name), string(text)})
		return err
	})
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	return pages
}

// readmeText is what all pages say, one after the other.
func readmeText(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, p := range readmePages(t) {
		all.WriteString(p.text + "\n")
	}
	return all.String()
}

// A page marks what is tested with a comment in the line before a code block, which
// no reader sees: `<!-- tour -->` for commands with their output, which are typed into one shell per page,
// `<!-- database -->` and `<!-- regions -->` for those with a database and with regions, `<!-- compile -->` for Go
// programs, `<!-- prints -->` for what such a program prints, `<!-- part -->` for some lines of one, `<!-- script -->` for a script that cron starts,
// `<!-- twice -->` for what to look at when something was done twice, `<!-- steps -->` for the way from a key to
// those of its steps.
var readmeBlock = regexp.MustCompile("(?m)^<!-- (tour|database|regions|compile|prints|part|script|twice|steps) -->\n```[a-z]+\n((?:[^`]|`[^`])*?)^```$")

// blocks are those of a kind in the page.
func (p readmePage) blocks(t *testing.T, kind string) (blocks []string) {
	t.Helper()
	for _, match := range readmeBlock.FindAllStringSubmatch(p.text, -1) {
		if match[1] == kind {
			blocks = append(blocks, match[2])
		}
	}
	if marks := strings.Count(p.text, "<!-- "+kind+" -->"); len(blocks) != marks {
		t.Fatalf("%s: found %d %s blocks behind %d marks", p.name, len(blocks), kind, marks)
	}
	return blocks
}

// readmeBlocks are those of a kind in all pages, of which there is one at least.
func readmeBlocks(t *testing.T, kind string) (blocks []string) {
	t.Helper()
	for _, p := range readmePages(t) {
		blocks = append(blocks, p.blocks(t, kind)...)
	}
	if len(blocks) == 0 {
		t.Fatalf("no page has %s blocks", kind)
	}
	return blocks
}

// TestReadmeParts checks that lines that one page shows of a program are in the program that another one
// has in full, which is compiled.
func TestReadmeParts(t *testing.T) {
	programs := strings.ReplaceAll("\n"+strings.Join(readmeBlocks(t, "compile"), "\n"), "\n\t", "\n")
	for _, part := range readmeBlocks(t, "part") {
		if !strings.Contains(programs, "\n"+part) {
			t.Errorf("no program has these lines:\n%s", part)
		}
	}
}
