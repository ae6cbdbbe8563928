package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const installed = "/usr/local/bin/idemd"

// unit is what a section of a unit of deploy/systemd says.
func unit(t *testing.T, name, section string) map[string]string {
	t.Helper()
	said := map[string]string{}
	in := ""
	for line := range strings.Lines(readDeploy(t, "systemd/"+name)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			in = strings.Trim(line, "[]")
		}
		if key, value, ok := strings.Cut(line, "="); ok && in == section && !strings.HasPrefix(line, "#") {
			said[key] = strings.NewReplacer("$$", "$", "%%", "%").Replace(value)
		}
	}
	return said
}

// TestDeploySystemd starts what the units start, with a directory of this machine for that which systemd makes.
func TestDeploySystemd(t *testing.T) {
	service, backup := unit(t, "idemd.service", "Service"), unit(t, "idemd-backup.service", "Service")
	state := t.TempDir()
	for dir := range strings.FieldsSeq(service["StateDirectory"]) {
		if err := os.MkdirAll(filepath.Join(state, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	disk := unit(t, "idemd.service", "Unit")["RequiresMountsFor"]
	start := strings.Fields(service["ExecStart"])
	addr := freeAddr(t)
	c := &container{args: start[1:], env: map[string]string{"IDEMD_GRPC_ADDR": addr, "IDEMD_ADMIN_ADDR": ""}, mount: map[string]string{disk: filepath.Join(state, "idemd")}}
	if start[0] != installed || service["User"] == "" || service["User"] != backup["User"] {
		t.Errorf("%q is started, as %q and %q", start[0], service["User"], backup["User"])
	}
	c.env["IDEMD_MUST_EXIST"] = "true" // as it is to be set after the first start
	if out, err := c.command(t).CombinedOutput(); err == nil || !strings.Contains(string(out), "no store is there") {
		t.Errorf("without a store: %v\n%s", err, out)
	}
	delete(c.env, "IDEMD_MUST_EXIST")
	c.serve(t)()
	c.env["IDEMD_MUST_EXIST"] = "true"
	c.serve(t)

	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	script, ok := strings.CutPrefix(backup["ExecStart"], "/bin/sh -c '")
	if !ok || !strings.HasSuffix(script, "'") {
		t.Fatalf("ExecStart=%s", backup["ExecStart"])
	}
	cmd := exec.Command("/bin/sh", "-c", strings.ReplaceAll(strings.TrimSuffix(script, "'"), installed, path))
	cmd.Env = append(os.Environ(), "IDEMD_ADDR="+addr)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("backup: %v\n%s", err, out)
	}
	made, err := filepath.Glob(filepath.Join(state, "idemd", "backups", "2*", "FORMAT"))
	if err != nil || len(made) != 1 {
		t.Errorf("backups %q, %v", made, err)
	}
}

// TestDeploySystemdVerifies has systemd read the units, where it is installed.
func TestDeploySystemdVerifies(t *testing.T) {
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	args := []string{"verify", "--man=no"}
	for _, name := range []string{"idemd.service", "idemd-backup.service", "idemd-backup.timer"} {
		file := filepath.Join(dir, name)
		put(t, file, strings.ReplaceAll(readDeploy(t, "systemd/"+name), installed, path))
		args = append(args, file)
	}
	out, err := exec.Command(verify, args...).CombinedOutput()
	if said := regexp.MustCompile(`(?m)^.*idemd.*$`).FindAllString(string(out), -1); err != nil || len(said) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
