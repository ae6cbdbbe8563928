package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// world is three regions as a client sees them, in a bubble: eu at 127.0.0.2, us at 127.0.0.3,
// ap at 127.0.0.4. Keys live where their entity begins with, and others in ap.
type world struct {
	*testing.T
	client *Client

	mu        sync.Mutex
	regions   map[string]*fakeRegion // by name
	leads     map[string]string      // by address: the region that is there
	dialled   map[string]int         // by address
	holed     map[string]bool        // by region: what is sent there vanishes
	stuck     map[string]bool        // by region: what is sent there finds no room
	cut       string                 // the region that the others do not reach
	placement *pb.Placement          // of the only namespace
	number    int
	attempts  map[string][]string // by the id of a key: those that came
	pings     map[string]int      // by region
}

// fakeRegion is the servers of a region.
type fakeRegion struct {
	pb.UnimplementedIdempotencyServiceServer
	*world
	name, address string
	options       []grpc.ServerOption
	server        *grpc.Server
	lis           *bufconn.Listener

	seen   tally
	opened int // sessions, in all
	// What is asked is answered with these, if they are not nil.
	refusal, topologyError error
	hangs, unplaced        bool // it does not answer; it says nothing of regions
	slow                   time.Duration
	tokens                 []string // that came with sessions and calls
}

// tally is what a region was asked.
type tally struct{ own, forwarded, refused, topologies int }

// among runs a test in a world whose eu region the client has dialled.
func among(t *testing.T, test func(*world), opts ...grpc.DialOption) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		w.dial("127.0.0.2:7600", opts...)
		defer func() { _ = w.client.Close() }() // the last one
		test(w)
	})
}

func newWorld(t *testing.T) *world {
	w := &world{
		T: t, regions: map[string]*fakeRegion{}, leads: map[string]string{}, dialled: map[string]int{}, holed: map[string]bool{},
		stuck: map[string]bool{}, attempts: map[string][]string{}, pings: map[string]int{},
		placement: &pb.Placement{Epoch: 1, Revision: 1, Rule: "prefix eu=eu us=us *=ap"},
	}
	for i, name := range []string{"eu", "us", "ap"} {
		r := &fakeRegion{world: w, name: name}
		r.options = []grpc.ServerOption{grpc.UnknownServiceHandler(r.pinged)}
		w.regions[name] = r
		w.at(name, fmt.Sprintf("127.0.0.%d:7600", i+2))
	}
	return w
}

// at gives a region its address.
func (w *world) at(region, address string) {
	w.regions[region].address = address
	w.leads[address] = region
}

func (w *world) end() {
	for name := range w.regions {
		w.down(name)
	}
}

func (w *world) dial(address string, opts ...grpc.DialOption) {
	w.Helper()
	c, err := Dial(address, append(opts, grpc.WithContextDialer(w.connect))...)
	if err != nil {
		w.Fatal(err)
	}
	w.client = c
}

// closes closes the client.
func (w *world) closes() {
	w.Helper()
	if err := w.client.Close(); err != nil {
		w.Error(err)
	}
}

