package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/internal/killtest"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

// The steps of an attempt at which a process is killed.
const (
	stepClaimed   = "claimed"   // the key is granted, and nothing else was done
	stepRecording = "recording" // the outcome is about to be recorded
	stepRecorded  = "recorded"  // it is stored, and whoever recorded it does not know yet
	stepActing    = "acting"    // just before the effect
	stepActed     = "acted"     // just after it
)

// TestKilledAtEachStep kills a process at a step of an attempt, has another one carry the
// intent out, and counts the effects: what each of the three ways to go about an effect
// that nothing guards loses, and when.
func TestKilledAtEachStep(t *testing.T) {
	const act, mails, person = "act, then record", "record, then act", "hold"
	unresolved := store.ErrKeyUnresolved
	var all sync.WaitGroup
	for _, test := range []struct {
		way, step string
		effects   int
		err       error // of the one that comes after
	}{
		{act, stepClaimed, 1, nil}, {act, stepActing, 1, nil},
		{act, stepActed, 2, nil}, {act, stepRecording, 2, nil}, // repeated
		{act, stepRecorded, 1, nil},

		{mails, stepClaimed, 1, nil}, {mails, stepRecording, 1, nil},
		{mails, stepRecorded, 0, nil}, {mails, stepActing, 0, nil}, // lost
		{mails, stepActed, 1, nil},

		{person, stepClaimed, 0, unresolved}, {person, stepActing, 0, unresolved},
		{person, stepActed, 1, unresolved}, {person, stepRecording, 1, unresolved},
		{person, stepRecorded, 1, nil},
	} {
		name, dir := test.way+", killed when "+test.step, t.TempDir()
		all.Go(func() { // all at once: they wait for leases to end
			if err := killtest.At(t.Context(), "TestActorProcess", actorVariable+"="+dir+"|"+test.way+"|"+test.step, test.step); err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			effects, err := carryOutAfter(t.Context(), dir, test.way)
			if !errors.Is(err, test.err) || effects != test.effects {
				t.Errorf("%s: then %v, and the effect happened %d times; want %v and %d", name, err, effects, test.err, test.effects)
			}
		})
	}
	all.Wait()
}

// carryOutAfter carries the intent out once more, and counts the effects.
func carryOutAfter(ctx context.Context, dir, way string) (effects int, err error) {
	a, err := openActor(dir)
	if err != nil {
		return 0, err
	}
	defer a.close()
	err = a.carryOut(ctx, way)
	text, _ := os.ReadFile(a.effects) // there is none before the first
	return strings.Count(string(text), "\n"), err
}

const actorVariable = "IDEMD_TEST_ACTOR" // "DIR|WAY|STEP"

// TestActorProcess is the process that is killed. Run with the other tests it is not one.
func TestActorProcess(t *testing.T) {
	dir, rest, is := strings.Cut(os.Getenv(actorVariable), "|")
	if !is {
		return
	}
	way, step, _ := strings.Cut(rest, "|")
	a, err := openActor(dir)
	if err != nil {
		t.Fatal(err)
	}
	a.stopAt = step
	t.Fatal("not killed: ", a.carryOut(t.Context(), way))
}

// actor carries an intent out on an embedded store, and stands still at a step.
type actor struct {
	store.Store
	effects string // a file with a line for each
	close   func()
	stopAt  string
}

func openActor(dir string) (*actor, error) {
	embedded, err := pebblestore.Open(filepath.Join(dir, "store"), pebblestore.Options{})
	if err != nil {
		return nil, err
	}
	w := store.NewWaiter(embedded, store.WaiterOptions{})
	return &actor{Store: w, effects: filepath.Join(dir, "effects"), close: func() { w.Close(); _ = embedded.Close() }}, nil
}

// reached says that a step is reached. If it is the one to stop at, the process goes no further.
func (a *actor) reached(step string) {
	if step == a.stopAt {
		fmt.Println("at " + step)
		<-make(chan struct{}) // until it is killed
	}
}

func (a *actor) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	defer a.reached(stepClaimed)
	return a.Store.Claim(ctx, req)
}

func (a *actor) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	a.reached(stepRecording)
	defer a.reached(stepRecorded)
	return a.Store.Complete(ctx, req)
}

func (a *actor) carryOut(ctx context.Context, way string) error {
	opts := []client.DoOption{client.Lease(time.Second), client.Wait(time.Minute)}
	switch way {
	case "record, then act":
		opts = append(opts, client.RecordFirst("handed over"))
	case "hold":
		opts = append(opts, client.Hold())
	}
	_, err := client.Do(ctx, a, orderKey, nil, func(context.Context, *client.Attempt) (string, error) {
		a.reached(stepActing)
		err := a.act()
		a.reached(stepActed)
		return "sent", err
	}, opts...)
	return err
}

func (a *actor) act() error {
	f, err := os.OpenFile(a.effects, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString("sent\n")
	return errors.Join(err, f.Close())
}
