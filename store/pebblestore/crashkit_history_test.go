package pebblestore_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idemd/idemd/store"
)

// call is one request and, once it has come, its answer.
type call struct {
	client     int
	req        any
	now        time.Time // the store's clock, which stands still while calls run
	start, end int64     // end is zero while there is no answer
	answer     string
}

// cut is the instant of a crash, in a history's sequence numbers. What was answered up to
// answered had left the store before it; what started after started had not reached it.
type cut struct{ answered, started int64 }

// history records calls and checks that they are what one store can have answered.
type history struct {
	namespaces map[string]*store.Namespace
	keys       []store.Key           // all that calls are about
	base       map[store.Key]row     // what was stored before the first call
	past       []porcupine.Operation // the calls before an earlier crash

	mu    sync.Mutex
	seq   int64
	now   time.Time
	calls []*call
}

// next returns a history that starts where this one ended.
func (h *history) next(base map[store.Key]row, now time.Time) *history {
	return &history{namespaces: h.namespaces, keys: h.keys, base: base, now: now}
}

// send runs a request on the store and records it.
func (h *history) send(ctx context.Context, b store.Backend, client int, req any) string {
	h.mu.Lock()
	h.seq++
	c := &call{client: client, req: req, now: h.now, start: h.seq}
	h.calls = append(h.calls, c)
	h.mu.Unlock()

	answer := send(ctx, b, req)

	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	c.end, c.answer = h.seq, answer
	return answer
}

// instant returns the sequence number reached.
func (h *history) instant() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seq
}

// crashed returns a history that goes on after a crash of this one. It may be asked only
// when nothing calls the store any more.
func (h *history) crashed(at cut, now time.Time) *history {
	next := h.next(h.base, now)
	next.past = h.operations(at)
	next.seq = at.started + 1
	return next
}

// operations returns the calls up to a crash. A call whose answer is not known by then
// ends there: it took effect before the crash or never will.
func (h *history) operations(at cut) []porcupine.Operation {
	ops := slices.Clone(h.past)
	for _, c := range h.calls {
		if c.start > at.started {
			continue
		}
		op := porcupine.Operation{ClientId: c.client, Input: c, Call: c.start, Output: c.answer, Return: c.end}
		if c.end == 0 || c.end > at.answered || c.answer == answerUnknown {
			op.Output, op.Return = answerUnknown, at.started+1
		}
		ops = append(ops, op)
	}
	return ops
}

// check reports every key whose calls no single store can have answered that way.
func (h *history) check(t testing.TB, what string) {
	t.Helper()
	now := h.instant()
	byKey := map[store.Key][]porcupine.Operation{}
	for _, op := range h.operations(cut{now, now}) {
		key := keyOf(op.Input.(*call).req)
		byKey[key] = append(byKey[key], op)
	}
	for key, ops := range byKey {
		model := h.model(key)
		if !porcupine.CheckOperations(model, ops) {
			t.Errorf("%s: key %+v: no order of these calls gives these answers, starting from %s\n%s",
				what, key, render(h.base[key], nil), describe(ops))
		}
	}
}

// state is a row with its rendering, by which states are compared.
type state struct {
	row  row
	text string
}

func newState(r row) *state { return &state{row: r, text: render(r, nil)} }

// model is the table of states and operations for one key.
func (h *history) model(key store.Key) porcupine.Model {
	ns := h.namespaces[key.Namespace]
	first := newState(h.base[key])
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{first} },
		Step: func(from, input, output any) []any {
			old, c := from.(*state), input.(*call)
			next, answer := decide(old.row, ns, c.req, c.now)
			switch output {
			case answerUnknown:
				return []any{old, newState(next)}
			case answer:
				return []any{newState(next)}
			}
			return nil
		},
		Equal: func(a, b any) bool { return a.(*state).text == b.(*state).text },
	}
	return model.ToModel()
}

// describe lists operations in the order in which they started.
func describe(ops []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	for _, op := range ops {
		c := op.Input.(*call)
		fmt.Fprintf(&b, "  [%d, %d] %s %T%+v\n      %s\n", op.Call, op.Return, c.now.Format("15:04:05.000000"), c.req, c.req, op.Output)
	}
	return b.String()
}

// settled returns what is stored once nothing runs any more. It reads every key, which
// puts what it reads into the history too.
func (h *history) settled(ctx context.Context, b store.Backend) map[store.Key]row {
	rows := maps.Clone(h.base)
	for _, key := range h.keys {
		inspection, err := b.InspectRecord(ctx, key)
		h.observe(key, render(row{inspection.Record, inspection.Events}, err))
		if err == nil {
			rows[key] = row{inspection.Record, inspection.Events}
		}
	}
	return rows
}

// observe records an inspection that has been answered.
func (h *history) observe(key store.Key, answer string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq += 2
	h.calls = append(h.calls, &call{req: inspectRequest{key}, now: h.now, start: h.seq - 1, end: h.seq, answer: answer})
}
