package storetest

import (
	"fmt"
	"iter"
	"strings"
	"unicode"
	"unicode/utf8"
)

// goldenKind is what a section of a script is.
type goldenKind string

const (
	goldenOutcome   goldenKind = "outcome"
	goldenSetup     goldenKind = "setup"
	goldenStory     goldenKind = "story"
	goldenCondition goldenKind = "condition"
)

// goldenFile is one parsed script.
type goldenFile struct {
	name     string
	sections []*goldenSection
}

type goldenSection struct {
	pos    goldenPos
	kind   goldenKind
	name   string
	args   []goldenArg // of an outcome
	blocks []*goldenBlock
}

// goldenBlock is case lines with the answer they share. A step of a story or setup is a
// block of one case without a tag.
type goldenBlock struct {
	cases  []goldenCase
	expect *goldenExpect // nil behind a step that does not operate
}

type goldenCase struct {
	pos      goldenPos
	tag      string
	commands []goldenCommand
}

type goldenCommand struct {
	pos  goldenPos
	verb string
	args []goldenArg
}

type goldenArg struct {
	name string // that of the verb's positional argument for a bare word
	bare bool   // written without its name, or a flag
	raw  string // as written
}

// goldenExpect is compared as text, with its spaces squeezed.
type goldenExpect struct {
	pos    goldenPos
	answer string
	record string // empty: untouched
	events []string
}

type goldenPos struct {
	file string
	line int
}

func (p goldenPos) String() string { return fmt.Sprintf("store/testdata/%s:%d", p.file, p.line) }

func (p goldenPos) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %s", p, fmt.Sprintf(format, args...))
}

// before reports whether what is at p can be used at q: it is in the same file and before
// it, or q's file is another and p's is the one that all share. So nothing uses itself.
func (p goldenPos) before(q goldenPos) bool {
	if p.file == q.file {
		return p.line < q.line
	}
	return p.file == "setups.txt"
}

// commands yields every command of the section.
func (s *goldenSection) commands() iter.Seq[goldenCommand] {
	return func(yield func(goldenCommand) bool) {
		for _, block := range s.blocks {
			for _, c := range block.cases {
				for _, cmd := range c.commands {
					if !yield(cmd) {
						return
					}
				}
			}
		}
	}
}

// goldenParser reads a script line by line. The error of a line carries its position.
type goldenParser struct {
	file    *goldenFile
	section *goldenSection
	block   *goldenBlock // the one that lines can still be added to
}

