package region

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

const (
	// refreshInterval is how often the store is asked for placements, which another process on
	// the same store may have changed.
	refreshInterval = time.Second
	// storeTime is how long the store has to say what namespaces it has.
	storeTime = 5 * time.Second
)

// Config is what a [Region] is made of.
type Config struct {
	// Name is this region's, Topology the one it was read for. Required.
	Name     string
	Topology *Topology
	// Store is this region's own. Required. It is not closed.
	Store store.Backend
	// StandIns are stores of other regions that this process has open too: while such a
	// region's servers cannot be reached, its keys are served through them. They are not closed.
	StandIns map[string]store.Backend
	// Credentials are those by which a region is called that must prove to be that principal,
	// if it is not empty. Nil: plain text.
	Credentials func(principal string) credentials.TransportCredentials
	// Caller says who makes a call. Nil: nobody is told apart.
	Caller func(ctx context.Context) string
	// Authorize refuses what a caller, who asked in another region, may not do: a gRPC method
	// on a namespace. Nil: everything is allowed.
	Authorize func(ctx context.Context, caller, method, namespace string) error
	// Observer is told what happens. Nil: nobody.
	Observer Observer
	// Logger gets a line when a region is lost or found, and when placements change. Nil:
	// slog.Default().
	Logger *slog.Logger
	// Dial connects to another region. Nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	pingEvery time.Duration // zero: pingInterval
}

// Region is what one server knows of all regions. Make it with [New]; a server puts its Router
// over what it has and serves what other regions ask.
type Region struct {
	config Config
	peers  map[string]*peer // the others, by name
	logger *slog.Logger

	atlas      atomic.Pointer[atlas]
	refreshing latest
	hearing    latest
	lastHeard  atomic.Int64 // when hearing began last, by the wall clock in nanoseconds
	healthy    atomic.Bool  // the store said what namespaces it has, when it was asked last

	membership atomic.Pointer[store.Membership] // as it was read last
	membering  sync.Mutex                       // held by who changes it
	joining    sync.Mutex                       // held by who joins
	joinSoon   chan struct{}
	started    time.Time
	begun      atomic.Bool // nobody is waited for any more that has not been heard since the start

	mu       sync.Mutex
	records  map[string]bool // of unplaced namespaces that were looked into: there are records
	troubles map[string]*trouble
	moves    map[string]movesAt // by namespace

	standIns map[string]*standIn
	draining context.Context
	drain    context.CancelFunc
	ctx      context.Context // ends when Close is called
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// New reads the store's placements and begins to watch the other regions. Close ends that.
func New(ctx context.Context, config Config) (*Region, error) {
	if config.Topology == nil || config.Store == nil {
		return nil, errors.New("region: Config.Topology and Config.Store are required")
	}
	if config.Observer == nil {
		config.Observer = nobody{}
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if config.Caller == nil {
		config.Caller = func(context.Context) string { return "" }
	}
	config.pingEvery = cmp.Or(config.pingEvery, pingInterval)
	if config.Dial == nil {
		config.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}
	}
	r := &Region{
		config: config, logger: config.Logger, peers: map[string]*peer{}, standIns: map[string]*standIn{},
		records: map[string]bool{}, troubles: map[string]*trouble{}, moves: map[string]movesAt{}, joinSoon: make(chan struct{}, 1), started: time.Now(),
	}
	for _, name := range config.Topology.names() {
		if name != config.Name {
			r.peers[name] = newPeer(r, name, config.Topology.Regions[name])
		}
	}
	for name, backend := range config.StandIns {
		if r.peers[name] == nil {
			return nil, fmt.Errorf("region %q, to stand in for, is not another region of the topology", name)
		}
		r.standIns[name] = newStandIn(backend)
	}
	return r, r.start(ctx)
}

func (r *Region) start(ctx context.Context) error {
	list, err := r.config.Store.ListNamespaces(ctx)
	if err == nil {
		err = r.config.Topology.checkStore(list)
	}
	if err == nil {
		err = r.belong(ctx)
	}
	if err == nil {
		err = r.readMemberships(ctx)
	}
	if err != nil {
		return err
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.draining, r.drain = context.WithCancel(context.Background())
	r.tellDifferences(list)
	r.healthy.Store(true)
	r.lookIntoAll(ctx, list)
	r.redraw(list)
	if err := r.join(ctx); err != nil { // where there are no others
		r.cancel()
		return err
	}
	for _, p := range r.peers {
		r.wg.Go(func() { p.watch(r.ctx) })
	}
	r.wg.Go(r.keepFresh)
	r.wg.Go(r.keepJoining)
	return nil
}

// others are the other regions, by name.
func (r *Region) others() iter.Seq[*peer] {
	return func(yield func(*peer) bool) {
		for _, name := range r.config.Topology.names() {
			if p := r.peers[name]; p != nil && !yield(p) {
				return
			}
		}
	}
}

// tellDifferences says where the topology's rule is not the stored one, which counts.
func (r *Region) tellDifferences(list []store.Namespace) {
	for _, ns := range list {
		rule, ok := r.config.Topology.rule(ns.Name)
		if ok && ns.Placement.Rule != "" && rule.String() != ns.Placement.Rule {
			r.logger.Info("the placement of a namespace is not that of the topology file; the stored one counts",
				"namespace", ns.Name, "stored", ns.Placement.Rule, "epoch", ns.Placement.Epoch, "file", rule.String())
		}
	}
}

// keepFresh follows what other processes do to the store, and places what has no placement yet.
func (r *Region) keepFresh() {
	ticker := time.NewTicker(refreshInterval)
	defer ticker.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-ticker.C:
		}
		if r.refresh(r.ctx) == nil && r.atlas.Load().unsettled {
			_ = r.settle(r.ctx) // what is missing, the atlas says
		}
	}
}

