package main

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store/storepb"
)

// namespaceCmd is about tenants' policies.
type namespaceCmd struct {
	Create namespaceCreateCmd `cmd:"" help:"Create a namespace. Settings left out get their defaults."`
	Get    namespaceGetCmd    `cmd:"" help:"Show a namespace."`
	List   namespaceListCmd   `cmd:"" help:"Show all namespaces."`
	Set    namespaceSetCmd    `cmd:"" help:"Change settings of a namespace. Settings left out stay: what is in brackets is what create gives."`
}

// settingFlags are the settings that can change after creation. Their names differ from
// those of the key commands, so that one IDEMD_ variable never means two things.
type settingFlags struct {
	Retention       span   `help:"How long an outcome answers repeats, 1m to 35d (24h)."`
	LapsePolicy     string `enum:"takeover,hold," default:"" help:"After a lapse: takeover lets the next claimer check and act, hold waits for somebody to settle it (takeover)."`
	DefaultLease    span   `help:"Lease of a claim that does not ask for one (30s)."`
	MaxLease        span   `help:"Longest lease that can be asked for (15m)."`
	MaxAttempt      span   `help:"Longest that renewals can stretch one attempt, at most a quarter of the tier (1h; 15m in tier hour)."`
	MaxOutcomeBytes int32  `help:"Largest outcome, 1024 to 262144 (262144)."`
	EntityRule      string `enum:"optional,required,forbidden," default:"" help:"Whether keys carry an entity: optional, required or forbidden (optional)."`
	RecoveryFloor   string `placeholder:"RFC3339" help:"Refuse unknown keys whose intent is not known to be newer than this. It is never lowered; idemd recovery lift takes it off."`
}

// apply changes the settings that were given.
func (f *settingFlags) apply(ns *idemdv1.Namespace) error {
	setDuration(&ns.Retention, f.Retention)
	setDuration(&ns.Lease, f.DefaultLease)
	setDuration(&ns.MaxLease, f.MaxLease)
	setDuration(&ns.MaxAttempt, f.MaxAttempt)
	if f.MaxOutcomeBytes != 0 {
		ns.MaxOutcomeBytes = f.MaxOutcomeBytes
	}
	if f.LapsePolicy != "" {
		ns.LapsePolicy = idemdv1.LapsePolicy(idemdv1.LapsePolicy_value["LAPSE_POLICY_"+strings.ToUpper(f.LapsePolicy)])
	}
	if f.EntityRule != "" {
		ns.Entity = idemdv1.EntityRule(idemdv1.EntityRule_value["ENTITY_RULE_"+strings.ToUpper(f.EntityRule)])
	}
	if f.RecoveryFloor == "" {
		return nil
	}
	var floor instant
	if err := floor.UnmarshalText([]byte(f.RecoveryFloor)); err != nil {
		return usageError("--recovery-floor: %w; idemd recovery lift takes it off", err)
	}
	ns.RecoveryFloor = floor.proto()
	return nil
}

func setDuration(field **durationpb.Duration, d span) {
	if d != 0 {
		*field = durationpb.New(time.Duration(d))
	}
}

type namespaceCreateCmd struct {
	remoteFlags
	Name string `arg:"" help:"Name: a-z, 0-9 and -, at most 63 characters."`
	Tier string `enum:"hour,day,week,month," default:"" help:"Bounds the retention for ever: hour, day, week or month (35 days). Left out: the shortest that fits."`
	settingFlags
}

// Run is called by kong.
func (c *namespaceCreateCmd) Run(s *session) error {
	ns := &idemdv1.Namespace{Name: c.Name}
	if c.Tier != "" {
		ns.Tier = idemdv1.Tier(idemdv1.Tier_value["TIER_"+strings.ToUpper(c.Tier)])
	}
	if err := c.apply(ns); err != nil {
		return err
	}
	return c.callFor(s, 0, sendAgain, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewAdminServiceClient(conn).CreateNamespace(ctx, &idemdv1.CreateNamespaceRequest{Namespace: ns})
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) { namespaceText(p, resp.GetNamespace()) })
	})
}

