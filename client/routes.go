package client

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// routes is which server is asked where there are regions: a key's home, as far as it is known
// and can be reached, and else the one that was dialled, which sends on what lives elsewhere.
// A wrong choice costs a detour and is never wrong otherwise: servers decide where keys live.
type routes struct {
	dialled  *keyCalls
	topology func(context.Context, *pb.GetTopologyRequest, ...grpc.CallOption) (*pb.GetTopologyResponse, error) // of the dialled one
	connect  func(address string) (*grpc.ClientConn, error)
	known    atomic.Pointer[topology] // nil: nothing, or there are no regions
	made     time.Time
	running  sync.WaitGroup // a goroutine that asks for the topology

	// due is when the topology may be asked for again, since made; askingNow: it is being asked for.
	due       atomic.Int64
	unchanged int // how often in a row it was asked for in vain

	mu     sync.Mutex
	closed bool
	homes  map[string]*home // by address
}

const askingNow = math.MaxInt64

func newRoutes(dialled *keyCalls, connect func(string) (*grpc.ClientConn, error)) *routes {
	return &routes{dialled: dialled, topology: dialled.calls.GetTopology, connect: connect, made: time.Now(), homes: map[string]*home{}}
}

// now is monotonic.
func (r *routes) now() time.Duration { return time.Since(r.made) }

// close closes the homes' connections. What is in flight on them breaks off.
func (r *routes) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock() // no home is added any more
	for _, h := range r.homes {
		h.close()
	}
	r.running.Wait()
}

// way is how an operation is asked.
type way struct {
	keys   *keyCalls
	asked  *line         // home's; nil: the dialled server is asked
	home   *home         // nil: not known, not to be asked by this client, or the dialled server is there
	placed placed        // by which the home was found
	region string        // the home's
	own    bool          // it is the dialled server's
	begun  time.Duration // by routes.now
}

// way is that to the key's home if one can be asked there at once, without waiting for a
// connection.
func (r *routes) way(key store.Key) way {
	w := way{keys: r.dialled}
	known := r.known.Load()
	if known == nil {
		return w
	}
	w.begun = r.now()
	if w.begun >= known.until {
		r.learn()
	}
	w.placed = known.placed[key.Namespace]
	w.region = w.placed.rule.Home(key)
	w.own = w.region == known.region
	w.home = known.homes[w.region]
	if w.home == nil {
		return w
	}
	if w.asked = w.home.ready(w.begun); w.asked != nil {
		w.keys = w.asked.keys
	}
	return w
}

// routed asks by the best way.
func routed[Response interface{ GetServed() *pb.Served }](r *routes, key store.Key, ask func(*keyCalls) (Response, error)) (response Response, err error) {
	w := r.way(key)
	if w.asked != nil {
		w.asked.begins(w.begun)
		defer func() { w.asked.ended(r.now(), err == nil || saidByIdemd(err)) }()
	}
	response, err = ask(w.keys)
	if err == nil {
		r.answered(w, response.GetServed())
		return response, nil
	}
	r.failed(w, err)
	if w.asked != nil && (nothingDoneThere(err) || brokeOff(err)) {
		err = &otherWay{err}
	}
	return response, err
}

// otherWay is the error of what was sent home if it is worth to be sent by the dialled server,
// as the same attempt. The home is not asked straight for a while: so there is nothing to wait
// for, and it is no load for a server that cannot keep up.
type otherWay struct{ error }

// GRPCStatus is gRPC's own.
func (o *otherWay) GRPCStatus() *status.Status { return status.Convert(o.error) }

// Unwrap returns gRPC's own error.
func (o *otherWay) Unwrap() error { return o.error }

func hasOtherWay(err error) bool {
	var other *otherWay
	return errors.As(err, &other)
}

// brokeOff reports whether the way home broke or fell silent. What was on it may have been done.
func brokeOff(err error) bool {
	return !saidByIdemd(err) && isAny(storepb.FromStatus(err), store.ErrUnavailable)
}

func saidByIdemd(err error) bool { return madeByIdemd(status.Convert(err)) }

// nothingDoneThere reports whether a server refused for a reason that another one may not have:
// it is about the server, its idea of regions or whom it lets in, and not about the key.
func nothingDoneThere(err error) bool {
	return status.Code(err) == codes.Unimplemented || isAny(storepb.FromStatus(err),
		store.ErrWrongRegion, store.ErrUnauthenticated, store.ErrPermissionDenied, store.ErrNamespaceUnknown)
}

// answered looks whether an answer was given as it had to be by what is known.
func (r *routes) answered(w way, served *pb.Served) {
	if w.asked != nil {
		w.home.answered(r.now())
	}
	if served == nil {
		return
	}
	detour := served.GetForwarded() && (w.asked != nil || w.own)
	if detour || served.GetEpoch() != w.placed.epoch || served.GetHomeRegion() != w.region {
		r.learn()
	}
}

// failed draws conclusions from an error, for the operations to come.
func (r *routes) failed(w way, err error) {
	refusal := storepb.FromStatus(err)
	if isAny(refusal, store.ErrWrongRegion, store.ErrHomeUnreachable) && (w.asked != nil || w.own) {
		r.learn() // they think otherwise of where it lives
	}
	switch now := r.now(); {
	case w.asked == nil:
		if w.home != nil && isAny(refusal, store.ErrHomeUnreachable) {
			w.home.resume() // this client may reach what the server cannot
		}
	case nothingDoneThere(err):
		w.home.avoid(now)
	case saidByIdemd(err):
		w.home.answered(now)
	case isAny(refusal, context.Canceled): // its caller has left
	case isAny(refusal, context.DeadlineExceeded):
		if now-w.begun >= silence && w.home.silentSince(w.begun) {
			w.home.avoid(now)
		}
	default:
		w.home.avoid(now)
	}
}
