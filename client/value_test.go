package client_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

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

// What does not say what is in it could not be read back: that is told before anything is
// done.
func TestDoOfAnUnreadableType(t *testing.T) {
	t.Run("message", refusedByDo[proto.Message])
	t.Run("any", refusedByDo[any])
	t.Run("error", refusedByDo[error])
	t.Run("func", refusedByDo[func()])
	t.Run("channel", refusedByDo[chan int])
	t.Run("dynamic message", refusedByDo[*dynamicpb.Message])
}

func refusedByDo[T any](t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		fn, runs := returns(*new(T), nil)
		_, err := client.Do(t.Context(), s, orderKey, nil, fn)
		if !errors.Is(err, store.ErrInvalidArgument) || *runs+s.count("claim") != 0 {
			t.Errorf("got %v after %d runs and %d claims, want a refusal before both", err, *runs, s.count("claim"))
		}
		if want := "back as " + reflect.TypeFor[T]().String(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("told %v, want %q in it", err, want)
		}
	})
}

// A value that turns out to be none that can be stored is known to be made, and told as such.
func TestDoOfAValueThatCannotBeEncoded(t *testing.T) {
	synctest.Test(t, testDoOfAValueThatCannotBeEncoded)
}

func testDoOfAValueThatCannotBeEncoded(t *testing.T) {
	type receipt struct{ Pay func() }
	s, events := newStore(t), &eventLog{}
	fn, runs := returns(receipt{func() {}}, nil)
	for i := range 2 {
		_, err := client.Do(t.Context(), s, orderKey, nil, fn, client.OnEvent(events.add))
		if i == 1 && (!errors.Is(err, store.ErrOutcomeOmitted) || !strings.Contains(err.Error(), "could not be stored")) {
			t.Errorf("the repeat is told %v", err)
		}
	}
	events.says(t, nil, store.ErrOutcomeOmitted, store.ErrOutcomeOmitted)
	if *runs != 1 {
		t.Errorf("ran %d times", *runs)
	}
}
