package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/store/storepb"
)

// regionCmd is about where keys live.
type regionCmd struct {
	List   regionListCmd   `cmd:"" help:"Show the regions with their stores, which of them answer, and where the keys of each namespace live."`
	Accept regionAcceptCmd `cmd:"" help:"After the store of a region was lost: accept its new one, which answers and has forgotten every key. Switch the old one off before: where no other region reaches it, it goes on serving."`
	Move   regionMoveCmd   `cmd:"" help:"Give all keys of a namespace another home, or go on with a move that broke off."`
}

type regionListCmd struct {
	remoteFlags
}

// Run is called by kong.
func (c *regionListCmd) Run(s *session) error {
	return c.call(s, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewIdempotencyServiceClient(conn).GetTopology(ctx, &idemdv1.GetTopologyRequest{})
		if err != nil {
			return err
		}
		if c.Output == "json" {
			return printJSON(s, resp)
		}
		answers := c.askAll(ctx, resp)
		return c.show(s, resp, func(p *page) { topologyText(p, resp, answers) })
	})
}

// regionAnswerTime is how long each region has to answer.
const regionAnswerTime = 3 * time.Second

// askAll says of each region whether a server of it answers from here.
func (c *regionListCmd) askAll(ctx context.Context, topology *idemdv1.GetTopologyResponse) []string {
	answers := make([]string, len(topology.GetRegions()))
	var asked sync.WaitGroup
	for i, r := range topology.GetRegions() {
		asked.Go(func() {
			answers[i] = "answers"
			if r.GetName() == topology.GetRegion() {
				return
			}
			if err := c.ask(ctx, r.GetAddress()); err != nil {
				answers[i] = "no answer: " + oneLine(err.Error())
			}
		})
	}
	asked.Wait()
	return answers
}

func (c *regionListCmd) ask(ctx context.Context, addr string) error {
	there := c.remoteFlags
	there.Addr = addr
	conn, err := there.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, regionAnswerTime)
	defer cancel()
	_, err = idemdv1.NewIdempotencyServiceClient(conn).GetTopology(ctx, &idemdv1.GetTopologyRequest{})
	return there.explain(err, regionAnswerTime)
}

func topologyText(p *page, resp *idemdv1.GetTopologyResponse, answers []string) {
	p.line("REGION\tADDRESS\tSTORE\tJOINED\tFROM %s\tFROM HERE", shown(resp.GetRegion()))
	for i, r := range resp.GetRegions() {
		name := shown(r.GetName())
		if r.GetName() == resp.GetRegion() {
			name += " (asked)"
		}
		p.line("%s\t%s\t%s\t%s\t%s\t%s", name, shown(r.GetAddress()), cmp.Or(shown(r.GetStoreId()), "-"), yesNo(r.GetJoined()), fromAsked(resp, r), answers[i])
	}
	for _, r := range resp.GetRegions() {
		if why := r.GetUnreachedBecause(); why != "" && r.GetOtherStoreId() == "" { // of which more is said below
			p.line("")
			p.line("Region %s does not answer region %s: %s", shown(r.GetName()), shown(resp.GetRegion()), shown(why))
		}
	}
	for _, r := range resp.GetRegions() {
		if r.GetOtherStoreId() != "" {
			p.line("")
			p.line("Region %s: %s", shown(r.GetName()), shown(r.GetOtherStoreTrouble()))
		}
	}
	p.line("")
	p.line("NAMESPACE\tEPOCH\tREVISION\tMOVE\tRULE")
	for _, n := range resp.GetPlacements() {
		placement := n.GetPlacement()
		p.line("%s\t%d\t%d\t%s\t%s", n.GetNamespace(), placement.GetEpoch(), placement.GetRevision(), moveText(placement), cmp.Or(shown(placement.GetRule()), "-"))
	}
	for _, n := range resp.GetPlacements() {
		if n.GetTrouble() != "" {
			p.line("")
			p.line("Namespace %s %s", n.GetNamespace(), shown(n.GetTrouble()))
		}
	}
}

// fromAsked says whether a region answers the one that was asked.
func fromAsked(resp *idemdv1.GetTopologyResponse, r *idemdv1.Region) string {
	switch {
	case r.GetName() == resp.GetRegion():
		return "-"
	case r.GetOtherStoreId() != "":
		return "not believed: it has the store " + shown(r.GetOtherStoreId())
	case r.GetReached():
		return "answers"
	case r.GetUnreachedBecause() != "":
		return "no answer"
	}
	return "not told" // by an earlier release
}

