package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/server/identity"
)

// devCerts makes throw-away certificates, and returns how they are used.
func devCerts(t *testing.T, args ...string) (file func(string) string, serveArgs func(name string) []string, as func(name string) []string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "certs")
	run(t, append([]string{"dev-certs", dir}, args...)...).ok(t)
	file = func(name string) string { return filepath.Join(dir, name) }
	serveArgs = func(name string) []string {
		return []string{"--tls-cert=" + file(name+".pem"), "--tls-key=" + file(name+"-key.pem"), "--tls-client-ca=" + file("ca.pem"), "--policy=" + file("policy.yaml")}
	}
	as = func(name string) []string {
		return []string{"--ca=" + file("ca.pem"), "--cert=" + file(name+".pem"), "--key=" + file(name+"-key.pem")}
	}
	return file, serveArgs, as
}

// From certificates to a call that is authorised, and those that are not.
func TestServeWithIdentity(t *testing.T) {
	file, serveArgs, as := devCerts(t)
	secret := run(t, "token", "new", "batch", "--expires=1h")
	write(t, file("batch.token"), secret.stdout)
	write(t, file("tokens"), secret.stderr)
	policy := read(t, file("policy.yaml")) + "  - {principal: token:batch, role: caller, namespaces: [default]}\n"
	write(t, file("policy.yaml"), policy)
	s := serveOn(t, append(serveArgs("server"), "--data-dir="+t.TempDir(), "--tokens="+file("tokens"))...)
	ask := func(credentials []string, args ...string) result {
		t.Helper()
		return run(t, append(append(args, "--addr="+s.addr), credentials...)...)
	}
	ca, token := []string{"--ca=" + file("ca.pem")}, "--token-file="+file("batch.token")

	out := ask(as("caller"), "claim", "--id=a", "--attempt=try-1").ok(t)
	for _, want := range append(as("caller"), "--addr="+s.addr) { // in the commands that it prints
		if !strings.Contains(out, strings.Replace(want, "=", " ", 1)) {
			t.Errorf("%s is not in\n%s", want, out)
		}
	}
	ask(append(ca, token), "claim", "--id=b").ok(t)
	ask(as("operator"), "namespace", "list").ok(t)
	ask(as("caller"), "namespace", "list").fails(t, exitFailed, "PERMISSION_DENIED: ", "spiffe://dev.idemd/caller needs the role operator")
	ask(as("operator"), "claim", "--id=a").fails(t, exitFailed, "PERMISSION_DENIED: ", "role caller")
	ask(append(as("operator"), token), "namespace", "list").fails(t, exitFailed, "PERMISSION_DENIED: ", "token:batch")
	ask(ca, "claim", "--id=a").fails(t, exitFailed, "UNAUTHENTICATED: ")
	ask(append(ca, token), "claim", "--id=b", "--namespace=shop").fails(t, exitFailed, "NAMESPACE_UNKNOWN: ")
	ask(nil, "claim", "--id=a").fails(t, exitNoAnswer, "--ca is missing", "nothing was sent")
	ask([]string{"--ca=" + file("operator.pem")}, "claim", "--id=a").fails(t, exitNoAnswer, "TLS: ", "unknown authority", "nothing was sent")

	if out := ask(as("operator"), "record", "force-release", "--id=a", "--any-fence", "--reason=gone", "--actor=alice"); out.code != exitOK {
		t.Fatal(out.stderr)
	}
	if out := ask(as("operator"), "record", "inspect", "--id=a").ok(t); !strings.Contains(out, "spiffe://dev.idemd/operator (alice)") {
		t.Errorf("who acted is not in\n%s", out)
	}
	_, line, _ := strings.Cut(secret.stderr, "\n")
	for _, unsaid := range []string{strings.TrimSpace(secret.stdout), strings.Fields(line)[1][7:]} {
		if strings.Contains(s.stderr.String(), unsaid) {
			t.Error("the log shows the token or its digest")
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// With TLS and a policy a server may listen where other machines connect, without a warning.
func TestServeForOtherMachines(t *testing.T) {
	_, serveArgs, as := devCerts(t, "--host=idemd.example.org")
	s := serveOn(t, append(serveArgs("server"), "--data-dir="+t.TempDir(), "--grpc-addr=0.0.0.0:0", "--admin-addr=0.0.0.0:0")...)
	_, port, _ := strings.Cut(s.addr, "]:")
	run(t, append([]string{"claim", "--id=a", "--addr=127.0.0.1:" + port}, as("caller")...)...).ok(t)
	if text := s.stderr.String(); strings.Contains(text, "WARNING") {
		t.Error(text)
	}
	if banner := strings.Join(s.banner, "\n"); !strings.Contains(banner, "https://") {
		t.Error(banner)
	}
}

func TestServeRefusesIdentityThatIsIncomplete(t *testing.T) {
	file, serveArgs, _ := devCerts(t)
	all := serveArgs("server")
	tls, public := all[:2], "--grpc-addr=0.0.0.0:0"
	write(t, file("bad.yaml"), "grants:\n  - principal: payments\n    role: caller\n    namespaces: [a]\n")
	write(t, file("bad.tokens"), "idemd_AAAA\n")
	for name, test := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"no policy":        {append(tls[:2:2], public), exitUsage, []string{"other machines", "--policy"}},
		"no TLS":           {[]string{"--tokens=x", "--policy=y", public}, exitFailed, []string{"--tokens: ", "no such file"}},
		"key missing":      {all[:1], exitUsage, []string{"--tls-cert and --tls-key"}},
		"nobody is known":  {append(tls[:2:2], all[3]), exitUsage, []string{"--policy needs"}},
		"may do what":      {all[:3], exitUsage, []string{"--policy must say"}},
		"bad policy":       {append(all[:3:3], "--policy="+file("bad.yaml")), exitFailed, []string{"--policy: ", "bad.yaml: line 2", "not a principal"}},
		"bad tokens":       {append(all[:4:4], "--tokens="+file("bad.tokens")), exitFailed, []string{"--tokens: ", "bad.tokens: line 1"}},
		"bad certificate":  {[]string{"--tls-cert=" + file("policy.yaml"), all[1]}, exitFailed, []string{"--tls-cert", "policy.yaml"}},
		"trust domain":     {append(all[:4:4], "--trust-domain=Example.org"), exitFailed, []string{"--trust-domain"}},
		"other key":        {[]string{all[0], "--tls-key=" + file("caller-key.pem")}, exitFailed, []string{"server.pem", "does not match"}},
		"no authority":     {append(tls[:2:2], "--tls-client-ca="+file("server-key.pem"), all[3]), exitFailed, []string{"no certificate of an authority"}},
		"file is not here": {append(all[:3:3], "--policy="+file("none")), exitFailed, []string{"no such file"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			run(t, append([]string{"serve", "--data-dir=" + dir, "--grpc-addr=127.0.0.1:0", "--admin-addr="}, test.args...)...).fails(t, test.code, test.want...)
			if _, err := os.Stat(dir); err == nil {
				t.Error("the data directory was made")
			}
		})
	}
}

func TestCredentialsThatAreNotShown(t *testing.T) {
	file, _, as := devCerts(t)
	write(t, file("two"), "idemd_a idemd_b\n")
	write(t, file("token"), "idemd_a\n")
	caller := as("caller")
	for want, args := range map[string][]string{
		"--cert and the file of its key": caller[:2],
		"need --ca":                      caller[1:],
		"--ca, --cert, --key: ":          {caller[0], caller[1], "--key=" + file("operator-key.pem")},
		"no such file":                   {"--ca=" + file("none")},
		"one token and nothing else":     {"--token-file=" + file("two")},
		"--token-file: open ":            {"--token-file=" + file("none")},
		"not sent in plain text":         {"--addr=192.0.2.1:7600", "--allow-insecure", "--token-file=" + file("token")},
		"to which only TLS goes":         {"--addr=192.0.2.1:7600"},
	} {
		result := run(t, append([]string{"lookup", "--id=a"}, args...)...)
		result.fails(t, exitUsage, want)
		if strings.Contains(result.stderr, "idemd_a") {
			t.Errorf("a token is shown: %s", result.stderr)
		}
	}
}

func TestDevCertsOverwritesNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "operator.pem"), "mine")
	run(t, "dev-certs", dir).fails(t, exitFailed, "operator.pem is there already")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || read(t, filepath.Join(dir, "operator.pem")) != "mine" {
		t.Errorf("%v, %v", entries, err)
	}
	run(t, "dev-certs", dir, "--region=a b").fails(t, exitUsage, "--region")
	run(t, "dev-certs", dir, "--trust-domain=A").fails(t, exitUsage, "--trust-domain")
}

