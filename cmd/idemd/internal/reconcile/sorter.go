package reconcile

import (
	"bufio"
	"bytes"
	"container/heap"
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"os"
	"slices"
)

// A sorter puts any number of rows in order. It keeps at most limit bytes of them in memory,
// and the rest in files.
type sorter struct {
	dir   string
	limit int
	rows  [][]byte
	size  int
	runs  []*os.File
}

// rowOverhead is what a row costs in memory, beside its bytes.
const rowOverhead = 48

func (s *sorter) add(row []byte) error {
	s.rows = append(s.rows, row)
	s.size += len(row) + rowOverhead
	if s.size < s.limit {
		return nil
	}
	return s.spill()
}

// spill writes what is in memory to a file, in order.
func (s *sorter) spill() error {
	slices.SortFunc(s.rows, bytes.Compare)
	f, err := os.CreateTemp(s.dir, "idemd-reconcile-")
	if err != nil {
		return err
	}
	s.runs = append(s.runs, f)
	if err := os.Remove(f.Name()); err != nil { // now: what ends this process, such as a closed pipe, may not leave rows behind
		return err
	}
	w := bufio.NewWriter(f)
	for _, row := range s.rows {
		_, _ = w.Write(binary.AppendUvarint(nil, uint64(len(row))))
		_, _ = w.Write(row) // Flush has the error
	}
	s.rows, s.size = nil, 0
	return w.Flush()
}

// sorted returns the rows in order. A row is valid until the next.
func (s *sorter) sorted() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		slices.SortFunc(s.rows, bytes.Compare)
		merge := &merging{{next: fromMemory(s.rows)}}
		for _, f := range s.runs {
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				yield(nil, err)
				return
			}
			*merge = append(*merge, &run{next: fromFile(bufio.NewReader(f))})
		}
		for row, err := range merge.rows() {
			if !yield(row, err) {
				return
			}
		}
	}
}

// close closes the files, which have no name any more.
func (s *sorter) close() {
	for _, f := range s.runs {
		_ = f.Close() // only read since it was written
	}
}

// A run is rows in order, of which the first is looked at.
type run struct {
	row  []byte
	next func() ([]byte, error) // io.EOF after the last
}

func fromMemory(rows [][]byte) func() ([]byte, error) {
	return func() ([]byte, error) {
		if len(rows) == 0 {
			return nil, io.EOF
		}
		row := rows[0]
		rows = rows[1:]
		return row, nil
	}
}

func fromFile(r *bufio.Reader) func() ([]byte, error) {
	return func() ([]byte, error) {
		n, err := binary.ReadUvarint(r)
		if err != nil {
			return nil, err
		}
		row := make([]byte, n)
		_, err = io.ReadFull(r, row)
		return row, err
	}
}

// merging is a heap of runs, the one with the least row first.
type merging []*run

func (m *merging) Len() int           { return len(*m) }
func (m *merging) Less(i, j int) bool { return bytes.Compare((*m)[i].row, (*m)[j].row) < 0 }
func (m *merging) Swap(i, j int)      { (*m)[i], (*m)[j] = (*m)[j], (*m)[i] }
func (m *merging) Push(any)           {}
func (m *merging) Pop() any           { *m = (*m)[:len(*m)-1]; return nil }

func (m *merging) rows() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		runs := *m
		*m = nil
		for _, r := range runs {
			row, err := r.next()
			if err == nil {
				r.row, *m = row, append(*m, r)
			} else if !errors.Is(err, io.EOF) {
				yield(nil, err)
				return
			}
		}
		heap.Init(m)
		for m.Len() > 0 {
			first := (*m)[0]
			if !yield(first.row, nil) {
				return
			}
			row, err := first.next()
			switch {
			case err == nil:
				first.row = row
				heap.Fix(m, 0)
			case errors.Is(err, io.EOF):
				heap.Pop(m)
			default:
				yield(nil, err)
				return
			}
		}
	}
}
