// Package strictyaml reads files in YAML that are written by people, and decide who may do what or
// where something lives: what is not understood is an error, and nothing is passed over.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Decode reads the one document of a text. Fields that v has not and values that are missing are
// errors, which name their line. A text without a document leaves v as it is.
func Decode(text []byte, v any) error {
	var root yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	switch err := decoder.Decode(&root); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return oneLine(err)
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return errors.New("there is more than one document in it")
	}
	if err := complete(&root); err != nil {
		return err
	}
	decoder = yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(v); err != nil {
		return oneLine(err)
	}
	return nil
}

// complete refuses values that are missing, which the decoder would leave out, even from a list.
func complete(n *yaml.Node) error {
	if n.ShortTag() == "!!null" {
		return fmt.Errorf("line %d: a value is missing; give one, or leave out what it is for", n.Line)
	}
	for _, inner := range n.Content {
		if err := complete(inner); err != nil {
			return err
		}
	}
	return nil
}

func oneLine(err error) error { return errors.New(strings.Join(strings.Fields(err.Error()), " ")) }
