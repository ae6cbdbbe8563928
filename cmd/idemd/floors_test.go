package main

import (
	"strings"
	"testing"
)

// A recovery that has begun is in /healthz and in the metrics until it is lifted, whatever keeps the keys.
func TestRecoveryFloorsAreShown(t *testing.T) {
	t.Parallel() // it waits for looks that a server takes every 5 seconds
	for name, kept := range map[string]func(t *testing.T) string{
		"embedded": func(t *testing.T) string { return "--data-dir=" + t.TempDir() },
		"database": func(t *testing.T) string { return "--store=" + migrated(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin := freeAddr(t)
			s := serveOn(t, kept(t), "--admin-addr="+admin)
			shown := func(what string) bool {
				return strings.Contains(get(t, "http://"+admin+"/healthz"), what) && strings.Contains(get(t, "http://"+admin+"/metrics"), "\nidemd_recovery_floor_seconds{namespace=\"default\"} 1.")
			}
			s.run(t, "namespace", "set", "default", "--recovery-floor=2026-01-31T15:04:05Z").ok(t)
			until(t, func() bool {
				return shown("recovery floor at 2026-01-31T15:04:05Z: unknown keys without an intent time after 2026-01-31T15:05:05Z are refused in namespace default")
			})
			if name == "embedded" { // on a database it is in force after 20 seconds
				s.run(t, "recovery", "begin", "--from=2026-01-31T15:04:05Z", "--actor=alice", "--reason=failed over").ok(t)
				until(t, func() bool { return shown(`by alice for \"failed over\"`) })
			}
			s.run(t, "recovery", "lift", "--namespace=default", "--leases-ended", "--reason=settled").ok(t)
			until(t, func() bool { return get(t, "http://"+admin+"/healthz") == `{"status":"serving"}`+"\n" })
			if metrics := get(t, "http://"+admin+"/metrics"); strings.Contains(metrics, "idemd_recovery_floor_seconds{") {
				t.Error(metrics)
			}
		})
	}
}
