package pebblestore

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The file MARK says which commit is synced for certain, apart from Pebble's own files: if
// these end before it, acknowledged operations are gone. It has two slots, each on a page
// of its own, written in turn, so that a torn write leaves the other one.
const (
	markSlotSize = 4096
	markMagic    = "idemdmrk"
	markLen      = len(markMagic) + 4 + 16 + 8 + 8 + 8 + 4

	// markEvery is the least time between two writes, so that they do not take the disk
	// from the commits.
	markEvery = 2 * time.Millisecond
)

// mark is one slot's content.
type mark struct {
	storeID string
	count   uint64 // grows with every write; the slot with the higher one is newer
	at      commitTime
}

func (m mark) encode() []byte {
	b := make([]byte, 0, markSlotSize)
	b = append(b, markMagic...)
	b = binary.BigEndian.AppendUint32(b, formatVersion)
	b, _ = hex.AppendDecode(b, []byte(m.storeID)) // made by newIdentity or compared with one
	b = binary.BigEndian.AppendUint64(b, m.count)
	b = binary.BigEndian.AppendUint64(b, m.at.seq)
	b = appendTime(b, m.at.now)
	b = binary.BigEndian.AppendUint32(b, sealSum(nil, b))
	return b[:markSlotSize]
}

func decodeMark(slot []byte) (mark, bool) {
	body, sum := slot[:markLen-4], slot[markLen-4:markLen]
	if string(body[:len(markMagic)]) != markMagic || binary.BigEndian.Uint32(sum) != sealSum(nil, body) {
		return mark{}, false
	}
	body = body[len(markMagic)+4:]
	d := decoder{rest: body[32:]}
	m := mark{
		storeID: hex.EncodeToString(body[:16]),
		count:   binary.BigEndian.Uint64(body[16:]),
		at:      commitTime{seq: binary.BigEndian.Uint64(body[24:]), now: d.time()},
	}
	return m, d.finish() == nil
}

// readMark returns the newer of the two slots.
func readMark(fs vfs.FS, name string) (mark, error) {
	content, err := readFile(fs, name)
	if err != nil {
		return mark{}, fmt.Errorf("file %s cannot be read: %w", fileMark, err)
	}
	var newest mark
	for ; len(content) >= markLen; content = content[min(markSlotSize, len(content)):] {
		if m, ok := decodeMark(content); ok && m.count > newest.count {
			newest = m
		}
	}
	if newest.count == 0 {
		return mark{}, fmt.Errorf("file %s: %w", fileMark, errDamagedValue)
	}
	return newest, nil
}

// createMark makes the file with both slots filled.
func createMark(fs vfs.FS, name string, m mark) error {
	m.count = 1
	content := m.encode()
	m.count = 2
	return writeFileSynced(fs, name, append(content, m.encode()...))
}

// advanceMark writes that all commits up to c are synced, and returns what it wrote after m.
func advanceMark(fs vfs.FS, name string, m mark, c commitTime) (mark, error) {
	f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return mark{}, err
	}
	k := &marker{file: f, last: m, next: c}
	err = errors.Join(k.write(), f.Close())
	return k.last, err
}

// marker keeps the MARK file. Advance is called by the loop, the rest runs in a
// goroutine of its own, so that no answer waits for the mark.
type marker struct {
	file   vfs.File
	failed func(error)
	wake   chan struct{} // holds one token if there is something to write or closing began
	stop   chan struct{}
	done   chan struct{}

	mu   sync.Mutex
	next commitTime // the newest commit that is synced

	last mark // as written
}

// startMarker continues after m. Failed is called when the file cannot be written.
func startMarker(fs vfs.FS, name string, m mark, failed func(error)) (*marker, error) {
	f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	k := &marker{
		file: f, failed: failed, last: m, next: m.at,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go k.run()
	return k, nil
}

// advance says that all commits up to c are synced.
func (k *marker) advance(c commitTime) {
	k.mu.Lock()
	k.next = c
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *marker) run() {
	defer close(k.done)
	for {
		select {
		case <-k.wake:
		case <-k.stop:
			return
		}
		if err := k.write(); err != nil {
			k.failed(fmt.Errorf("write file %s: %w", fileMark, err))
			return
		}
		select {
		case <-time.After(markEvery):
		case <-k.stop:
			return
		}
	}
}

// write fills the older slot with the newest commit.
func (k *marker) write() error {
	k.mu.Lock()
	at := k.next
	k.mu.Unlock()
	next := mark{storeID: k.last.storeID, count: k.last.count + 1, at: at}
	n, err := k.file.WriteAt(next.encode(), int64(next.count+1)%2*markSlotSize)
	if err == nil && n < markSlotSize {
		err = io.ErrShortWrite
	}
	if err != nil {
		return err
	}
	if err := k.file.SyncData(); err != nil {
		return err
	}
	k.last = next
	return nil
}

// halt ends the goroutine and leaves the file as it is.
func (k *marker) halt() {
	close(k.stop)
	<-k.done
}

// close writes both slots, so that damage to one of them is harmless, and closes the file.
func (k *marker) close() error {
	k.halt()
	err := k.write()
	if err == nil {
		err = k.write()
	}
	return errors.Join(err, k.file.Close())
}
