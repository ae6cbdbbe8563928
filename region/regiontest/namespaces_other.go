//go:build !linux

package regiontest

import "testing"

// Namespaces needs Linux.
func Namespaces(testing.TB) (Ground, string) { return nil, "network namespaces need Linux" }
