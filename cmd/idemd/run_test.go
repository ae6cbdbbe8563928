package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// guarded is `idemd run` as a process of its own, in a directory for its command.
type guarded struct {
	cmd            *exec.Cmd
	stdout, stderr said
}

// guard starts it with flags and a shell script as the command.
func guard(t *testing.T, dir, addr, flags, script string) *guarded {
	t.Helper()
	return guardAs(t, dir, addr, flags, script, func(*exec.Cmd) {})
}

// within is how long a run, and what a test and its command wait for of each other, may take: what goes wrong
// fails a test then, and does not stop it.
const within = time.Minute

// guardAs is guard for a process that set changes.
func guardAs(t *testing.T, dir, addr, flags, script string, set func(*exec.Cmd)) *guarded {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	g := &guarded{stderr: said{more: make(chan struct{}, 1)}}
	args := append(append([]string{"run", "--addr=" + addr}, strings.Fields(flags)...), "--", "sh", "-c", script)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	g.cmd = exec.CommandContext(ctx, path, args...)
	g.cmd.Dir, g.cmd.Stdout, g.cmd.Stderr = dir, &g.stdout, &g.stderr
	g.cmd.WaitDelay = within
	set(g.cmd)
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return g
}

// said is what a process has written so far.
type said struct {
	lockedBuffer
	more chan struct{} // if not nil, gets something with each write
}

func (s *said) Write(p []byte) (int, error) {
	n, err := s.lockedBuffer.Write(p)
	select {
	case s.more <- struct{}{}:
	default:
	}
	return n, err
}

// await returns when text was written.
func (s *said) await(t *testing.T, text string) {
	t.Helper()
	late := time.After(within)
	for !strings.Contains(s.String(), text) {
		select {
		case <-s.more:
		case <-late:
			t.Fatalf("it does not say %q within %v: %s", text, within, s.String())
		}
	}
}

func (g *guarded) wait() result {
	_ = g.cmd.Wait()
	return result{g.cmd.ProcessState.ExitCode(), g.stdout.String(), g.stderr.String()}
}

// is checks how it ended. What it says on standard error contains all of stderr, or is empty.
func (r result) is(t *testing.T, code int, stdout string, stderr ...string) {
	t.Helper()
	if r.code != code || r.stdout != stdout || len(stderr) == 0 && r.stderr != "" {
		t.Errorf("exit code %d, want %d\nstdout: %q, want %q\nstderr: %s", r.code, code, r.stdout, stdout, r.stderr)
	}
	for _, part := range stderr {
		if !strings.Contains(r.stderr, part) {
			t.Errorf("standard error does not say %q:\n%s", part, r.stderr)
		}
	}
}