// parseGolden parses one script.
func parseGolden(name, text string) (*goldenFile, error) {
	p := &goldenParser{file: &goldenFile{name: name}}
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		pos := goldenPos{name, i + 1}
		line := strings.TrimSpace(lines[i])
		for strings.HasSuffix(line, `\`) && !strings.HasPrefix(line, "#") {
			if i++; i == len(lines) {
				return nil, pos.errorf(`the script ends behind a \`)
			}
			line = strings.TrimSuffix(line, `\`) + " " + strings.TrimSpace(lines[i])
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !utf8.ValidString(line) {
			return nil, pos.errorf("the line is not UTF-8")
		}
		if err := p.line(pos, line); err != nil {
			return nil, err
		}
	}
	return p.file, p.endBlock()
}

func (p *goldenParser) line(pos goldenPos, line string) error {
	word, rest := line, ""
	if i := strings.IndexFunc(line, unicode.IsSpace); i >= 0 {
		word, rest = line[:i], strings.Join(strings.Fields(line[i:]), " ")
	}
	switch word {
	case "outcome", "setup", "story", "condition":
		return p.beginSection(pos, goldenKind(word), line[len(word):])
	}
	if p.section == nil || p.section.kind == goldenOutcome {
		return pos.errorf("%q is outside a section; begin one with setup, story or condition", word)
	}
	switch word {
	case "case":
		return p.caseLine(pos, line[len(word):])
	case "->":
		return p.answer(pos, rest)
	case "record":
		return p.record(pos, rest)
	case "event":
		return p.event(pos, rest)
	}
	return p.step(pos, line)
}

func (p *goldenParser) beginSection(pos goldenPos, kind goldenKind, rest string) error {
	if err := p.endBlock(); err != nil {
		return err
	}
	words, err := splitWords(rest)
	if err != nil {
		return pos.errorf("%v", err)
	}
	if len(words) == 0 || !isName(words[0]) {
		return pos.errorf("%s needs a name of the letters a-z, digits and -", kind)
	}
	section := &goldenSection{pos: pos, kind: kind, name: words[0]}
	if kind == goldenOutcome {
		section.args, err = parseArgs(goldenOutcomeArgs, "", words[1:])
	} else if len(words) > 1 {
		err = fmt.Errorf("%q is too much behind the name", words[1])
	}
	if err != nil {
		return pos.errorf("%v", err)
	}
	p.section = section
	p.file.sections = append(p.file.sections, section)
	return nil
}

func (p *goldenParser) caseLine(pos goldenPos, rest string) error {
	if p.section.kind != goldenCondition {
		return pos.errorf("a case belongs into a condition, not into a %s", p.section.kind)
	}
	tag, rest, ok := strings.Cut(rest, ":")
	tag = strings.TrimSpace(tag)
	if !ok || !isName(tag) {
		return pos.errorf("a case is written: case TAG: COMMAND; COMMAND")
	}
	c := goldenCase{pos: pos, tag: tag}
	words, err := splitWords(rest)
	if err != nil {
		return pos.errorf("%v", err)
	}
	for _, part := range splitCommands(words) {
		cmd, err := parseCommand(pos, part)
		if err != nil {
			return err
		}
		c.commands = append(c.commands, cmd)
	}
	if last := c.commands[len(c.commands)-1]; !last.operates() {
		return pos.errorf("the last command of a case must operate on the key; %s does not", last.verb)
	}
	if p.block == nil || p.block.expect != nil {
		if err := p.endBlock(); err != nil {
			return err
		}
		p.beginBlock()
	}
	p.block.cases = append(p.block.cases, c)
	return nil
}

func (p *goldenParser) step(pos goldenPos, line string) error {
	if p.section.kind == goldenCondition {
		return pos.errorf("a condition holds cases; write: case TAG: %s", line)
	}
	if err := p.endBlock(); err != nil {
		return err
	}
	words, err := splitWords(line)
	if err != nil {
		return pos.errorf("%v", err)
	}
	cmd, err := parseCommand(pos, words)
	if err != nil {
		return err
	}
	p.beginBlock()
	p.block.cases = []goldenCase{{pos: pos, commands: []goldenCommand{cmd}}}
	return nil
}

func (p *goldenParser) beginBlock() {
	p.block = &goldenBlock{}
	p.section.blocks = append(p.section.blocks, p.block)
}

// endBlock checks that the open block has all it needs, and closes it.
func (p *goldenParser) endBlock() error {
	block := p.block
	p.block = nil
	if block == nil || block.expect != nil {
		return nil
	}
	c := block.cases[len(block.cases)-1]
	if last := c.commands[len(c.commands)-1]; last.operates() {
		return c.pos.errorf("%s has no answer; add a line: -> ANSWER", last.verb)
	}
	return nil
}

func (p *goldenParser) answer(pos goldenPos, text string) error {
	if p.block == nil || p.block.expect != nil {
		return pos.errorf("an answer belongs behind an operation")
	}
	c := p.block.cases[0]
	if last := c.commands[len(c.commands)-1]; !last.operates() {
		return pos.errorf("%s has no answer", last.verb)
	}
	if text == "" {
		return pos.errorf("the answer is missing; write: -> ANSWER")
	}
	p.block.expect = &goldenExpect{pos: pos, answer: text}
	return nil
}

func (p *goldenParser) record(pos goldenPos, text string) error {
	if p.block == nil || p.block.expect == nil || p.block.expect.record != "" || p.block.expect.events != nil {
		return pos.errorf("a record belongs behind an answer, once and before its events")
	}
	if text == "" {
		return pos.errorf("the record is missing; write: record RECORD")
	}
	p.block.expect.record = text
	return nil
}

func (p *goldenParser) event(pos goldenPos, text string) error {
	if p.block == nil || p.block.expect == nil {
		return pos.errorf("an event belongs behind an answer")
	}
	if text == "" {
		return pos.errorf("the event is missing; write: event EVENT")
	}
	p.block.expect.events = append(p.block.expect.events, text)
	return nil
}

func isName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// splitWords splits at spaces that are not inside quotes. A ; is a word of its own.
func splitWords(s string) ([]string, error) {
	var words []string
	start, quoted := -1, false
	end := func(i int) {
		if start >= 0 {
			words = append(words, s[start:i])
			start = -1
		}
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
			if start < 0 {
				start = i
			}
		case quoted:
		case c == ';':
			end(i)
			words = append(words, ";")
		case c == ' ' || c == '\t':
			end(i)
		case start < 0:
			start = i
		}
	}
	if quoted {
		return nil, fmt.Errorf("a quote is not closed")
	}
	end(len(s))
	return words, nil
}

func splitCommands(words []string) [][]string {
	parts := [][]string{nil}
	for _, w := range words {
		if w == ";" {
			parts = append(parts, nil)
			continue
		}
		last := len(parts) - 1
		parts[last] = append(parts[last], w)
	}
	return parts
}

// print writes the script in its canonical form: one line each, no comments.
func (f *goldenFile) print() string {
	var b strings.Builder
	for _, section := range f.sections {
		fmt.Fprintf(&b, "%s %s%s\n", section.kind, section.name, argsText(section.args))
		for _, block := range section.blocks {
			block.print(&b)
		}
	}
	return b.String()
}

func (block *goldenBlock) print(b *strings.Builder) {
	for _, c := range block.cases {
		if c.tag != "" {
			fmt.Fprintf(b, "case %s: ", c.tag)
		}
		for i, cmd := range c.commands {
			if i > 0 {
				b.WriteString("; ")
			}
			b.WriteString(cmd.String())
		}
		b.WriteString("\n")
	}
	if block.expect == nil {
		return
	}
	fmt.Fprintf(b, "-> %s\n", block.expect.answer)
	if block.expect.record != "" {
		fmt.Fprintf(b, "record %s\n", block.expect.record)
	}
	for _, event := range block.expect.events {
		fmt.Fprintf(b, "event %s\n", event)
	}
}

// String is the command as a script says it.
func (c goldenCommand) String() string { return c.verb + argsText(c.args) }

func argsText(args []goldenArg) string {
	var b strings.Builder
	for _, arg := range args {
		b.WriteString(" ")
		if !arg.bare {
			b.WriteString(arg.name + "=")
		}
		b.WriteString(arg.raw)
	}
	return b.String()
}
