// Package testdata holds the golden scripts of the table of states and operations (see
// the package documentation of store). Package storetest reads and runs them; the
// format is described there, at RunGolden.
package testdata

import "embed"

// Golden holds the scripts.
//
//go:embed *.txt
var Golden embed.FS
