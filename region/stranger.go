package region

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/idemd/idemd/store"
)

// stranger is the error of a region with another store than the one that is known.
type stranger struct {
	region   string
	known    store.PeerStore
	shown    string
	replaced time.Time // when the known one was accepted in its place; zero: it never was
}

// strange is what there is to say of a store that answers as the region and is not the known one.
func (r *Region) strange(region, shown string) *stranger {
	m := r.member()
	return &stranger{region: region, known: m.Peers[region], shown: shown, replaced: m.ReplacedAt(region, shown)}
}

func (e *stranger) Error() string { return e.fact() + ". " + e.advice() }

// fact is the error without what to do.
func (e *stranger) fact() string {
	if !e.replaced.IsZero() {
		return fmt.Sprintf("its store has the id %s, and was replaced %s; it is not asked, and not believed", e.shown, inPlace(e.known, e.replaced))
	}
	return fmt.Sprintf("its store has the id %s, and the one that is known as that of region %q has %s: the region has lost its store, or another server takes itself for it; "+
		"it is not asked, and not believed", e.shown, e.region, e.known.StoreID)
}

func (e *stranger) advice() string {
	if !e.replaced.IsZero() {
		return howToGoBack(e.shown, e.known.StoreID)
	}
	return howToAccept(e.region, e.shown)
}

// otherThan says that the region knows another store than this one, and what to do.
func (p *peer) otherThan(own string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	name, knows := p.region.config.Name, p.knows[p.region.config.Name]
	if !p.replaced.IsZero() {
		return fmt.Sprintf("it was replaced %s, as region %q knows. %s", inPlace(knows, p.replaced), p.name, howToGoBack(own, knows.StoreID))
	}
	return fmt.Sprintf("region %q knows the store %s as that of region %q. %s", p.name, knows.StoreID, name, howToAccept(name, own))
}

// inPlace says what came in the place of a store, when and why.
func inPlace(by store.PeerStore, at time.Time) string {
	text := fmt.Sprintf("by %s at %s", by.StoreID, at.UTC().Format(time.RFC3339))
	if by.Actor != "" {
		text += ", as " + by.Actor + " decided"
	}
	return text + fmt.Sprintf(" (%s)", by.Reason)
}

func howToGoBack(replaced, known string) string {
	return fmt.Sprintf("It knows nothing of what was done since: switch %s off, and start the region's servers on %s again", replaced, known)
}

func howToAccept(region, id string) string {
	return fmt.Sprintf("Bring the old store back, or restore a backup of it; if both are lost, accept the new one: idemd region accept %s --store-id %s --reason WHY, at a server of another region. "+
		"All keys that the old one had are forgotten then, and claims that may be of one are refused with UNKNOWN_HISTORY until an operator lifts the recovery floor", region, id)
}

// timeIn is zero if the message is not there.
func timeIn(m *timestamppb.Timestamp) time.Time {
	if m == nil {
		return time.Time{}
	}
	return m.AsTime()
}
