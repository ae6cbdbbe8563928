package region

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is some regions in one process, which reach each other through pipes.
type world struct {
	testing.TB
	clock *storetest.Clock
	sites map[string]*site
	// prepare, if set, changes what a region is started with.
	prepare func(*site, *Config)

	mu    sync.Mutex
	cut   map[string]bool // "from>to": silent
	conns []*pipe
}

// site is one region.
type site struct {
	world   *world
	name    string
	addr    string
	rules   string // the placements of its topology file
	regions []string
	store   store.Backend

	region *Region
	router store.Backend
	log    *logBuffer
	events *events
	waiter *store.Waiter
	server *grpc.Server
	lis    *bufconn.Listener
	served chan struct{}
}

const everythingSpread = `"*": spread eu us ap`

// build makes regions that are not started.
func build(t testing.TB, rules string, names ...string) *world {
	w := &world{TB: t, clock: storetest.NewClock(), sites: map[string]*site{}, cut: map[string]bool{}}
	w.clock.OnChange(w.readClocks)
	for i, name := range names {
		w.sites[name] = &site{
			world: w, name: name, addr: fmt.Sprintf("10.0.0.%d:7600", i+1), rules: rules, regions: names, store: storetest.NewMemory(w.clock),
		}
	}
	return w
}

// readClocks has the clocks of all stores see each step at once: each follows the wall only when
// it is read.
func (w *world) readClocks() {
	for _, s := range w.sites {
		_, _ = s.store.ListRecords(context.Background(), store.ListRequest{Namespace: store.DefaultNamespace})
	}
}

// start makes regions and waits until all of them reach each other and the default namespace has
// a home in all.
func start(t testing.TB, rules string, names ...string) *world {
	t.Helper()
	w := build(t, rules, names...)
	w.startAll()
	return w
}

func (w *world) startAll() {
	w.Helper()
	for _, s := range w.sites {
		s.listening() // so that none has to be dialled twice
	}
	for _, name := range slices.Sorted(maps.Keys(w.sites)) {
		w.sites[name].start()
	}
	w.join()
}

// join waits until all regions reach each other, and lets them agree.
func (w *world) join() {
	w.Helper()
	for _, s := range w.sites {
		for name := range s.region.peers {
			s.events.wait(w, name, true)
		}
	}
	for _, s := range w.sites {
		s.events.until(w, s.name+" has joined", func() bool { return s.events.joined })
	}
	for _, s := range w.sites {
		s.settle()
	}
}

// settle lets the region agree with its peers. One that has just come back may still be asked over
// the connection that broke when it went.
func (s *site) settle() {
	s.world.Helper()
	err := s.region.settle(s.world.Context())
	for range 20 {
		if !errors.Is(err, store.ErrHomeUnreachable) {
			break
		}
		<-time.After(pingInterval)
		err = s.region.settle(s.world.Context())
	}
	if err != nil {
		s.world.Fatalf("%s: %v", s.name, err)
	}
}

func (w *world) eu() *site { return w.sites["eu"] }
func (w *world) us() *site { return w.sites["us"] }
func (w *world) ap() *site { return w.sites["ap"] }

func (s *site) topology() string {
	var b strings.Builder
	b.WriteString("regions:\n")
	for _, name := range s.regions {
		fmt.Fprintf(&b, "  %s: {address: %q}\n", name, s.world.sites[name].addr)
	}
	b.WriteString("placements:\n")
	for _, rule := range strings.Split(s.rules, "\n") {
		fmt.Fprintf(&b, "  %s\n", rule)
	}
	return b.String()
}

// start starts the region, and fails the test if it does not.
func (s *site) start() {
	s.world.Helper()
	if err := s.tryStart(); err != nil {
		s.world.Fatal(err)
	}
}

func (s *site) tryStart() error {
	topology, err := ParseTopology([]byte(s.topology()), s.name)
	if err != nil {
		return err
	}
	s.log, s.events = &logBuffer{}, newEvents()
	config := Config{
		Name: s.name, Topology: topology, Store: s.store, Observer: s.events,
		Logger: slog.New(slog.NewTextHandler(s.log, nil)),
		Dial:   func(ctx context.Context, addr string) (net.Conn, error) { return s.world.dial(ctx, s.name, addr) },
	}
	if s.world.prepare != nil {
		s.world.prepare(s, &config)
	}
	if s.region, err = New(s.world.Context(), config); err != nil {
		return err
	}
	local := s.local(config.Store)
	s.router = s.region.Over(local)
	s.server = grpc.NewServer(grpc.WaitForHandlers(true))
	s.region.Register(s.server, local)
	lis := s.listening()
	s.served = make(chan struct{})
	go func() {
		defer close(s.served)
		_ = s.server.Serve(lis) // until stop
	}()
	s.world.Cleanup(s.stop)
	return nil
}

// local is what a server puts over its store: claims can wait.
func (s *site) local(b store.Backend) store.Backend {
	over := newStandIn(b)
	s.waiter = over.waiter
	return over
}

