package job

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// MaxKept is how many bytes of a stream are kept, the last. Two of them are, written as JSON
// in the worst way, still fit into an outcome.
const MaxKept = 16 << 10

// Output is what a command wrote to one of its streams.
type Output struct {
	Kept  []byte // the end of it
	Bytes int64  // how much it was
}

// outputJSON has text as text, so that a person can read it, and other bytes in base64.
type outputJSON struct {
	Text   string `json:"text,omitempty"`
	Base64 []byte `json:"base64,omitempty"`
	Bytes  int64  `json:"bytes"`
}

// MarshalJSON implements [json.Marshaler].
func (o Output) MarshalJSON() ([]byte, error) {
	if utf8.Valid(o.Kept) {
		return json.Marshal(outputJSON{Text: string(o.Kept), Bytes: o.Bytes})
	}
	return json.Marshal(outputJSON{Base64: o.Kept, Bytes: o.Bytes})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (o *Output) UnmarshalJSON(b []byte) error {
	var m outputJSON
	err := json.Unmarshal(b, &m)
	*o = Output{Kept: append([]byte(m.Text), m.Base64...), Bytes: m.Bytes}
	return err
}

// tail keeps the end of what is added.
type tail struct {
	end []byte
	n   int64
}

func (t *tail) add(p []byte) {
	t.n += int64(len(p))
	t.end = append(t.end, p...)
	if len(t.end) > 2*MaxKept {
		t.end = append(t.end[:0], t.end[len(t.end)-MaxKept:]...)
	}
}

// output is what is kept: of what is cut off, not the rest of a line, unless that is all.
func (t *tail) output() Output {
	end := t.end[max(0, len(t.end)-MaxKept):]
	if t.n > int64(len(end)) {
		if _, lines, found := bytes.Cut(end, []byte("\n")); found && len(lines) > 0 {
			end = lines
		}
		for range utf8.UTFMax - 1 { // the rest of a character
			if len(end) > 0 && !utf8.RuneStart(end[0]) {
				end = end[1:]
			}
		}
	}
	return Output{Kept: end, Bytes: t.n}
}
