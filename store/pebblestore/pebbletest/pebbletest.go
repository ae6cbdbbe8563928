// Package pebbletest makes embedded stores for tests.
package pebbletest

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

// Factory is a [storetest.Factory] of stores in memory that are driven by a scripted clock.
func Factory(t testing.TB) *storetest.Instance {
	fs, clock := vfs.NewCrashableMem(), storetest.NewClock()
	open := func() *pebblestore.Store {
		s, err := pebblestore.Open("data", pebblestore.Options{
			FS: fs, Source: clock, MemTableBytes: 1 << 20, MaintainEvery: -1,
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	instance := &storetest.Instance{Backend: s, Clock: clock}
	instance.Reopen = func() {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open()
		instance.Backend = s
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return instance
}
