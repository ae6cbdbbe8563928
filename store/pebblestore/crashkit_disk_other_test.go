//go:build !linux

package pebblestore_test

import "testing"

// smallDisk skips the test: only Linux has tmpfs.
func smallDisk(t *testing.T, _ string) string {
	t.Helper()
	t.Skip("NOT RUN: a full disk needs tmpfs, which only Linux has")
	return ""
}

func growDisk(*testing.T, string, string) {}

func withOwnMounts(*testing.T) bool { return true }
