package server

import (
	"log/slog"
	"math"
	"strings"
	"testing"
)

func TestPlacesLeaveFilesToTheStore(t *testing.T) {
	for _, test := range []struct {
		files uint64
		want  int // 0: it is refused
		warns bool
	}{
		{0, 0, false}, {256, 0, false}, {storeFiles + leastConnections - 1, 0, false},
		{storeFiles + leastConnections, leastConnections, true}, {1024, 224, true}, {1500, 700, true},
		{storeFiles + maxConnections - 1, maxConnections - 1, true}, {storeFiles + maxConnections, maxConnections, false},
		{math.MaxUint64, maxConnections, false},
	} {
		log := &logBuffer{}
		got, err := places(test.files, slog.New(slog.NewTextHandler(log, nil)))
		if got != test.want || (err != nil) != (test.want == 0) || (log.String() != "") != test.warns {
			t.Errorf("of %d files: %d, %v, want %d; log: %q", test.files, got, err, test.want, log)
		}
		if err != nil && !strings.Contains(err.Error(), "LimitNOFILE") {
			t.Errorf("it is not said what to do: %v", err)
		}
	}
}
