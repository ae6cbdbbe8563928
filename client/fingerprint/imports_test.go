package fingerprint_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestImports: the standard library, protobuf and store, so that it can be used where
// neither gRPC nor the rest of the client is.
func TestImports(t *testing.T) {
	const format = "{{if not .Standard}}{{.ImportPath}}{{end}}"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", format, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 3 {
		t.Fatalf("the list of dependencies is not one: %s", out)
	}
	for _, dep := range deps {
		if dep != "github.com/idemd/idemd/store" && dep != "github.com/idemd/idemd/client/fingerprint" && !strings.HasPrefix(dep, "google.golang.org/protobuf/") {
			t.Errorf("package fingerprint reaches %s", dep)
		}
	}
}
