package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

const (
	chargeMethod   = "/idemd.test.v1.PaymentService/Charge"
	refundMethod   = "/idemd.test.v1.PaymentService/Refund"
	transferMethod = "/idemd.test.v1.PaymentService/Transfer"
	auditMethod    = "/idemd.test.v1.PaymentService/Audit"
	balanceMethod  = "/idemd.test.v1.PaymentService/GetBalance"
	pingMethod     = "/idemd.test.v1.PaymentService/Ping"
	watchMethod    = "/idemd.test.v1.PaymentService/Watch"
	importMethod   = "/idemd.test.v1.PaymentService/Import"
)

// payments is a service all of whose methods do the same.
type payments struct {
	testv1.UnimplementedPaymentServiceServer

	mu   sync.Mutex
	runs int
	do   func(context.Context) (*testv1.ChargeResponse, error)
}

func (p *payments) run(ctx context.Context) (*testv1.ChargeResponse, error) {
	p.mu.Lock()
	p.runs++
	do := p.do
	p.mu.Unlock()
	return do(ctx)
}

// does sets what a call does.
func (p *payments) does(do func(context.Context) (*testv1.ChargeResponse, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.do = do
}

func (p *payments) fails(err error) {
	p.does(func(context.Context) (*testv1.ChargeResponse, error) { return nil, err })
}

func (p *payments) ran() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs
}

func (p *payments) Charge(ctx context.Context, _ *testv1.ChargeRequest) (*testv1.ChargeResponse, error) {
	return p.run(ctx)
}

func (p *payments) Refund(ctx context.Context, _ *testv1.RefundRequest) (*testv1.ChargeResponse, error) {
	return p.run(ctx)
}

func (p *payments) Transfer(ctx context.Context, _ *testv1.TransferRequest) (*testv1.ChargeResponse, error) {
	return p.run(ctx)
}

func (p *payments) GetBalance(ctx context.Context, _ *testv1.ChargeRequest) (*testv1.ChargeResponse, error) {
	return p.run(ctx)
}

func (p *payments) Ping(ctx context.Context, _ *testv1.ChargeRequest) (*testv1.ChargeResponse, error) {
	return p.run(ctx)
}

func (p *payments) Audit(ctx context.Context, _ *testv1.ChargeRequest) (*testv1.ChargeResponse, error) {
	return p.run(ctx)
}

func (p *payments) Watch(_ *testv1.ChargeRequest, stream grpc.ServerStreamingServer[testv1.ChargeResponse]) error {
	response, err := p.run(stream.Context())
	if err != nil {
		return err
	}
	return stream.Send(response)
}

func (p *payments) Import(stream grpc.ClientStreamingServer[testv1.ChargeRequest, testv1.ChargeResponse]) error {
	for {
		if _, err := stream.Recv(); err == io.EOF { //nolint:errorlint // gRPC returns io.EOF itself
			break
		} else if err != nil {
			return err
		}
	}
	response, err := p.run(stream.Context())
	if err != nil {
		return err
	}
	return stream.SendAndClose(response)
}

// hangingStore is slow where it is told to be.
type hangingStore struct {
	*faultyStore
	mu    sync.Mutex
	hangs bool
	first map[string]func() // what comes before an operation
}

// hang makes Claims go without an answer.
func (s *hangingStore) hang(hangs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangs = hangs
}

// before has f called before each of the operations.
func (s *hangingStore) before(operation string, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first[operation] = f
}

// stall makes the operations slow, whatever their context says.
func (s *hangingStore) stall(operation string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first[operation] = func() { time.Sleep(d) }
}

func (s *hangingStore) begin(operation string) (hangs bool) {
	s.mu.Lock()
	hangs = s.hangs
	first := s.first[operation]
	s.mu.Unlock()
	if first != nil {
		first()
	}
	return hangs
}

func (s *hangingStore) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	if s.begin("claim") {
		<-ctx.Done()
		return store.ClaimAnswer{}, ctx.Err()
	}
	return s.faultyStore.Claim(ctx, req)
}

func (s *hangingStore) Renew(ctx context.Context, req store.RenewRequest) (store.RenewAnswer, error) {
	s.begin("renew")
	return s.faultyStore.Renew(ctx, req)
}

func (s *hangingStore) Complete(ctx context.Context, req store.CompleteRequest) (store.CompleteAnswer, error) {
	s.begin("complete")
	return s.faultyStore.Complete(ctx, req)
}

// total counts the calls of the store.
func (s *hangingStore) total() int {
	s.faultyStore.mu.Lock()
	defer s.faultyStore.mu.Unlock()
	total := 0
	for _, n := range s.calls {
		total += n
	}
	return total
}

// A rig is a guarded gRPC server, and a connection to it.
type rig struct {
	t       *testing.T
	store   *hangingStore
	events  *eventLog
	service *payments
	guard   *client.Guard
	server  *grpc.Server
	conn    *grpc.ClientConn
	calls   testv1.PaymentServiceClient

	mu    sync.Mutex
	conns []net.Conn // of the server
}

type rigOptions struct {
	guard  []client.GuardOption
	outer  []grpc.UnaryServerInterceptor // outside the guard
	inner  []grpc.UnaryServerInterceptor
	caller []grpc.DialOption
}

// rigged runs a test in a bubble, with a server whose guard has options.
func rigged(t *testing.T, o rigOptions, test func(*testing.T, *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newRig(t, o)) })
}

// guarded runs a test in a bubble, with a guard of options and no owner.
func guarded(t *testing.T, test func(t *testing.T, r *rig), opts ...client.GuardOption) {
	t.Helper()
	rigged(t, rigOptions{guard: append(opts, client.NoOwner())}, test)
}

func newRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	r := &rig{t: t, store: &hangingStore{faultyStore: newStore(t), first: map[string]func(){}}, events: &eventLog{}, service: &payments{}}
	r.service.does(func(context.Context) (*testv1.ChargeResponse, error) {
		return &testv1.ChargeResponse{Receipt: "receipt-1"}, nil
	})
	r.guard = client.NewGuard(r.store, append(o.guard, client.OnEvent(r.events.add))...)
	options := []grpc.ServerOption{grpc.ChainUnaryInterceptor(o.outer...), grpc.MaxSendMsgSize(16 << 20)}
	options = append(options, r.guard.ServerOptions()...)
	r.server = grpc.NewServer(append(options, grpc.ChainUnaryInterceptor(o.inner...), grpc.WaitForHandlers(true))...)
	testv1.RegisterPaymentServiceServer(r.server, r.service)
	listener := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(&keepingListener{listener, r}) }()
	conn, err := grpc.NewClient("passthrough:///bufconn", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16 << 20)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	}, o.caller...)...)
	if err != nil {
		t.Fatal(err)
	}
	r.conn, r.calls = conn, testv1.NewPaymentServiceClient(conn)
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		r.server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := client.Drain(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// keepingListener keeps what it accepts for cut.
type keepingListener struct {
	net.Listener
	rig *rig
}

func (l *keepingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.rig.mu.Lock()
		l.rig.conns = append(l.rig.conns, conn)
		l.rig.mu.Unlock()
	}
	return conn, err
}

// cut breaks the connections to the server.
func (r *rig) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.conns {
		_ = conn.Close() // it may be closed already
	}
	r.conns = nil
}

// reply is all that a caller gets.
type reply struct {
	response        *testv1.ChargeResponse
	header, trailer metadata.MD
	err             error
}

func keyed(t *testing.T, pairs ...string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), pairs...)
}

// charge calls Charge with metadata.
func (r *rig) charge(req *testv1.ChargeRequest, pairs ...string) reply {
	return r.chargeAs(keyed(r.t, pairs...), req)
}

func (r *rig) chargeAs(ctx context.Context, req *testv1.ChargeRequest, opts ...grpc.CallOption) reply {
	var got reply
	got.response, got.err = r.calls.Charge(ctx, req, append(opts, grpc.Header(&got.header), grpc.Trailer(&got.trailer))...)
	return got
}

const key1 = "order-1"

// once calls Charge with one key and one request.
func (r *rig) once() reply {
	return r.charge(&testv1.ChargeRequest{Account: "a", Amount: 42}, client.MetadataKey, key1)
}

func (r *rig) record() *store.Record { return r.recordOf(chargeMethod, key1, "") }

// recordOf returns what the store has of a key; nil if nothing.
func (r *rig) recordOf(scope, id, entity string) *store.Record {
	r.t.Helper()
	return r.recordOfKey(store.Key{Namespace: "default", Scope: scope, ID: id, Entity: entity})
}

func (r *rig) recordOfKey(key store.Key) *store.Record {
	r.t.Helper()
	got, err := r.store.inner.InspectRecord(r.t.Context(), key)
	if err != nil && !errors.Is(err, store.ErrKeyNotFound) {
		r.t.Fatal(err)
	}
	return got.Record
}

func (r *rig) state(want store.State) {
	r.t.Helper()
	if rec := r.record(); rec == nil || rec.State != want {
		r.t.Errorf("the record is %+v, want state %v", rec, want)
	}
}

func (r *rig) ran(want int) {
	r.t.Helper()
	if got := r.service.ran(); got != want {
		r.t.Errorf("the handler ran %d times, want %d", got, want)
	}
}

func (r *rig) told(want ...client.EventKind) {
	r.t.Helper()
	equalKinds(r.t, r.events.take(), want...)
}

// ok checks that a call succeeded.
func (r *rig) ok(got reply, receipt string, replayed bool) {
	r.t.Helper()
	if got.err != nil || got.response.GetReceipt() != receipt {
		r.t.Errorf("got %v, %v, want receipt %q", got.response, got.err, receipt)
	}
	if marks := got.header.Get(client.MetadataReplayed); slices.Equal(marks, []string{"true"}) != replayed || !replayed && len(marks) != 0 {
		r.t.Errorf("header %s: %v, replayed is %v", client.MetadataReplayed, marks, replayed)
	}
}

// refused checks the code, the reason, and whether there is a RetryInfo.
func refused(t *testing.T, err error, code codes.Code, reason string) *status.Status {
	t.Helper()
	st := status.Convert(err)
	var got, domain string
	hint := false
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			got, domain = d.GetReason(), d.GetDomain()
		case *errdetails.RetryInfo:
			hint = d.GetRetryDelay().AsDuration() > 0
		}
	}
	if st.Code() != code || got != reason || domain != "idemd" {
		t.Errorf("got %v with reason %q of %q, want %v %s; %v", st.Code(), got, domain, code, reason, err)
	}
	if want := code == codes.Aborted && reason == "KEY_IN_PROGRESS" || code == codes.Unavailable || code == codes.ResourceExhausted || reason == "INTERNAL"; hint != want {
		t.Errorf("RetryInfo is there: %v, want %v", hint, want)
	}
	return st
}

func equalStatus(t *testing.T, got, want error) {
	t.Helper()
	if !proto.Equal(status.Convert(got).Proto(), status.Convert(want).Proto()) {
		t.Errorf("got %v, want %v", status.Convert(got).Proto(), status.Convert(want).Proto())
	}
}
