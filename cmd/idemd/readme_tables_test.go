package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server"
)

// readmeColumn is what is in `code` in the first column of the tables whose heads are given.
func readmeColumn(t *testing.T, heads ...string) (found []string) {
	t.Helper()
	text := readmeText(t)
	for _, head := range heads {
		_, table, ok := strings.Cut(text, "\n"+head+"\n")
		if !ok {
			t.Fatalf("no table begins with %q", head)
		}
		for line := range strings.Lines(table) {
			if !strings.HasPrefix(line, "|") {
				break
			}
			for _, match := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(strings.Split(line, "|")[1], -1) {
				found = append(found, match[1])
			}
		}
	}
	return found
}

// alike checks that a table names each thing once, and nothing else.
func alike(t *testing.T, got, want []string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("the table lacks %s", name)
		}
	}
	for i, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("the table has %s, which there is not", name)
		}
		if i > 0 && got[i-1] == name {
			t.Errorf("the table has %s twice", name)
		}
	}
}

func TestReadmeReasons(t *testing.T) {
	var want []string
	for number, name := range idemdv1.ErrorReason_name {
		if number != 0 {
			want = append(want, strings.TrimPrefix(name, "ERROR_REASON_"))
		}
	}
	alike(t, readmeColumn(t, "| reason of a refusal | means | do |"), want)
}

func TestReadmeFlags(t *testing.T) {
	parser := newParser(io.Discard, io.Discard)
	serve := parser.Model.Children[slices.IndexFunc(parser.Model.Children, func(n *kong.Node) bool { return n.Name == "serve" })]
	var want []string
	for _, flag := range serve.Flags {
		want = append(want, "--"+flag.Name)
	}
	alike(t, readmeColumn(t, "| flag of `serve` | default | |"), want)
}

func TestReadmeMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics, err := server.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	server.NewRegionMetrics(metrics)
	descriptions := make(chan *prometheus.Desc)
	go func() { registry.Describe(descriptions); close(descriptions) }()
	want := []string{"idemd_buckets_ahead", "idemd_file_stale", "idemd_tls_certificate_expiry_seconds"} // not before there is something to say
	for d := range descriptions {
		var name string
		if _, err := fmt.Sscanf(d.String(), "Desc{fqName: %q", &name); err != nil {
			t.Fatal(err)
		}
		want = append(want, name)
	}
	got := readmeColumn(t, "| name | labels | |", "| metric | labels | |")
	got = slices.DeleteFunc(got, func(name string) bool {
		return strings.HasPrefix(name, "idemd_guard_") || strings.HasPrefix(name, "client/")
	})
	alike(t, got, want)
}
