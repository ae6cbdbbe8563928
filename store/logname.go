package store

import (
	"crypto/sha256"
	"encoding/hex"
)

// logNameBytes of a digest are enough to find lines, and nobody guesses from them what was digested
// unless it can be guessed as it is.
const logNameBytes = 6

// LogName is how a log, which holds no key, names k: the first bytes of its digest, in hexadecimal.
func (k Key) LogName() string {
	digest := k.Digest()
	return hex.EncodeToString(digest[:logNameBytes])
}

// AttemptLogName is how a log, which holds no attempt id, names one: the first bytes of its SHA-256,
// in hexadecimal.
func AttemptLogName(attemptID string) string {
	digest := sha256.Sum256([]byte(attemptID))
	return hex.EncodeToString(digest[:logNameBytes])
}
