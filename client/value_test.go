package client_test

import (
	"testing"
	"testing/synctest"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/store"
)

// Callers use the bytes that they get as they like, before they are recorded and after.
func TestBytesAreTheCallersOwn(t *testing.T) { synctest.Test(t, testBytesAreTheCallersOwn) }

func testBytesAreTheCallersOwn(t *testing.T) {
	s := newStore(t)
	s.fail("complete", store.ErrUnavailable)
	fn, runs := returns([]byte("charged"), nil)
	first, err := client.Do(t.Context(), s, orderKey, nil, fn)
	if err != nil || first.Recorded {
		t.Fatalf("%+v, %v", first, err)
	}
	copy(first.Value, "another")
	s.fail("complete", nil)
	if err := client.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		again, err := client.Do(t.Context(), s, orderKey, nil, fn)
		if err != nil || !again.Replayed || string(again.Value) != "charged" || *runs != 1 {
			t.Errorf("repeat: %q, %v, ran %d times", again.Value, err, *runs)
		}
		copy(again.Value, "another")
	}
}
