package client_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	testv1 "github.com/idemd/idemd/proto/idemd/test/v1"
	"github.com/idemd/idemd/store"
)

// An interceptor outside that has sent the headers takes nothing from a repeat but these.
func TestReplayAfterTheHeadersWereSent(t *testing.T) {
	early := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if err := grpc.SendHeader(ctx, metadata.Pairs("x-request", "1")); err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
	rigged(t, rigOptions{
		guard: []client.GuardOption{client.NoOwner(), client.ReplayMetadata("location", "cost")},
		outer: []grpc.UnaryServerInterceptor{early},
	}, func(t *testing.T, r *rig) {
		for _, fails := range []error{nil, status.Error(codes.NotFound, "no such account")} {
			key := "k" + status.Code(fails).String()
			r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
				return &testv1.ChargeResponse{Receipt: "r"}, errors.Join(grpc.SetTrailer(ctx, metadata.Pairs("cost", "3")), fails)
			})
			for _, replayed := range []bool{false, true, true} {
				got := r.charge(&testv1.ChargeRequest{}, client.MetadataKey, key)
				if status.Code(got.err) != status.Code(fails) || fails == nil && got.response.GetReceipt() != "r" {
					t.Errorf("%v, %v, want the outcome of the first", got.response, got.err)
				}
				if marks := got.trailer.Get(client.MetadataReplayed); slices.Equal(marks, []string{"true"}) != replayed || !slices.Equal(got.trailer.Get("cost"), []string{"3"}) {
					t.Errorf("trailer %v, replayed is %v", got.trailer, replayed)
				}
			}
		}
		r.ran(2)
	})
}

// Metadata that gRPC does not take, which this guard would not have stored, is left out.
func TestReplayOfMetadataThatCannotBeSent(t *testing.T) {
	wrong := []store.MetadataEntry{
		{Name: "not a name", Value: []byte("v")}, {Name: "b d", Value: []byte("v")}, {Name: "value", Value: []byte("\x00\xff")},
		{Name: "right", Value: []byte("v")}, {Name: "right-bin", Value: []byte("\x00\xff")},
	}
	for _, o := range []*store.Outcome{{Header: wrong}, {Trailer: wrong}, {Header: wrong, Trailer: wrong}} {
		guarded(t, func(t *testing.T, r *rig) {
			r.service.fails(status.Error(codes.Unavailable, "gone"))
			r.once()
			o.Body, o.BodyType = []byte{0x0a, 1, 'r'}, "idemd.test.v1.ChargeResponse"
			_, err := r.store.inner.Resolve(t.Context(), store.ResolveRequest{Key: r.record().Key, AnyFence: true, Actor: "ann", Reason: "by another program", Outcome: o})
			if err != nil {
				t.Fatal(err)
			}
			got := r.once()
			r.ok(got, "r", true)
			if len(got.trailer.Get(client.MetadataReplayed)) != 0 {
				t.Errorf("marked twice: %v", got.trailer)
			}
			for _, sent := range []struct {
				md     metadata.MD
				stored []store.MetadataEntry
			}{{got.header, o.Header}, {got.trailer, o.Trailer}} {
				if right := sent.md.Get("right"); (len(right) == 1) != (sent.stored != nil) || len(sent.md.Get("right-bin")) != len(right) || len(sent.md.Get("value")) != 0 {
					t.Errorf("sent %v of %v", sent.md, sent.stored)
				}
			}
		})
	}
}

// Without a transport there is nowhere to say that it is a repeat, and it is one all the same.
func TestReplayWithoutATransport(t *testing.T) {
	guarded(t, func(t *testing.T, r *rig) {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(client.MetadataKey, key1))
		for range 2 {
			got, err := r.guard.UnaryServerInterceptor()(ctx, &testv1.ChargeRequest{}, &grpc.UnaryServerInfo{FullMethod: chargeMethod},
				func(ctx context.Context, _ any) (any, error) { return r.service.run(ctx) })
			if err != nil || got.(*testv1.ChargeResponse).GetReceipt() != "receipt-1" {
				t.Errorf("%v, %v", got, err)
			}
		}
		r.ran(1)
	})
}

// The guard's own marks are not those of the first call.
func TestVerifyRefusesToReplayItsOwnMarks(t *testing.T) {
	for _, name := range []string{client.MetadataReplayed, client.MetadataNotRecorded, client.MetadataGuarded} {
		equalLines(t, verify(t, client.NoOwner(), client.Unguarded(auditMethod, importMethod, watchMethod), client.ReplayMetadata(name)), name+"|guard itself")
	}
}

// Case 32: of an outcome that is too large with its metadata, the response is kept.
func TestCase32MetadataTooLarge(t *testing.T) {
	for _, test := range []struct{ limit, headers, each int }{
		{store.MaxOutcomeBytes, 10, 30 << 10},
		{1 << 10, 1, 2 << 10}, // as the store alone knows
	} {
		guarded(t, func(t *testing.T, r *rig) {
			ns := store.Namespace{Name: "other", MaxOutcomeBytes: test.limit}.WithDefaults()
			if _, err := r.store.inner.CreateNamespace(t.Context(), ns); err != nil {
				t.Fatal(err)
			}
			r.service.does(func(ctx context.Context) (*testv1.ChargeResponse, error) {
				for range test.headers {
					if err := grpc.SetHeader(ctx, metadata.Pairs("location", strings.Repeat("l", test.each))); err != nil {
						return nil, err
					}
				}
				return &testv1.ChargeResponse{Receipt: "r"}, grpc.SetTrailer(ctx, metadata.Pairs("location", "/1"))
			})
			first := r.once()
			r.ok(first, "r", false)
			if len(first.header.Get("location")) != test.headers || len(first.trailer.Get(client.MetadataNotRecorded)) != 0 {
				t.Errorf("the first call got %d headers, and trailer %v", len(first.header.Get("location")), first.trailer)
			}
			again := r.once()
			r.ok(again, "r", true)
			if got := append(again.header.Get("location"), again.trailer.Get("location")...); len(got) != 0 {
				t.Errorf("%d values of the metadata are kept, of %d", len(got), test.headers+1)
			}
			r.ran(1)
		}, client.ReplayMetadata("location"), client.Namespace("other"))
	}
}
