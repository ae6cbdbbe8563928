package storepb

import (
	"fmt"
	"strings"
)

// Word is an enum's value as people write and read it: LAPSE_POLICY_HOLD is hold.
func Word(value fmt.Stringer, prefix string) string {
	name := strings.TrimPrefix(value.String(), prefix)
	return strings.ReplaceAll(strings.ToLower(name), "_", " ")
}
