package region

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/metadata"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// learnTime is how long a region has to say what placements it knows.
const learnTime = 2 * time.Second

// heard is what a region said of a namespace. The zero heard: nothing.
type heard struct {
	exists     bool
	ns         store.Namespace
	proposed   string
	hasRecords bool
}

// said is what the region said of a namespace last.
func (p *peer) said(namespace string) heard {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.says[namespace]
}

func (p *peer) hasBeenHeard() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard
}

func (p *peer) heardDigest() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.digest
}

// listen learns what a ping announced.
func (p *peer) listen(l *link, digest []byte) {
	if p.learnBy(p.region.ctx, l) != nil {
		return // the next ping announces it again
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.digest = digest
}

// learn asks the region what placements it knows, and keeps those that are newer.
func (p *peer) learn(ctx context.Context) error {
	l := p.current.Load()
	if l == nil {
		return p.unreachable()
	}
	return p.learnBy(ctx, l)
}

func (p *peer) learnBy(ctx context.Context, l *link) error {
	return p.listening.do(ctx, &p.region.wg, func() error { return p.hear(p.region.ctx, l) })
}

// askingBack in the metadata of a call says that it is made while the other region is asking: it
// must not ask back in its turn.
const askingBack = "idemd-asking-back"

// answerBy learns what a region knows that asks what is known here, before it is answered.
func (p *peer) answerBy(ctx context.Context) {
	if l := p.current.Load(); l != nil {
		_ = p.hear(metadata.AppendToOutgoingContext(ctx, askingBack, "1"), l) // it asks again soon
	}
}

// hear asks what the region knows, and keeps it unless something newer has been heard meanwhile.
func (p *peer) hear(ctx context.Context, l *link) error {
	ctx, cancel := context.WithTimeout(ctx, learnTime)
	defer cancel()
	p.mu.Lock()
	p.asked++
	asked := p.asked
	p.mu.Unlock()
	m, err := l.client.GetPlacements(ctx, &pb.GetPlacementsRequest{Region: p.name, FromRegion: p.region.config.Name, FromStoreId: p.region.member().StoreID})
	if err != nil {
		return p.missed(ctx, err)
	}
	says := make(map[string]heard, len(m.GetPlacements()))
	for _, k := range m.GetPlacements() {
		ns, err := storepb.NamespaceAnswerFromProto(k.GetNamespace())
		if err != nil {
			return err
		}
		says[ns.Name] = heard{exists: true, ns: ns, proposed: k.GetProposedRule(), hasRecords: k.GetHasRecords()}
	}
	p.mu.Lock()
	if asked > p.answered {
		p.answered, p.heard, p.says = asked, true, says
	}
	p.mu.Unlock()
	return p.region.adopt(ctx, says)
}

// adopt stores placements that are newer than the stored ones, and has the atlas show what was
// heard.
func (r *Region) adopt(ctx context.Context, says map[string]heard) error {
	var failed error
	for name, theirs := range says {
		k := r.atlas.Load().byName[name]
		if k == nil || theirs.ns.Placement.Revision <= k.ns.Placement.Revision || !r.mayAdopt(k.ns, theirs.ns.Placement) {
			continue
		}
		err := r.learnPlacement(ctx, name, theirs.ns.Placement)
		if err != nil && !errors.Is(err, store.ErrWrongRegion) { // the store has a newer one by now
			failed = err
		}
	}
	return errors.Join(failed, r.refresh(ctx))
}

// unknown reports whether the request is refused by any store that has not such a namespace.
func unknown(err error) bool {
	return errors.Is(err, store.ErrNamespaceUnknown) || errors.Is(err, store.ErrInvalidArgument)
}
