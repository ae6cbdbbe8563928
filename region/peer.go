package region

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

const (
	// pingInterval is how long after an answer a region is asked again whether it is there.
	pingInterval = 250 * time.Millisecond
	// maxSilence is how long it may leave that unanswered.
	maxSilence = 900 * time.Millisecond
	// redialInterval is how often a connection is tried to a region that cannot be reached;
	// each has dialTime to come about, a few round trips on the longest way there is.
	redialInterval = 500 * time.Millisecond
	dialTime       = 3 * time.Second
)

// peer is another region. It is watched all the time, so that a call for it neither waits for a
// connection nor for one that leads nowhere any more.
type peer struct {
	region *Region
	name   string
	place  Place

	current   atomic.Pointer[link] // nil: unreachable
	listening latest

	mu       sync.Mutex
	reason   string                     // why it is unreachable
	told     bool                       // that it cannot be reached
	since    time.Time                  // since when
	heard    bool                       // its placements have been heard since the start
	asked    int64                      // calls that were made for them
	answered int64                      // the latest call whose answer is kept
	digest   []byte                     // of what was heard
	says     map[string]heard           // by namespace
	shown    string                     // the id of the store that answers; empty: none does
	strange  bool                       // that is not the one that is known
	knows    map[string]store.PeerStore // the stores that it knows, by region
	met      bool                       // it has been heard since the start, and what it knows of this region's store heeded
	joined   bool                       // its store is a home
	replaced time.Time                  // when it was told that another store was accepted in the place of this region's
}

func newPeer(r *Region, name string, place Place) *peer {
	return &peer{region: r, name: name, place: place, reason: "it has not answered yet", since: time.Now()}
}

// watch keeps a link to the region for as long as ctx lasts.
func (p *peer) watch(ctx context.Context) {
	p.region.config.Observer.PeerUp(p.name, false)
	for {
		l := p.reach(ctx)
		if l == nil {
			return
		}
		p.up(l)
		err := p.keep(ctx, l)
		p.current.Store(nil)
		if ctx.Err() == nil {
			p.lost(err)
		}
		_ = l.conn.Close() // ends what is in flight on it
		if ctx.Err() != nil {
			return
		}
	}
}

// keep pings until there is no answer in time.
func (p *peer) keep(ctx context.Context, l *link) error {
	answered := time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(p.region.config.pingEvery):
		}
		bounded, cancel := context.WithDeadline(ctx, answered.Add(maxSilence))
		err := p.ping(bounded, l)
		cancel()
		if err != nil {
			return err
		}
		answered = time.Now()
	}
}

// reach tries, with a new connection each time, until the region answers; nil once ctx ends.
func (p *peer) reach(ctx context.Context) *link {
	ctx, cancel := context.WithCancel(ctx)
	var tries sync.WaitGroup
	defer tries.Wait()
	defer cancel()
	found := make(chan *link)
	for {
		tries.Go(func() {
			l, err := p.tryLink(ctx)
			if err != nil {
				p.noReach(ctx, err)
				return
			}
			select {
			case found <- l:
			case <-ctx.Done():
				_ = l.conn.Close() // another one is in use
			}
		})
		select {
		case l := <-found:
			return l
		case <-ctx.Done():
			return nil
		case <-time.After(redialInterval):
		}
	}
}

func (p *peer) up(l *link) {
	p.current.Store(l)
	p.region.config.Observer.PeerUp(p.name, true)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.region.logger.Info("region is reachable", "region", p.name, "address", p.place.PeerAddress, "after", time.Since(p.since).Round(time.Millisecond))
	p.reason = ""
}

func (p *peer) lost(err error) {
	p.region.config.Observer.PeerUp(p.name, false)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reason, p.since, p.told = reasonOf(err), time.Now(), true
	p.unseen(err)
	p.region.logger.Warn("region is unreachable", "region", p.name, "address", p.place.PeerAddress, "reason", loggedReason(err))
}

// noReach notes why a region cannot be reached, and logs it if nothing has been said of it.
func (p *peer) noReach(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // another try has reached it
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reason = reasonOf(err)
	p.unseen(err)
	if !p.told {
		p.told = true
		p.region.logger.Warn("region cannot be reached", "region", p.name, "address", p.place.PeerAddress, "reason", loggedReason(err))
	}
}

// loggedReason is the reason without what to do about another store, which noteShown has logged.
func loggedReason(err error) string {
	var other *stranger
	if errors.As(err, &other) {
		return other.fact()
	}
	return reasonOf(err)
}

func reasonOf(err error) string {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(storepb.FromStatus(err), context.DeadlineExceeded) {
		return fmt.Sprintf("it did not answer within %v", maxSilence)
	}
	if st, ok := status.FromError(err); ok {
		return st.Message()
	}
	return err.Error()
}

// unreachable is the refusal of what lives there.
func (p *peer) unreachable() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return homeUnreachable(p.name, "it cannot be reached, and nothing was done: "+p.reason)
}

// why says why the region cannot be reached.
func (p *peer) why() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reason
}

func homeUnreachable(home, why string) *store.Error {
	return &store.Error{
		Sentinel: store.ErrHomeUnreachable, RetryAfter: time.Second,
		Detail: fmt.Sprintf("the key lives in region %q: %s; send it again with the same attempt id", home, why),
	}
}

// failed is what the error of a call means. What broke off may have been done.
func (p *peer) failed(ctx context.Context, err error) (ForwardResult, error) {
	if ctx.Err() != nil {
		return ForwardCanceled, context.Cause(ctx)
	}
	refused := storepb.FromStatus(err)
	if fromIdemd(err) && !errors.Is(refused, store.ErrUnauthenticated) { // that one would be this region itself
		return ForwardRefused, refused
	}
	if _, bounded := ctx.Deadline(); bounded && errors.Is(refused, context.DeadlineExceeded) {
		return ForwardCanceled, refused // the home saw the caller's deadline first
	}
	unreachable := homeUnreachable(p.name, "it was asked and did not answer")
	unreachable.Cause = err
	return ForwardBroken, unreachable
}

// missed is failed for what is about no key.
func (p *peer) missed(ctx context.Context, err error) error {
	result, err := p.failed(ctx, err)
	if result != ForwardBroken {
		return err
	}
	return &store.Error{Sentinel: store.ErrUnavailable, RetryAfter: time.Second, Detail: "it was asked and did not answer", Cause: err}
}

// fromIdemd reports whether idemd made the status of an error, and not gRPC or what stands in
// between.
func fromIdemd(err error) bool {
	_, made := storepb.ReasonIn(status.Convert(err))
	return made
}
