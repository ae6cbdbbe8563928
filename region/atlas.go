package region

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// atlas is what is known of all namespaces at one time. It does not change: another one takes
// its place.
type atlas struct {
	list      []*known // by name
	byName    map[string]*known
	unsettled bool // a namespace has no placement
	// What GetPlacements answers, and its digest.
	answer *pb.GetPlacementsResponse
	digest []byte
}

// known is what the store says of a namespace, and what came of comparing it with others.
type known struct {
	ns   store.Namespace
	rule placement.Rule // zero if the namespace has no placement
	// problem says why there is no home to be found; dispute, why nothing is granted.
	problem, dispute string
	// crossed: the dispute is with a store that has decided something else since, so that one of
	// the two is none to join by.
	crossed bool
	// proposed is the rule of the topology, and hasRecords whether there are records here, of a
	// namespace without a placement.
	proposed   string
	hasRecords bool
	ready      bool // to be placed: as far as is known nothing is missing
}

func (k *known) placed() bool { return k.ns.Placement != (store.Placement{}) }

// refresh has the atlas show what the store says now.
func (r *Region) refresh(ctx context.Context) error {
	return r.refreshing.do(ctx, &r.wg, func() error {
		ctx, cancel := context.WithTimeout(r.ctx, storeTime)
		defer cancel()
		list, err := r.config.Store.ListNamespaces(ctx)
		if err == nil {
			err = r.readMemberships(ctx)
		}
		r.healthy.Store(err == nil)
		if err != nil {
			return err
		}
		r.lookIntoAll(ctx, list)
		r.redraw(list)
		return nil
	})
}

// redraw makes an atlas of the namespaces and of what the others have said. It is called by New
// and by refresh, and so by one goroutine at a time.
func (r *Region) redraw(list []store.Namespace) {
	a := &atlas{byName: map[string]*known{}, answer: &pb.GetPlacementsResponse{}}
	disputed := 0
	for _, ns := range list {
		k := r.know(ns)
		a.list = append(a.list, k)
		a.byName[ns.Name] = k
		a.unsettled = a.unsettled || !k.placed()
		if k.dispute != "" {
			disputed++
		}
		r.tell(k)
	}
	r.noteMoves(list)
	slices.SortFunc(a.list, func(x, y *known) int { return strings.Compare(x.ns.Name, y.ns.Name) })
	for _, k := range a.list {
		a.answer.Placements = append(a.answer.Placements, &pb.KnownPlacement{
			Namespace: storepb.NamespaceToProto(k.ns), ProposedRule: k.proposed, HasRecords: k.hasRecords,
		})
	}
	a.digest = digestOf(a.answer)
	r.config.Observer.Disputed(disputed)
	r.atlas.Store(a)
}

// digestOf tells two answers apart. Only who made it can make it again.
func digestOf(m *pb.GetPlacementsResponse) []byte {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil { // a name that is no UTF-8, which no store takes
		return nil
	}
	sum := sha256.Sum256(text)
	return sum[:]
}

func (r *Region) know(ns store.Namespace) *known {
	k := &known{ns: ns}
	if k.placed() {
		rule, err := placement.ParseRule(ns.Placement.Rule)
		if err != nil {
			k.problem = fmt.Sprintf("its stored placement is not understood: %v", err)
			return k
		}
		k.rule = rule
		k.dispute, k.crossed = r.disputed(ns)
		return k
	}
	if rule, ok := r.config.Topology.rule(ns.Name); ok {
		k.proposed = rule.String()
	}
	k.hasRecords = r.foundRecords(ns.Name)
	k.problem = r.missingFor(k)
	if k.ready = k.problem == ""; k.ready {
		k.problem = "it is being placed; send it again"
	}
	return k
}

// disputed says who has a placement that neither follows the one here nor comes before it.
func (r *Region) disputed(ns store.Namespace) (dispute string, isCrossed bool) {
	own := ns.Placement
	for p := range r.others() {
		theirs := p.said(ns.Name).ns.Placement
		isCrossed = isCrossed || crossed(own, theirs)
		if dispute == "" && contradict(own, theirs) {
			dispute = fmt.Sprintf("its placement is %q by epoch %d and revision %d here, and %q by epoch %d and revision %d in region %s: "+
				"a store was put back to an earlier state without a recovery, and has decided what was decided otherwise since; replace that one, and no other, as one that was lost (idemd region accept)",
				own.Rule, own.Epoch, own.Revision, theirs.Rule, theirs.Epoch, theirs.Revision, p.name)
		}
	}
	return dispute, isCrossed
}

// contradict reports whether two placements cannot both have been decided by stores that knew what
// was decided before.
func contradict(a, b store.Placement) bool {
	return a.Revision == b.Revision && a != b || crossed(a, b)
}

