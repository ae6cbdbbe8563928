package server

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server/identity"
	"github.com/idemd/idemd/server/identity/devca"
)

// entrance is a door in a test, and what came through it.
type entrance struct {
	testing.TB
	*rig // for its log and metrics
	lis  *bufconn.Listener
	let  chan *passed
}

func newEntrance(t testing.TB, most, strangers int) *entrance {
	e := &entrance{TB: t, rig: newRig(t, newMemory()), lis: bufconn.Listen(1 << 20), let: make(chan *passed, 1)}
	e.listen(e.lis, most, strangers)
	return e
}

// listen lets in who comes to a listener.
func (e *entrance) listen(lis net.Listener, most, strangers int) {
	d := newDoor(lis, most, strangers, e.config.Logger, e.config.Metrics)
	go func() {
		for {
			c, err := d.Accept()
			if err != nil {
				return
			}
			e.let <- c.(*passed)
		}
	}()
}

func (e *entrance) close() {
	_ = e.lis.Close()
	e.rig.close()
}

// guest is the two ends of a connection.
type guest struct {
	outside net.Conn
	inside  *passed // nil: it was not let in

	mu    sync.Mutex
	ended bool
}

// knock makes a connection.
func (e *entrance) knock() *guest {
	e.Helper()
	outside, err := e.lis.DialContext(e.Context())
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { _ = outside.Close() }) // it is closed already, or not
	synctest.Wait()
	g := &guest{outside: outside}
	select {
	case g.inside = <-e.let:
	default:
	}
	go func() {
		_, err := io.Copy(io.Discard, outside)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.ended = err == nil
	}()
	return g
}

// open reports whether the connection is.
func (g *guest) open() bool {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.ended
}

// Strangers have few of the places, and who came first makes room for who comes; a caller who is
// known makes room for none of them.
func TestStrangersMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEntrance(t, 4, 2)
		defer e.close()
		all := map[string]*guest{}
		come := func(name string) { all[name] = e.knock() }
		known := func(name string) { all[name].inside.peer.met("token:someone") }
		are := func(want string) {
			t.Helper()
			var open []string
			for _, name := range strings.Split("a b c d e f g h i", " ") {
				if g := all[name]; g != nil && g.open() {
					open = append(open, name)
				}
			}
			if got := strings.Join(open, " "); got != want {
				t.Errorf("%q are open, want %q", got, want)
			}
		}
		come("a")
		come("b")
		are("a b")
		come("c")
		are("b c")
		known("b")
		known("b") // a second time is nothing
		come("d")
		are("b c d")
		come("e")
		are("b d e")
		known("d")
		come("f")
		are("b d e f")
		come("g") // all places are taken
		are("b d f g")
		come("h")
		are("b d g h")
		time.Sleep(time.Second)
		known("h") // of all who are known whoever has most has one too many, for longest
		come("i")
		if !all["h"].open() || !all["i"].open() || all["b"].open() == all["d"].open() {
			t.Error("one of b and d makes room for h")
		}
		if got := e.value("idemd_refused_connections_total"); got != 5 {
			t.Errorf("counted %v", got)
		}
	})
}

func TestStrangersMayNotStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for strangers, stay := range map[int]bool{2: false, 0: true} {
			e := newEntrance(t, 4, strangers)
			g, caller := e.knock(), e.knock()
			caller.inside.peer.met("token:someone")
			time.Sleep(strangerTime - 1)
			if !g.open() || !caller.open() {
				t.Error("closed too early")
			}
			time.Sleep(time.Hour)
			if g.open() != stay || !caller.open() {
				t.Errorf("where %d may be strangers: the stranger's is open: %t, the caller's: %t", strangers, g.open(), caller.open())
			}
			if got := e.value("idemd_refused_connections_total"); got != 0 {
				t.Errorf("counted %v as refused", got)
			}
			_ = caller.inside.Close()
			_ = g.inside.Close()
			e.close()
		}
	})
}

// What a stranger sends takes little memory, and of a caller all is read.
func TestLittleIsReadOfAStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEntrance(t, 8, 4)
		defer e.close()
		for _, known := range []bool{false, true} {
			g := e.knock()
			go func() { _, _ = g.outside.Write(make([]byte, 3*strangerBytes)) }()
			var read atomic.Int64
			ended := make(chan error, 1)
			go func() {
				for buffer := make([]byte, 1000); ; {
					n, err := g.inside.Read(buffer)
					if read.Add(int64(n)) == 3*strangerBytes || err != nil {
						ended <- err
						return
					}
				}
			}()
			synctest.Wait()
			if got := read.Load(); got != strangerBytes {
				t.Errorf("%d bytes are read of a stranger, want %d", got, strangerBytes)
			}
			if known {
				g.inside.peer.met("token:someone")
			}
			if err := <-ended; known != (err == nil) || known && read.Load() != 3*strangerBytes {
				t.Errorf("known: %t: %d bytes, %v", known, read.Load(), err)
			}
		}
	})
}