// fifo makes a named pipe in dir. A script that opens it waits for the test, and the other
// way round.
func fifo(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// readFifo returns what is written until the last writer has closed it.
func readFifo(t *testing.T, path string) string {
	t.Helper()
	defer otherEnd(t, path)()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeFifo(t *testing.T, path string) {
	t.Helper()
	defer otherEnd(t, path)()
	if err := os.WriteFile(path, []byte("go on\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// otherEnd is there in time if nobody else is at the other end of a named pipe: what waits for that ends, and so does
// the test.
func otherEnd(t *testing.T, path string) (stop func()) {
	t.Helper()
	timer := time.AfterFunc(within, func() {
		if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
			_ = f.Close()
		}
	})
	return func() {
		t.Helper()
		if !timer.Stop() {
			t.Fatalf("nobody has opened the other end of %s within %v", path, within)
		}
	}
}

func TestRun(t *testing.T) {
	s := serve(t, t.TempDir()) // stopped once all of them have ended
	for name, test := range map[string]func(*testing.T, *served){
		"a repeat":            testRunRepeat,
		"two at once":         testRunTwice,
		"a scheduler's line":  testRunReadmeSchedulers,
		"exit codes":          testRunCodes,
		"killed":              testRunKilled,
		"killed, held":        testRunKilledHeld,
		"signals":             testRunSignals,
		"lease lost":          testRunLeaseLost,
		"lease not renewed":   testRunLeaseNotRenewed,
		"kill-after":          testRunKillAfter,
		"reader stands still": testRunReaderStandsStill,
		"no answer":           testRunNoAnswer,
		"recorded at last":    testRunRecordedAtLast,
		"recorded by another": testRunRecordedByAnother,
		"signal while waits":  testRunSignalWhileItWaits,
		"signal at the end":   testRunSignalAtTheEnd,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// testRunRepeat checks that a repeat writes the same and exits with the same, and what the
// command is told.
func testRunRepeat(t *testing.T, s *served) {
	dir := t.TempDir()
	const script = `cat; echo out; printf 'err\377' >&2; env | grep ^IDEMD_RUN >told; echo ran >>log; exit 3`
	flags := "--key=repeat@2026-10-28T02:00Z --intent-time=" + time.Now().Format(time.RFC3339)
	guard(t, dir, s.addr, flags, script).wait().is(t, 3, "out\n", "err\377")
	told := readFifo(t, filepath.Join(dir, "told"))
	for _, want := range []string{
		`(?m)^IDEMD_RUN_KEY=repeat@2026-10-28T02:00Z$`, `(?m)^IDEMD_RUN_FENCE=\d{16}$`, `(?m)^IDEMD_RUN_ATTEMPT=1$`,
		`(?m)^IDEMD_RUN_UNSETTLED=0$`, `(?m)^IDEMD_RUN_DOWNSTREAM_KEY=[0-9a-f]{64}$`,
	} {
		if !regexp.MustCompile(want).MatchString(told) {
			t.Errorf("the command is not told %s:\n%s", want, told)
		}
	}
	again := guard(t, dir, s.addr, flags, script).wait()
	again.is(t, 3, "out\n", "idemd: replay, age ", "exit code 3, and is not run again (to run it all the same give it another --key)\n", "err\377")
	if log := readFifo(t, filepath.Join(dir, "log")); log != "ran\n" || strings.Count(again.stderr, "\n") != 1 {
		t.Errorf("it ran: %q, and the repeat said %q", log, again.stderr)
	}

	const much = `i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done`
	whole := guard(t, dir, s.addr, "--key=much", much).wait()
	cut := guard(t, dir, s.addr, "--key=much", much).wait()
	if whole.code != 0 || cut.code != 0 || len(cut.stdout) > 16<<10 || len(cut.stdout) < 16<<10-100 || !strings.HasSuffix(whole.stdout, "\n"+cut.stdout) ||
		!strings.Contains(cut.stderr, fmt.Sprintf("the first %d bytes are not kept", len(whole.stdout)-len(cut.stdout))) {
		t.Errorf("of %d bytes %d are kept: %.40q\n%s", len(whole.stdout), len(cut.stdout), cut.stdout, cut.stderr)
	}
}

// testRunTwice starts two replicas of a job at once: one runs, and the other, which waits,
// writes and exits with the same. One that does not wait is told.
func testRunTwice(t *testing.T, s *served) {
	dir := t.TempDir()
	running, goOn := fifo(t, dir, "running"), fifo(t, dir, "goon")
	const script = `echo $$ >>log; echo up >running; read x <goon; echo report; exit 4`
	const flags = "--key=twice --wait=1m"
	one, two := guard(t, dir, s.addr, flags, script), guard(t, dir, s.addr, flags, script)
	readFifo(t, running)
	guard(t, dir, s.addr, "--key=twice", script).wait().is(t, exitInProgress, "", "idemd: in progress: ", "--wait")
	writeFifo(t, goOn)
	results := []result{one.wait(), two.wait()}
	replays := 0
	for _, r := range results {
		if r.code != 4 || r.stdout != "report\n" {
			t.Errorf("a replica: %+v", r)
		}
		replays += strings.Count(r.stderr, "idemd: replay")
	}
	if log := readFifo(t, filepath.Join(dir, "log")); strings.Count(log, "\n") != 1 || replays != 1 {
		t.Errorf("ran %d times, replayed %d times", strings.Count(log, "\n"), replays)
	}
}

// testRunReadmeSchedulers starts jobs as the page's lines for two schedulers do, by both and once more when they have ended.
// One that fails runs once for the slot. So does one that is killed, until a person has settled what it did.
func testRunReadmeSchedulers(t *testing.T, s *served) {
	lines := regexp.MustCompile(`idemd run (--.*) --key "nightly@`).FindAllStringSubmatch(readmeText(t), -1)
	if len(lines) != 2 {
		t.Fatalf("found %d lines for schedulers", len(lines))
	}
	for i, line := range lines {
		failed := line[1] + fmt.Sprintf(" --key=scheduled-%d", i)
		for _, r := range scheduled(t, s, failed, "exit 1") {
			r.is(t, 1, "report\n", "")
		}
		killed := fmt.Sprintf("scheduled-killed-%d", i)
		unresolved := 0
		for _, r := range scheduled(t, s, line[1]+" --key="+killed, "kill -KILL $$") {
			if r.code == exitUnresolved {
				unresolved++
			} else {
				r.is(t, 128+9, "report\n", "no run of this key begins before a person has settled it")
			}
		}
		if unresolved != 2 {
			t.Errorf("%s: %d of 2 are told that it is unresolved", line[0], unresolved)
		}
		s.run(t, "record", "resolve", "--id="+killed, "--any-fence", "--nothing-happened", "--reason=looked").ok(t)
		guard(t, t.TempDir(), s.addr, line[1]+" --key="+killed, "echo mended").wait().is(t, 0, "mended\n")
	}
}

// scheduled starts a job twice at once, and once more when it has ended. It runs once, or the test fails.
func scheduled(t *testing.T, s *served, flags, end string) []result {
	t.Helper()
	dir := t.TempDir()
	running, goOn := fifo(t, dir, "running"), fifo(t, dir, "goon")
	script := `[ -e log ]; first=$?; echo ran >>log; [ $first = 0 ] && exit 99; echo up >running; read x <goon; echo report; ` + end
	one, two := guard(t, dir, s.addr, flags, script), guard(t, dir, s.addr, flags, script)
	readFifo(t, running)
	writeFifo(t, goOn)
	results := []result{one.wait(), two.wait(), guard(t, dir, s.addr, flags, script).wait()}
	if log := readFifo(t, filepath.Join(dir, "log")); log != "ran\n" {
		t.Errorf("%s: %q, %+v", flags, log, results)
	}
	return results
}

// testRunCodes checks what the exit codes of commands mean for their keys, and what those of
// idemd's own are.
func testRunCodes(t *testing.T, s *served) {
	dir := t.TempDir()
	const told = `echo $IDEMD_RUN_ATTEMPT $IDEMD_RUN_UNSETTLED; exit `
	step := func(flags, code string, want int, stdout string, stderr ...string) {
		t.Helper()
		guard(t, dir, s.addr, flags, told+code).wait().is(t, want, stdout, stderr...)
	}
	// Nothing happened: it runs again, as if for the first time.
	step("--key=none --no-effect-codes=75", "75", 75, "1 0\n")
	step("--key=none --no-effect-codes=75", "0", 0, "2 0\n")
	// Recorded, whatever it is: also a code that shells use for a signal, of a command that has ended by itself.
	for _, code := range []string{"1", "75", "137", "255"} {
		n, _ := strconv.Atoi(code)
		step("--key=recorded-"+code, code, n, "1 0\n")
		step("--key=recorded-"+code, code, n, "1 0\n", "idemd: replay, age ")
	}
	step("--key=others --unknown-codes=3,5 --no-effect-codes=75,76", "4", 4, "1 0\n")
	step("--key=others --unknown-codes=4", "4", 4, "1 0\n", "idemd: replay, age ")
	// Unknown: the next one is told. While that is so no failure is final.
	step("--key=unknown --unknown-codes=2,7", "2", 2, "1 0\n", "exit code 2: what it did is unknown, and the next run")
	step("--key=unknown", "1", 1, "2 1\n", "an earlier run", "exit code 1: what it did is unknown")
	step("--key=unknown --no-effect-codes=1", "1", 1, "3 1\n", "an earlier run")
	step("--key=unknown", "0", 0, "4 1\n", "an earlier run")
	step("--key=unknown", "0", 0, "4 1\n", "idemd: replay")
	step("--key=any --unknown-codes=any --no-effect-codes=75", "75", 75, "1 0\n")
	step("--key=any --unknown-codes=any", "255", 255, "2 0\n", "exit code 255: what it did is unknown, and the next run")
	step("--key=any --unknown-codes=any", "0", 0, "3 1\n", "an earlier run")
	step("--key=any --unknown-codes=any", "0", 0, "3 1\n", "idemd: replay")
	// Held: nobody runs.
	step("--key=held --on-lapse=hold --unknown-codes=1", "1", 1, "1 0\n", "exit code 1: what it did is unknown, and no run of this key begins")
	step("--key=held", "0", exitUnresolved, "", "idemd: unresolved: ", "record inspect --addr "+s.addr+" --id held;")
	// Not run at all.
	step("--key=refused --namespace=none-such", "0", exitRunFailed, "", "idemd: NAMESPACE_UNKNOWN: ", "; the command was not run")
	step("--key=late --intent-time=2026-01-01T00:00:00Z", "0", exitRunFailed, "", "KEY_EXPIRED: ")
	step("--key=not-run --unknown-codes=3,1 --no-effect-codes=75,1", "0", exitRunFailed, "", "exit code 1 is in both --unknown-codes and --no-effect-codes: ")
	for _, wrong := range []string{"", "0", "256", "-1", "x", "1,,2", "3,any", "any,any"} {
		step("--key=not-run --unknown-codes="+wrong, "0", exitRunFailed, "", "--unknown-codes: ", "from 1 to 255", "or any alone")
	}
	for _, wrong := range []string{"", "0", "256", "any"} {
		step("--key=not-run --no-effect-codes="+wrong, "0", exitRunFailed, "", "--no-effect-codes: ", "from 1 to 255")
	}
	step("--no-such-flag", "0", exitRunFailed, "", "see idemd run --help")
	step("--key=not-run --frob", "0", exitRunFailed, "", "--frob is no flag of run")
	step("--key=not-run --cert=cert.pem", "0", exitRunFailed, "", "--cert-key")
	step("--key=wrong --on-lapse=act", "0", exitRunFailed, "", "--on-lapse")
	for command, code := range map[string]int{"no-such-command": exitNotFound, "/": exitNotRunnable, "": exitRunFailed} {
		run(t, "run", "--addr="+s.addr, "--key=not-run", command).fails(t, code)
	}
	run(t, "run", "--addr="+s.addr, "--key=not-run").fails(t, exitRunFailed, "<command>")
	step("--key=not-run", "0", 0, "3 0\n") // two of them were granted it, and gave it back
}

// testRunKilled kills idemd run, which nothing can catch: its command dies with it, with what
// it started, also as another user, and the next run is told to check, once the lease is over.
func testRunKilled(t *testing.T, s *served) {
	for i, command := range []string{"exec sleep 1000", "sleep 1000; true", "exec " + another(t) + " sleep 1000", another(t) + " sleep 1000; true"} {
		killed(t, s, fmt.Sprintf("--key=killed-%d --lease=15m", i), command)
	}
	killed(t, s, "--key=killed --lease=1s", "exec sleep 1000")
	guard(t, t.TempDir(), s.addr, "--key=killed --wait=1m", `echo $IDEMD_RUN_ATTEMPT $IDEMD_RUN_UNSETTLED`).wait().is(t, 0, "2 1\n", "an earlier run")
}

// another begins a command line that runs as another user. Only root can; else the kernel is
// made to forget what it forgets of whoever becomes another user.
func another(t *testing.T) string {
	switch {
	case os.Geteuid() == 0:
		return "setpriv --reuid 65534 --regid 65534 --clear-groups"
	case runtime.GOOS == "linux":
		return "setpriv --pdeathsig clear"
	}
	t.Logf("%s has no setpriv", runtime.GOOS)
	return "env"
}

func testRunKilledHeld(t *testing.T, s *served) {
	killed(t, s, "--key=killed-held --lease=1s --on-lapse=hold", "exec sleep 1000")
	guard(t, t.TempDir(), s.addr, "--key=killed-held --wait=1m", `echo ran`).wait().is(t, exitUnresolved, "", "unresolved: ")
}

func killed(t *testing.T, s *served, flags, command string) {
	t.Helper()
	dir := t.TempDir()
	alive := fifo(t, dir, "alive")
	g := guard(t, dir, s.addr, flags, `exec >alive; echo $$; `+command)
	lines := openFifo(t, alive)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(line, err)
	}
	_ = g.cmd.Process.Kill()
	if rest, err := io.ReadAll(lines); len(rest) > 0 || err != nil { // until the command is gone
		t.Errorf("%s: %q, %v", command, rest, err)
		if group, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			_ = syscall.Kill(-group, syscall.SIGKILL)
		}
	}
	_ = g.cmd.Wait()
}

// openFifo opens a fifo. What the test reads from it comes in time.
func openFifo(t *testing.T, path string) *bufio.Reader {
	t.Helper()
	defer otherEnd(t, path)()
	r, err := os.Open(path)
	if err == nil {
		t.Cleanup(func() { _ = r.Close() })
		err = r.SetReadDeadline(time.Now().Add(within))
	}
	if err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(r)
}

// testRunSignals checks that signals reach the command and what it started, each and as often
// as they come.
func testRunSignals(t *testing.T, s *served) {
	for name, sig := range map[string]syscall.Signal{
		"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
		"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "WINCH": syscall.SIGWINCH, "CONT": syscall.SIGCONT,
	} {
		// What whoever started the tests has ignored (nohup) is not ignored by what they start.
		caught := make(chan os.Signal, 1)
		signal.Notify(caught, sig)
		defer signal.Stop(caught)
		dir := t.TempDir()
		up := fifo(t, dir, "up")
		script := `trap 'n=$((n+1)); if [ $n = 2 ]; then exit 9; fi; echo up >up' ` + name + `
			sh -c "trap 'echo child; exit' ` + name + `; echo up >up; while :; do sleep 0.05; done" &
			while :; do wait; done`
		inBackground := sig != syscall.SIGINT && sig != syscall.SIGQUIT // a shell's command there takes neither
		if !inBackground {
			script = `trap 'n=$((n+1)); if [ $n = 2 ]; then exit 9; fi; echo up >up' ` + name + `; echo up >up; while :; do sleep 0.05; done`
		}
		g := guard(t, dir, s.addr, "--kill-after=1s --no-effect-codes=9 --key=signals-"+name, script)
		for range 2 {
			readFifo(t, up)
			if err := g.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
		r := g.wait()
		if r.code != 9 || strings.Contains(r.stderr, "idemd") || inBackground && !strings.HasPrefix(r.stdout, "child\n") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	g := guard(t, t.TempDir(), s.addr, "--key=signals", `kill -TERM $$`)
	g.wait().is(t, 128+15, "", "exit code 143: what it did is unknown")

	// One that the command does not catch ends it, and the key is not in progress any more.
	dir := t.TempDir()
	up := fifo(t, dir, "up")
	g = guard(t, dir, s.addr, "--key=quit --lease=15m", `ulimit -c 0; echo up >up; exec sleep 1000`)
	readFifo(t, up)
	_ = g.cmd.Process.Signal(syscall.SIGQUIT)
	g.wait().is(t, 128+3, "", "idemd: the command ended with exit code 131: what it did is unknown")
	guard(t, dir, s.addr, "--key=quit", `echo $IDEMD_RUN_UNSETTLED`).wait().is(t, 0, "1\n", "an earlier run")

	// One that it catches, and ends halfway, is no answer; one that it ends well after is.
	for code, told := range map[int]string{143: "1\n", 0: ""} {
		key := fmt.Sprintf("--key=told-%d", code)
		g = guard(t, dir, s.addr, key, fmt.Sprintf(`trap "exit %d" TERM; echo up >up; while :; do sleep 0.05; done`, code))
		readFifo(t, up)
		_ = g.cmd.Process.Signal(syscall.SIGTERM)
		if r := g.wait(); r.code != code {
			t.Errorf("told to end it ends with %+v, want %d", r, code)
		}
		if r := guard(t, dir, s.addr, key, `echo $IDEMD_RUN_UNSETTLED`).wait(); r.code != 0 || r.stdout != told {
			t.Errorf("the run after one that was told to end and ended with %d: %+v", code, r)
		}
	}
	g = guard(t, dir, s.addr, "--key=killed-listed --no-effect-codes=137", `kill -9 $$`)
	g.wait().is(t, 128+9, "", "exit code 137: what it did is unknown")
}

// testRunLeaseLost has an operator end the run: the command is asked to end, then killed.
func testRunLeaseLost(t *testing.T, s *served) {
	dir := t.TempDir()
	up := fifo(t, dir, "up")
	g := guard(t, dir, s.addr, "--key=lost --lease=3s --kill-after=1s", `trap 'echo asked' TERM; echo up >up; while :; do sleep 1000 & wait; done`)
	readFifo(t, up)
	s.run(t, "record", "force-release", "--id=lost", "--any-fence", "--reason=stuck").ok(t)
	g.wait().is(t, exitLeaseLost, "asked\n", "idemd: STALE_FENCE: the lease of this attempt is over", "idemd: the right to act was over")
	guard(t, dir, s.addr, "--key=lost", `echo $IDEMD_RUN_UNSETTLED`).wait().is(t, 0, "1\n", "an earlier run")

	// Another run may have begun although the command has ended by itself.
	g = guard(t, dir, s.addr, "--key=overtaken --lease=15m", `echo up >up; read x <up`)
	readFifo(t, up)
	s.run(t, "record", "force-release", "--id=overtaken", "--any-fence", "--reason=stuck").ok(t)
	writeFifo(t, up)
	g.wait().is(t, exitLeaseLost, "", "exit code 0, but another run or an operator", "STALE_FENCE")
}

// testRunLeaseNotRenewed takes the server away: the command has ended when another run may
// begin, although it does not end when it is asked to.
func testRunLeaseNotRenewed(t *testing.T, _ *served) {
	dir := t.TempDir()
	server := startChild(t, t.TempDir())
	alive := fifo(t, dir, "alive")
	g := guard(t, dir, server.addr, "--key=away --lease=3s --kill-after=1s", `exec 3>alive; trap 'echo asked >&3' TERM; echo up >&3; while :; do sleep 0.05; done`)
	lines := openFifo(t, alive)
	if line, err := lines.ReadString('\n'); line != "up\n" {
		t.Fatal(line, err)
	}
	server.kill()
	last := time.Now() // a renewal was not sent later
	rest, err := io.ReadAll(lines)
	if ran := time.Since(last); string(rest) != "asked\n" || err != nil || ran > 3*time.Second {
		t.Errorf("%q, %v, after %v of 3s", rest, err, ran)
	}
	g.wait().is(t, exitLeaseLost, "", "idemd: the lease was not renewed in time: ", "another run may begin at 2", "idemd: the right to act was over")
}

// testRunKillAfter checks that renewals have time.
func testRunKillAfter(t *testing.T, s *served) {
	guard(t, t.TempDir(), "127.0.0.1:1", "--key=k --lease=3s --kill-after=1001ms", "true").wait().is(t, exitRunFailed, "", "--kill-after 1.001s is more than a third of the lease of 3s: at most 1s")
	for key, of := range map[string]struct{ namespace, fits, more string }{
		"default": {"default", "10s", "11s"},      // of 30s
		"short":   {"short-attempts", "5s", "6s"}, // of 15s,
	} {
		if key == "short" {
			s.run(t, "namespace", "create", of.namespace, "--tier=hour", "--max-attempt=15s").ok(t)
		}
		flags := "--key=room --namespace=" + of.namespace + " --kill-after="
		guard(t, t.TempDir(), s.addr, flags+of.more, "echo ran").wait().is(t, exitRunFailed, "", "more than a third of the lease")
		guard(t, t.TempDir(), s.addr, flags+of.fits, "echo $IDEMD_RUN_UNSETTLED").wait().is(t, 0, "0\n")
	}
}

// testRunReaderStandsStill checks that what came of a command is recorded although nobody
// takes what it wrote, and that it comes when it is taken, or a signal ends the waiting.
func testRunReaderStandsStill(t *testing.T, s *served) {
	const much = `head -c 131000 /dev/zero`
	for _, signalled := range []bool{false, true} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		key := fmt.Sprintf("--key=still-%t --wait=1m", signalled)
		g := guardAs(t, t.TempDir(), s.addr, key, much, func(cmd *exec.Cmd) { cmd.Stdout = w })
		_ = w.Close()
		if n, err := r.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Fatal(err)
		}
		again := guard(t, t.TempDir(), s.addr, key, much).wait()
		if again.code != 0 || !strings.Contains(again.stderr, "idemd: replay") {
			t.Errorf("the repeat: %d %s", again.code, again.stderr)
		}
		if signalled {
			_ = g.cmd.Process.Signal(syscall.SIGTERM)
		} else if rest, err := io.ReadAll(r); len(rest) != 131000-1 || err != nil {
			t.Errorf("%d bytes, %v", len(rest), err)
		}
		g.wait().is(t, 0, "")
	}
}

func testRunNoAnswer(t *testing.T, _ *served) {
	guard(t, t.TempDir(), "127.0.0.1:1", "--key=none", `echo ran`).wait().is(t, exitUnknown, "", "idemd: no answer from 127.0.0.1:1: ", "not run")
}

// testRunRecordedAtLast kills the server before the command ends, and starts it again after.
func testRunRecordedAtLast(t *testing.T, _ *served) {
	data, dir, addr := t.TempDir(), t.TempDir(), freeAddr(t)
	up := fifo(t, dir, "up")
	server := startChildOn(t, "--data-dir="+data, "--grpc-addr="+addr)
	g := guard(t, dir, addr, "--key=late --lease=15m", `echo up >up; read x <up; echo done`)
	readFifo(t, up)
	server.kill()
	server.wait()
	writeFifo(t, up)
	g.stderr.await(t, "could not be recorded yet")
	startChildOn(t, "--data-dir="+data, "--grpc-addr="+addr)
	g.wait().is(t, 0, "done\n", "could not be recorded yet")
	guard(t, dir, addr, "--key=late", `echo ran`).wait().is(t, 0, "done\n", "idemd: replay")
}

// testRunRecordedByAnother checks that what an operator found out counts as a run.
func testRunRecordedByAnother(t *testing.T, s *served) {
	for key, test := range map[string]struct {
		resolve []string
		code    int
		stdout  string
	}{
		"found-done":   {[]string{"--outcome=by hand\n"}, 0, "by hand\n"},
		"found-failed": {[]string{"--outcome=", "--code=NOT_FOUND", "--message=no such report"}, 1, ""},
	} {
		s.run(t, "claim", "--id="+key, "--attempt=one", "--hold").ok(t)
		s.run(t, "release", "--id="+key, "--attempt=one", "--effect=unknown").ok(t)
		s.run(t, append([]string{"record", "resolve", "--id=" + key, "--any-fence", "--reason=looked"}, test.resolve...)...).ok(t)
		guard(t, t.TempDir(), s.addr, "--key="+key, `echo ran`).wait().is(t, test.code, test.stdout, "idemd: replay: ", "not run again")
	}
	runWith(t, `{"id": "imported", "happened": true}`, "recovery", "import", "--addr="+s.addr, "--namespace=default", "--reason=looked", "-").ok(t)
	guard(t, t.TempDir(), s.addr, "--key=imported", `echo ran`).wait().is(t, 0, "", "idemd: replay: ", "not run again")
	s.run(t, "namespace", "create", "narrow", "--max-outcome-bytes=1024").ok(t)
	wide := strings.Repeat("x", 2048)
	guard(t, t.TempDir(), s.addr, "--namespace=narrow --key=wide", `echo `+wide).wait().is(t, 0, wide+"\n")
	guard(t, t.TempDir(), s.addr, "--namespace=narrow --key=wide", `echo `+wide).wait().is(t, exitRunFailed, "", "idemd: it was run, ", "--max-outcome-bytes")
}

// testRunSignalWhileItWaits ends a run that waits for an answer.
func testRunSignalWhileItWaits(t *testing.T, _ *served) {
	for sig, says := range map[syscall.Signal]string{syscall.SIGTERM: "terminated", syscall.SIGQUIT: "quit"} {
		m, addr := serveMute(t, nil)
		g := guard(t, t.TempDir(), addr, "--key=waited-for --wait=10m", `echo ran`)
		<-m.attempts
		_ = g.cmd.Process.Signal(syscall.SIGUSR1) // asks nothing: there is no command
		_ = g.cmd.Process.Signal(sig)
		g.wait().is(t, 128+int(sig), "", "idemd: "+says+" before the command was started")
	}
}

// testRunSignalAtTheEnd sends a signal when the command has ended and what came of it is being
// recorded, which the server does not answer.
func testRunSignalAtTheEnd(t *testing.T, _ *served) {
	dir := t.TempDir()
	server := startChild(t, t.TempDir())
	up, goOn := fifo(t, dir, "up"), fifo(t, dir, "goon")
	g := guard(t, dir, server.addr, "--key=silent --lease=15m", `echo $$ >up; read x <goon; echo done`)
	pid, err := strconv.Atoi(strings.TrimSpace(readFifo(t, up)))
	if err != nil {
		t.Fatal(err)
	}
	_ = server.cmd.Process.Signal(syscall.SIGSTOP)
	defer func() { _ = server.cmd.Process.Signal(syscall.SIGCONT) }()
	writeFifo(t, goOn)
	until(t, func() bool { return syscall.Kill(pid, 0) != nil })
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	g.wait().is(t, 0, "done\n", "exit code 0, which is not recorded")
}

// TestRunKeyIsNoVariable checks that the variable for other commands' --key, a file, does not
// become the key of a run, and names the file here too.
func TestRunKeyIsNoVariable(t *testing.T) {
	t.Setenv("IDEMD_KEY", "tls.key")
	run(t, "run", "--", "true").fails(t, exitRunFailed, "--key")
	run(t, "run", "--key=k", "--", "true").fails(t, exitRunFailed, "--cert and the file of its key")
}
