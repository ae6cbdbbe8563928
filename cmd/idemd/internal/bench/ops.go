package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// op is one operation that can be measured.
type op struct {
	// calls is how many gRPC calls idemd gets from run.
	calls int
	// client says that run asks by the Go client; the bare server is asked by calls all the same.
	client bool
	// onBare says that run asks the bare server.
	onBare bool
	// guarded says that run calls a guarded server, which calls idemd.
	guarded bool
	// forwarded says that run asks an idemd which sends the call on to another one, and
	// bareCall a bare server that does.
	forwarded bool
	// prepare makes a worker ready for idemd, before anything is timed.
	prepare func(context.Context, *worker) error
	// run does the operation once on idemd.
	run func(context.Context, *worker) error
	// bareCall makes one call on the bare server. Repeated, it goes through calls with
	// messages like those of run.
	bareCall func(context.Context, *worker) error
}

// OpNames are the operations in the order in which they are best shown.
var OpNames = []string{"claim", "pair", "replay", "wait", "client-claim", "client-pair", "client-replay", "guarded", "guarded-replay", "forwarded"}

func init() {
	for _, name := range []string{"claim", "pair", "replay"} {
		o := ops[name]
		o.client = true
		ops["client-"+name] = o
	}
}

var ops = map[string]op{
	// claim: Claim of a new key.
	"claim": {calls: 1, prepare: nothing, run: claimNew, bareCall: func(ctx context.Context, w *worker) error {
		_, err := w.client.Claim(ctx, w.claim(w.nextID()))
		return err
	}},
	// pair: Claim of a new key, then its Complete.
	"pair": {calls: 2, prepare: nothing, run: pair, bareCall: func(ctx context.Context, w *worker) error {
		if w.turn++; w.turn%2 == 1 {
			_, err := w.client.Claim(ctx, w.claim(w.nextID()))
			return err
		}
		return w.complete(ctx, w.lastID(), time.Now().UnixMicro())
	}},
	// replay: Claim of a key that is completed.
	"replay": {calls: 1, prepare: fillReplay, run: replay, bareCall: func(ctx context.Context, w *worker) error {
		return w.askCompleted(ctx, w.claim(w.nextID()), nil)
	}},
	// wait: Claim of a new key, a second Claim that waits for it, then its Complete;
	// done when the waiting one has the outcome.
	"wait": {calls: 3, prepare: nothing, run: wait, bareCall: func(ctx context.Context, w *worker) error {
		switch w.turn++; w.turn % 3 {
		case 1:
			_, err := w.client.Claim(ctx, w.claim(w.nextID()))
			return err
		case 2:
			return w.askCompleted(ctx, w.claim(w.lastID()), waitTime)
		default:
			return w.complete(ctx, w.lastID(), time.Now().UnixMicro())
		}
	}},
	// bare-sync: a claim on the bare server, which writes 512 bytes and syncs them before it
	// answers: the least that any server does whose answer lasts.
	"bare-sync": {calls: 1, onBare: true, prepare: nothing, run: claimSynced, bareCall: func(ctx context.Context, w *worker) error {
		_, err := w.client.Claim(ctx, w.claim(w.nextID()))
		return err
	}},
	// guarded: a call with a new key of a guarded method whose handler does nothing.
	"guarded": {calls: 2, guarded: true, prepare: nothing, run: callGuarded, bareCall: callGuarded},
	// guarded-replay: the same with a key that is completed.
	"guarded-replay": {calls: 1, guarded: true, prepare: fillGuarded, run: replayGuarded, bareCall: callGuarded},
	// forwarded: Claim of a completed key, whose home is another region than that of the server.
	"forwarded": {calls: 1, forwarded: true, prepare: fillReplay, run: replay, bareCall: func(ctx context.Context, w *worker) error {
		return w.askCompleted(ctx, w.claim(w.nextID()), nil)
	}},
}

// waitTime is longer than any attempt here takes.
var waitTime = durationpb.New(30 * time.Second)

// worker is one caller.
type worker struct {
	client  idemdv1.IdempotencyServiceClient
	options *Options
	prefix  string
	serial  int64
	turn    int
	outcome *idemdv1.Outcome
	replays []string
}

