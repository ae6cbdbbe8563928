package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idemd/idemd/store"
)

const (
	linearBursts     = 24
	linearClients    = 6
	linearOperations = 5
	linearTimeout    = 30 * time.Second
)

// checkLinearizable lets several clients work on few keys at once and has porcupine find
// an order of their operations in which the model gives the same answers. The clock
// stands still during a burst, so that the model says every field exactly.
func checkLinearizable(r *rig) {
	h := &history{rig: r}
	for burst := range linearBursts {
		h.burst(burst)
		h.check()
		r.Clock.Advance(time.Second)
	}
}

// history records operations with logical times.
type history struct {
	*rig
	clock atomic.Int64

	mu         sync.Mutex
	operations []porcupine.Operation
}

// moment is an operation at a time of the store's clock.
type moment struct {
	call call
	now  instant
}

// do performs c and records it. A failed operation may still take effect, so it gets no
// time of return; one that was turned away took none.
func (h *history) do(ctx context.Context, client int, c call) reply {
	now, called := at(h.Clock.Wall()), h.clock.Add(1)
	got := c.perform(ctx, h.Backend)
	returned := h.clock.Add(1)
	if errors.Is(got.Refusal, store.ErrOverloaded) || errors.Is(got.Refusal, store.ErrQuota) {
		return got
	}
	if got.unknown() {
		returned = math.MaxInt64
	}
	if h.AttemptsHidden {
		got = got.withoutAttempts()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, porcupine.Operation{ClientId: client, Input: moment{c, now}, Call: called, Output: got, Return: returned})
	return got
}

// unknown says that the operation may or may not have taken effect.
func (r reply) unknown() bool {
	return errors.Is(r.Refusal, store.ErrUnavailable) || errors.Is(r.Refusal, store.ErrHomeUnreachable)
}

// burst prepares two fresh keys and lets all clients loose on them.
func (h *history) burst(n int) {
	keys := [2]store.Key{}
	for i := range keys {
		keys[i] = store.Key{Namespace: [...]string{hourTakeover, hourHold}[i], ID: fmt.Sprint("burst-", n)}
		h.prepare(keys[i], n%5)
	}
	start := make(chan struct{})
	var clients sync.WaitGroup
	for client := range linearClients {
		random := rand.New(rand.NewPCG(uint64(n), uint64(client)))
		clients.Go(func() {
			<-start
			h.client(client, keys, random)
		})
	}
	close(start)
	clients.Wait()
}

// prepare brings a key into one of the states from which a race can start.
func (h *history) prepare(key store.Key, start int) {
	if start == 0 {
		return
	}
	granted := h.do(h.ctx, linearClients, claim(key, "first"))
	first := holder{"first", granted.Fence}
	switch start {
	case 1:
		h.Clock.Advance(granted.Remaining)
	case 2:
		h.do(h.ctx, linearClients, release(key, first, store.EffectUnknown))
	case 3:
		h.do(h.ctx, linearClients, release(key, first, store.EffectNone))
	case 4:
		h.do(h.ctx, linearClients, complete(key, first, done))
	}
}

// client claims, settles what it was granted, and looks.
func (h *history) client(id int, keys [2]store.Key, random *rand.Rand) {
	attempt := fmt.Sprint("client-", id)
	held := map[store.Key]int64{}
	for range linearOperations {
		key := keys[random.IntN(len(keys))]
		c := h.next(key, holder{attempt, held[key]}, random)
		if got := h.do(h.ctx, id, c); got.Kind == "granted" {
			held[key] = got.Fence
		}
	}
}

func (h *history) next(key store.Key, self holder, random *rand.Rand) call {
	switch pick := random.IntN(10); {
	case pick < 2:
		return lookup(key)
	case pick < 3:
		return inspect(key)
	case self.fence == 0 || pick < 5:
		return claim(key, self.attempt)
	case pick < 6:
		return renew(key, self)
	case pick < 7:
		return release(key, self, store.EffectNone)
	case pick < 8:
		return release(key, self, store.EffectUnknown)
	default:
		return complete(key, self, &store.Outcome{Body: []byte(self.attempt)})
	}
}

// check judges what was recorded and starts an empty history.
func (h *history) check() {
	h.Helper()
	operations := h.operations
	h.operations = nil
	result, _ := porcupine.CheckOperationsVerbose(linearModel(h.AttemptsHidden), operations, linearTimeout)
	if result == porcupine.Ok {
		return
	}
	var lines strings.Builder
	for _, o := range operations {
		m := o.Input.(moment)
		fmt.Fprintf(&lines, "\n  client %d, %d to %d: %s %s by %s, fence %d: %s", o.ClientId, o.Call, o.Return,
			m.call.Kind, m.call.Key.Namespace, m.call.AttemptID, m.call.Fence, summary(o.Output.(reply)))
	}
	h.Fatalf("no order of these operations gives these answers (%s):%s", result, lines.String())
}

func summary(r reply) string {
	if r.Refusal != nil {
		return r.Refusal.Error()
	}
	return fmt.Sprintf("%s, fence %d, state %d, unsettled %t", r.Kind, max(r.Fence, r.Record.Fence), max(r.State, r.Record.State), r.Unsettled)
}

// linearModel is the model as porcupine wants it: one key per partition, no step changes
// a state in place.
func linearModel(attemptsHidden bool) porcupine.Model {
	return porcupine.Model{
		Partition: byKey,
		Init: func() any {
			m := newModel(at(Start))
			m.spaces = machineSpaces()
			return m
		},
		Step: func(state, input, output any) (bool, any) {
			next, in, got := state.(*model).clone(), input.(moment), output.(reply)
			next.now = in.now
			want := next.apply(in.call)
			if attemptsHidden {
				want = want.withoutAttempts()
			}
			return got.unknown() || want == got, next
		},
		Equal: func(a, b any) bool { return a.(*model).text() == b.(*model).text() },
	}
}

// text is equal for equal models of one key.
func (m *model) text() string {
	for key, e := range m.entries {
		return fmt.Sprintf("%+v\n%s", e.view(key), eventsText(e.events))
	}
	return ""
}

func byKey(operations []porcupine.Operation) [][]porcupine.Operation {
	partitions := map[store.Key][]porcupine.Operation{}
	for _, o := range operations {
		key := o.Input.(moment).call.Key
		partitions[key] = append(partitions[key], o)
	}
	var list [][]porcupine.Operation
	for _, partition := range partitions {
		list = append(list, partition)
	}
	return list
}

// race has all attempts claim a key at the same moment and returns those that were
// granted it, and what everybody was told.
func (r *rig) race(key store.Key, attempts []string) (granted []holder, replies []reply) {
	replies = make([]reply, len(attempts))
	start := make(chan struct{})
	var claimers sync.WaitGroup
	for i, attempt := range attempts {
		claimers.Go(func() {
			<-start
			replies[i] = claim(key, attempt).perform(r.ctx, r.Backend)
		})
	}
	close(start)
	claimers.Wait()
	for i, got := range replies {
		if got.Kind == "granted" {
			granted = append(granted, holder{attempts[i], got.Fence})
		}
	}
	return granted, replies
}
