package pgtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
)

// oldest is the first version of PostgreSQL the SQL store works with.
const oldest = 15

var errMissing = errors.New("no server binaries of PostgreSQL 15 or newer on PATH or in /usr/lib/postgresql/*/bin: " +
	"`make test` installs them (or set IDEMD_POSTGRES_PATH to their directories)")

// binaries is the directory of initdb, postgres and pg_ctl. .ci/postgres looks in the same places.
var binaries = sync.OnceValues(findBinaries)

func findBinaries() (string, error) {
	for _, dir := range searchPath() {
		if usable(dir) {
			return dir, nil
		}
	}
	return "", errMissing
}

func searchPath() []string {
	if path, ok := os.LookupEnv("IDEMD_POSTGRES_PATH"); ok {
		return filepath.SplitList(path)
	}
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // fails for a bad pattern only
	return append(filepath.SplitList(os.Getenv("PATH")), debian...)
}

var versionPattern = regexp.MustCompile(`^postgres \(PostgreSQL\) (\d+)`)

func usable(dir string) bool {
	for _, program := range []string{"initdb", "pg_ctl"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			return false
		}
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return false
	}
	match := versionPattern.FindSubmatch(out)
	if match == nil {
		return false
	}
	version, err := strconv.Atoi(string(match[1]))
	return err == nil && version >= oldest
}
