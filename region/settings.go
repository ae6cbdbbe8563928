package region

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// howToSettle says how regions are brought to keep a namespace alike.
const howToSettle = "set them again with idemd namespace set, which writes all of them to every region"

// howToComplete says how a namespace comes into a region that lacks it.
const howToComplete = "create it once more, with the same settings, which makes up for it"

// unknownHere is the refusal of a namespace that this region lacks. Others may have it.
func (r *Region) unknownHere(name string) error {
	for p := range r.others() {
		if p.said(name).exists {
			return store.Refuse(store.ErrNamespaceUnknown, fmt.Sprintf(
				"region %q does not have namespace %q, and region %q has it: %s", r.config.Name, name, p.name, howToComplete))
		}
	}
	return store.NamespaceUnknown(name)
}

// pastRetentions are those of the namespace in the regions that have it, for one that lacks it: what
// has expired has expired there too.
func (r *Region) pastRetentions(name string) (past []store.PastRetention) {
	for p := range r.others() {
		past = append(past, p.said(name).ns.PastRetentions...)
	}
	return past
}

// placedElsewhere is where the namespace lives as far as the other regions have said.
func (r *Region) placedElsewhere(name string) (p store.Placement) {
	for other := range r.others() {
		p = newer(p, other.said(name).ns.Placement)
	}
	return p
}

func newer(a, b store.Placement) store.Placement {
	if b.Revision > a.Revision {
		return b
	}
	return a
}

// mayCreate refuses a namespace that a region has with other settings.
func (r *Region) mayCreate(ctx context.Context, ns store.Namespace) error {
	ns = ns.WithDefaults()
	if err := ns.Validate(); err != nil {
		return err
	}
	check := func(region string, theirs store.Namespace) error {
		differ := differences("region "+region, theirs, "what was asked", ns)
		if differ == "" {
			return nil
		}
		return store.Refuse(store.ErrNamespaceExists, fmt.Sprintf(
			"region %q has it with other settings: %s; nothing was created: create it with the settings that it has, and change them afterwards (idemd namespace set)", region, differ))
	}
	own, err := r.config.Store.GetNamespace(ctx, ns.Name)
	switch {
	case err == nil:
		err = check(r.config.Name, own)
	case errors.Is(err, store.ErrNamespaceUnknown):
		err = nil
	}
	for p := range r.others() {
		if theirs := p.said(ns.Name); err == nil && theirs.exists {
			err = check(p.name, theirs.ns)
		}
	}
	return err
}

// mayUpdate returns the settings that all regions are to have, unless one of them would refuse
// them.
func (r *Region) mayUpdate(old, ns store.Namespace) (store.Namespace, error) {
	now := time.Now() // of which only the stores' own is kept
	if ns.RecoveryFloor.After(now) {
		now = ns.RecoveryFloor // by its own clock each store says whether that has come
	}
	next, err := ns.Replace(old, now)
	if err != nil {
		return store.Namespace{}, err
	}
	for p := range r.others() {
		theirs := p.said(ns.Name)
		if !theirs.exists {
			continue
		}
		if theirs.ns.Tier != next.Tier {
			return store.Namespace{}, store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("nothing was changed: the %s", otherTier(r.config.Name, next, p.name, theirs.ns)))
		}
		if _, err := next.Replace(theirs.ns, now); err != nil {
			return store.Namespace{}, also(err, fmt.Sprintf("nothing was changed: region %q refuses it", p.name))
		}
	}
	return next, nil
}

func otherTier(here string, a store.Namespace, there string, b store.Namespace) string {
	return fmt.Sprintf("tier of namespace %q is %s in region %s and %s in region %s, and a tier is fixed: they cannot be brought together; create another namespace, and use that one",
		a.Name, tierWord(a), here, tierWord(b), there)
}

