package guard_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/idemd/idemd/client/guard"
)

// model is what the guards must answer, in memory.
type model struct {
	outcomes, prints, takers, states map[string]string
	numbers, fences                  map[string]int64
	effects                          map[string]int
}

func newModel() model {
	return model{map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}, map[string]int64{}, map[string]int64{}, map[string]int{}}
}

func (m model) clone() model {
	return model{maps.Clone(m.outcomes), maps.Clone(m.prints), maps.Clone(m.takers), maps.Clone(m.states), maps.Clone(m.numbers), maps.Clone(m.fences), maps.Clone(m.effects)}
}

// operation is one question to a guard, of things with a prefix of this run's own.
type operation struct {
	guard, thing, text, other string
	number                    int64
}

func drawOperation(prefix string) *rapid.Generator[operation] {
	return rapid.Custom(func(t *rapid.T) operation {
		return operation{
			guard:  rapid.SampledFrom([]string{"inbox", "failing inbox", "once", "transition", "sequence", "fence"}).Draw(t, "guard"),
			thing:  prefix + rapid.SampledFrom([]string{"a", "b"}).Draw(t, "thing"),
			text:   rapid.SampledFrom([]string{"new", "paid", "sent"}).Draw(t, "text"),
			other:  rapid.SampledFrom([]string{"new", "paid", "sent"}).Draw(t, "other"),
			number: rapid.Int64Range(1, 4).Draw(t, "number"),
		}
	})
}

var errEffect = errors.New("the effect failed")

// ask is the operation on the database. Its answer is a text, with the error's.
func (o operation) ask(tx guard.Tx) string {
	ctx := context.Background()
	act := func() ([]byte, error) { return []byte(o.other), effect(tx, o.thing, 0) }
	switch o.guard {
	case "inbox":
		entry, err := inbox.Do(ctx, tx, o.thing, []byte(o.text), act)
		return fmt.Sprintln(entry.Repeat, string(entry.Outcome), err)
	case "failing inbox":
		_, err := inbox.Do(ctx, tx, o.thing, []byte(o.text), func() ([]byte, error) { return nil, errEffect })
		return fmt.Sprintln(err)
	case "once":
		entry, err := once.Do(ctx, tx, o.thing, o.text, func() ([]byte, error) { return []byte(o.text + o.other), effect(tx, o.thing, 0) })
		return fmt.Sprintln(entry.Repeat, entry.Key, string(entry.Outcome), err)
	case "transition":
		applied, err := orders.Apply(ctx, tx, o.thing, o.text, o.other)
		return fmt.Sprintln(applied, err)
	case "sequence":
		order, last, err := seq.Advance(ctx, tx, o.thing, o.number)
		return fmt.Sprintln(order, last, err)
	}
	return fmt.Sprintln(fence.Check(ctx, tx, o.thing, o.number))
}

const noOutcome = "\x00"

// expect is the operation on the model.
func (o operation) expect(m model) string {
	switch o.guard {
	case "inbox", "failing inbox":
		return o.expectInbox(m)
	case "once":
		taken, repeat := m.takers[o.thing]
		if !repeat {
			taken = o.text + " " + o.text + o.other
			m.takers[o.thing] = taken
			m.effects[o.thing]++
		}
		return fmt.Sprintln(repeat, taken, nil)
	case "transition":
		return o.expectTransition(m)
	case "sequence":
		last, any := m.numbers[o.thing]
		order := guard.Newer
		switch {
		case any && o.number == last:
			order = guard.Same
		case any && o.number < last:
			order = guard.Older
		default:
			last, m.numbers[o.thing] = o.number, o.number
		}
		return fmt.Sprintln(order, last, nil)
	}
	if highest := m.fences[o.thing]; o.number < highest {
		return fmt.Sprintln(&guard.StaleFence{Fence: o.number, Highest: highest})
	}
	m.fences[o.thing] = o.number
	return fmt.Sprintln(nil)
}

func (o operation) expectInbox(m model) string {
	outcome, entered := m.outcomes[o.thing]
	answer := func(repeat bool, outcome string, err error) string {
		if o.guard == "inbox" {
			return fmt.Sprintln(repeat, outcome, err)
		}
		return fmt.Sprintln(err)
	}
	switch {
	case entered && m.prints[o.thing] != o.text:
		return answer(false, "", guard.ErrMismatch)
	case entered && outcome == noOutcome:
		return answer(false, "", guard.ErrNoOutcome)
	case entered:
		return answer(true, outcome, nil)
	}
	m.prints[o.thing] = o.text
	if o.guard == "failing inbox" {
		m.outcomes[o.thing] = noOutcome
		return fmt.Sprintln(errEffect)
	}
	m.outcomes[o.thing] = o.other
	m.effects[o.thing]++
	return answer(false, o.other, nil)
}

func (o operation) expectTransition(m model) string {
	state, there := m.states[o.thing]
	switch {
	case o.text == o.other:
		return fmt.Sprintln(false, fmt.Sprintf("%v: a transition from %q to itself: it could not be told from its repeat", guard.ErrInvalid, o.text))
	case !there:
		return fmt.Sprintln(false, guard.ErrAbsent)
	case state == o.text:
		m.states[o.thing] = o.other
		return fmt.Sprintln(true, nil)
	case state == o.other:
		return fmt.Sprintln(false, nil)
	}
	return fmt.Sprintln(false, &guard.Conflict{From: o.text, To: o.other, State: state})
}

var prefixes atomic.Int64

// Whatever is asked, in transactions that are committed or rolled back: the answers are the model's.
func TestModel(t *testing.T) {
	t.Parallel()
	overAll(t, func(t *testing.T, d *database) {
		rapid.Check(t, func(rt *rapid.T) {
			prefix := fmt.Sprint(prefixes.Add(1), "-")
			committed := newModel()
			d.do(t, func(tx guard.Tx) error {
				committed.states[prefix+"a"] = "new" // and of b there is no row
				return run(tx, "INSERT INTO orders VALUES ($1, 'new')", prefix+"a")
			})
			for range rapid.IntRange(1, 6).Draw(rt, "transactions") {
				pending := committed.clone()
				operations := rapid.SliceOfN(drawOperation(prefix), 1, 5).Draw(rt, "operations")
				commits := rapid.Bool().Draw(rt, "commits")
				work := func(tx guard.Tx) error {
					for _, o := range operations {
						if got, want := o.ask(tx), o.expect(pending); got != want {
							rt.Errorf("%+v: %s, want %s", o, got, want)
						}
					}
					return nil
				}
				if commits {
					d.do(t, work)
					committed = pending
				} else {
					d.undone(t, work)
				}
			}
			for _, thing := range []string{prefix + "a", prefix + "b"} {
				if got := d.effects(t, thing); got != committed.effects[thing] {
					rt.Errorf("%s has %d effects, want %d", thing, got, committed.effects[thing])
				}
			}
		})
	})
}
