package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// What a line of a file says with more than JSON has by itself. Each refuses what it cannot be in a
// way that [fieldError] tells of with the field's name.
type (
	importCode  code
	importTime  struct{ time.Time }
	importBytes []byte
)

// UnmarshalJSON implements [json.Unmarshaler].
func (c *importCode) UnmarshalJSON(text []byte) error {
	name := strings.Trim(string(text), `"`)
	if name == "null" {
		return nil
	}
	if err := (*code)(c).UnmarshalText([]byte(name)); err != nil {
		return misfit[importCode](text)
	}
	return nil
}

// UnmarshalJSON implements [json.Unmarshaler].
func (t *importTime) UnmarshalJSON(text []byte) error {
	if err := t.Time.UnmarshalJSON(text); err != nil {
		return misfit[importTime](text)
	}
	return nil
}

// UnmarshalJSON implements [json.Unmarshaler]. Numbers in a list are bytes to encoding/json.
func (b *importBytes) UnmarshalJSON(text []byte) error {
	if text[0] == '[' || json.Unmarshal(text, (*[]byte)(b)) != nil {
		return misfit[importBytes](text)
	}
	return nil
}

// misfit is an error to which encoding/json adds the field.
func misfit[T any](text []byte) error {
	return &json.UnmarshalTypeError{Value: string(text), Type: reflect.TypeFor[T]()}
}

// mustBe says what may stand in a field of a type.
func mustBe(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[importCode]():
		return fmt.Sprintf(`a name like "NOT_FOUND" or a number from 0 to %d`, codes.Unauthenticated)
	case reflect.TypeFor[importTime]():
		return `a time like "2026-01-31T15:04:05Z"`
	case reflect.TypeFor[importBytes]():
		return `base64, a text like "YQ=="`
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Uint32:
		return fmt.Sprintf("a whole number from 0 to %d", ^uint32(0))
	case reflect.Struct:
		return "an object, {…}"
	default:
		return `a text, "…"`
	}
}