// unlike says what another region keeps of a namespace differently, and what to do; empty if
// nothing is known of that.
func (r *Region) unlike(ns store.Namespace) string {
	for p := range r.others() {
		theirs := p.said(ns.Name)
		if !p.hasBeenHeard() {
			continue
		}
		if !theirs.exists {
			return fmt.Sprintf("is not in region %q: %s", p.name, howToComplete)
		}
		if theirs.ns.Tier != ns.Tier {
			return "is not the same everywhere: the " + otherTier(r.config.Name, ns, p.name, theirs.ns)
		}
		if differ := differences("region "+r.config.Name, ns, "region "+p.name, theirs.ns); differ != "" {
			return fmt.Sprintf("is not the same everywhere: its %s; %s", differ, howToSettle)
		}
	}
	return ""
}

// askAgainTime is how long whoever asks what is wrong waits for the other regions.
const askAgainTime = 500 * time.Millisecond

// troubledNow is troubled once the other regions have been asked anew, if there is any trouble: that
// what was heard differs may only mean that it was done everywhere a moment ago.
func (r *Region) troubledNow() map[string]string {
	troubles := r.troubled()
	if len(troubles) == 0 || r.ctx.Err() != nil {
		return troubles
	}
	ctx, cancel := context.WithTimeout(r.ctx, askAgainTime)
	defer cancel()
	_ = r.settle(ctx) // what could not be heard is as it was
	return r.troubled()
}

// troubled are, as far as has been heard, the namespaces with which something is wrong, those that this region lacks
// included, and what that is: the rest of a sentence that begins with the namespace.
func (r *Region) troubled() map[string]string {
	troubles := map[string]string{}
	for p := range r.others() {
		for _, name := range p.names() {
			if r.atlas.Load().byName[name] == nil {
				troubles[name] = fmt.Sprintf("is not in region %q: %s", r.config.Name, howToComplete)
			}
		}
	}
	for _, k := range r.atlas.Load().list {
		switch {
		case k.dispute != "":
			troubles[k.ns.Name] = "has a placement that is disputed: " + k.dispute
		case k.problem != "":
			troubles[k.ns.Name] = "has no home yet: " + k.problem
		default:
			if text := r.unlike(k.ns); text != "" {
				troubles[k.ns.Name] = text
			}
		}
	}
	return troubles
}

// names are the namespaces that the region has said it has.
func (p *peer) names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.says))
}

// sameSettings reports whether two regions keep the namespace alike. A recovery floor is a
// region's own, and is carried over by a move.
func sameSettings(a, b store.Namespace) bool {
	a.RecoveryFloor, b.RecoveryFloor = time.Time{}, time.Time{}
	return a.SameSettings(b)
}

// differences says what two regions keep of a namespace differently; empty if it is nothing.
func differences(here string, a store.Namespace, there string, b store.Namespace) string {
	if sameSettings(a, b) {
		return ""
	}
	var differ []string
	compare := func(setting string, x, y any) {
		if x != y {
			differ = append(differ, fmt.Sprintf("%s is %v in %s and %v in %s", setting, x, here, y, there))
		}
	}
	told, toldThere := storepb.NamespaceToProto(a), storepb.NamespaceToProto(b)
	compare("tier", tierWord(a), tierWord(b))
	compare("retention", store.SpanText(a.Retention), store.SpanText(b.Retention))
	compare("lapse policy", storepb.Word(told.GetLapsePolicy(), "LAPSE_POLICY_"), storepb.Word(toldThere.GetLapsePolicy(), "LAPSE_POLICY_"))
	compare("default lease", store.SpanText(a.Lease), store.SpanText(b.Lease))
	compare("max lease", store.SpanText(a.MaxLease), store.SpanText(b.MaxLease))
	compare("max attempt", store.SpanText(a.MaxAttempt), store.SpanText(b.MaxAttempt))
	compare("max outcome bytes", a.MaxOutcomeBytes, b.MaxOutcomeBytes)
	compare("entity rule", storepb.Word(told.GetEntity(), "ENTITY_RULE_"), storepb.Word(toldThere.GetEntity(), "ENTITY_RULE_"))
	return strings.Join(differ, ", ")
}

func tierWord(ns store.Namespace) string { return storepb.Word(pb.Tier(ns.Tier), "TIER_") }
