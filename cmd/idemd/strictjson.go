package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// strictJSON reads one object into what v points to, whose fields have names of a-z and _. What
// encoding/json would mend or choose from is refused: else the object says something else than
// whoever wrote it, such as another key.
func strictJSON(text []byte, v any) error {
	if at := invalidUTF8(text); at >= 0 {
		return fmt.Errorf("byte %d is not UTF-8", at+1)
	}
	var whole json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil { // also for what comes after the object
		return err
	}
	if text := bytes.TrimSpace(text); text[0] != '{' {
		return errors.New("an object is expected, {…}")
	}
	if escape := loneSurrogate(text); escape != "" {
		return fmt.Errorf(`%s is half of a character: such text is not UTF-8`, escape)
	}
	if err := checkNames(json.NewDecoder(bytes.NewReader(text))); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return fieldError(d.Decode(v))
}

// fieldError is an error of encoding/json in the words of whoever wrote the object, who knows nothing
// of the types here.
func fieldError(err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong):
		return fmt.Errorf("%s must be %s", wrong.Field, mustBe(wrong.Type))
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// invalidUTF8 is where the text is not UTF-8, or -1.
func invalidUTF8(text []byte) int {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

// loneSurrogate returns the first escape in valid JSON that is half of a pair without the other.
func loneSurrogate(text []byte) string {
	for {
		at := bytes.IndexByte(text, '\\')
		if at < 0 {
			return ""
		}
		first, ok := escaped(text[at:])
		switch {
		case !ok:
			text = text[at+2:]
			continue
		case !utf16.IsSurrogate(first):
		default:
			if second, _ := escaped(text[at+6:]); utf16.DecodeRune(first, second) == utf8.RuneError {
				return string(text[at : at+6])
			}
			at += 6
		}
		text = text[at+6:]
	}
}

// escaped reads the escape \uXXXX that a text begins with.
func escaped(text []byte) (rune, bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	r, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	return rune(r), err == nil
}

// checkNames refuses a name that is in an object twice, and names that only look like those of
// fields, which encoding/json takes for them.
func checkNames(d *json.Decoder) error {
	token, err := d.Token()
	open, nested := token.(json.Delim)
	if err != nil || !nested {
		return err
	}
	seen := map[string]bool{}
	for d.More() {
		if open == '{' {
			token, err := d.Token()
			if err != nil {
				return err
			}
			name, _ := token.(string)
			switch {
			case strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") != "":
				return fmt.Errorf("unknown field %q", name)
			case seen[name]:
				return fmt.Errorf("field %q is given twice", name)
			}
			seen[name] = true
		}
		if err := checkNames(d); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}
