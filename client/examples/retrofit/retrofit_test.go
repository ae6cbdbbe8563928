// Package retrofit shows that a gRPC service that was written without idemd in mind is
// guarded with ten changed lines: those of this test, put into the examples of grpc-go.
package retrofit

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/internal/idemdtest"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// maxChangedLines is what a retrofit may cost.
const maxChangedLines = 10

const (
	sayHello     = "/helloworld.Greeter/SayHello"
	getFeature   = "/routeguide.RouteGuide/GetFeature"
	listFeatures = "/routeguide.RouteGuide/ListFeatures"
)

// greeter is the retrofit of helloworld/greeter_server; observing is with client.Observe.
func greeter(idemd string, observing bool) program {
	observe := ""
	if observing {
		observe = " client.Observe(),"
	}
	return program{
		path: "helloworld/greeter_server/main.go",
		edits: []edit{
			{before(`"flag"`), []string{`"errors"`}},
			{before(`"google.golang.org/grpc"`), []string{`"github.com/idemd/idemd/client"`}},
			{before(`s := grpc.NewServer()`), []string{
				`idemd, err := client.Dial("` + idemd + `")`,
				`guard := client.NewGuard(idemd, client.NoOwner(),` + observe,
				`	client.Method(pb.Greeter_SayHello_FullMethodName, client.Policy{}),`,
				`	client.OnEvent(func(e client.Event) { log.Println("idemd:", e.Kind) }))`,
			}},
			{instead(`s := grpc.NewServer()`), []string{`s := grpc.NewServer(guard.ServerOptions()...)`}},
			{before(`log.Printf("server listening at`), []string{
				`if err := errors.Join(err, guard.Verify(s)); err != nil {`,
				`	log.Fatal(err)`,
				`}`,
			}},
		},
	}
}

// TestGreeter goes the way of a service that exists: it is observed, and then guarded.
func TestGreeter(t *testing.T) {
	m := examples(t)
	idemd := idemdtest.Serve(t, storetest.NewMemory(store.SystemClock{}))

	t.Run("observed", func(t *testing.T) {
		p := greeter(idemd, true).start(t, m)
		p.call(t, sayHello, "order-1", hello("Ann"))
		p.await(t, "idemd: recorded") // nobody waits for it, so the repeat would be one in flight
		for i, name := range []string{"Ann", "Bob"} {
			if got := p.call(t, sayHello, "order-1", hello(name)); got.err != nil || got.replayed {
				t.Errorf("repeat %d: %+v", i, got)
			}
		}
		p.logs(t, "idemd: granted", "Received: Ann", "idemd: recorded", "idemd: replayed", "Received: Ann", "idemd: mismatch", "Received: Bob")
	})

	t.Run("guarded", func(t *testing.T) {
		p := greeter(idemd, false).start(t, m)
		first := p.call(t, sayHello, "order-2", hello("Ann"))
		second := p.call(t, sayHello, "order-2", hello("Ann"))
		if first.err != nil || first.replayed || string(first.response) != string(hello("Hello Ann")) {
			t.Errorf("first: %+v", first)
		}
		if second.err != nil || !second.replayed || string(second.response) != string(first.response) {
			t.Errorf("second: %+v, first: %+v", second, first)
		}
		if other := p.call(t, sayHello, "order-2", hello("Bob")); status.Code(other.err) != codes.FailedPrecondition {
			t.Errorf("the key with another request: %+v", other)
		}
		if unkeyed := p.call(t, sayHello, "", hello("Eve")); unkeyed.err != nil {
			t.Errorf("without a key, as ever: %+v", unkeyed)
		}
		p.logs(t, "idemd: granted", "Received: Ann", "idemd: recorded", "idemd: replayed", "idemd: mismatch", "idemd: no_key", "Received: Eve")
	})
}

// routeGuide is the retrofit of route_guide/server; unguarded names its other methods.
func routeGuide(idemd, unguarded string) program {
	return program{
		path: "route_guide/server/server.go",
		edits: []edit{
			{before(`"flag"`), []string{`"errors"`}},
			{before(`"google.golang.org/grpc"`), []string{`"github.com/idemd/idemd/client"`}},
			{before(`grpcServer := grpc.NewServer(opts...)`), []string{
				`idemd, err := client.Dial("` + idemd + `")`,
				`guard := client.NewGuard(idemd, client.NoOwner(),`,
				`	client.Method(pb.RouteGuide_GetFeature_FullMethodName, client.Policy{}),`,
				`	client.Unguarded(` + unguarded + `))`,
				`opts = append(opts, guard.ServerOptions()...)`,
			}},
			{before(`grpcServer.Serve(lis)`), []string{
				`if err := errors.Join(err, guard.Verify(grpcServer)); err != nil {`,
				`	log.Fatal(err)`,
				`}`,
			}},
		},
	}
}

// TestRouteGuide is about a service with streaming methods, which cannot be guarded: it does
// not start before somebody has said that they need not be.
func TestRouteGuide(t *testing.T) {
	m := examples(t)
	idemd := idemdtest.Serve(t, storetest.NewMemory(store.SystemClock{}))

	t.Run("undeclared streams", func(t *testing.T) {
		said := routeGuide(idemd, "").startAndFail(t, m)
		for _, name := range []string{"ListFeatures", "RecordRoute", "RouteChat"} {
			if !strings.Contains(said, "/routeguide.RouteGuide/"+name+": nobody has said whether it needs a guard; it is a streaming method") {
				t.Errorf("%s is not named in:\n%s", name, said)
			}
		}
		if strings.Contains(said, getFeature) {
			t.Errorf("GetFeature is declared, and named in:\n%s", said)
		}
	})

	t.Run("guarded", func(t *testing.T) {
		p := routeGuide(idemd, "pb.RouteGuide_ListFeatures_FullMethodName, pb.RouteGuide_RecordRoute_FullMethodName, pb.RouteGuide_RouteChat_FullMethodName").start(t, m)
		origin := []byte{} // the Point 0, 0
		first, second := p.call(t, getFeature, "trip-1", origin), p.call(t, getFeature, "trip-1", origin)
		if first.err != nil || first.replayed || second.err != nil || !second.replayed || string(first.response) != string(second.response) {
			t.Errorf("first %+v, second %+v", first, second)
		}
		if n := p.countStream(t, listFeatures, everywhere()); n != 100 {
			t.Errorf("the stream has %d features, want the 100 of the example", n)
		}
	})
}

// answer is what a caller gets, as it was on the wire.
type answer struct {
	response raw
	replayed bool
	err      error
}

func (r *running) call(t *testing.T, method, key string, request raw) answer {
	t.Helper()
	ctx := t.Context()
	if key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, client.MetadataKey, key)
	}
	var got answer
	var header metadata.MD
	got.err = r.conn.Invoke(ctx, method, &request, &got.response, grpc.Header(&header), grpc.WaitForReady(true))
	got.replayed = slices.Equal(header.Get(client.MetadataReplayed), []string{"true"})
	return got
}

// countStream counts the messages of a server's stream.
func (r *running) countStream(t *testing.T, method string, request raw) int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := r.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(&request); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	return count(t, stream)
}
