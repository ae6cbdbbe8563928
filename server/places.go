package server

import (
	"fmt"
	"log/slog"
)

const (
	// storeFiles is how many files are left to others than callers: to the store, which would end
	// the process if it could not open one (512 tables, and what it writes), to the admin listener
	// and to connections that the process makes.
	storeFiles = 800
	// leastConnections is with how many it makes sense to serve.
	leastConnections = 100
)

// places is how many connections may be open where so many files may be.
func places(files uint64, logger *slog.Logger) (int, error) {
	switch {
	case files < storeFiles+leastConnections:
		return 0, fmt.Errorf("this process may open %d files, and needs %d at least, for its store and for connections (10,000 of those: %d): raise the limit (ulimit -n, LimitNOFILE= of systemd)",
			files, storeFiles+leastConnections, storeFiles+maxConnections)
	case files >= storeFiles+maxConnections:
		return maxConnections, nil
	}
	most := int(files) - storeFiles
	logger.Warn("fewer connections than usual may be open: the limit of files is low (ulimit -n, LimitNOFILE= of systemd)",
		"at_most", most, "usual", maxConnections, "files", files, "enough", storeFiles+maxConnections)
	return most, nil
}
