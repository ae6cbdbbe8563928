package client_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestReachesNoEngine keeps what a client has no use for out of the programs of its users.
func TestReachesNoEngine(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, "github.com/idemd/idemd/store/storepb") {
		t.Fatalf("the list of dependencies is not one: %s", out)
	}
	for _, dep := range deps {
		for _, barred := range []string{
			"github.com/jackc/", "github.com/cockroachdb/", "github.com/prometheus/",
			"github.com/idemd/idemd/server", "github.com/idemd/idemd/region",
			"github.com/idemd/idemd/store/pebblestore", "github.com/idemd/idemd/store/sqlstore", "github.com/idemd/idemd/store/storetest",
		} {
			if strings.HasPrefix(dep, barred) {
				t.Errorf("package client reaches %s", dep)
			}
		}
	}
}
