package pgtest

import (
	"os"
	"path/filepath"
	"testing"
)

// Program is where another of PostgreSQL's programs is, such as pgbench: in one of the places
// in which the server's are looked for. A test without it fails.
func Program(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range searchPath() {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path
		}
	}
	t.Fatalf("no %s beside PostgreSQL's server binaries: Debian has it in postgresql-client or postgresql-contrib", name)
	return ""
}
