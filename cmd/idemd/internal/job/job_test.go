package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// TestOutputKeepsItsEnd checks what is kept of a stream, and that it comes back byte for byte.
func TestOutputKeepsItsEnd(t *testing.T) {
	long := strings.Repeat("0123456789abcde\n", MaxKept/16)
	for name, test := range map[string]struct{ written, kept string }{
		"nothing":            {"", ""},
		"text":               {"ü\n<&>", "ü\n<&>"},
		"bytes":              {"\xff\x00\xfe", "\xff\x00\xfe"},
		"as much as is kept": {long, long},
		"a line more":        {"first\n" + long, long[16:]},
		"one long line":      {strings.Repeat("ü", MaxKept), strings.Repeat("ü", MaxKept/2)},
		"cut in a character": {strings.Repeat("ü", MaxKept) + "x", strings.Repeat("ü", MaxKept/2-1) + "x"},
		"much":               {strings.Repeat(long, 9) + "end", long[16:] + "end"},
	} {
		var stream tail
		for written := []byte(test.written); len(written) > 0; {
			n := min(len(written), 1000)
			stream.add(written[:n])
			written = written[n:]
		}
		out := stream.output()
		if string(out.Kept) != test.kept || out.Bytes != int64(len(test.written)) {
			t.Errorf("%s: kept %d bytes of %d, want %d of %d", name, len(out.Kept), out.Bytes, len(test.kept), len(test.written))
		}
		text, err := json.Marshal(out)
		var back Output
		if err = errors.Join(err, json.Unmarshal(text, &back)); err != nil || !bytes.Equal(back.Kept, out.Kept) || back.Bytes != out.Bytes {
			t.Errorf("%s: %s comes back as %+v, %v", name, text, back, err)
		}
	}
}

// test runs a job, whose helper is this program.
func (j Job) test(ctx context.Context) (Ending, error) {
	j.Helper = os.Args[0]
	return j.Run(ctx, nil)
}

// failing takes nothing.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, os.ErrClosed }

func start(args ...string) (Ending, error) {
	j := Job{Args: args, Env: []string{"WHO=me"}, Stdin: strings.NewReader("in"), Stdout: failing{}, Stderr: failing{}, KillAfter: time.Second}
	return j.test(context.Background())
}

func TestRun(t *testing.T) {
	for name, test := range map[string]struct {
		script         string
		code           int
		signalled      bool
		stdout, stderr string
	}{
		"in and out, and nobody reads":     {"cat; echo $WHO; echo e >&2", 0, false, "inme\n", "e\n"},
		"a code":                           {"exit 7", 7, false, "", ""},
		"a code as of a signal":            {"exit 137", 137, false, "", ""},
		"a signal":                         {"kill -9 $$", 137, true, "", ""},
		"what it leaves is not waited for": {"sleep 1000 & echo $!; trap '' EXIT", 0, false, "", ""},
	} {
		ending, err := start("sh", "-c", test.script)
		stdout := string(ending.Stdout.Kept)
		if strings.Contains(test.script, "sleep") {
			_, _ = start("kill", strings.TrimSpace(stdout))
			stdout = ""
		}
		if err != nil || ending.Code != test.code || ending.Signalled != test.signalled || ending.Stopped || stdout != test.stdout || string(ending.Stderr.Kept) != test.stderr {
			t.Errorf("%s: %+v, %v", name, ending, err)
		}
	}
	if _, err := start("no-such-command"); !NotFound(err) {
		t.Errorf("a command that is not there: %v", err)
	}
	if _, err := start("./no-such-command"); !NotFound(err) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := start("/"); err == nil || NotFound(err) {
		t.Errorf("a directory: %v", err)
	}
}

// TestRunIsStopped checks that a command which does not end when it is asked to is killed,
// with what it started.
func TestRunIsStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	j := Job{Args: []string{"sh", "-c", "trap 'echo asked' TERM; sleep 1000 & echo ready; while :; do wait; done"}, Stdout: w, Stderr: w, KillAfter: time.Second}
	go func() { // once it is ready
		_, _ = r.Read(make([]byte, 100))
		cancel()
	}()
	ending, err := j.test(ctx)
	if err != nil || ending.Code != 137 || !ending.Stopped || string(ending.Stdout.Kept) != "ready\nasked\n" {
		t.Errorf("%+v, %v", ending, err)
	}
}