func yesNo(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

func moveText(p *idemdv1.Placement) string {
	if p.GetMovePhase() == idemdv1.MovePhase_MOVE_PHASE_UNSPECIFIED {
		return "-"
	}
	stage := storepb.Word(p.GetMovePhase(), "MOVE_PHASE_")
	if known, err := storepb.PlacementFromProto(p); err == nil {
		stage = placement.StageOf(known)
	}
	return fmt.Sprintf("to %s: %s", shown(p.GetMoveTo()), stage)
}

// regionAcceptCmd puts a region's new store in the place of its old one.
type regionAcceptCmd struct {
	remoteFlags
	auditFlags
	Region  string `arg:"" help:"Region that has a new store."`
	StoreID string `name:"store-id" required:"" placeholder:"ID" help:"The new store's id, as idemd region list shows it at a server of another region."`
	Again   bool   `help:"The store is one that was replaced, and the one in its place is lost too: what was done since is forgotten."`
}

// Run is called by kong.
func (c *regionAcceptCmd) Run(s *session) error {
	return c.callFor(s, acceptTime, acceptAgain, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewAdminServiceClient(conn).AcceptStore(ctx, &idemdv1.AcceptStoreRequest{
			Region: c.Region, StoreId: c.StoreID, Actor: c.Actor, Reason: c.Reason, Again: c.Again,
		})
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) {
			p.line("accepted: region %s has the store %s from now on", shown(c.Region), c.StoreID)
			p.line("  keep every other store of that region switched off: where no other region reaches it, it does not hear of this, and serves")
			p.line("  claims of keys that its old store may have known are refused with UNKNOWN_HISTORY until the recovery floors are lifted (idemd recovery)")
		})
	})
}

const (
	acceptTime  = 10 * time.Second
	acceptAgain = "run the same command again: it makes up for what was missed"
)

type regionMoveCmd struct {
	remoteFlags
	Namespace string `arg:"" help:"Namespace to move."`
	To        string `arg:"" help:"Region that is to be the home of all its keys."`
	Abandon   bool   `help:"Give up a move that has not reached its new home; any region's server can be asked."`
	Patience  span   `default:"1m" help:"How long to wait for attempts that hold a lease; after that none is renewed, and they run out (${default})."`
	Actor     string `default:"${user}" help:"Who decided ($$USER, or the user id); kept in the servers' logs."`
}

const (
	// moveLimit is longer than any move takes; what a move waits for is bounded by itself.
	moveLimit = 30 * 24 * time.Hour
	moveAgain = "run the same command again: it goes on where it stopped"
)

// Run is called by kong. A move is made by a server of the region that is moved to, which is
// found by the topology.
func (c *regionMoveCmd) Run(s *session) error {
	if !c.Abandon {
		if err := c.findTarget(s); err != nil {
			return err
		}
	}
	return c.callFor(s, moveLimit, moveAgain, func(ctx context.Context, conn *grpc.ClientConn) error {
		stream, err := idemdv1.NewAdminServiceClient(conn).MoveNamespace(ctx, &idemdv1.MoveNamespaceRequest{
			Namespace: c.Namespace, ToRegion: c.To, Abandon: c.Abandon, Patience: durationProto(c.Patience), Actor: c.Actor,
		})
		if err != nil {
			return err
		}
		for {
			step, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil {
				err = c.showStep(s, step)
			}
			if err != nil {
				return err
			}
		}
	})
}

// findTarget makes the address that of the region that is moved to.
func (c *regionMoveCmd) findTarget(s *session) error {
	return c.call(s, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewIdempotencyServiceClient(conn).GetTopology(ctx, &idemdv1.GetTopologyRequest{})
		if err != nil || resp.GetRegion() == c.To {
			return err
		}
		var names []string
		for _, r := range resp.GetRegions() {
			if r.GetName() == c.To {
				c.Addr = r.GetAddress()
				return nil
			}
			names = append(names, r.GetName())
		}
		return fmt.Errorf("there is no region %q; the topology has %s", c.To, strings.Join(names, ", "))
	})
}

// showStep prints a step on a line of its own, at once; what it means goes to standard error.
func (c *regionMoveCmd) showStep(s *session, step *idemdv1.MoveNamespaceResponse) error {
	if c.Output == "json" {
		return printJSON(s, step)
	}
	line := "step: " + step.GetStep()
	if step.GetStep() == "waiting" || step.GetStep() == "copied" {
		line = fmt.Sprintf("%s %d", line, step.GetCount())
	}
	if _, err := fmt.Fprintln(s.stdout, line); err != nil {
		return unwritten(err)
	}
	if step.GetDetail() != "" {
		fmt.Fprintf(s.stderr, "idemd: %s: %s\n", step.GetStep(), oneLine(step.GetDetail()))
	}
	return nil
}

// alive has a server that is silent for long found out, though a call to it may last.
func alive() grpc.DialOption {
	return grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second})
}
