package main

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/idemd/idemd"

// TestImports checks what packages reach, directly or not. (.golangci.yml has the rules
// for what they import themselves.)
func TestImports(t *testing.T) {
	for _, path := range reach(t, "store") {
		if strings.Contains(strings.Split(path, "/")[0], ".") && path != module+"/store" {
			t.Errorf("store reaches %s, beyond the standard library", path)
		}
	}
	forbidden := []string{
		module + "/server", module + "/store/pebblestore", module + "/cmd",
		"github.com/cockroachdb/", "github.com/jackc/", "github.com/prometheus/",
	}
	for _, path := range reach(t, "client") {
		for _, prefix := range forbidden {
			if strings.HasPrefix(path, prefix) {
				t.Errorf("client reaches %s", path)
			}
		}
	}
}

func reach(t *testing.T, dir string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "./"+dir)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	paths := strings.Fields(string(out))
	if len(paths) < 10 {
		t.Fatalf("%s reaches only %v", dir, paths)
	}
	return paths
}