type namespaceGetCmd struct {
	remoteFlags
	Name string `arg:"" help:"Name of the namespace."`
}

// Run is called by kong.
func (c *namespaceGetCmd) Run(s *session) error {
	return c.call(s, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewAdminServiceClient(conn).GetNamespace(ctx, &idemdv1.GetNamespaceRequest{Name: c.Name})
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) { namespaceText(p, resp.GetNamespace()) })
	})
}

type namespaceListCmd struct {
	remoteFlags
}

// Run is called by kong.
func (c *namespaceListCmd) Run(s *session) error { return c.eachNamespace(s, namespaceText) }

// eachNamespace shows something of every namespace.
func (f *remoteFlags) eachNamespace(s *session, text func(*page, *idemdv1.Namespace)) error {
	return f.call(s, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewAdminServiceClient(conn).ListNamespaces(ctx, &idemdv1.ListNamespacesRequest{})
		if err != nil {
			return err
		}
		return f.show(s, resp, func(p *page) {
			for _, ns := range resp.GetNamespaces() {
				text(p, ns)
			}
		})
	})
}

type namespaceSetCmd struct {
	remoteFlags
	Name string `arg:"" help:"Name of the namespace."`
	settingFlags
}

// Run is called by kong.
func (c *namespaceSetCmd) Run(s *session) error {
	if c.settingFlags == (settingFlags{}) {
		return usageError("give a setting to change, such as --retention; see idemd namespace set --help")
	}
	if err := c.apply(&idemdv1.Namespace{}); err != nil { // before anything is asked
		return err
	}
	return c.callFor(s, 0, sendAgain, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := c.set(ctx, idemdv1.NewAdminServiceClient(conn))
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) { namespaceText(p, resp.GetNamespace()) })
	})
}

// setTries is how often the settings are read to change some of them.
const setTries = 5

// set changes the settings that were given. UpdateNamespace replaces all of them, so they are read first, and
// again if another operator has changed one meanwhile.
func (c *namespaceSetCmd) set(ctx context.Context, admin idemdv1.AdminServiceClient) (*idemdv1.UpdateNamespaceResponse, error) {
	for try := 1; ; try++ {
		current, err := admin.GetNamespace(ctx, &idemdv1.GetNamespaceRequest{Name: c.Name})
		if err != nil {
			return nil, err
		}
		ns := current.GetNamespace()
		ns.RecoveryFloor = nil // stays, and one that is lifted meanwhile is not set again
		if err := c.apply(ns); err != nil {
			return nil, err
		}
		resp, err := admin.UpdateNamespace(ctx, &idemdv1.UpdateNamespaceRequest{Namespace: ns, IfUpdatedAt: ns.GetUpdatedAt()})
		if reason, _ := storepb.ReasonIn(status.Convert(err)); reason != namespaceChanged || try == setTries {
			return resp, err
		}
	}
}

var namespaceChanged = storepb.ReasonName(idemdv1.ErrorReason_ERROR_REASON_NAMESPACE_CHANGED)

func namespaceText(p *page, ns *idemdv1.Namespace) {
	p.heading("%s", ns.GetName())
	p.field("tier", storepb.Word(ns.GetTier(), "TIER_"))
	p.field("retention", span(ns.GetRetention().AsDuration()))
	p.field("lapse policy", storepb.Word(ns.GetLapsePolicy(), "LAPSE_POLICY_"))
	p.field("default lease", span(ns.GetLease().AsDuration()))
	p.field("max lease", span(ns.GetMaxLease().AsDuration()))
	p.field("max attempt", span(ns.GetMaxAttempt().AsDuration()))
	p.field("max outcome bytes", ns.GetMaxOutcomeBytes())
	p.field("entity rule", storepb.Word(ns.GetEntity(), "ENTITY_RULE_"))
	recoveryFields(p, ns)
	p.when("created at", ns.GetCreatedAt())
	p.when("updated at", ns.GetUpdatedAt())
	for _, past := range ns.GetPastRetentions() {
		p.field("past retention", span(past.GetRetention().AsDuration()).String()+" until "+formatTime(past.GetUntil()))
	}
}