func newWorker(client idemdv1.IdempotencyServiceClient, o *Options) *worker {
	return &worker{
		client: client, options: o, prefix: rand.Text()[:12] + "-",
		outcome: &idemdv1.Outcome{Body: make([]byte, o.OutcomeBytes), BodyType: bodyType},
	}
}

const bodyType = "application/octet-stream"

// MaxBodyBytes is the largest body that an outcome of the load has room for.
const MaxBodyBytes = store.MaxOutcomeBytes - len(bodyType)

func (w *worker) nextID() string {
	w.serial++
	return w.lastID()
}

// lastID is padded, so that every id has one length.
func (w *worker) lastID() string {
	return w.prefix + strconv.FormatInt(1_000_000_000+w.serial, 10)
}

func (w *worker) key(id string) *idemdv1.Key {
	return &idemdv1.Key{Namespace: w.options.Namespace, Scope: "bench", Id: id}
}

// attempt ids have the 16 bytes that a client draws.
func attempt(id string, role byte) []byte {
	b := make([]byte, 16)
	copy(b[1:], id[len(id)-15:])
	b[0] = role
	return b
}

func (w *worker) claim(id string) *idemdv1.ClaimRequest {
	return &idemdv1.ClaimRequest{Key: w.key(id), AttemptId: attempt(id, 'h')}
}

func (w *worker) complete(ctx context.Context, id string, fence int64) error {
	_, err := w.client.Complete(ctx, &idemdv1.CompleteRequest{
		Key: w.key(id), AttemptId: attempt(id, 'h'), Fence: fence, Outcome: w.outcome,
	})
	return err
}

// askCompleted claims a key and expects its outcome.
func (w *worker) askCompleted(ctx context.Context, req *idemdv1.ClaimRequest, wait *durationpb.Duration, opts ...grpc.CallOption) error {
	req.AttemptId[0], req.Wait = 'w', wait
	resp, err := w.client.Claim(ctx, req, opts...)
	if err == nil && resp.GetCompleted() == nil {
		return fmt.Errorf("claim of %q: got %v, want completed", req.GetKey().GetId(), resp)
	}
	return err
}

func nothing(context.Context, *worker) error { return nil }

func claimNew(ctx context.Context, w *worker) error {
	_, err := w.granted(ctx, w.nextID())
	return err
}

func claimSynced(ctx context.Context, w *worker) error {
	req := w.claim(w.nextID())
	req.AttemptId[0] = 's'
	_, err := w.client.Claim(ctx, req)
	return err
}

func (w *worker) granted(ctx context.Context, id string) (fence int64, err error) {
	resp, err := w.client.Claim(ctx, w.claim(id))
	if err == nil && resp.GetGranted() == nil {
		return 0, fmt.Errorf("claim of the new key %q: got %v, want granted", id, resp)
	}
	return resp.GetGranted().GetFence(), err
}

func pair(ctx context.Context, w *worker) error {
	id := w.nextID()
	fence, err := w.granted(ctx, id)
	if err != nil {
		return err
	}
	return w.complete(ctx, id, fence)
}

func fillReplay(ctx context.Context, w *worker) error { return w.fill(ctx, pair) }

// fill completes the keys of the worker's replays.
func (w *worker) fill(ctx context.Context, complete func(context.Context, *worker) error) error {
	for range 16 {
		if err := complete(ctx, w); err != nil {
			return err
		}
		w.replays = append(w.replays, w.lastID())
	}
	return nil
}

func (w *worker) nextReplay() string {
	w.turn++
	return w.replays[w.turn%len(w.replays)]
}

func replay(ctx context.Context, w *worker) error {
	return w.askCompleted(ctx, w.claim(w.nextReplay()), nil)
}

func wait(ctx context.Context, w *worker) error {
	id := w.nextID()
	fence, err := w.granted(ctx, id)
	if err != nil {
		return err
	}
	waited := make(chan error, 1)
	go func() { waited <- w.askCompleted(ctx, w.claim(id), waitTime) }()
	if err := w.complete(ctx, id, fence); err != nil {
		return err
	}
	return <-waited
}