func TestDevCertsOfRegions(t *testing.T) {
	file, serveArgs, as := devCerts(t, "--region=eu", "--region=us", "--trust-domain=try.example")
	policy := read(t, file("policy.yaml"))
	if _, err := identity.ParsePolicy([]byte(policy)); err != nil || !strings.Contains(policy, "spiffe://try.example/region/us\n    role: peer") {
		t.Errorf("%v in\n%s", err, policy)
	}
	s := serveOn(t, append(serveArgs("region-eu"), "--data-dir="+t.TempDir())...)
	run(t, append([]string{"claim", "--id=a", "--addr=" + s.addr}, as("caller")...)...).ok(t)
	run(t, append([]string{"claim", "--id=a", "--addr=" + s.addr}, as("region-us")...)...).fails(t, exitFailed, "PERMISSION_DENIED: ", "spiffe://try.example/region/us needs the role caller")
	for _, name := range []string{"server-key.pem", "region-eu-key.pem", "caller-key.pem"} {
		if info, err := os.Stat(file(name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestTokenNew(t *testing.T) {
	got := run(t, "token", "new", "batch", "--expires=30d")
	lines := strings.Split(strings.TrimSpace(got.stderr), "\n")
	if got.code != exitOK || !strings.HasPrefix(got.stdout, "idemd_") || strings.Count(got.stdout, "\n") != 1 || len(lines) != 2 || strings.Contains(got.stderr, strings.TrimSpace(got.stdout)) {
		t.Fatalf("%+v", got)
	}
	if _, err := identity.ParseTokens([]byte(got.stderr)); err != nil {
		t.Error(err)
	}
	until, err := time.Parse(time.RFC3339, strings.Fields(lines[1])[2])
	if days := time.Until(until) / (24 * time.Hour); err != nil || days < 29 || days > 30 {
		t.Errorf("%v, %v", until, err)
	}
	if !strings.Contains(lines[0], "beside the line of one that it replaces") {
		t.Errorf("how to rotate a token is not said: %s", lines[0])
	}
	run(t, "token", "new", "Two Words").fails(t, exitUsage, "not the name of a token")
}
