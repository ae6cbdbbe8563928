package main

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

const deployDir = "../../deploy"

// A container is what a file of deploy/ has started, made ready to be started here, without a
// container: on loopback, with directories of this machine in place of its volumes.
type container struct {
	args  []string
	env   map[string]string
	mount map[string]string // paths in it, and what is there
	addr  map[string]string // addresses that are written in deploy/, and what they are here
}

// image is what the Dockerfile says of a container that says nothing else.
func image(t *testing.T) (cmd []string, env map[string]string) {
	t.Helper()
	env = map[string]string{}
	for line := range strings.Lines(readDeploy(t, "Dockerfile")) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		var err error
		switch instruction {
		case "CMD":
			err = json.Unmarshal([]byte(rest), &cmd)
		case "ENV":
			name, value, ok := strings.Cut(rest, "=")
			if env[name] = value; !ok {
				t.Errorf("%q is not understood here", line)
			}
		}
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	if len(cmd) == 0 {
		t.Fatal("no CMD in the Dockerfile")
	}
	return cmd, env
}

func readDeploy(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deployDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// here is a value of the container's as it is on this machine.
func (c *container) here(value string) string {
	for _, there := range slices.Sorted(maps.Keys(c.mount)) {
		value = regexp.MustCompile(`(^|=)`+regexp.QuoteMeta(there)+`(/|$)`).ReplaceAllString(value, "${1}"+c.mount[there]+"${2}")
	}
	for there, here := range c.addr {
		value = strings.ReplaceAll(value, there, here)
	}
	return value
}

// command is the program as the container starts it: what the image sets counts, too.
func (c *container) command(t *testing.T, more ...string) *exec.Cmd {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	args, env := image(t)
	if len(c.args) > 0 {
		args = c.args
	}
	if len(more) > 0 {
		args = more
	}
	maps.Copy(env, c.env)
	cmd := exec.CommandContext(t.Context(), path)
	cmd.Dir = t.TempDir()
	for _, arg := range args {
		cmd.Args = append(cmd.Args, c.here(arg))
	}
	for name, value := range env {
		if !knownVariable(name) {
			t.Errorf("%s is a variable of no command", name)
		}
		cmd.Env = append(cmd.Env, name+"="+c.here(value))
	}
	if args[0] == "serve" {
		for _, text := range slices.Concat(cmd.Args[1:], cmd.Env) {
			if _, path, _ := strings.Cut(text, "="); strings.HasPrefix(path, "/") && !strings.HasPrefix(path, os.TempDir()) {
				t.Errorf("%s: nothing is mounted there", text)
			}
		}
	}
	return cmd
}

func knownVariable(name string) bool {
	var known func(*kong.Node) bool
	known = func(n *kong.Node) bool {
		return slices.ContainsFunc(n.Flags, func(f *kong.Flag) bool { return slices.Contains(f.Envs, name) }) || slices.ContainsFunc(n.Children, known)
	}
	return known(newParser(io.Discard, io.Discard).Model.Node)
}

// run runs it to its good end. What is not answered is sent again, as it says: regions that have
// just been started have to hear of each other first.
func (c *container) run(t *testing.T, more ...string) (out string) {
	t.Helper()
	until(t, func() bool {
		cmd := c.command(t, more...)
		text, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState.ExitCode() != exitNoAnswer {
			t.Fatalf("%q: %v\n%s", cmd.Args[1:], err, text)
		}
		out = string(text)
		return err == nil
	})
	return out
}

// serve starts it, and returns when it serves what ends it.
func (c *container) serve(t *testing.T) (stop func()) {
	t.Helper()
	cmd := c.command(t)
	var stderr lockedBuffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(func() {
		if stop(); t.Failed() {
			t.Logf("%q\n%s", cmd.Args[1:], stderr.String())
		}
	})
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), servesOn) {
			go io.Copy(io.Discard, stdout) //nolint:errcheck // what comes after
			return stop
		}
	}
	t.Fatalf("%q did not serve", cmd.Args[1:])
	return nil
}

// works checks that the regions are one: what was claimed in the first is known in the last.
func works(t *testing.T, claim, list func(region string, args ...string) string) {
	t.Helper()
	if out := claim("eu", "--attempt=a"); !strings.HasPrefix(out, "granted: act now") {
		t.Errorf("claimed in eu: %s", out)
	}
	if out := claim("ap"); !strings.HasPrefix(out, "in progress") {
		t.Errorf("claimed in ap: %s", out)
	}
	if out := list("us"); strings.Count(out, " answers") != 5 { // two answer us, and three this command
		t.Errorf("the regions, as us sees them:\n%s", out)
	}
}

// healthy checks what the readiness probe of a container asks.
func healthy(t *testing.T, admin string) {
	t.Helper()
	got, err := http.Get("http://" + admin + "/healthz") //nolint:noctx // on loopback
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if text, _ := io.ReadAll(got.Body); got.StatusCode != http.StatusOK {
		t.Errorf("/healthz: %s\n%s", got.Status, text)
	}
}

// put writes a file that only this machine has.
func put(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestDeployImage starts what `docker run idemd` starts.
func TestDeployImage(t *testing.T) {
	c := &container{mount: map[string]string{"/data": t.TempDir()}, env: map[string]string{"IDEMD_GRPC_ADDR": freeAddr(t), "IDEMD_ADMIN_ADDR": ""}}
	c.serve(t)
	if entries, err := os.ReadDir(c.mount["/data"]); err != nil || len(entries) == 0 {
		t.Errorf("the store is not in the volume: %v %v", entries, err)
	}
}

// TestDeployCompose does what the head of the compose file says.
func TestDeployCompose(t *testing.T) {
	var file struct {
		Services map[string]struct {
			Command     []string
			Environment map[string]string
			Volumes     []string
		}
	}
	text := readDeploy(t, "compose/compose.yaml")
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		t.Fatal(err)
	}
	shared := t.TempDir()
	addr := map[string]string{"eu:7600": freeAddr(t), "us:7600": freeAddr(t), "ap:7600": freeAddr(t)}
	of := func(name string) *container {
		service := file.Services[name]
		c := &container{args: service.Command, env: service.Environment, mount: map[string]string{}, addr: maps.Clone(addr)}
		for _, volume := range service.Volumes {
			source, there, _ := strings.Cut(strings.TrimSuffix(volume, ":ro"), ":")
			c.mount[there] = filepath.Join(shared, filepath.Base(source)) // a volume has one name in all services
			if strings.HasPrefix(source, "./") {
				put(t, c.mount[there], c.here(readDeploy(t, "compose/"+source)))
			}
		}
		if own, ok := addr[name+":7600"]; ok {
			c.addr["0.0.0.0:7600"], c.addr["0.0.0.0:7601"] = own, freeAddr(t)
		}
		return c
	}
	of("certs").run(t)
	for _, name := range []string{"eu", "us", "ap"} {
		c := of(name)
		c.serve(t)
		healthy(t, c.addr["0.0.0.0:7601"])
	}
	lines := regexp.MustCompile(`(?m)run --rm (caller|operator) (.*)$`).FindAllStringSubmatch(text, -1)
	if len(lines) != 2 {
		t.Fatalf("the head of the file has %q", lines)
	}
	typed := func(i int) func(string, ...string) string {
		return func(region string, args ...string) string {
			args = slices.Concat(strings.Fields(lines[i][2]), []string{"--addr=" + region + ":7600"}, args)
			return of(lines[i][1]).run(t, args...)
		}
	}
	works(t, typed(0), typed(1))
}
