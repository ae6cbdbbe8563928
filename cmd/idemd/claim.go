package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
)

// claimCmd asks for the right to act.
type claimCmd struct {
	remoteFlags
	keyFlags
	fingerprintFlags
	Attempt    attemptID `placeholder:"TEXT|hex:…" help:"Id of this attempt; use it again to ask again. Left out, one is drawn and printed."`
	Lease      span      `help:"How long the right to act should last, 1s to 15m (the namespace's, 30s by default)."`
	Hold       bool      `help:"If this attempt lapses, let nobody take over before it is settled."`
	IntentTime instant   `placeholder:"RFC3339" help:"When the intent was first made, the same on every repeat."`
	Wait       span      `help:"How long to wait for a running attempt of another caller, at most 5m."`
	Granted    bool      `help:"Exit with 0 only if it says to act now; with 4 if it is not granted, with 5 if an earlier attempt may have acted, so that it must be checked first."`
}

// Run is called by kong.
func (c *claimCmd) Run(s *session) error {
	drawn := len(c.Attempt.opaque) == 0
	if drawn {
		c.Attempt = newAttempt()
	}
	advice := "it may have been granted or not; ask again with --attempt " + shellQuote(c.Attempt.String())
	return c.callFor(s, time.Duration(c.Wait), advice, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewIdempotencyServiceClient(conn).Claim(ctx, c.request())
		if err != nil {
			return err
		}
		if drawn && c.Output == "json" && resp.GetGranted() != nil {
			fmt.Fprintf(s.stderr, "attempt %s\n", c.Attempt) // the response does not have it
		}
		if err := c.show(s, resp, func(p *page) { c.text(s, p, resp) }); err != nil {
			return err
		}
		return c.verdict(resp)
	})
}

// verdict makes a condition for a shell of the answer, if the user asked for one. A script
// that knows 0 and not 0 then never acts unchecked.
func (c *claimCmd) verdict(resp *idemdv1.ClaimResponse) error {
	switch {
	case !c.Granted:
		return nil
	case resp.GetGranted() == nil:
		return exitError{errShown, exitNotGranted}
	case resp.GetGranted().GetUnsettled():
		return exitError{errShown, exitUnsettled}
	default:
		return nil
	}
}

func (c *claimCmd) request() *idemdv1.ClaimRequest {
	return &idemdv1.ClaimRequest{
		Key:         c.key(),
		AttemptId:   c.Attempt.opaque,
		Fingerprint: c.proto(),
		Lease:       durationProto(c.Lease),
		Hold:        c.Hold,
		IntentTime:  c.IntentTime.proto(),
		Wait:        durationProto(c.Wait),
	}
}

func (c *claimCmd) text(s *session, p *page, resp *idemdv1.ClaimResponse) {
	switch {
	case resp.GetGranted() != nil:
		c.grantedText(s, p, resp.GetGranted())
	case resp.GetInProgress() != nil:
		running := resp.GetInProgress()
		p.heading("in progress: another attempt holds the key; do not act")
		p.until("lease ends", running.GetLeaseExpiresAt(), running.GetLeaseRemaining())
		p.field("ask again after", running.GetRetryAfter().AsDuration())
	case resp.GetCompleted() != nil:
		done := resp.GetCompleted()
		p.heading("completed: do not act; this is what happened")
		p.outcome(done.GetOutcome())
		p.field("fence", done.GetFence())
		p.when("completed at", done.GetCompletedAt())
		p.field("age", done.GetAge().AsDuration().Round(time.Millisecond))
		p.when("kept until", done.GetExpiresAt())
	case resp.GetUnresolved() != nil:
		p.heading("unresolved: an attempt lapsed and the key is held; do not act before it is settled")
		p.field("fence", resp.GetUnresolved().GetFence())
		p.when("lapsed at", resp.GetUnresolved().GetLapsedAt())
		c.settleText(s, p, resp.GetUnresolved())
	}
	if resp.GetFingerprintIncomparable() {
		p.line("note: the fingerprints could not be compared: they were made by two algorithms, or an operator imported the key without one")
	}
}

// settleText says how an operator settles the key: to look comes first.
func (c *claimCmd) settleText(s *session, p *page, unresolved *idemdv1.Unresolved) {
	fence := fmt.Sprint(unresolved.GetFence())
	record := func(name string, args ...string) string {
		return s.command(slices.Concat([]string{"record", name}, c.next(), args)...)
	}
	p.line("look first, here and wherever the attempt acted:")
	p.line("  %s", record("inspect"))
	p.line("then settle it with what you found, one of:")
	p.line("  %s", record("resolve", "--fence", fence, "--outcome", "what happened", "--reason", "WHY"))
	p.line("  %s", record("resolve", "--fence", fence, "--nothing-happened", "--reason", "WHY"))
}

func (c *claimCmd) grantedText(s *session, p *page, g *idemdv1.Granted) {
	if g.GetUnsettled() {
		p.heading("granted, unsettled: an earlier attempt may have acted; check, then act")
	} else {
		p.heading("granted: act now")
	}
	p.field("attempt", c.Attempt)
	p.field("fence", g.GetFence())
	p.field("attempt number", g.GetAttemptNumber())
	if g.GetPreviousFence() != 0 {
		p.field("previous fence", g.GetPreviousFence())
	}
	p.unsettledSince(g)
	p.until("lease ends", g.GetLeaseExpiresAt(), g.GetLeaseRemaining())

	holder := slices.Concat(c.next(), flagArgs("--attempt", c.Attempt.String()), []string{"--fence", fmt.Sprint(g.GetFence())})
	next := func(name string, args ...string) string {
		return s.command(slices.Concat([]string{name}, holder, args)...)
	}
	p.line("then one of:")
	p.line("  %s", next("complete", "--outcome", "what happened"))
	p.line("  %s", next("renew"))
	p.line("  %s", next("release", "--effect", "none"))
	if g.GetUnsettled() {
		p.line("(release, also with effect none, leaves the key unsettled: the earlier attempt may still have acted)")
	}
}

// next are the flags that a next command about the same key needs.
func (c *claimCmd) next() []string {
	return append(c.reach(), c.args()...)
}
