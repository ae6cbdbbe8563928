package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/idemd/idemd/store"
)

// TestServeRefuses checks that what cannot be served is refused with one line, and that
// nothing is touched by it.
func TestServeRefuses(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	busyAddr := busy.Addr().String()

	for name, test := range map[string]struct {
		args    []string
		prepare func(t *testing.T, dir string) // dir does not exist
		live    bool                           // another server writes there
		code    int                            // exitFailed if zero
		want    []string
	}{
		"busy port":           {args: []string{"--grpc-addr=" + busyAddr}, want: []string{"--grpc-addr", busyAddr, "in use", "another --grpc-addr"}},
		"busy admin port":     {args: []string{"--admin-addr=" + busyAddr}, want: []string{"--admin-addr", busyAddr, "in use", "another --admin-addr"}},
		"every interface":     {args: []string{"--grpc-addr=:0"}, code: exitUsage, want: []string{"other machines", "--allow-insecure"}},
		"another machine":     {args: []string{"--grpc-addr=192.0.2.1:7600"}, code: exitUsage, want: []string{"other machines", "--allow-insecure"}},
		"admin everywhere":    {args: []string{"--admin-addr=0.0.0.0:0"}, code: exitUsage, want: []string{"other machines", "--allow-insecure"}},
		"no port":             {args: []string{"--grpc-addr=localhost"}, code: exitUsage, want: []string{"localhost", "host:port"}},
		"port by no number":   {args: []string{"--grpc-addr=127.0.0.1:grpc"}, code: exitUsage, want: []string{"127.0.0.1:grpc", "65535"}},
		"no address":          {args: []string{"--grpc-addr="}, code: exitUsage, want: []string{"host:port"}},
		"foreign directory":   {prepare: foreign, want: []string{"something else"}},
		"directory of a file": {prepare: plainFile, code: exitUsage, want: []string{"not a directory"}},
		"newer format":        {prepare: newerFormat, want: []string{"newer format"}},
		"locked by another":   {prepare: inUse, live: true, want: []string{"in use", "--data-dir"}},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "data")
			if test.prepare != nil {
				test.prepare(t, dir)
			}
			before := snapshot(t, parent)
			args := append([]string{"serve", "--grpc-addr=127.0.0.1:0", "--admin-addr=", "--data-dir=" + dir}, test.args...)
			run(t, args...).fails(t, max(test.code, exitFailed), test.want...)
			if after := snapshot(t, parent); after != before && !test.live {
				t.Errorf("touched:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

func foreign(t *testing.T, dir string) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "thesis.txt"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func plainFile(t *testing.T, dir string) {
	if err := os.WriteFile(dir, []byte("a file"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func newerFormat(t *testing.T, dir string) {
	serve(t, dir).stop()
	path := filepath.Join(dir, "FORMAT")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The last line is a checksum, so that a damaged file is not taken for a newer one.
	lines, _, found := strings.Cut(string(text), "crc ")
	newer := regexp.MustCompile(`(?m)^format \d+$`).ReplaceAllString(lines, "format 999")
	if newer == lines || !found {
		t.Fatalf("no format or checksum in %q", text)
	}
	newer += fmt.Sprintf("crc %08x\n", crc32.Checksum([]byte(newer), crc32.MakeTable(crc32.Castagnoli)))
	if err := os.WriteFile(path, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
}

func inUse(t *testing.T, dir string) { startChild(t, dir) }

// TestServeUnwritable runs the real program as a user who may not write, also when the
// tests run as root.
func TestServeUnwritable(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	cmd := exec.CommandContext(t.Context(), path, "serve", "--grpc-addr=127.0.0.1:0", "--admin-addr=", "--data-dir="+filepath.Join(parent, "data"))
	if os.Geteuid() == 0 {
		const nobody = 65534
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	if err := os.Chmod(parent, 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(parent, 0o700) })
	before := snapshot(t, parent)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the exit code tells
	result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}.fails(t, exitFailed, "permission denied", parent)
	if after := snapshot(t, parent); after != before {
		t.Errorf("touched:\n%s\nbefore:\n%s", after, before)
	}
}

// snapshot lists the files under dir with sizes and times of change.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		b.WriteString(strings.Join([]string{path, info.Mode().String(), info.ModTime().String(), ""}, "  "))
		if !info.IsDir() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b.Write(content)
		}
		b.WriteString("\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestServeKeepsData(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "as needed")
	s := serve(t, dir)
	if len(s.banner) != 5 || !strings.Contains(s.banner[1], dir) {
		t.Errorf("banner: %q", s.banner)
	}
	// The two commands that it shows work as they are.
	for _, line := range s.banner[len(s.banner)-2:] {
		run(t, words(t, strings.TrimSpace(line))...).ok(t)
	}
	if code := s.stop(); code != exitOK {
		t.Errorf("orderly end: exit code %d", code)
	}
	again := serve(t, dir)
	if out := again.run(t, "claim", "--id=order-1001").ok(t); !strings.Contains(out, "charged 42 EUR") {
		t.Errorf("after a restart:\n%s", out)
	}
}

func TestServeWarnsOfOtherMachines(t *testing.T) {
	for addr, want := range map[string]int{"0.0.0.0:0": 1, "127.0.0.1:0": 0} {
		var stderr lockedBuffer
		c := &serveCmd{GrpcAddr: addr, AllowInsecure: true}
		c.warn(&session{stderr: &stderr})
		if text := stderr.String(); strings.Count(text, "WARNING: ") != want || strings.Count(text, "\n") != want {
			t.Errorf("%s: %q, want %d lines", addr, text, want)
		}
	}
}

func TestServeAdmin(t *testing.T) {
	admin := freeAddr(t)
	t.Chdir(t.TempDir())
	s := serveOn(t, "--admin-addr="+admin)
	s.run(t, "claim", "--id=a").ok(t)
	for path, want := range map[string]string{
		"/healthz": `{"status":"serving"}`,
		"/metrics": `idemd_answers_total{answer="granted_new",namespace="default",operation="claim"} 1`,
	} {
		if body := get(t, "http://"+admin+path); !strings.Contains(body, want) {
			t.Errorf("%s: want %s in\n%s", path, want, body)
		}
	}
}

// get asks for a page that must be there.
func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v\n%s", url, resp.Status, err, body)
	}
	return string(body)
}

// TestSignals sends signals to the real program while a call is running that does not end
// by itself: the first one drains, the second one does not wait for it.
func TestSignals(t *testing.T) {
	server := startChild(t, t.TempDir())
	conn, err := grpc.NewClient(server.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	openCall(t, conn)
	health, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expectHealth(t, health, healthpb.HealthCheckResponse_SERVING)

	if err := server.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	expectHealth(t, health, healthpb.HealthCheckResponse_NOT_SERVING)
	if err := server.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var ended *exec.ExitError
	if err := server.cmd.Wait(); !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("second signal: %v, want an end by SIGTERM", err)
	}
}

func TestSignalDrains(t *testing.T) {
	server := startChild(t, t.TempDir())
	c := dialChild(t, server)
	if _, err := c.Claim(t.Context(), store.ClaimRequest{Key: lookupOf("a").Key, AttemptID: "one"}); err != nil {
		t.Fatal(err)
	}
	if err := server.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := server.cmd.Wait(); err != nil {
		t.Errorf("after SIGINT: %v\n%s", err, server.stderr.String())
	}
}

func lookupOf(id string) store.LookupRequest {
	return store.LookupRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: id}}
}

// openCall makes a call that runs until its connection ends.
func openCall(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list := &grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
	}
	if err := stream.Send(list); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
}

func expectHealth(t *testing.T, watch healthpb.Health_WatchClient, want healthpb.HealthCheckResponse_ServingStatus) {
	t.Helper()
	resp, err := watch.Recv()
	if err != nil || resp.GetStatus() != want {
		t.Fatalf("health: %v, %v; want %v", resp, err, want)
	}
}

// TestFatal checks that a store that has stopped ends the process.
func TestFatal(t *testing.T) {
	var stderr lockedBuffer
	codes := make(chan int, 1)
	s := &session{
		program: &program{name: "idemd", exit: func(code int) { codes <- code }},
		ctx:     context.Background(), stdout: &stderr, stderr: &stderr,
	}
	s.storeStopped(errors.New("no space left on device"))
	if code := <-codes; code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
	if line := stderr.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, "no space left on device") {
		t.Errorf("standard error: %q", line)
	}
}
