package main

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/examples/payments/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
)

// TestHandlerOutlivesItsLease: while the handler runs the lease is renewed, so a repeat is
// told to wait even when the first lease is long over.
func TestHandlerOutlivesItsLease(t *testing.T) {
	t.Parallel()
	charged, finish := make(chan struct{}), make(chan struct{})
	s := startService(t, func(ctx context.Context, l *ledger, e entry) (entry, error) {
		e, err := l.charge(ctx, e)
		close(charged)
		<-finish
		if err == nil {
			err = ctx.Err()
		}
		return e, err
	})
	first := make(chan answer, 1)
	go func() { first <- chargeOnce(t.Context(), s.addr, "order-1") }()
	<-charged
	granted := s.record(t)
	s.outlast(t, granted)
	close(finish)
	charges := s.charges(t)
	if a := <-first; len(charges) != 1 || a.String() != charges[0].ID || charges[0].Fence != granted.Fence {
		t.Errorf("answered %q, charges %v, want one under fence %d, and the answer", a, charges, granted.Fence)
	}
	if rec := s.record(t); rec.State != store.StateCompleted || rec.Fence != granted.Fence || rec.AttemptNumber != 1 {
		t.Errorf("the record is %+v, want completed by the first attempt", rec)
	}
}

// TestCallerDisconnectsAfterTheCharge: that the caller is gone keeps nothing from being
// recorded, and a repeat gets it; nor does it end the lease of a handler that still runs.
func TestCallerDisconnectsAfterTheCharge(t *testing.T) {
	t.Parallel()
	ctx, disconnect := context.WithCancel(t.Context())
	finish := make(chan struct{})
	s := startService(t, func(ctx context.Context, l *ledger, e entry) (entry, error) {
		e, err := l.charge(ctx, e)
		disconnect()
		<-ctx.Done() // the server has noticed
		<-finish
		return e, err
	})
	if a := chargeOnce(ctx, s.addr, "order-1"); status.Code(a.err) != codes.Canceled {
		t.Fatalf("the call that was given up is answered %v, want CANCELED", a.err)
	}
	s.outlast(t, s.record(t)) // the handler still runs, so nobody else may
	close(finish)
	a := dialPayments(t, s.addr).charge(t.Context(), request("order-1"))
	charges := s.charges(t)
	if len(charges) != 1 || a.String() != charges[0].ID+" (repeat)" {
		t.Errorf("a repeat is answered %q, charges %v, want one, and its repeat", a, charges)
	}
	if rec := s.record(t); rec.AttemptNumber != 1 {
		t.Errorf("%d attempts, want 1", rec.AttemptNumber)
	}
}

// service is a guarded service in this process, with a lease of a second.
type service struct {
	addr, ledger string
	store        *pebblestore.Store
}

func startService(t *testing.T, trouble func(context.Context, *ledger, entry) (entry, error)) *service {
	t.Helper()
	dir := t.TempDir()
	s := &service{ledger: filepath.Join(dir, "ledger")}
	l, err := openLedger(s.ledger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.close() })
	if s.store, err = pebblestore.Open(filepath.Join(dir, "idemd"), pebblestore.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	})
	waiter := store.NewWaiter(s.store, store.WaiterOptions{})
	t.Cleanup(waiter.Close)
	server, _, err := newServer(waiter, troubled{l, trouble}, guarding{recover: true, lease: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }() // until GracefulStop
	t.Cleanup(server.GracefulStop)
	s.addr = listener.Addr().String()
	return s
}

// outlast returns when the lease that was granted would be over, and checks that a repeat
// is told to wait all the same.
func (s *service) outlast(t *testing.T, granted *store.Record) {
	t.Helper()
	eventually(t, "the lease that was granted would be over", func() bool {
		inspection, err := s.store.InspectRecord(t.Context(), keyOf("order-1"))
		return err == nil && inspection.Now.After(granted.LeaseEnd.Add(time.Second))
	})
	var a answer
	eventually(t, "an impatient repeat is answered before its deadline", func() bool {
		impatient, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		a = chargeOnce(impatient, s.addr, "order-1")
		return status.Code(a.err) != codes.DeadlineExceeded // a busy machine
	})
	if status.Code(a.err) != codes.Aborted || refusal(a.err) != "KEY_IN_PROGRESS" {
		t.Errorf("a repeat meanwhile is answered %v, want ABORTED KEY_IN_PROGRESS", a.err)
	}
}

func (s *service) charges(t *testing.T) []entry { return chargesOf(t, s.ledger)["order-1"] }

func (s *service) record(t *testing.T) *store.Record {
	t.Helper()
	inspection, err := s.store.InspectRecord(t.Context(), keyOf("order-1"))
	if err != nil {
		t.Fatal(err)
	}
	return inspection.Record
}

// chargeOnce sends a call once, by a connection that does not send it again.
func chargeOnce(ctx context.Context, addr, order string) answer {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return answer{err: err}
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, metadataAccount, "account-1", client.MetadataKey, order)
	response, err := pb.NewPaymentsServiceClient(conn).Charge(ctx, request(order))
	return answer{charge: response.GetCharge(), err: err}
}

// eventually waits for something that is true sooner or later.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	timeout := time.After(patience)
	for !is() {
		select {
		case <-again.C:
		case <-timeout:
			t.Fatalf("it does not come true that %s", what)
		}
	}
}
