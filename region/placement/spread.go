package placement

import (
	"crypto/sha256"
	"encoding/binary"
)

// spreadVersion is hashed before all else: another way to spread will have another one.
const spreadVersion = "idemd.spread.v1"

// heaviest is the region with the largest weight for the word. The regions are sorted, so that
// of equal ones the first counts.
func heaviest(regions []string, word string) (home string) {
	var most uint64
	for _, region := range regions {
		if w := weight(region, word); home == "" || w > most {
			home, most = region, w
		}
	}
	return home
}

// weight is described in the package documentation.
func weight(region, word string) uint64 {
	var buf [320]byte
	b := buf[:0]
	for _, field := range [...]string{spreadVersion, region, word} {
		b = binary.AppendUvarint(b, uint64(len(field)))
		b = append(b, field...)
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:])
}
