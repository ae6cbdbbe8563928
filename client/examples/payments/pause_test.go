//go:build unix

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/examples/payments/v1"
	"github.com/idemd/idemd/store"
)

// TestPausedPastItsLease stops the process that charges, as SIGSTOP does, until its lease is
// over and another process has taken over. When it goes on, its context is cancelled and what
// it records is refused: what it did counts only as evidence.
func TestPausedPastItsLease(t *testing.T) {
	for name, test := range map[string]struct {
		provider, says string
		charges        int
		evidence       bool
	}{
		// It had not charged yet, and does not any more.
		"before the charge": {"before", "charging", 1, false},
		// It had charged. The other one finds that.
		"after the charge": {"after", "charged", 1, true},
		// It charges although its context is cancelled. Nobody can stop that but the provider,
		// if it refuses a fence that is lower than one it has seen.
		"heedless": {"heedless", "charging", 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPaused(t, test.provider, test.says)
			other := dialPayments(t, startPayments(t, "none", p.idemd.addr, p.ledger).addr)
			taken := other.charge(p.ctx, request("order-1")) // waits until the lease is over
			if taken.err != nil || taken.repeat {
				t.Fatalf("the call that takes over is answered %q", taken)
			}
			p.resume(t)
			if a := <-p.answer; status.Code(a.err) != codes.Aborted || refusal(a.err) != "STALE_FENCE" {
				t.Errorf("the call that was paused is answered %v, want ABORTED STALE_FENCE", a.err)
			}

			charges := chargesOf(t, p.ledger)["order-1"]
			if len(charges) != test.charges || charges[0].ID != taken.charge.GetId() {
				t.Errorf("charges: %v, want %d, of which the first is the answer %q", charges, test.charges, taken)
			}
			if len(charges) == 2 && charges[1].Fence >= charges[0].Fence {
				t.Errorf("the late charge carries fence %d, not lower than %d", charges[1].Fence, charges[0].Fence)
			}
			if a, want := other.charge(p.ctx, request("order-1")), taken.charge.GetId()+" (repeat)"; a.String() != want {
				t.Errorf("a repeat is answered %q, want %q", a, want)
			}
			p.checkEvidence(t, test.evidence, charges[len(charges)-1])
		})
	}
}

// TestPausedAndNobodyTookOver: the lease is over, but the first outcome still counts.
func TestPausedAndNobodyTookOver(t *testing.T) {
	t.Parallel()
	p := newPaused(t, "after", "charged")
	idemd := dialIdemd(t, p.idemd.addr)
	eventually(t, "the lease is over", func() bool {
		answer, err := idemd.Lookup(p.ctx, store.LookupRequest{Key: keyOf("order-1")})
		return err == nil && answer.Unsettled
	})
	p.resume(t)
	charges := chargesOf(t, p.ledger)["order-1"]
	if a := <-p.answer; len(charges) != 1 || a.String() != charges[0].ID {
		t.Errorf("the call that was paused is answered %q, charges %v, want one, and the answer", a, charges)
	}
	again := dialPayments(t, p.service.addr).charge(p.ctx, request("order-1"))
	if want := charges[0].ID + " (repeat)"; again.String() != want {
		t.Errorf("a repeat is answered %q, want %q", again, want)
	}
}

// paused is a service that is stopped while it handles a call.
type paused struct {
	ctx            context.Context
	ledger         string
	idemd, service *child
	answer         chan answer // to that call
}

func newPaused(t *testing.T, provider, says string) *paused {
	dir := t.TempDir()
	p := &paused{ledger: filepath.Join(dir, "ledger"), answer: make(chan answer, 1)}
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	p.idemd = startIdemd(t, filepath.Join(dir, "idemd"))
	p.service = startPayments(t, provider, p.idemd.addr, p.ledger)
	go func() { p.answer <- chargeOnce(p.ctx, p.service.addr, "order-1") }()
	p.service.expect(t, says+" account-1/order-1 <nil>")
	p.signal(t, syscall.SIGSTOP)
	return p
}

// resume has the process go on, and checks that its context is cancelled before its handler
// has returned anything that could be recorded.
func (p *paused) resume(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGCONT)
	if said := p.service.expect(t, "cancelled account-1/order-1 "); !strings.Contains(said, client.ErrLeaseLost.Error()) {
		t.Errorf("the handler's context ended with %q, want %q", said, client.ErrLeaseLost)
	}
}

func (p *paused) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.service.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// checkEvidence checks what the record says: it was taken over, and an outcome that came too
// late is kept, by which an operator finds the charge.
func (p *paused) checkEvidence(t *testing.T, late bool, charge entry) {
	t.Helper()
	inspection, err := dialIdemd(t, p.idemd.addr).InspectRecord(p.ctx, keyOf("order-1"))
	if err != nil {
		t.Fatal(err)
	}
	got := map[store.EventKind]int{}
	for _, e := range inspection.Events {
		got[e.Kind]++
		if e.Kind != store.EventLateOutcome {
			continue
		}
		response := &pb.ChargeResponse{}
		if err := proto.Unmarshal(e.Outcome.Body, response); err != nil {
			t.Fatal(err)
		}
		if response.GetCharge().GetId() != charge.ID || e.Fence != charge.Fence || e.Fence >= inspection.Record.Fence {
			t.Errorf("the evidence is %v under fence %d, want the charge %v", response, e.Fence, charge)
		}
	}
	want := map[store.EventKind]int{store.EventTakeover: 1}
	if late {
		want[store.EventLateOutcome] = 1
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("events: %v, want %v", got, want)
	}
}
