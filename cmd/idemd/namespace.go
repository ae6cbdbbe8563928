package main

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

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
	floor, err := f.recoveryFloor(ns.GetRecoveryFloor())
	ns.RecoveryFloor = floor
	return err
}

func (f *settingFlags) recoveryFloor(old *timestamppb.Timestamp) (*timestamppb.Timestamp, error) {
	if f.RecoveryFloor == "" {
		return old, nil
	}
	var floor instant
	if err := floor.UnmarshalText([]byte(f.RecoveryFloor)); err != nil {
		return nil, usageError("--recovery-floor: %v; idemd recovery lift takes it off", err)
	}
	return floor.proto(), nil
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

// Run is called by kong. UpdateNamespace replaces all settings, so they are read first;
// of two operators who change one namespace at the same moment, the later one wins.
func (c *namespaceSetCmd) Run(s *session) error {
	if c.settingFlags == (settingFlags{}) {
		return usageError("give a setting to change, such as --retention; see idemd namespace set --help")
	}
	return c.callFor(s, 0, sendAgain, func(ctx context.Context, conn *grpc.ClientConn) error {
		admin := idemdv1.NewAdminServiceClient(conn)
		current, err := admin.GetNamespace(ctx, &idemdv1.GetNamespaceRequest{Name: c.Name})
		if err != nil {
			return err
		}
		ns := current.GetNamespace()
		if err := c.apply(ns); err != nil {
			return err
		}
		resp, err := admin.UpdateNamespace(ctx, &idemdv1.UpdateNamespaceRequest{Namespace: ns})
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) { namespaceText(p, resp.GetNamespace()) })
	})
}

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
