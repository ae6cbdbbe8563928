package client

import (
	"context"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/region/placement"
)

const (
	// topologyLife is about how long a topology is used before it is asked for again.
	topologyLife = 5 * time.Minute
	// topologyPatience is how long a server may take to tell it.
	topologyPatience = 10 * time.Second
	// The pause after it was asked for; the longer the more often that was in vain.
	firstTopologyPause = time.Second
	maxTopologyPause   = time.Minute
)

// topology is what is known of where keys live. It is never changed.
type topology struct {
	answer *pb.GetTopologyResponse
	region string            // the dialled server's
	homes  map[string]*home  // by region, without the dialled server's and those not to be asked
	placed map[string]placed // by namespace
	until  time.Duration     // then it is worth asking again; by routes.now
}

// placed is the placement of a namespace.
type placed struct {
	epoch int64
	rule  placement.Rule // the zero one if it is of a kind that is not known here: nobody's home
}

// learn has the topology asked for, in the background, unless that was done just now.
func (r *routes) learn() {
	now, due := int64(r.now()), r.due.Load()
	if now < due || !r.due.CompareAndSwap(due, askingNow) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.running.Go(func() { r.due.Store(int64(r.ask() + r.now())) })
	}
}

// ask asks the dialled server, and returns for how long it is not to be asked again.
func (r *routes) ask() time.Duration {
	ctx, cancel := context.WithTimeout(context.Background(), topologyPatience)
	defer cancel()
	var from peer.Peer
	answer, err := r.topology(ctx, &pb.GetTopologyRequest{}, grpc.Peer(&from))
	before := r.known.Load()
	switch {
	case status.Code(err) == codes.Unimplemented:
		r.known.Store(nil)
		return unservedPause
	case err != nil || before != nil && r.now() < before.until && proto.Equal(answer, before.answer):
		r.unchanged++
	default:
		r.unchanged = 0
		r.known.Store(r.understand(answer, &from))
	}
	return pauseAfter(r.unchanged, firstTopologyPause, maxTopologyPause)
}

// understand makes an answer of the server at from a topology.
func (r *routes) understand(answer *pb.GetTopologyResponse, from *peer.Peer) *topology {
	t := &topology{
		answer: answer, region: answer.GetRegion(), homes: map[string]*home{}, placed: map[string]placed{},
		until: r.now() + topologyLife*3/4 + rand.N(topologyLife/2),
	}
	for _, m := range answer.GetRegions() {
		if m.GetName() == t.region || !maySendTo(m.GetAddress(), from) {
			continue
		}
		if h := r.homeAt(m.GetAddress()); h != nil {
			t.homes[m.GetName()] = h
		}
	}
	for _, m := range answer.GetPlacements() {
		rule, _ := placement.ParseRule(m.GetPlacement().GetRule()) // a newer server's: see placed
		t.placed[m.GetNamespace()] = placed{epoch: m.GetPlacement().GetEpoch(), rule: rule}
	}
	return t
}

// homeAt returns the home at an address. One that no region has any more is kept until the
// client is closed, since operations may be in flight to it; gRPC drops idle connections.
func (r *routes) homeAt(address string) *home {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.homes[address]
	if h != nil || r.closed {
		return h
	}
	h, err := newHome(func() (*grpc.ClientConn, error) { return r.connect(address) }, r.now)
	if err != nil { // options that are good for the dialled address alone: that server sends on
		return nil
	}
	r.homes[address] = h
	return h
}

// maySendTo reports whether to follow to an address that a server told, under the options with
// which it was dialled. What goes to this machine in plain text does not go out to others by
// that; and what another machine calls its own loopback address is not meant for this one.
func maySendTo(address string, from *peer.Peer) bool {
	tcp, ok := from.Addr.(*net.TCPAddr)
	local := !ok || tcp.IP.IsLoopback() // a Unix socket too
	if isLoopback(address) {
		return local
	}
	private := credentials.CheckSecurityLevel(from.AuthInfo, credentials.PrivacyAndIntegrity) == nil
	return !strings.HasPrefix(address, ":") && checkHostPort(address) == nil && (private || !local)
}
