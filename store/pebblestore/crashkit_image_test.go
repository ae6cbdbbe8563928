package pebblestore_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// image is the files of a data directory, by their path in it.
type image map[string][]byte

// imageOf reads a directory. It leaves LOCK files alone: they are empty, and to close one
// would give up the lock that this process holds on it.
func imageOf(t testing.TB, fs vfs.FS, dir string) image {
	t.Helper()
	img := image{}
	img.add(t, fs, dir, "")
	return img
}

func (img image) add(t testing.TB, fs vfs.FS, dir, prefix string) {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		full := fs.PathJoin(dir, name)
		if info, err := fs.Stat(full); err != nil {
			t.Fatal(err)
		} else if info.IsDir() {
			img.add(t, fs, full, prefix+name+"/")
			continue
		}
		if name == "LOCK" {
			img[prefix+name] = nil
			continue
		}
		f, err := fs.Open(full)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		img[prefix+name] = content
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// write puts the files into a directory.
func (img image) write(t testing.TB, fs vfs.FS, dir string) {
	t.Helper()
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range img {
		full := fs.PathJoin(dir, name)
		if err := fs.MkdirAll(fs.PathDir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := fs.Create(full, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(slices.Clone(content)); err != nil { // a Write may change what it writes
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// with returns the image with one file replaced, or, if content is nil, without it.
func (img image) with(name string, content []byte) image {
	changed := maps.Clone(img)
	changed[name] = content
	if content == nil {
		delete(changed, name)
	}
	return changed
}

// names returns the files' names in order.
func (img image) names() []string { return slices.Sorted(maps.Keys(img)) }

// damage is one way to spoil a file.
type damage struct {
	what    string
	content []byte // nil: the file is gone
}

// damages returns ways to spoil a file, about so many of each kind.
func damages(name string, content []byte, each int) []damage {
	all := []damage{{"deleted", nil}}
	if len(content) == 0 {
		return append(all, damage{"written to", []byte("x")})
	}
	edges := recordEdges(name, content)
	for i, at := range offsets(len(content), each, edges) {
		flipped := slices.Clone(content)
		flipped[at] ^= [...]byte{0xff, 0x01, 0x80}[i%3]
		all = append(all, damage{fmt.Sprintf("flipped at %d of %d", at, len(content)), flipped})
	}
	for _, length := range offsets(len(content), each/4, edges) {
		all = append(all, damage{fmt.Sprintf("cut to %d of %d", length, len(content)), content[:length:length]})
	}
	for page := 0; page < len(content); page += 4096 {
		zeroed := slices.Clone(content)
		clear(zeroed[page:min(page+4096, len(content))])
		all = append(all, damage{fmt.Sprintf("zeroed at %d of %d", page, len(content)), zeroed})
	}
	return all
}

// offsets chooses offsets below n: all of them if they are few, else the ends, the given
// ones, and some spread between.
func offsets(n, count int, more []int) []int {
	chosen := map[int]bool{}
	if n <= 2*count {
		count = n
	}
	for i := range count {
		chosen[i*n/count] = true
	}
	for i := range min(n, count/8) {
		chosen[i], chosen[n-1-i] = true, true
	}
	for _, at := range more {
		if at < n {
			chosen[at] = true
		}
	}
	return slices.Sorted(maps.Keys(chosen))
}

// recordEdges returns the bytes of the headers of the first and last few records of a
// log or manifest.
func recordEdges(name string, content []byte) []int {
	if !isLogFormat(name) {
		return nil
	}
	var headers []int
	for at := 0; at+7 <= len(content); {
		length := int(binary.LittleEndian.Uint16(content[at+4:]))
		size := headerSize(content[at+6])
		if length == 0 || size == 0 {
			break
		}
		headers = append(headers, at)
		at += size + length
	}
	const most = 6
	if len(headers) > 2*most {
		headers = append(headers[:most:most], headers[len(headers)-most:]...)
	}
	var edges []int
	for _, at := range headers {
		for i := range headerSize(content[at+6]) + 1 {
			edges = append(edges, at+i)
		}
	}
	return edges
}

func isLogFormat(name string) bool {
	return path.Ext(name) == ".log" || strings.HasPrefix(path.Base(name), "MANIFEST")
}

// headerSize is the size of a record's header by its type, zero if there is no such type:
// plain, with the log's number, and with the offset synced too.
func headerSize(kind byte) int {
	switch {
	case kind >= 1 && kind <= 4:
		return 7
	case kind >= 5 && kind <= 8:
		return 11
	case kind >= 9 && kind <= 12:
		return 19
	}
	return 0
}