// Who shows nothing that counts must leave, whatever it asks for: a watch of health is open to
// anybody. Who has shown something stays.
func TestWhoMayStay(t *testing.T) {
	secret, line, _ := identity.NewToken("claims", time.Time{})
	noGrant, noGrantLine, _ := identity.NewToken("nobody", time.Time{})
	for name, test := range map[string]struct {
		principal, token string
		stays            bool
	}{
		"nothing":                          {"", "", false},
		"a certificate":                    {paymentsCaller, "", true},
		"a certificate with a DNS name":    {everyCaller, "", true},
		"a peer's certificate":             {region, "", true},
		"a certificate that has no grant":  {stranger, "", false},
		"a token":                          {"", secret, true},
		"a token beside a bad certificate": {stranger, secret, true},
		"a token that does not count":      {"", "idemd_x", false},
		"a token that has no grant":        {"", noGrant, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSecured(t)
				defer s.close()
				s.change("tokens", line+"\n"+noGrantLine)
				var own *devca.Pair
				if test.principal != "" {
					own = s.certOf(test.principal)
				}
				conn := s.dial(own)
				watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
				if err == nil {
					_, err = watch.Recv()
				}
				if err != nil {
					t.Fatal(err)
				}
				if test.token != "" {
					ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+test.token)
					_, _ = pb.NewIdempotencyServiceClient(conn).Lookup(ctx, &pb.LookupRequest{}) // it is refused
				}
				ended := make(chan error, 1)
				go func() {
					_, err := watch.Recv()
					ended <- err
				}()
				time.Sleep(strangerTime)
				synctest.Wait()
				select {
				case err := <-ended:
					if test.stays || status.Code(err) != codes.Unavailable {
						t.Errorf("must leave: %v", err)
					}
				default:
					if !test.stays {
						t.Error("may stay")
					}
				}
			})
		})
	}
}

// Where nobody is told apart nobody is a stranger, nor is who is on this machine in plain text.
func TestWhereThereAreStrangers(t *testing.T) {
	s := newSecured(t)
	plain, err := identity.Load(identity.Options{Tokens: s.path("tokens"), Policy: s.path("policy.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	local := bufconn.Listen(1)
	for name, test := range map[string]struct {
		authority *identity.Authority
		lis       net.Listener
		want      int
	}{
		"with TLS and a policy":                {s.authority, local, maxConnections / 4},
		"for other machines":                   {s.authority, &publicListener{}, maxConnections / 4},
		"tokens in plain text on this machine": {plain, local, 0},
		"tokens in plain text from afar":       {plain, &publicListener{}, maxConnections / 4},
		"nothing":                              {nil, local, 0},
		"nothing, for other machines":          {nil, &publicListener{}, 0},
	} {
		srv := Server{config: Config{Identity: test.authority, Metrics: s.config.Metrics}}
		if got := srv.door(test.lis, maxConnections, test.authority.Encrypts()).strangers; got != test.want {
			t.Errorf("%s: %d", name, got)
		}
	}
}

// A watch is open to anybody, and there are only so many.
func TestWatchesAreBounded(t *testing.T) {
	r := newRig(t, newMemory())
	first, cancel := context.WithCancel(t.Context())
	defer cancel()
	conn := r.connect()
	watch := func(ctx context.Context) error {
		w, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = w.Recv()
		}
		return err
	}
	for range maxWatches {
		if err := watch(first); err != nil {
			t.Fatal(err)
		}
	}
	if code, reason := reasonIn(watch(t.Context())); code != codes.ResourceExhausted || reason != "OVERLOADED" {
		t.Errorf("one more on the connection: %v, %s", code, reason)
	}
	conn = r.connect()
	r.health.watches.Add(maxAllWatches - maxWatches)
	if code, reason := reasonIn(watch(t.Context())); code != codes.ResourceExhausted || reason != "OVERLOADED" {
		t.Errorf("one more in all: %v, %s", code, reason)
	}
	r.health.watches.Add(-1)
	if err := watch(t.Context()); err != nil {
		t.Errorf("though there is room: %v", err)
	}
}
