package region

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

const (
	// The home's answers hold outcomes; on a long way each window that is full costs a round
	// trip.
	linkStreamWindow     = 1 << 20
	linkConnectionWindow = 16 << 20
	// maxAnswerBytes is above the largest page.
	maxAnswerBytes = 16 << 20
)

// link is one connection to another region, on which it has answered. It is never used again
// once it was silent: TCP comes back too late from a hole.
type link struct {
	conn   *grpc.ClientConn
	client pb.PeerServiceClient
}

func (p *peer) newLink() (*link, error) {
	creds := insecure.NewCredentials()
	if p.region.config.Credentials != nil {
		creds = p.region.config.Credentials(p.place.Principal)
	}
	conn, err := grpc.NewClient(p.place.PeerAddress,
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(p.region.config.Dial),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: dialTime, Backoff: backoff.Config{BaseDelay: redialInterval, Multiplier: 1, MaxDelay: redialInterval}}),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
		grpc.WithInitialWindowSize(linkStreamWindow),
		grpc.WithInitialConnWindowSize(linkConnectionWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)))
	if err != nil {
		return nil, err
	}
	return &link{conn: conn, client: pb.NewPeerServiceClient(conn)}, nil
}

// tryLink makes a connection, and returns it if the region answers on it.
func (p *peer) tryLink(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	l, err := p.newLink()
	if err != nil {
		return nil, err
	}
	err = l.connect(ctx)
	if err == nil {
		err = p.ping(ctx, l)
	}
	if err != nil {
		_ = l.conn.Close() // nobody has used it
		return nil, err
	}
	return l, nil
}

// connect waits until the connection is there, or cannot be made.
func (l *link) connect(ctx context.Context) error {
	l.conn.Connect()
	for {
		state := l.conn.GetState()
		if state == connectivity.Ready || state == connectivity.TransientFailure {
			return nil // the ping says why it failed
		}
		if !l.conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("no connection within %v", dialTime)
		}
	}
}

// askPing asks whether the region that is meant is there, and tells it which store it is known by.
func (p *peer) askPing(ctx context.Context, l *link, known store.PeerStore) (*pb.PingResponse, error) {
	m, err := l.client.Ping(ctx, &pb.PingRequest{
		Region: p.name, FromRegion: p.region.config.Name, FromStoreId: p.region.member().StoreID, Known: knownToProto(p.name, known),
	})
	if err == nil && m.GetRegion() != p.name {
		err = fmt.Errorf("its address leads to region %q", m.GetRegion())
	}
	return m, err
}

// ping asks whether the region is there, and has the store that is known. It keeps what it says.
func (p *peer) ping(ctx context.Context, l *link) error {
	sent := time.Now()
	m, err := p.askPing(ctx, l, p.known())
	if err == nil {
		err = p.recognise(ctx, shownIn(m))
	}
	if err == nil {
		err = p.noteKnown(ctx, m)
	}
	if err != nil {
		return err
	}
	p.region.config.Observer.RoundTrip(p.name, time.Since(sent))
	if digest := m.GetPlacementsDigest(); !sameDigest(digest, p.heardDigest()) {
		p.region.wg.Go(func() { p.listen(l, digest) })
	}
	return nil
}
