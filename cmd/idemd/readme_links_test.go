package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	codeBlock   = regexp.MustCompile("(?ms)^```.*?^```$")
	heading     = regexp.MustCompile(`(?m)^(#{1,6}) (.+)$`)
	inlineLink  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	elsewhere   = regexp.MustCompile(`^[a-z]+:`)
	mentionedMD = regexp.MustCompile(`((?:[\w-]+/)*[A-Z][\w-]*\.md)(?:, ([A-Z][^()".;\n]*[a-z?]))?`)
)

// anchors are what GitHub lets links end with: what its headings are, in small letters without
// punctuation, with a dash for a space and a number behind what was there before.
func (p readmePage) anchors() (anchors []string) {
	seen := map[string]int{}
	for _, match := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(p.text, ""), -1) {
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				return unicode.ToLower(r)
			}
			return -1
		}, match[2])
		if n := seen[anchor]; n > 0 {
			anchors = append(anchors, fmt.Sprintf("%s-%d", anchor, n))
		} else {
			anchors = append(anchors, anchor)
		}
		seen[anchor]++
	}
	return anchors
}

// links are the targets of those outside of code.
func (p readmePage) links() (targets []string) {
	for _, match := range inlineLink.FindAllStringSubmatch(codeBlock.ReplaceAllString(p.text, ""), -1) {
		targets = append(targets, match[1])
	}
	return targets
}

// TestReadmeLinks follows every link of every page to another file, and to a section.
func TestReadmeLinks(t *testing.T) {
	anchors := map[string][]string{}
	for _, p := range readmePages(t) {
		anchors[p.name] = p.anchors()
	}
	for _, p := range readmePages(t) {
		for _, link := range p.links() {
			if elsewhere.MatchString(link) {
				continue
			}
			file, anchor, toSection := strings.Cut(link, "#")
			target := p.name
			if file != "" {
				target = path.Join(path.Dir(p.name), file)
			}
			if _, err := os.Stat(filepath.Join("..", "..", filepath.FromSlash(target))); err != nil {
				t.Errorf("%s links to %s: %v", p.name, link, err)
			}
			if toSection && !slices.Contains(anchors[target], anchor) {
				t.Errorf("%s links to %s: %s has no such section", p.name, link, target)
			}
		}
	}
}

// TestReadmeLinksToSections checks that a page begins with links to its sections, so that a reader finds what it has.
func TestReadmeLinksToSections(t *testing.T) {
	for _, p := range readmePages(t) {
		begin, _, ok := strings.Cut(p.text, "\n## ")
		if !ok {
			continue
		}
		rest := readmePage{p.name, strings.TrimPrefix(p.text, begin)}
		for _, match := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(rest.text, ""), -1) {
			if anchor := (readmePage{text: match[0]}).anchors()[0]; match[1] == "##" && !slices.Contains(readmePage{text: begin}.links(), "#"+anchor) {
				t.Errorf("%s does not begin with a link to %q (#%s)", p.name, match[2], anchor)
			}
		}
	}
}

// TestReadmeLinksFromSources finds the pages, and their sections, that comments, messages and manifests name.
func TestReadmeLinksFromSources(t *testing.T) {
	pages := map[string]readmePage{}
	for _, p := range readmePages(t) {
		pages[p.name] = p
	}
	named := 0
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".go", ".yaml", ".sql", ".proto"}, filepath.Ext(file)) {
			return err
		}
		text, err := os.ReadFile(file)
		for _, match := range mentionedMD.FindAllStringSubmatch(string(text), -1) {
			named++
			p, ok := pages[match[1]]
			if !ok {
				t.Errorf("%s names %s, which there is not", file, match[1])
			}
			if match[2] != "" && !strings.Contains(p.text, "# "+match[2]+"\n") {
				t.Errorf("%s names %q in %s, which has no such section", file, match[2], match[1])
			}
		}
		return err
	})
	if err != nil || named == 0 {
		t.Fatalf("%d pages are named, %v", named, err)
	}
}