// crossed reports whether one placement has the higher revision and the other the higher epoch.
func crossed(a, b store.Placement) bool {
	return a.Revision > b.Revision && a.Epoch < b.Epoch || a.Revision < b.Revision && a.Epoch > b.Epoch
}

// trouble is what is wrong with a namespace.
type trouble struct {
	text  string
	since time.Time
	told  bool
}

// troubleTime is how long a namespace may be without a home before it is logged: regions hear of
// a new one one after the other.
const troubleTime = 3 * time.Second

// tell logs what is wrong with a namespace, once. That a region has not been heard yet is no
// fault of the namespace.
func (r *Region) tell(k *known) {
	text := k.dispute
	if text == "" && !k.ready && (k.placed() || r.allHeard()) {
		text = k.problem
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.troubles[k.ns.Name]
	switch {
	case last == nil || last.text != text:
		last = &trouble{text: text, since: time.Now()}
		r.troubles[k.ns.Name] = last
	case last.told:
		return
	}
	switch {
	case k.dispute != "":
		last.told = true
		r.logger.Error("the placement of a namespace is disputed; nothing is granted", "namespace", k.ns.Name, "dispute", text)
	case text != "" && time.Since(last.since) >= troubleTime:
		last.told = true
		r.logger.Warn("a namespace has no home yet", "namespace", k.ns.Name, "missing", text)
	case text == "" && k.placed():
		last.told = true
		r.logger.Info("a namespace has a home", "namespace", k.ns.Name, "rule", k.ns.Placement.Rule, "epoch", k.ns.Placement.Epoch)
	}
}

func (r *Region) allHeard() bool {
	for _, p := range r.peers {
		if !p.hasBeenHeard() {
			return false
		}
	}
	return true
}

// maxLooks bounds how many pages of a store are looked at for a record of a namespace.
const maxLooks = 1000

func (r *Region) lookIntoAll(ctx context.Context, list []store.Namespace) {
	for _, ns := range list {
		if ns.Placement == (store.Placement{}) {
			r.lookIntoRecords(ctx, ns.Name)
		}
	}
}

// lookIntoRecords finds out whether a namespace without a placement has records; once, if it has
// none, for nobody makes any then. What could not be found out counts as records.
func (r *Region) lookIntoRecords(ctx context.Context, namespace string) {
	if !r.foundRecords(namespace) {
		return
	}
	has, err := hasRecords(ctx, r.config.Store, namespace)
	if err == nil {
		r.noteRecords(namespace, has)
	}
}

func hasRecords(ctx context.Context, s store.Records, namespace string) (bool, error) {
	req := store.ListRequest{Namespace: namespace, PageSize: 1}
	for range maxLooks {
		page, err := s.ListRecords(ctx, req)
		if err != nil || len(page.Records) > 0 || page.NextPageToken == "" {
			return len(page.Records) > 0, err
		}
		req.PageToken = page.NextPageToken
	}
	return true, nil
}

func (r *Region) noteRecords(namespace string, has bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records[namespace] = has
}

func (r *Region) foundRecords(namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	has, done := r.records[namespace]
	return has || !done
}

// find is what is known of a namespace. One that the atlas does not show, or without a
// placement, may have come to be a moment ago.
func (r *Region) find(ctx context.Context, namespace string) (*known, error) {
	if k := r.atlas.Load().byName[namespace]; k != nil && k.problem == "" {
		return k, nil
	}
	err := r.lookAgain(ctx, namespace)
	if errors.Is(err, store.ErrNamespaceUnknown) {
		if away := r.atHome(); away != nil {
			return nil, away // the others may have it
		}
		return nil, r.unknownHere(namespace)
	}
	if err != nil {
		return nil, err
	}
	k := r.atlas.Load().byName[namespace]
	switch {
	case k == nil:
		return nil, store.NamespaceUnknown(namespace)
	case k.problem != "":
		if away := r.atHome(); away != nil && r.isStranger() {
			return nil, away
		}
		return nil, homeless(k)
	}
	return k, nil
}

func homeless(k *known) error {
	return &store.Error{
		Sentinel: store.ErrNoHome, RetryAfter: time.Second,
		Detail: fmt.Sprintf("namespace %q has no home yet: %s", k.ns.Name, k.problem),
	}
}

// lookAgain asks the store, cheaply, whether there is such a namespace, before it is asked for
// all of them.
func (r *Region) lookAgain(ctx context.Context, namespace string) error {
	probe := store.Key{Namespace: namespace, ID: "-"}
	if r.atlas.Load().byName[namespace] == nil {
		if _, err := r.config.Store.Lookup(ctx, store.LookupRequest{Key: probe}); unknown(err) {
			return err
		}
		if err := r.refresh(ctx); err != nil {
			return err
		}
	}
	if k := r.atlas.Load().byName[namespace]; k != nil && !k.placed() {
		return r.settleSoon(ctx)
	}
	return nil
}

func sameDigest(a, b []byte) bool { return len(a) > 0 && bytes.Equal(a, b) }
