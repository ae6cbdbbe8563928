package pebblestore

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
)

// formatVersion is the version of everything in the directory. Whoever changes what is stored so
// that an older release would take it for damage raises it. A store of a newer version is refused,
// so is one that is older than oldestVersion; one in between becomes one of this version when it is
// opened. Version 1, from before any release, numbered a key's events without gaps. In version 2 a
// row did not tell since when it is unsettled, and is read as such.
const (
	formatVersion = 3
	oldestVersion = 2
)

// identity is the content of the file FORMAT: what the directory is. It is written last
// when a store is created, so a directory without it holds no acknowledged operation.
type identity struct {
	version int
	id      string // 32 hexadecimal digits, drawn at creation
	// backup, if set, says that the directory is a backup of that time, not yet restored. It
	// stands here and not in a file of its own, which somebody might not copy.
	backup time.Time
	// wall is what the machine's clock showed then. A store that was ahead of it has given out
	// fences, and taken what is new, by a time that no machine's clock shows yet.
	wall time.Time
}

// ahead is how far the store's clock was ahead of the machine's when the backup was made.
func (i identity) ahead() time.Duration { return max(0, i.backup.Sub(i.wall)) }

// complete is up to when a backup knows every key, by both clocks: whoever looks up what came since
// does not know of the store's.
func (i identity) complete() time.Time {
	if i.wall.Before(i.backup) {
		return i.wall
	}
	return i.backup
}

func newIdentity() identity {
	return identity{version: formatVersion, id: store.NewStoreID()}
}

const identityTitle = "idemd embedded store"

// encode returns four lines: title, version, id, CRC-32C of the lines before; and before the
// last one, of a backup, its time and the machine's. Later versions may add lines between.
func (i identity) encode() []byte {
	text := fmt.Appendf(nil, "%s\nformat %d\nid %s\n", identityTitle, i.version, i.id)
	if !i.backup.IsZero() {
		text = fmt.Appendf(text, "backup %s\nwall %s\n", rfc3339(i.backup), rfc3339(i.wall))
	}
	return fmt.Appendf(text, "crc %08x\n", crc32.Checksum(text, castagnoli))
}

func decodeIdentity(text []byte) (identity, error) {
	at := bytes.LastIndex(text, []byte("crc "))
	if at < 0 || string(text[at:]) != fmt.Sprintf("crc %08x\n", crc32.Checksum(text[:at], castagnoli)) {
		return identity{}, fmt.Errorf("file %s: %w", fileFormat, errDamagedValue)
	}
	lines := bytes.Split(text[:at], []byte("\n"))
	if string(lines[0]) != identityTitle || len(lines) < 3 {
		return identity{}, fmt.Errorf("file %s: %w", fileFormat, errDamagedValue)
	}
	version, err := strconv.Atoi(string(bytes.TrimPrefix(lines[1], []byte("format "))))
	if err != nil {
		return identity{}, fmt.Errorf("file %s: %w: %w", fileFormat, errDamagedValue, err)
	}
	id := identity{version: version, id: string(bytes.TrimPrefix(lines[2], []byte("id ")))}
	for _, line := range lines[3:] {
		name, text, _ := bytes.Cut(line, []byte(" "))
		at := map[string]*time.Time{"backup": &id.backup, "wall": &id.wall}[string(name)]
		if at == nil {
			continue
		}
		if *at, err = time.Parse(time.RFC3339Nano, string(text)); err != nil {
			return identity{}, fmt.Errorf("file %s: %w: %w", fileFormat, errDamagedValue, err)
		}
	}
	return id, nil
}

// putIdentity makes or replaces the file FORMAT, once everything else in the directory is on
// disk: there is the old one or the new one, whatever happens.
func putIdentity(fs vfs.FS, dir string, id identity) error {
	name := fs.PathJoin(dir, fileFormat)
	if err := writeFileSynced(fs, name+".new", id.encode()); err != nil {
		return err
	}
	if err := syncDir(fs, dir); err != nil {
		return err
	}
	if err := fs.Rename(name+".new", name); err != nil {
		return err
	}
	return syncDir(fs, dir)
}

// writeFileSynced creates the file with the content and syncs it, but not its directory.
func writeFileSynced(fs vfs.FS, name string, content []byte) error {
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err := f.Write(content); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Sync(); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

func readFile(fs vfs.FS, name string) ([]byte, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	if err := d.Sync(); err != nil {
		_ = d.Close()
		return err
	}
	return d.Close()
}

// makeDir creates dir and its parents and makes sure that they stay.
func makeDir(fs vfs.FS, dir string) error {
	if _, err := fs.Stat(dir); err == nil {
		return nil
	}
	parent := fs.PathDir(dir)
	if parent != dir {
		if err := makeDir(fs, parent); err != nil {
			return err
		}
	}
	if err := fs.MkdirAll(dir, 0o700); errors.Is(err, os.ErrExist) { // and Stat finds nothing there
		return fmt.Errorf("%w; its disk may not be mounted: mount it, or make that directory", absent(dir, err))
	} else if err != nil {
		return err
	}
	return syncDir(fs, parent)
}

// absent says what is missing where there is no directory: what a link names, if it is one.
func absent(dir string, err error) error {
	target, notLink := os.Readlink(dir)
	if notLink != nil {
		return err
	}
	return fmt.Errorf("%s is a link to %s, and nothing is there (%w)", dir, target, err)
}
