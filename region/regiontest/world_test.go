package regiontest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// allRegions are those of most tests.
var allRegions = []string{"eu", "us", "ap"}

// homeOf names the namespaces whose keys all live in one region.
func homeOf(region string) string { return "in-" + region }

// threeHomes places a namespace in each region, and the others by entity.
func threeHomes() map[string]string {
	return map[string]string{
		homeOf("eu"): "fixed eu", homeOf("us"): "fixed us", homeOf("ap"): "fixed ap",
		"orders": "prefix eu-=eu us-=us *=eu", "*": "spread eu us ap",
	}
}

// world is regions that serve, and who calls them.
type world struct {
	*Regions
	t       *testing.T
	bare    map[string]store.Store // one call to the region's server
	service map[string]pb.IdempotencyServiceClient
	learned map[string]store.Store // Go clients that know the way to every home
	serial  atomic.Int64
}

func newWorld(t *testing.T, plan Plan) *world {
	t.Helper()
	if plan.Names == nil {
		plan.Names = allRegions
	}
	w := &world{Regions: Start(t, plan), t: t, bare: map[string]store.Store{}, service: map[string]pb.IdempotencyServiceClient{}}
	for _, name := range plan.Names {
		cc := w.Conn(name)
		w.bare[name], w.service[name] = Bare(cc), pb.NewIdempotencyServiceClient(cc)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.Outputs())
		}
	})
	return w
}

// create makes namespaces by way of one region.
func (w *world) create(by string, namespaces ...string) {
	w.t.Helper()
	c := w.Client(by)
	for _, name := range namespaces {
		within(w.t, 20*time.Second, "namespace "+name+" is made", func() error {
			ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
			defer cancel()
			_, err := c.CreateNamespace(ctx, store.Namespace{Name: name})
			return err
		})
	}
}

// placed waits until every region knows where the namespaces live.
func (w *world) placed(namespaces ...string) {
	w.t.Helper()
	for name, service := range w.service {
		within(w.t, 20*time.Second, "region "+name+" knows all placements", func() error {
			known, err := placementsOf(w.t, service)
			for _, namespace := range namespaces {
				if known[namespace].GetEpoch() == 0 && err == nil {
					err = fmt.Errorf("namespace %s is not placed; placed are %v", namespace, known)
				}
			}
			return err
		})
	}
}

func placementsOf(t *testing.T, service pb.IdempotencyServiceClient) (map[string]*pb.Placement, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	topology, err := service.GetTopology(ctx, &pb.GetTopologyRequest{})
	known := map[string]*pb.Placement{}
	for _, p := range topology.GetPlacements() {
		known[p.GetNamespace()] = p.GetPlacement()
	}
	return known, err
}

// fresh is a key that nobody has used.
func (w *world) fresh(namespace string) store.Key {
	return store.Key{Namespace: namespace, Scope: "test", ID: fmt.Sprint("key-", w.serial.Add(1))}
}

func (w *world) claim(s store.Store, key store.Key, attempt string) (store.ClaimAnswer, time.Duration, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	begun := time.Now()
	got, err := s.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: attempt, Lease: LongLease})
	return got, time.Since(begun), err
}

// grants waits until a claim of a new key is granted.
func (w *world) grants(limit time.Duration, s store.Store, from, namespace string) {
	w.t.Helper()
	within(w.t, limit, "a claim from "+from+" in "+namespace+" is granted", func() error {
		ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Second)
		defer cancel()
		got, err := s.Claim(ctx, store.ClaimRequest{Key: w.fresh(namespace), AttemptID: "a", Lease: time.Second})
		if err == nil && got.Granted == nil {
			err = fmt.Errorf("%+v", got)
		}
		return err
	})
}

// within tries until there is no error, for so long.
func within(t *testing.T, limit time.Duration, what string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s: %v", limit, what, err)
		}
		<-tick.C
	}
}

// crowd is a load from all regions: callers that go to their region's server, and ones that
// learn where keys live.
type crowd struct {
	history *History
	load    *Load
	stop    context.CancelFunc
	workers sync.WaitGroup
}

func (w *world) crowd(perRegion int, namespaces ...string) *crowd {
	w.t.Helper()
	c := &crowd{history: NewHistory()}
	c.load = NewLoad(c.history, uint64(time.Now().UnixNano()), namespaces...)
	ctx, cancel := context.WithCancel(w.t.Context())
	c.stop = cancel
	for name, bare := range w.bare {
		learned := store.Store(w.Client(name))
		for i := range perRegion {
			s, again := bare, false
			if i%2 == 1 {
				s, again = learned, true
			}
			c.workers.Go(func() { c.load.Work(ctx, fmt.Sprintf("%s-%d", name, i), c.history.Record(name, again, s)) })
		}
	}
	w.t.Cleanup(func() {
		cancel()
		c.workers.Wait()
	})
	return c
}

// finish ends the load, once its callers have been told enough, and judges what they were told.
func (c *crowd) finish(t *testing.T) {
	t.Helper()
	within(t, 20*time.Second, "enough is answered to say anything", func() error {
		for _, what := range []string{"granted", "in progress", "completed", "recorded", "found"} {
			if c.history.Count(what) < 5 {
				return fmt.Errorf("too few answers %q: %s", what, c.history.Summary())
			}
		}
		return nil
	})
	c.stop()
	c.workers.Wait()
	t.Log(c.history.Summary())
	faults := c.history.Check()
	for _, fault := range faults[:min(len(faults), 3)] {
		t.Error(fault)
	}
	if len(faults) > 3 {
		t.Errorf("and %d keys more", len(faults)-3)
	}
	if open := c.load.Open(); len(open) > 0 {
		t.Errorf("what became of %d calls could not be found out: %q", len(open), open)
	}
}

// stress is how long tests go on in their long form; zero: they are sampled.
func stress(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("IDEMD_STRESS")
	if text == "" {
		return 0
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return length
}

// median is the lower of the middle ones: of two, one may have met a busy processor.
func median(durations []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[(len(sorted)-1)/2]
}

var errNotYet = errors.New("not yet")
