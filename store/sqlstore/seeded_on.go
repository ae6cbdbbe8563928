//go:build seeded

package sqlstore

import "os"

// seeded says whether the guard of this name is left out: the one in IDEMD_SEED.
func seeded(name string) bool { return os.Getenv("IDEMD_SEED") == name }
