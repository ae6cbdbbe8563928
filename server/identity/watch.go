package identity

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
)

// maxFileBytes bounds a file that is read.
const maxFileBytes = 4 << 20

// watched is what is made of some files. They are read all the time and not waited for, so that
// it does not matter how they are replaced: in place, by a rename, or by way of symbolic links as
// Kubernetes does. A change counts once it was seen twice in the same form, and so was not half
// written. One that is no good changes nothing, but is told.
type watched[T any] struct {
	what   string // for the log and the notice
	paths  []string
	parse  func(contents [][]byte) (T, error)
	logger *slog.Logger

	current atomic.Pointer[T]

	mu      sync.Mutex
	seen    [sha256.Size]byte // of the last look
	applied [sha256.Size]byte // what current was made of
	problem string            // with what was seen; empty if it is in force
}

// now returns what is in force.
func (w *watched[T]) now() T { return *w.current.Load() }

// load reads the files for the first time.
func (w *watched[T]) load() error {
	contents, digest, err := w.read()
	if err != nil {
		return err
	}
	value, err := w.make(contents)
	if err != nil {
		return err
	}
	w.current.Store(&value)
	w.seen, w.applied = digest, digest
	return nil
}

// poll looks whether the files have changed.
func (w *watched[T]) poll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	contents, digest, err := w.read()
	if err != nil {
		digest = sha256.Sum256([]byte(err.Error()))
	}
	settled := digest == w.seen
	w.seen = digest
	switch {
	case !settled:
	case err != nil:
		w.keep(err)
	case digest != w.applied:
		w.replace(contents, digest)
	case w.problem != "":
		w.problem = ""
		w.logger.Info("file is as before: "+w.what, "files", strings.Join(w.paths, ", "))
	}
}

// replace puts what was read in force. It is tried again as long as it is no good: a certificate
// that is not valid yet will be.
func (w *watched[T]) replace(contents [][]byte, digest [sha256.Size]byte) {
	value, err := w.make(contents)
	if err != nil {
		w.keep(err)
		return
	}
	w.current.Store(&value)
	w.applied, w.problem = digest, ""
	w.logger.Info("file read again: "+w.what, "files", strings.Join(w.paths, ", "))
}

// keep leaves what is in force, and says so once.
func (w *watched[T]) keep(err error) {
	if problem := err.Error(); problem != w.problem {
		w.problem = problem
		w.logger.Error("file is no good and the one before stays in force: "+w.what, "problem", problem)
	}
}

// stale says what is wrong with the files; empty if they are in force.
func (w *watched[T]) stale() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.problem
}

func (w *watched[T]) make(contents [][]byte) (T, error) {
	value, err := w.parse(contents)
	if err != nil {
		return value, fmt.Errorf("%s: %w", strings.Join(w.paths, ", "), err)
	}
	return value, nil
}

func (w *watched[T]) read() (contents [][]byte, digest [sha256.Size]byte, err error) {
	all := sha256.New()
	for _, path := range w.paths {
		content, err := readFile(path)
		if err != nil {
			return nil, digest, err
		}
		contents = append(contents, content)
		fmt.Fprintf(all, "%d:", len(content))
		_, _ = all.Write(content)
	}
	return contents, [sha256.Size]byte(all.Sum(nil)), nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err == nil && len(content) > maxFileBytes {
		err = fmt.Errorf("%s: it has more than %d bytes", path, maxFileBytes)
	}
	return content, err
}
