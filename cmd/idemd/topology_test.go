package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const twoRegions = `
regions:
  eu: {address: "127.0.0.1:1"}
  us: {address: "127.0.0.1:2", principal: "spiffe://example.org/idemd/us"}
placements:
  "*": fixed eu
`

func writeTopology(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "topology.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestServeRefusesTopologies(t *testing.T) {
	good := writeTopology(t, twoRegions)
	bad := writeTopology(t, strings.Replace(twoRegions, "spiffe://", "", 1))
	anyone := writeTopology(t, regexp.MustCompile(`, principal: "[^"]*"`).ReplaceAllString(twoRegions, ""))
	ours := writeTopology(t, strings.Replace(twoRegions, `"*"`, "payments", 1))
	for name, test := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"no region":               {[]string{"--topology=" + good}, exitUsage, []string{`own region, "local", is not among its regions (eu, us)`}},
		"another region":          {[]string{"--topology=" + good, "--region=ap"}, exitUsage, []string{`"ap"`, "(eu, us)"}},
		"no file":                 {[]string{"--topology=" + good + "x", "--region=eu"}, exitUsage, []string{"--topology", "no such file"}},
		"no topology":             {[]string{"--region=eu"}, exitUsage, []string{"--region", "--topology"}},
		"no principal":            {[]string{"--topology=" + bad, "--region=eu"}, exitUsage, []string{"region us", "is not a principal"}},
		"standing in, alone":      {[]string{"--topology=" + good, "--region=eu", "--stand-in=us"}, exitUsage, []string{"--stand-in", "--store"}},
		"no rule for default":     {[]string{"--topology=" + ours, "--region=eu"}, exitFailed, []string{`namespace "default"`, "no rule"}},
		"TLS without a CA":        {[]string{"--topology=" + good, "--region=eu", "--tls-cert=c", "--tls-key=k"}, exitUsage, []string{"--tls-client-ca"}},
		"TLS, and any peer is us": {[]string{"--topology=" + anyone, "--region=eu", "--tls-cert=c", "--tls-key=k", "--tls-client-ca=a", "--policy=p"}, exitUsage, []string{"region us has no principal", "spiffe://"}},
		"its own, in a database":  {[]string{"--topology=" + good, "--region=eu", "--store=postgres://u@h/d", "--stand-in=eu"}, exitUsage, []string{"own region"}},
		"nobody's, in a database": {[]string{"--topology=" + good, "--region=eu", "--store=postgres://u@h/d", "--stand-in=ap"}, exitUsage, []string{"no such region"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"serve", "--grpc-addr=127.0.0.1:0", "--admin-addr="}, test.args...)
			if !strings.Contains(strings.Join(args, " "), "--store=") {
				args = append(args, "--data-dir="+filepath.Join(t.TempDir(), "data"))
			}
			run(t, args...).fails(t, test.code, test.want...)
		})
	}
}

// The store of one region, served as another, would be a second home to that one's keys.
func TestAStoreIsOfOneRegion(t *testing.T) {
	path, dir := writeTopology(t, twoRegions), t.TempDir()
	serve(t, dir, "--region=eu", "--topology="+path).stop()
	run(t, "serve", "--grpc-addr=127.0.0.1:0", "--admin-addr=", "--data-dir="+dir, "--region=us", "--topology="+path).
		fails(t, exitUsage, `is that of region "eu"`)
	run(t, "serve", "--grpc-addr=127.0.0.1:0", "--admin-addr=", "--data-dir="+dir).
		fails(t, exitUsage, `is that of region "eu": serve it with --region eu and --topology`)
	serve(t, dir, "--region=eu", "--topology="+path).stop()
}