// connect is the network.
func (w *world) connect(ctx context.Context, address string) (net.Conn, error) {
	w.mu.Lock()
	w.dialled[address]++
	r := w.regions[w.leads[address]]
	holed := r != nil && (w.holed[r.name] || w.stuck[r.name])
	if r != nil && r.server == nil && r.lis == nil { // not started yet
		r.start()
	}
	w.mu.Unlock()
	if r == nil || r.server == nil {
		return nil, errors.New("nobody is there")
	}
	if holed {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := r.lis.DialContext(ctx)
	return &holedConn{Conn: conn, region: r, closed: make(chan struct{})}, err
}

// start is called with the lock held.
func (r *fakeRegion) start() {
	r.server, r.lis = grpc.NewServer(r.options...), bufconn.Listen(1<<16)
	pb.RegisterIdempotencyServiceServer(r.server, r)
	go func(server *grpc.Server, lis net.Listener) { _ = server.Serve(lis) }(r.server, r.lis)
}

// down kills a region's server; up starts another one.
func (w *world) down(name string) {
	w.mu.Lock()
	server := w.regions[name].server
	w.regions[name].server = nil
	w.mu.Unlock()
	if server != nil {
		server.Stop()
	}
}

func (w *world) up(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.regions[name].start()
}

// holedConn is a connection to a region. The kernel gives it up when what was sent is not
// received for long, as gRPC tells it to.
type holedConn struct {
	net.Conn
	region  *fakeRegion
	lost    sync.Once
	closing sync.Once
	closed  chan struct{}
}

func (c *holedConn) Write(b []byte) (int, error) {
	c.region.mu.Lock()
	holed, stuck := c.region.holed[c.region.name], c.region.stuck[c.region.name]
	c.region.mu.Unlock()
	switch {
	case stuck:
		<-c.closed
		return 0, net.ErrClosed
	case holed:
		c.lost.Do(func() { time.AfterFunc(10*time.Second, func() { _ = c.Close() }) })
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *holedConn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// with changes the world.
func (w *world) with(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// call answers a call as a session answers what is in it.
func (r *fakeRegion) call(ctx context.Context, o *pb.SessionOperation) (*pb.SessionAnswer, error) {
	r.note(ctx)
	answer := r.answer(o)
	if r.isHanging() {
		<-ctx.Done()
	}
	r.takesItsTime(ctx)
	if refused := (&rpcstatus.Status{}); proto.Unmarshal(answer.GetStatus(), refused) == nil && refused.GetCode() != 0 {
		return nil, status.ErrorProto(refused)
	}
	return answer, nil
}

// Claim implements the service.
func (r *fakeRegion) Claim(ctx context.Context, m *pb.ClaimRequest) (*pb.ClaimResponse, error) {
	answer, err := r.call(ctx, &pb.SessionOperation{Request: &pb.SessionOperation_Claim{Claim: m}})
	return answer.GetClaim(), err
}

// Renew implements the service.
func (r *fakeRegion) Renew(ctx context.Context, m *pb.RenewRequest) (*pb.RenewResponse, error) {
	answer, err := r.call(ctx, &pb.SessionOperation{Request: &pb.SessionOperation_Renew{Renew: m}})
	return answer.GetRenew(), err
}

// Complete implements the service.
func (r *fakeRegion) Complete(ctx context.Context, m *pb.CompleteRequest) (*pb.CompleteResponse, error) {
	answer, err := r.call(ctx, &pb.SessionOperation{Request: &pb.SessionOperation_Complete{Complete: m}})
	return answer.GetComplete(), err
}

// Release implements the service.
func (r *fakeRegion) Release(ctx context.Context, m *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	answer, err := r.call(ctx, &pb.SessionOperation{Request: &pb.SessionOperation_Release{Release: m}})
	return answer.GetRelease(), err
}

// Lookup implements the service.
func (r *fakeRegion) Lookup(ctx context.Context, m *pb.LookupRequest) (*pb.LookupResponse, error) {
	answer, err := r.call(ctx, &pb.SessionOperation{Request: &pb.SessionOperation_Lookup{Lookup: m}})
	return answer.GetLookup(), err
}

func (r *fakeRegion) arrived(m *pb.ClaimRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := m.GetKey().GetId()
	r.attempts[id] = append(r.attempts[id], string(m.GetAttemptId()))
}

func (r *fakeRegion) takesItsTime(ctx context.Context) {
	r.mu.Lock()
	slow := r.slow
	r.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
	}
}

// pinged answers that there is no such service.
func (r *fakeRegion) pinged(any, grpc.ServerStream) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pings[r.name]++
	return unimplemented
}

func (r *fakeRegion) isHanging() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hangs
}

func (r *fakeRegion) note(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens = append(r.tokens, metadata.ValueFromIncomingContext(ctx, "authorization")...)
}

// serve says by whom an operation is answered.
func (r *fakeRegion) serve(key *pb.Key) (*pb.Served, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rule, err := placement.ParseRule(r.placement.GetRule())
	if err != nil {
		rule, _ = placement.ParseRule("fixed us")
	}
	home := rule.Home(storepb.KeyFromProto(key))
	switch {
	case r.refusal != nil:
		r.seen.refused++
		return nil, r.refusal
	case home != r.name && r.cut == home:
		r.seen.refused++
		return nil, storepb.ToStatus(store.Refuse(store.ErrHomeUnreachable, home)).Err()
	case home != r.name:
		r.seen.forwarded++
	default:
		r.seen.own++
	}
	if r.unplaced {
		return nil, nil
	}
	return &pb.Served{HomeRegion: home, Forwarded: home != r.name, Epoch: r.placement.GetEpoch()}, nil
}

// Session implements the service.
func (r *fakeRegion) Session(stream pb.IdempotencyService_SessionServer) error {
	r.note(stream.Context())
	r.with(func() { r.opened++ })
	if err := accepts(stream); err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		out := &pb.SessionResponse{}
		for _, o := range m.GetOperations() {
			out.Answers = append(out.Answers, r.answer(o))
		}
		if r.isHanging() {
			<-stream.Context().Done()
		}
		r.takesItsTime(stream.Context())
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

func (r *fakeRegion) answer(o *pb.SessionOperation) *pb.SessionAnswer {
	request := o.ProtoReflect().Get(o.ProtoReflect().WhichOneof(requestOneof)).Message().Interface().(interface{ GetKey() *pb.Key })
	served, err := r.serve(request.GetKey())
	answer := &pb.SessionAnswer{Id: o.GetId()}
	if err != nil {
		text, _ := proto.Marshal(status.Convert(err).Proto())
		answer.Result = &pb.SessionAnswer_Status{Status: text}
		return answer
	}
	switch m := o.GetRequest().(type) {
	case *pb.SessionOperation_Claim:
		r.arrived(m.Claim)
		response := granted(m.Claim)
		response.Served = served
		answer.Result = &pb.SessionAnswer_Claim{Claim: response}
	case *pb.SessionOperation_Renew:
		answer.Result = &pb.SessionAnswer_Renew{Renew: &pb.RenewResponse{Served: served}}
	case *pb.SessionOperation_Complete:
		answer.Result = &pb.SessionAnswer_Complete{Complete: &pb.CompleteResponse{Served: served}}
	case *pb.SessionOperation_Release:
		answer.Result = &pb.SessionAnswer_Release{Release: &pb.ReleaseResponse{State: pb.State_STATE_RELEASED, Served: served}}
	case *pb.SessionOperation_Lookup:
		answer.Result = &pb.SessionAnswer_Lookup{Lookup: &pb.LookupResponse{State: pb.State_STATE_IN_PROGRESS, Served: served}}
	}
	return answer
}

// requestOneof is what a session carries for its callers.
var requestOneof = (&pb.SessionOperation{}).ProtoReflect().Descriptor().Oneofs().ByName("request")

// GetTopology implements the service.
func (r *fakeRegion) GetTopology(context.Context, *pb.GetTopologyRequest) (*pb.GetTopologyResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen.topologies++
	if r.topologyError != nil {
		return nil, r.topologyError
	}
	m := &pb.GetTopologyResponse{Region: r.name}
	for _, name := range []string{"ap", "eu", "us"} {
		m.Regions = append(m.Regions, &pb.Region{Name: name, Address: r.regions[name].address})
	}
	m.Placements = []*pb.NamespacePlacement{{Namespace: key.Namespace, Placement: r.placement}}
	return m, nil
}

// claim claims a new key that lives in a region.
func (w *world) claim(ctx context.Context, region string) error {
	w.mu.Lock()
	w.number++
	id := fmt.Sprint("order-", w.number)
	w.mu.Unlock()
	_, err := w.client.Claim(ctx, store.ClaimRequest{Key: store.Key{Namespace: key.Namespace, ID: id, Entity: region}, AttemptID: id})
	return err
}

// claims claims keys that live in regions, and then lets come what comes of it.
func (w *world) claims(regions ...string) {
	w.Helper()
	for _, region := range regions {
		if err := w.claim(w.Context(), region); err != nil {
			w.Fatalf("a key of %s: %v", region, err)
		}
		synctest.Wait()
	}
}

// learnt has the client know all there is, and be connected to the regions.
func (w *world) learnt(regions ...string) {
	w.Helper()
	w.claims(regions...) // sent on; it learns
	w.claims(regions...) // sent on; it connects
	w.take()
	time.Sleep(time.Minute / 10) // it may learn again
}

// take returns what the regions were asked since it was taken last.
func (w *world) take() map[string]tally {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := map[string]tally{}
	for name, r := range w.regions {
		if r.seen != (tally{}) {
			taken[name] = r.seen
		}
		r.seen = tally{}
	}
	return taken
}

// were checks what the regions were asked since it was taken last.
func (w *world) were(what string, want map[string]tally) {
	w.Helper()
	if got := w.take(); !maps.Equal(got, want) {
		w.Errorf("%s: {own forwarded refused topologies} are %v, want %v", what, got, want)
	}
}

var unimplemented = status.Error(codes.Unimplemented, "not here")

func statusOfRefusal(sentinel error) error { return storepb.ToStatus(sentinel).Err() }
