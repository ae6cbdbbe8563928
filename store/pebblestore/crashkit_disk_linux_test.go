package pebblestore_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// ownMounts is the environment variable that says that a copy of the test binary has
// mounts of its own.
const ownMounts = "PEBBLESTORE_TEST_MOUNTS"

// withOwnMounts reports whether the test has mounts of its own, which go when it ends,
// however it ends. If not, it runs the test in a process that has.
func withOwnMounts(t *testing.T) bool {
	t.Helper()
	if os.Getenv(ownMounts) != "" {
		return true
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	again.Env = append(os.Environ(), ownMounts+"=yes")
	again.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // with which the other process would end
	defer runtime.UnlockOSThread()
	out, err := again.CombinedOutput()
	switch {
	case errors.Is(err, fs.ErrPermission):
		t.Skipf("NOT RUN: a full disk needs mounts of its own (as root): %v", err)
	case err != nil:
		t.Fatalf("with mounts of its own: %v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP")):
		t.Skipf("%s", out)
	}
	t.Logf("%s", out)
	return false
}

// smallDisk mounts a file system in memory of the size, until the test ends.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("NOT RUN: a full disk needs a small tmpfs, and mounting one (as root) failed: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// growDisk gives a small disk another size.
func growDisk(t *testing.T, dir, size string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size="+size); err != nil {
		t.Fatal(err)
	}
}