// Drain ends what waits in other regions: the server is about to stop.
func (r *Region) Drain() {
	r.drain()
	for _, s := range r.standIns {
		s.waiter.Close()
	}
}

// Close ends the watching. What is sent on afterwards is refused.
func (r *Region) Close() {
	r.Drain()
	r.cancel()
	r.wg.Wait()
}

// Topology says which regions there are, and where the keys of all namespaces live.
func (r *Region) Topology() *pb.GetTopologyResponse {
	troubles := r.troubledNow()
	m := &pb.GetTopologyResponse{Region: r.config.Name}
	for _, name := range r.config.Topology.names() {
		id, joined := r.storeOf(name)
		shown := &pb.Region{Name: name, Address: r.config.Topology.Regions[name].Address, StoreId: id, Joined: joined, OtherStoreId: r.peers[name].otherStore()}
		shown.Reached, shown.UnreachedBecause = r.peers[name].reached()
		if shown.OtherStoreId != "" {
			shown.OtherStoreTrouble = r.strange(name, shown.OtherStoreId).Error()
		}
		m.Regions = append(m.Regions, shown)
	}
	for _, k := range r.atlas.Load().list {
		if k.placed() {
			m.Placements = append(m.Placements, &pb.NamespacePlacement{
				Namespace: k.ns.Name, Placement: storepb.PlacementToProto(k.ns.Placement), Trouble: troubles[k.ns.Name],
			})
			delete(troubles, k.ns.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(troubles)) {
		m.Placements = append(m.Placements, &pb.NamespacePlacement{Namespace: name, Trouble: troubles[name]})
	}
	return m
}

// storeOf is the store that is known as that of a region, and whether it is a home.
func (r *Region) storeOf(name string) (id string, joined bool) {
	own := r.member()
	p := r.peers[name]
	if p == nil {
		return own.StoreID, own.Joined
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return own.Peers[name].StoreID, p.joined && !p.strange
}

// reached reports whether the region answers, or why not.
func (p *peer) reached() (answers bool, why string) {
	if p == nil || p.current.Load() != nil { // this region
		return true, ""
	}
	return false, p.why()
}

// otherStore is the id of a store that answers as the region and is not the one that is known;
// empty if none does.
func (p *peer) otherStore() string {
	if p == nil { // this region
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.strange {
		return ""
	}
	return p.shown
}
