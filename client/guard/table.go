package guard

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"
)

// quote makes an identifier of a name. One with a schema is two, with a dot between.
func quote(name string) (string, error) {
	parts := strings.Split(name, ".")
	for i, part := range parts {
		if part == "" || strings.ContainsRune(part, 0) || !utf8.ValidString(part) {
			return "", invalid("%q is not the name of a table or a column: it must be valid UTF-8, and no part of it empty", name)
		}
		parts[i] = `"` + strings.ReplaceAll(part, `"`, `""`) + `"`
	}
	return strings.Join(parts, "."), nil
}

// maxText is the most bytes that a key, an entity, a resource or a guard's Name may have.
const maxText = 255

func checkText(what, text string) error {
	switch {
	case text == "":
		return invalid("%s is empty", what)
	case len(text) > maxText:
		return invalid("%s has %d bytes: %d at most; hash it, for example as client.Attempt.DownstreamKey does", what, len(text), maxText)
	}
	return checkUTF8(what, text)
}

func checkUTF8(what, text string) error {
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return invalid("%s is not valid UTF-8 without NUL, which is what databases keep as text", what)
	}
	return nil
}

// table is where a guard keeps its rows: its own table, and in that the rows with its name.
type table struct{ given, fallback, name string }

// check returns the table's quoted name.
func (t table) check(what, text string) (string, error) {
	if err := checkText(what, text); err != nil {
		return "", err
	}
	return t.quoted()
}

// quoted checks the guard's Name, too: a database that takes it for no text breaks the transaction.
func (t table) quoted() (string, error) {
	if t.name != "" {
		if err := checkText("Name", t.name); err != nil {
			return "", err
		}
	}
	return quote(t.plain())
}

func (t table) plain() string {
	if t.given == "" {
		return t.fallback
	}
	return t.given
}

// longestTable leaves room for the names that PostgreSQL, in 63 bytes, derives from it.
const longestTable = 50

// ddl is the statement for a table with a row for each name and what, more columns, and more indexes.
func (t table) ddl(d Dialect, what, columns string, indexes ...string) (string, error) {
	quoted, err := t.quoted()
	if err != nil {
		return "", err
	}
	if last := t.plain()[strings.LastIndexByte(t.plain(), '.')+1:]; len(last) > longestTable {
		return "", invalid("table name %q has %d bytes: %d at most", last, len(last), longestTable)
	}
	indexes = append([]string{"PRIMARY KEY (name, " + what + ")"}, indexes...)
	return fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %s (
  name TEXT NOT NULL,
  %s TEXT NOT NULL,
  %s,
  %s,
  %s
)`, quoted, what, columns, d.recordedAt(), strings.Join(indexes, ",\n  ")), nil
}

// forget deletes the row of an id, which stands in a column, and reports whether there was one.
func (t table) forget(ctx context.Context, tx Tx, column, id string) (bool, error) {
	if err := checkText(column, id); err != nil {
		return false, err
	}
	name, err := t.quoted()
	if err != nil {
		return false, err
	}
	n, err := tx.Exec(ctx, tx.Dialect().statement("DELETE FROM %s WHERE name = $1 AND "+column+" = $2", name), t.name, id)
	return n > 0, err
}
