package client_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/idemd/idemd/"

// adapters are the packages that stand between the client and one other thing, which is all
// that they may reach. The examples are programs, and may reach what they like, as may what only tests use.
var adapters = map[string]string{
	"client/guardprom":      "github.com/prometheus/",
	"client/guard/guardpgx": "github.com/jackc/",
}

// TestReachesNoEngine keeps what a client has no use for out of the programs of its users.
func TestReachesNoEngine(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, "./...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		deps := strings.Fields(line)
		name := strings.TrimPrefix(deps[0], module)
		seen[name] = true
		if !strings.HasPrefix(name, "client/examples/") && name != "client/internal/idemdtest" {
			checkReach(t, name, deps[1:])
		}
		if name == "client" && !slices.Contains(deps, module+"store/storepb") {
			t.Fatalf("the list of dependencies is not one: %s", line)
		}
	}
	if !seen["client"] || !seen["client/fingerprint"] || !seen["client/guardprom"] {
		t.Errorf("the list of packages is not one: %s", out)
	}
}

func checkReach(t *testing.T, name string, deps []string) {
	t.Helper()
	for _, dep := range deps {
		for _, barred := range []string{
			"github.com/jackc/", "github.com/cockroachdb/", "github.com/prometheus/", module + "server", module + "region",
			module + "store/pebblestore", module + "store/sqlstore", module + "store/storetest", module + "proto/idemd/test",
		} {
			if strings.HasPrefix(dep, barred) && barred != adapters[name] && dep != module+"region/placement" { // that is the rules alone
				t.Errorf("package %s reaches %s", name, dep)
			}
		}
	}
}