// stop stops the region; a second one does nothing.
func (s *site) stop() {
	if s.server == nil {
		return
	}
	s.listens(nil)
	s.region.Drain()
	s.waiter.Close()
	s.server.Stop()
	<-s.served
	s.region.Close()
	s.server = nil
}

// listening is the region's listener, which others can dial from now on.
func (s *site) listening() *bufconn.Listener {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	if s.lis == nil {
		s.lis = bufconn.Listen(1 << 20)
	}
	return s.lis
}

func (s *site) listens(lis *bufconn.Listener) {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	s.lis = lis
}

// dial connects two regions.
func (w *world) dial(ctx context.Context, from, addr string) (net.Conn, error) {
	for _, to := range w.sites {
		if to.addr != addr {
			continue
		}
		w.mu.Lock()
		cut, lis := w.cut[from+">"+to.name], to.lis
		w.mu.Unlock()
		if cut {
			<-ctx.Done() // as a SYN that nobody answers
			return nil, ctx.Err()
		}
		if lis == nil {
			return nil, fmt.Errorf("nobody listens on %s", addr)
		}
		conn, err := lis.DialContext(ctx)
		if err != nil {
			return nil, err
		}
		p := &pipe{Conn: conn, from: from, to: to.name, closed: make(chan struct{})}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.conns = append(w.conns, p)
		return p, nil
	}
	return nil, fmt.Errorf("no route to %s", addr)
}

// pipe is a connection between two regions. Once silent it swallows what is written and never
// says anything.
type pipe struct {
	net.Conn
	from, to string

	mu     sync.Mutex
	silent bool
	once   sync.Once
	closed chan struct{}
}

func (p *pipe) isSilent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.silent
}

func (p *pipe) Write(b []byte) (int, error) {
	if p.isSilent() {
		return len(b), nil
	}
	return p.Conn.Write(b)
}

func (p *pipe) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if p.isSilent() {
		<-p.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.Conn.Close()
}

// silence makes a black hole of all that the region from says to another, and hears from it.
func (w *world) silence(from, to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[from+">"+to] = true
	for _, p := range w.conns {
		if p.from == from && p.to == to {
			p.mu.Lock()
			p.silent = true
			p.mu.Unlock()
		}
	}
}

// sever ends the connections at once; new ones can be made.
func (w *world) sever(from, to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.conns {
		if p.from == from && p.to == to {
			_ = p.Close()
		}
	}
}

func (w *world) heal(from, to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.cut, from+">"+to)
}

// events is an Observer whose events can be waited for.
type events struct {
	mu        sync.Mutex
	changed   chan struct{}
	up        map[string]bool
	forwarded map[string]int // "home result"
	stoodIn   map[string]int
	disputed  int
	joined    bool
	strangers map[string]bool
	moving    map[string]string // "step, for so long", by namespace
}

func newEvents() *events {
	return &events{changed: make(chan struct{}), up: map[string]bool{}, forwarded: map[string]int{}, stoodIn: map[string]int{}, strangers: map[string]bool{}, moving: map[string]string{}}
}

func (e *events) note(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *events) PeerUp(region string, up bool)   { e.note(func() { e.up[region] = up }) }
func (e *events) RoundTrip(string, time.Duration) { e.note(func() {}) }
func (e *events) StoodIn(home string)             { e.note(func() { e.stoodIn[home]++ }) }
func (e *events) Disputed(n int)                  { e.note(func() { e.disputed = n }) }
func (e *events) Joined(is bool)                  { e.note(func() { e.joined = is }) }
func (e *events) Stranger(region string, is bool) { e.note(func() { e.strangers[region] = is }) }
func (e *events) Moving(namespace, step string, lasts time.Duration) {
	e.note(func() { e.moving[namespace] = fmt.Sprintf("%s, for %v", step, lasts.Round(time.Minute)) })
}
func (e *events) Forwarded(home string, r ForwardResult) {
	e.note(func() { e.forwarded[home+" "+r]++ })
}

func (e *events) count(what string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.forwarded[what]
}

func (e *events) holds(what func() bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return what()
}

// wait waits until a region is reachable, or is not.
func (e *events) wait(t testing.TB, region string, up bool) {
	t.Helper()
	e.until(t, fmt.Sprintf("region %s is reachable: %v", region, up), func() bool { return e.up[region] == up })
}

func (e *events) until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	timeout := time.NewTimer(20 * time.Second)
	defer timeout.Stop()
	for {
		e.mu.Lock()
		ok, changed := holds(), e.changed
		e.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			t.Fatalf("it does not come about that %s", what)
		}
	}
}

type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// keyAt is a key that lives in the region, by "spread eu us ap" or fewer of them.
func (w *world) keyAt(home string) store.Key {
	w.Helper()
	for i := range 1000 {
		key := store.Key{Namespace: store.DefaultNamespace, Scope: "/pay.v1.Pay/Charge", ID: fmt.Sprint("order-", i)}
		for _, s := range w.sites {
			if k := s.region.atlas.Load().byName[key.Namespace]; k != nil && k.placed() && k.rule.Home(key) == home {
				return key
			}
		}
	}
	w.Fatalf("no key lives in %s", home)
	return store.Key{}
}
