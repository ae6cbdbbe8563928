package client

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// What waits to be recorded is bounded; what is more is given up at once.
func TestBackgroundIsBounded(t *testing.T) {
	release := make(chan struct{})
	for range maxBackground {
		if !inBackground(func() { <-release }) {
			t.Fatal("refused below the bound")
		}
	}
	var told []Event
	x := &execution{lease: &lease{lose: func(error) {}, cancel: func() {}, timer: time.NewTimer(time.Hour)}, notify: func(e Event) { told = append(told, e) }}
	x.settleLater(t.Context(), unknown)
	if len(told) != 1 || told[0].Kind != EventRecordingFailed || !errors.Is(told[0].Err, errTooMuchToRecord) || !x.lease.stopped {
		t.Errorf("told %+v, stopped %v", told, x.lease.stopped)
	}
	close(release)
	if err := Drain(t.Context()); err != nil {
		t.Error(err)
	}
	goleak.VerifyNone(t)
}
