package regiontest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/idemd/idemd/client"
)

// Plan says which regions there are and where keys live.
type Plan struct {
	Ground     Ground // nil: Loopback
	Names      []string
	Delay      time.Duration     // one way, between any two regions
	Placements map[string]string // by namespace, as in the topology file
	// Mislead, if set, changes what a region's topology file says.
	Mislead func(region string, f *TopologyFile)
}

// TopologyFile is what a region is told.
type TopologyFile struct {
	Addresses  map[string]string
	Placements map[string]string
}

// Regions are the running regions.
type Regions struct {
	t       testing.TB
	plan    Plan
	Network *Network
	sites   map[string]site
	ports   map[string]int
	dirs    map[string]string
	files   map[string]*TopologyFile

	mu        sync.Mutex
	processes map[string]*Process
}

// Start starts all regions, and ends them with the test.
func Start(t testing.TB, plan Plan) *Regions {
	t.Helper()
	r := Prepare(t, plan)
	for _, name := range plan.Names {
		r.Launch(name)
	}
	for _, name := range plan.Names {
		r.Ready(name)
	}
	return r
}

// Prepare makes the network and the files, and starts nothing.
func Prepare(t testing.TB, plan Plan) *Regions {
	t.Helper()
	if plan.Ground == nil {
		plan.Ground = Loopback()
	}
	r := &Regions{
		t: t, plan: plan, Network: NewNetwork(plan.Delay, plan.Names...),
		sites: map[string]site{}, ports: map[string]int{}, dirs: map[string]string{}, files: map[string]*TopologyFile{}, processes: map[string]*Process{},
	}
	for i, name := range plan.Names {
		r.sites[name] = plan.Ground.site(t, i)
		r.ports[name] = r.freePort(r.sites[name])
		r.dirs[name] = t.TempDir()
	}
	t.Cleanup(r.Network.Close)
	reached := map[direction]string{}
	for _, from := range plan.Names {
		for _, to := range plan.Names {
			if from != to {
				reached[direction{from, to}] = r.join(from, to)
			}
		}
	}
	if plan.Mislead == nil {
		plan.Mislead = func(string, *TopologyFile) {}
	}
	for _, name := range plan.Names {
		r.files[name] = r.truth(name, reached)
		r.Rewrite(name, func(f *TopologyFile) { plan.Mislead(name, f) })
	}
	return r
}

func (r *Regions) freePort(s site) int {
	r.t.Helper()
	l, err := s.listen(0)
	if err != nil {
		r.t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// join makes a way between two regions and returns the address by which it is taken.
func (r *Regions) join(from, to string) string {
	r.t.Helper()
	middle := r.plan.Ground.between()
	l, err := middle.listen(0)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Network.connect(from, to, l, func(ctx context.Context) (net.Conn, error) { return middle.dial(ctx, r.Addr(to)) })
	return l.Addr().String()
}

// truth is what a region should be told.
func (r *Regions) truth(name string, reached map[direction]string) *TopologyFile {
	f := &TopologyFile{Addresses: map[string]string{name: r.Addr(name)}, Placements: maps.Clone(r.plan.Placements)}
	for _, other := range r.plan.Names {
		if other != name {
			f.Addresses[other] = reached[direction{name, other}]
		}
	}
	return f
}

// Rewrite changes a region's topology file, for its next start.
func (r *Regions) Rewrite(name string, change func(*TopologyFile)) {
	r.t.Helper()
	f := r.files[name]
	change(f)
	if err := os.WriteFile(r.topology(name), []byte(f.text()), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (f *TopologyFile) text() string {
	var b strings.Builder
	b.WriteString("regions:\n")
	for _, name := range slices.Sorted(maps.Keys(f.Addresses)) {
		fmt.Fprintf(&b, "  %s: {address: %q}\n", name, f.Addresses[name])
	}
	b.WriteString("placements:\n")
	for _, namespace := range slices.Sorted(maps.Keys(f.Placements)) {
		fmt.Fprintf(&b, "  %q: %s\n", namespace, f.Placements[namespace])
	}
	return b.String()
}

func (r *Regions) topology(name string) string { return filepath.Join(r.dirs[name], "topology.yaml") }

// Addr is where a region listens.
func (r *Regions) Addr(name string) string {
	return net.JoinHostPort(r.sites[name].host(), fmt.Sprint(r.ports[name]))
}

// Launch starts a region's process, which may not run.
func (r *Regions) Launch(name string) *Process {
	r.t.Helper()
	args := []string{
		"serve", "--region=" + name, "--topology=" + r.topology(name), "--data-dir=" + filepath.Join(r.dirs[name], "data"),
		"--grpc-addr=" + r.Addr(name), "--admin-addr=",
	}
	p := start(r.t, r.sites[name], r.insecurely(args)...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes[name] = p
	return p
}

func (r *Regions) insecurely(args []string) []string {
	if r.plan.Ground.insecure() {
		args = append(args, "--allow-insecure")
	}
	return args
}

// Ready waits until the region serves.
func (r *Regions) Ready(name string) {
	r.t.Helper()
	if p := r.Process(name); !p.Serves() {
		r.t.Fatalf("region %s does not serve:\n%s", name, p.Output())
	}
}

// Serves waits until the process serves, and says false if it ends before or takes too long.
func (p *Process) Serves() bool {
	_, ok := p.Line(servesOn, readyWithin)
	return ok
}

// Process is the region's last process.
func (r *Regions) Process(name string) *Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.processes[name]
}

// Kill ends a region's process as kill -9 does.
func (r *Regions) Kill(name string) { r.Process(name).Kill() }

// Restart starts a region that was killed, and waits until it serves.
func (r *Regions) Restart(name string) {
	r.t.Helper()
	r.Launch(name)
	r.Ready(name)
}

// options are those of who calls from within a region.
func (r *Regions) options(name string) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(r.sites[name].dial),
	}
}

// Client calls from within a region, and learns where keys live.
func (r *Regions) Client(name string) *client.Client {
	r.t.Helper()
	c, err := client.Dial(r.Addr(name), r.options(name)...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Conn is a bare connection to a region's server, from within the region.
func (r *Regions) Conn(name string) *grpc.ClientConn {
	r.t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+r.Addr(name), r.options(name)...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// Unplug loses all packets between a region and the others, where the ground can do so.
func (r *Regions) Unplug(name string) bool {
	r.t.Helper()
	return r.sites[name].unplug(r.t, true)
}

// Heal ends every Unplug, and what was done to the network.
func (r *Regions) Heal() {
	r.t.Helper()
	for _, s := range r.sites {
		s.unplug(r.t, false)
	}
	r.Network.Heal()
}

// Outputs is what the servers have said, for a test that failed.
func (r *Regions) Outputs() string {
	var b strings.Builder
	for _, name := range r.plan.Names {
		fmt.Fprintf(&b, "--- %s\n%s", name, r.Process(name).Output())
	}
	return b.String()
}
