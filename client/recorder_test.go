package client

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemd/idemd/store"
)

// What waits to be recorded is bounded, in number and in bytes; what is more is given up at
// once. Each room is for itself: what is not worth much takes no place of an outcome.
func TestBackgroundIsBounded(t *testing.T) {
	release := make(chan struct{})
	hold := func() { <-release }
	for range releases.maxWorks {
		if !releases.run(0, hold) {
			t.Fatal("refused below the bound")
		}
	}
	givenUp(t, unknown(errNotReturned), EventUnknown)
	paid := ending{outcome: &store.Outcome{Body: make([]byte, 200<<10)}}
	fit := outcomes.maxBytes / paid.size()
	for range fit {
		if !outcomes.run(paid.size(), hold) {
			t.Fatal("refused below the bound of bytes")
		}
	}
	givenUp(t, paid, EventRecordingFailed)
	for range outcomes.maxWorks - fit {
		if !outcomes.run(0, hold) {
			t.Fatal("refused below the bound")
		}
	}
	givenUp(t, ending{effect: store.EffectNone}, EventRecordingFailed)
	close(release)
	if err := Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if outcomes.works+outcomes.bytes+releases.works != 0 {
		t.Errorf("left: %+v, %+v", outcomes, releases)
	}
	goleak.VerifyNone(t)
}

// givenUp checks that an ending is given up, and said to be, when there is no room.
func givenUp(t *testing.T, end ending, want EventKind) {
	t.Helper()
	var told []Event
	x := &execution{lease: &lease{lose: func(error) {}, cancel: func() {}, timer: time.NewTimer(time.Hour)}, notify: func(e Event) { told = append(told, e) }}
	x.settleLater(t.Context(), end)
	if len(told) != 1 || told[0].Kind != want || !errors.Is(told[0].Err, errTooMuchToRecord) || !x.lease.stopped {
		t.Errorf("told %+v, stopped %v", told, x.lease.stopped)
	}
}

// What is too large is made shorter bit by bit, before anybody keeps it.
func TestEndingsFit(t *testing.T) {
	large, small := make([]byte, store.MaxOutcomeBytes), []byte("paid")
	header := []store.MetadataEntry{{Name: "location", Value: large}}
	for _, test := range []struct {
		outcome store.Outcome
		body    []byte
		omitted bool
		headers int
	}{
		{store.Outcome{Body: small, Header: header[:1:1]}, small, false, 0},
		{store.Outcome{Body: append(large, 'x')}, nil, true, 0},
		{store.Outcome{Body: large}, large, false, 0},
		{store.Outcome{Body: append(large, 'x'), Trailer: header}, nil, true, 0},
		{store.Outcome{Body: small, Header: []store.MetadataEntry{{Name: "location", Value: small}}}, small, false, 1},
	} {
		end := ending{outcome: &test.outcome}
		end.fit()
		if o := end.outcome; !bytes.Equal(o.Body, test.body) || o.BodyOmitted != test.omitted || len(o.Header) != test.headers || len(o.Trailer) != 0 {
			t.Errorf("%d bytes of body, omitted %v, %d headers", len(o.Body), o.BodyOmitted, len(o.Header))
		}
	}
	(&ending{effect: store.EffectNone}).fit()
}

// A panic of what runs in the background ends neither the process nor Drain.
func TestPanicInTheBackground(t *testing.T) {
	if !outcomes.run(7, func() { panic("oops") }) {
		t.Fatal("no room")
	}
	if err := Drain(context.Background()); err != nil || outcomes.works+outcomes.bytes != 0 {
		t.Errorf("%v, left %+v", err, outcomes)
	}
}
