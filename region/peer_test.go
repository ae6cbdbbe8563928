package region

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// holding is a store whose Claims do not come back before they are let go, or their context ends.
type holding struct {
	store.Backend
	asked chan struct{}
	let   chan struct{}
}

func newHolding(b store.Backend) *holding {
	return &holding{b, make(chan struct{}, 100), make(chan struct{})}
}

func (h *holding) Claim(ctx context.Context, req store.ClaimRequest) (store.ClaimAnswer, error) {
	h.asked <- struct{}{}
	select {
	case <-h.let:
		return h.Backend.Claim(ctx, req)
	case <-ctx.Done():
		return store.ClaimAnswer{}, ctx.Err()
	}
}

// A partition, whether the connection breaks or nothing is heard any more.
func TestAPartition(t *testing.T) {
	for name, silent := range map[string]bool{"broken": false, "silent": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := build(t, `"*": fixed us`, "eu", "us")
				held := newHolding(w.us().store)
				w.us().store = held
				w.startAll()

				began := make(chan error, 1)
				go func() {
					_, err := w.eu().claim(anyKey, "a")
					began <- err
				}()
				<-held.asked
				time.Sleep(5 * time.Second) // the home takes its time; it is there, and pings say so
				cutAt := time.Now()
				if silent {
					w.silence("eu", "us")
				} else {
					w.sever("eu", "us")
				}
				err := <-began
				refuses(t, err, store.ErrHomeUnreachable, `region "us"`, "it was asked and did not answer", "send it again with the same attempt id")
				if took := time.Since(cutAt); took > maxSilence+pingInterval {
					t.Errorf("what was in flight ended after %v", took)
				}
				if !silent {
					w.stop()
					return
				}
				w.eu().events.wait(t, "us", false)
				start := time.Now()
				for range 100 {
					_, err := w.eu().claim(anyKey, "a")
					refuses(t, err, store.ErrHomeUnreachable, `region "us"`, "it cannot be reached")
					var refused *store.Error
					if !errors.As(err, &refused) || refused.RetryAfter <= 0 {
						t.Fatalf("no hint: %v", err)
					}
				}
				if took := time.Since(start); took > 0 {
					t.Errorf("100 more took %v", took)
				}
				if rec, err := w.eu().store.InspectRecord(t.Context(), anyKey); !errors.Is(err, store.ErrKeyNotFound) {
					t.Errorf("it was claimed here: %+v, %v", rec, err)
				}

				time.Sleep(time.Hour)
				close(held.let)
				w.heal("eu", "us")
				healed := time.Now()
				w.eu().events.wait(t, "us", true)
				if took := time.Since(healed); took > time.Second {
					t.Errorf("it came back after %v", took)
				}
				w.eu().grants(anyKey, "a")
				if got := w.eu().events.count("us broken"); got != 1 {
					t.Errorf("%d broken", got)
				}
				w.stop()
			})
		})
	}
}

// What comes in while the other way is cut is still answered: pings go their own way.
func TestAPartitionOfOneWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed us`, "eu", "us")
		w.silence("us", "eu")
		w.us().events.wait(t, "eu", false)
		w.eu().grants(anyKey, "a")
		w.stop()
	})
}

func TestARegionThatIsRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed us`, "eu", "us")
		w.us().stop()
		w.eu().events.wait(t, "us", false)
		time.Sleep(10 * time.Minute)
		w.us().start()
		w.eu().events.wait(t, "us", true)
		w.us().events.wait(t, "eu", true) // before, it does not serve
		w.eu().grants(anyKey, "a")
		w.stop()
	})
}

func TestAnAddressThatLeadsElsewhere(t *testing.T) {
	for name, test := range map[string]struct {
		twist func(w *world)
		says  string
	}{
		"to oneself": {func(w *world) { w.lead("eu", "us", "eu") }, `this is region "eu", and region "us" is meant`},
		"to another": {func(w *world) { w.lead("eu", "us", "ap") }, `this is region "ap", and region "us" is meant`},
		"to one that does not know us": {func(w *world) { w.us().regions = []string{"ap", "us"} },
			`the topology of region "us" does not name the asking region, "eu"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := build(t, `"*": fixed us`, "eu", "us", "ap")
				for _, s := range w.sites { // placed before
					if _, err := s.store.PlaceNamespace(t.Context(), "default", store.Placement{Epoch: 1, Revision: 1, Rule: "fixed us"}); err != nil {
						t.Fatal(err)
					}
				}
				test.twist(w)
				for _, s := range w.sites {
					s.start()
				}
				time.Sleep(10 * time.Second)
				_, err := w.eu().claim(anyKey, "a")
				refuses(t, err, store.ErrHomeUnreachable, test.says)
				if !strings.Contains(w.eu().log.String(), "region cannot be reached") {
					t.Errorf("the log does not say it: %s", w.eu().log)
				}
				for name, s := range w.sites {
					if _, err := s.store.InspectRecord(t.Context(), anyKey); !errors.Is(err, store.ErrKeyNotFound) {
						t.Errorf("it was claimed in %s: %v", name, err)
					}
				}
				w.stop()
			})
		})
	}
}

// lead has what a region dials as another one reach a third.
func (w *world) lead(from, as, to string) {
	w.prepare = func(s *site, c *Config) {
		if s.name != from {
			return
		}
		direct := c.Dial
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			if addr == w.sites[as].addr {
				addr = w.sites[to].addr
			}
			return direct(ctx, addr)
		}
	}
}

func TestYesterdaysPlacementIsLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed us`, "eu", "us", "ap")
		next := store.Placement{Epoch: 2, Revision: 3, Rule: "fixed ap"}
		w.silence("us", "eu") // so that eu is not told before it asks
		for _, name := range []string{"us", "ap"} {
			if _, err := w.sites[name].router.PlaceNamespace(t.Context(), "default", next); err != nil {
				t.Fatal(err)
			}
		}
		answer := w.eu().grants(anyKey, "a") // within the same instant: no ping has told
		if answer.Served != (store.Served{Home: "ap", Forwarded: true, Epoch: 2}) {
			t.Errorf("served %+v", answer.Served)
		}
		if ns, _ := w.eu().store.GetNamespace(t.Context(), "default"); ns.Placement != next {
			t.Errorf("eu's store has %+v", ns.Placement)
		}
		w.stop()
	})
}

// A home that has yesterday's placement learns it from the one who asks.
func TestAHomeLearnsFromWhoAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed us`, "eu", "us", "ap")
		sealed := store.Placement{Epoch: 1, Revision: 2, Rule: "fixed us", Move: store.Move{To: "ap", Phase: store.MoveSealed}}
		if _, err := w.ap().router.PlaceNamespace(t.Context(), "default", sealed); err != nil { // else it has missed the move
			t.Fatal(err)
		}
		next := store.Placement{Epoch: 2, Revision: 3, Rule: "fixed ap"}
		for _, name := range []string{"us", "eu"} {
			if _, err := w.sites[name].router.PlaceNamespace(t.Context(), "default", next); err != nil {
				t.Fatal(err)
			}
		}
		if answer := w.eu().grants(anyKey, "a"); answer.Served.Home != "ap" {
			t.Errorf("served %+v", answer.Served)
		}
		w.stop()
	})
}

// Two that do not agree, and of which neither learns, are no endless way.
func TestRegionsThatDoNotAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, `"*": fixed us`, "eu", "us")
		w.prepare = func(s *site, c *Config) {
			if s.name == "us" {
				c.Store = &frozenPlacement{c.Store, store.Placement{Epoch: 7, Revision: 9, Rule: "fixed eu"}}
			}
		}
		w.eu().start()
		w.us().start()
		if _, err := w.eu().router.PlaceNamespace(t.Context(), "default", store.Placement{Epoch: 9, Revision: 10, Rule: "fixed us"}); err != nil {
			t.Fatal(err)
		}
		w.eu().events.wait(t, "us", true)
		w.us().events.until(t, "us has joined", func() bool { return w.us().events.joined })
		_, err := w.eu().claim(anyKey, "a")
		refuses(t, err, store.ErrUnavailable, `region "us" does not yet know namespace "default" to live where it does here`, "nothing was done")
		if got := w.eu().events.count("us refused"); got > maxDecisions {
			t.Errorf("it was sent %d times", got)
		}
		w.stop()
	})
}

// frozenPlacement is a store that says one placement for ever.
type frozenPlacement struct {
	store.Backend
	placement store.Placement
}

func (f *frozenPlacement) ListNamespaces(ctx context.Context) ([]store.Namespace, error) {
	list, err := f.Backend.ListNamespaces(ctx)
	for i := range list {
		list[i].Placement = f.placement
	}
	return list, err
}

func (f *frozenPlacement) PlaceNamespace(context.Context, string, store.Placement) (store.Placed, error) {
	return store.Placed{}, store.ErrWrongRegion
}

func TestACallersDeadlineAndEndAreCarried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, `"*": fixed us`, "eu", "us")
		held := newHolding(w.us().store)
		w.us().store = held
		w.startAll()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		_, err := w.eu().router.Claim(ctx, store.ClaimRequest{Key: anyKey, AttemptID: "a"})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 3*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		<-held.asked
		ctx, cancel = context.WithCancel(t.Context())
		go func() {
			<-held.asked
			cancel()
		}()
		if _, err := w.eu().router.Claim(ctx, store.ClaimRequest{Key: anyKey, AttemptID: "a"}); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that is gone: %v", err)
		}
		if got := w.eu().events.count("us canceled"); got != 2 {
			t.Errorf("%d canceled", got)
		}
		w.stop()
	})
}

// ticks has the stores' clock go on with that of the bubble.
func (w *world) ticks() (stop func()) {
	const tick = 50 * time.Millisecond
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for {
			select {
			case <-end:
				return
			case <-ticker.C:
				w.clock.Advance(tick)
			}
		}
	}()
	return func() { close(end); <-ended }
}

// Who waits gets the key when its lease ends, and where the key has gone meanwhile.
func TestAWaitEndsWithTheLeaseAndGoesAlongWithAMove(t *testing.T) {
	const lease = 30 * time.Second // the namespace's
	claims := func(t *testing.T, s *site, attempt string) <-chan store.ClaimAnswer {
		waited := make(chan store.ClaimAnswer, 1)
		go func() {
			answer, err := s.router.Claim(t.Context(), store.ClaimRequest{Key: anyKey, AttemptID: attempt, Wait: 100 * time.Second})
			if err != nil {
				t.Error(err)
			}
			waited <- answer
		}()
		return waited
	}
	granted := func(t *testing.T, began time.Time, answer store.ClaimAnswer, home string) {
		t.Helper()
		took := time.Since(began)
		if answer.Granted == nil || answer.Served.Home != home || took < lease || took > lease+5*time.Second {
			t.Fatalf("after %v: %+v, want a grant in %s at the end of the lease", took, answer, home)
		}
		if held := answer.Granted.HeldFor; held > took || held < took-time.Second {
			t.Errorf("held for %v of %v", held, took)
		}
	}
	for _, at := range []string{"us", "eu"} {
		synctest.Test(t, func(t *testing.T) {
			w := start(t, `"*": fixed us`, "eu", "us")
			defer w.ticks()()
			w.us().grants(anyKey, "a")
			began := time.Now()
			granted(t, began, <-claims(t, w.sites[at], "b"), "us")
			w.stop()
		})
		synctest.Test(t, func(t *testing.T) {
			w := start(t, `"*": fixed us`, "eu", "us")
			defer w.ticks()()
			w.us().grants(anyKey, "a")
			began := time.Now()
			waits := claims(t, w.sites[at], "b")
			time.Sleep(time.Second)
			if _, err := w.eu().moveTo(t.Context(), &pb.MoveNamespaceRequest{ToRegion: "eu"}); err != nil {
				t.Fatal(err)
			}
			granted(t, began, <-waits, "eu")
			w.stop()
		})
	}
}

func TestAClaimWaitsAtHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, `"*": fixed us`, "eu", "us")
		fence := w.us().grants(anyKey, "a").Granted.Fence
		waited := make(chan store.ClaimAnswer)
		go func() {
			answer, err := w.eu().router.Claim(t.Context(), store.ClaimRequest{Key: anyKey, AttemptID: "b", Wait: time.Minute})
			if err != nil {
				t.Error(err)
			}
			waited <- answer
		}()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := w.us().waiter.Waiting(); got != 1 {
			t.Errorf("%d wait at home", got)
		}
		if _, err := w.eu().router.Release(t.Context(), store.ReleaseRequest{Key: anyKey, AttemptID: "a", Fence: fence, Effect: store.EffectNone}); err != nil {
			t.Fatal(err)
		}
		answer := <-waited
		if answer.Granted == nil || answer.Granted.HeldFor < 10*time.Second || answer.Granted.HeldFor > 11*time.Second {
			t.Fatalf("answer %+v", answer)
		}
		if !answer.Served.Forwarded {
			t.Errorf("served %+v", answer.Served)
		}

		// A server that is about to stop waits no longer.
		started := time.Now()
		go func() {
			time.Sleep(5 * time.Second)
			w.eu().region.Drain()
		}()
		_, err := w.eu().router.Claim(t.Context(), store.ClaimRequest{Key: anyKey, AttemptID: "c", Wait: time.Minute})
		refuses(t, err, store.ErrUnavailable, "the server is about to stop")
		if took := time.Since(started); took != 5*time.Second {
			t.Errorf("it waited %v", took)
		}
		w.stop()
	})
}

func TestPeersAreAskedInTheCallersName(t *testing.T) {
	type asked struct{ caller, method, namespace string }
	var (
		mu  sync.Mutex
		all []asked
	)
	w := build(t, `"*": fixed us`, "eu", "us")
	w.prepare = func(s *site, c *Config) {
		if s.name == "eu" {
			c.Caller = func(context.Context) string { return "spiffe://example.org/payments" }
			return
		}
		c.Authorize = func(_ context.Context, caller, method, namespace string) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, asked{caller, method, namespace})
			if method == pb.IdempotencyService_Claim_FullMethodName {
				return nil
			}
			return store.Refuse(store.ErrPermissionDenied, "not you")
		}
	}
	w.startAll()
	w.eu().grants(anyKey, "a")
	ctx, r := t.Context(), w.eu().router
	errs := map[string]error{}
	_, errs[pb.IdempotencyService_Renew_FullMethodName] = r.Renew(ctx, store.RenewRequest{Key: anyKey, AttemptID: "a", Fence: 1})
	_, errs[pb.IdempotencyService_Complete_FullMethodName] = r.Complete(ctx, store.CompleteRequest{Key: anyKey, AttemptID: "a", Fence: 1, Outcome: &store.Outcome{}})
	_, errs[pb.IdempotencyService_Release_FullMethodName] = r.Release(ctx, store.ReleaseRequest{Key: anyKey, AttemptID: "a", Fence: 1, Effect: store.EffectNone})
	_, errs[pb.IdempotencyService_Lookup_FullMethodName] = r.Lookup(ctx, store.LookupRequest{Key: anyKey})
	_, errs[pb.AdminService_InspectRecord_FullMethodName] = r.InspectRecord(ctx, anyKey)
	_, errs[pb.AdminService_ListRecords_FullMethodName] = r.ListRecords(ctx, store.ListRequest{Namespace: "default"})
	_, errs[pb.AdminService_Resolve_FullMethodName] = r.Resolve(ctx, store.ResolveRequest{Key: anyKey, AnyFence: true, Reason: "r"})
	_, errs[pb.AdminService_ForceRelease_FullMethodName] = r.ForceRelease(ctx, store.ForceReleaseRequest{Key: anyKey, AnyFence: true, Reason: "r"})
	_, errs[pb.AdminService_CreateNamespace_FullMethodName] = r.CreateNamespace(ctx, store.Namespace{Name: "default"})
	_, errs[pb.AdminService_UpdateNamespace_FullMethodName] = r.UpdateNamespace(ctx, store.Namespace{Name: "default"})
	for method, err := range errs {
		refuses(t, err, store.ErrPermissionDenied, "not you")
		want := asked{"spiffe://example.org/payments", method, "default"}
		found := false
		mu.Lock()
		for _, a := range all {
			found = found || a == want
		}
		mu.Unlock()
		if !found {
			t.Errorf("%s was not authorised again: %v", method, all)
		}
	}
}

func TestWhoAsksMustBeTheRegion(t *testing.T) {
	w := build(t, `"*": fixed us`, "eu", "us")
	w.prepare = func(s *site, c *Config) {
		place := c.Topology.Regions["eu"]
		place.Principal = "spiffe://example.org/idemd/eu"
		c.Topology.Regions["eu"] = place
		if s.name == "us" {
			c.Caller = func(context.Context) string { return "spiffe://example.org/idemd/ap" } // whoever calls
		}
	}
	w.eu().start()
	w.us().start()
	w.us().events.wait(t, "eu", true)
	_, err := (&service{region: w.us().region}).Ping(t.Context(), &pb.PingRequest{Region: "us", FromRegion: "eu"})
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "is not the principal of region") {
		t.Errorf("Ping: %v", err)
	}
}

func TestRecordsOfAllHomesAreListed(t *testing.T) {
	w := start(t, everythingSpread, "eu", "us", "ap")
	want := map[string]bool{}
	for i := range 60 {
		key := store.Key{Namespace: "default", ID: fmt.Sprint("order-", i)}
		w.sites[[]string{"eu", "us", "ap"}[i%3]].grants(key, "a")
		want[key.ID] = true
	}
	for _, s := range w.sites {
		req, got, pages := store.ListRequest{Namespace: "default", PageSize: 7}, map[string]bool{}, 0
		for {
			page, err := s.router.ListRecords(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			pages++
			for _, rec := range page.Records {
				if got[rec.Key.ID] {
					t.Errorf("%s is listed twice", rec.Key.ID)
				}
				got[rec.Key.ID] = true
			}
			if req.PageToken = page.NextPageToken; req.PageToken == "" {
				break
			}
		}
		if len(got) != len(want) || pages < 9 {
			t.Errorf("%s lists %d of %d in %d pages", s.name, len(got), len(want), pages)
		}
	}
	_, err := w.eu().router.ListRecords(t.Context(), store.ListRequest{Namespace: "default", PageToken: "sa/00"})
	refuses(t, err, store.ErrInvalidArgument, "page token")
	w.us().stop()
	w.eu().events.wait(t, "us", false)
	var got []*store.Record
	missing := ""
	for req := (store.ListRequest{Namespace: "default"}); ; {
		page, err := w.eu().router.ListRecords(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		got, missing = append(got, page.Records...), missing+page.Missing
		if req.PageToken = page.NextPageToken; req.PageToken == "" {
			break
		}
	}
	if len(got) == 0 || len(got) >= len(want) || !strings.Contains(missing, `region "us": `) || strings.Count(missing, "region ") < 1 {
		t.Errorf("without us %d of %d records are listed, missing: %q", len(got), len(want), missing)
	}
}

// What is listed of one scope or entity is asked of every home, with the same filter, and a page's
// token is of that listing alone.
func TestRecordsOfAScopeOrEntityAreListed(t *testing.T) {
	w := start(t, everythingSpread, "eu", "us", "ap")
	for i := range 30 { // an entity's keys have one home; a scope's are everywhere
		w.eu().grants(store.Key{Namespace: "default", ID: fmt.Sprint(i), Scope: []string{"charge", "ship"}[i%2], Entity: fmt.Sprint("customer-", i/3)}, "a")
	}
	for filter, want := range map[store.Filter]int{
		{Scope: "charge"}:                       15,
		{Entity: "customer-4"}:                  3,
		{Scope: "charge", Entity: "customer-4"}: 2,
		{Scope: "char"}:                         0,
	} {
		for _, s := range w.sites {
			listed := 0
			for req := (store.ListRequest{Namespace: "default", Filter: filter, PageSize: 2}); ; {
				page, err := s.router.ListRecords(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				listed += len(page.Records)
				if req.PageToken = page.NextPageToken; req.PageToken == "" {
					break
				}
			}
			if listed != want {
				t.Errorf("%s lists %d of %+v, want %d", s.name, listed, filter, want)
			}
		}
	}
}

func TestNamespacesAreInAllRegions(t *testing.T) {
	w := start(t, everythingSpread, "eu", "us", "ap")
	ctx := t.Context()
	settings := store.Namespace{Name: "payments", Retention: 6 * time.Hour}
	created, err := w.us().router.CreateNamespace(ctx, settings)
	if err != nil || created.Placement.Rule != "spread ap eu us" {
		t.Fatal(created, err)
	}
	for _, s := range w.sites {
		s.grants(store.Key{Namespace: "payments", ID: "of " + s.name}, "a")
	}
	settings.Retention = 12 * time.Hour
	if _, err := w.eu().router.UpdateNamespace(ctx, settings); err != nil {
		t.Fatal(err)
	}
	for _, s := range w.sites {
		if ns, err := s.store.GetNamespace(ctx, "payments"); err != nil || ns.Retention != 12*time.Hour {
			t.Errorf("%s: %+v, %v", s.name, ns, err)
		}
	}

	// One that missed it is made up for.
	w.ap().stop()
	w.eu().events.wait(t, "ap", false)
	_, err = w.eu().router.CreateNamespace(ctx, store.Namespace{Name: "orders"})
	refuses(t, err, store.ErrUnavailable, `region "ap": `, "nothing was done", "do it once they can")
	if _, err := w.eu().store.GetNamespace(ctx, "orders"); !errors.Is(err, store.ErrNamespaceUnknown) {
		t.Errorf("it was created though ap is away: %v", err)
	}
	if _, err := w.eu().store.CreateNamespace(ctx, store.Namespace{Name: "orders"}); err != nil { // as if it had broken off
		t.Fatal(err)
	}
	w.ap().start()
	w.join()
	if _, err := w.us().router.CreateNamespace(ctx, store.Namespace{Name: "orders"}); err != nil {
		t.Fatal(err)
	}
	w.ap().grants(store.Key{Namespace: "orders", ID: "1"}, "a")
	_, err = w.us().router.CreateNamespace(ctx, store.Namespace{Name: "orders", Retention: time.Minute})
	refuses(t, err, store.ErrNamespaceExists)
}

// A floor is set where a store was restored, and stays that region's own.
func TestAnUpdateElsewhereSetsNoFloor(t *testing.T) {
	w := start(t, `"*": fixed us`, "eu", "us")
	w.clock.Advance(time.Hour)
	if _, err := w.eu().router.BeginRecovery(t.Context(), store.BeginRecoveryRequest{CompleteUntil: storetest.Start, Reason: "r"}); err != nil {
		t.Fatal(err)
	}
	ns, err := w.eu().router.GetNamespace(t.Context(), "default")
	if err != nil || ns.RecoveryFloor.IsZero() {
		t.Fatal(ns, err)
	}
	ns.Retention = 2 * time.Hour // all settings, as an operator's tool reads and writes them
	if _, err := w.eu().router.UpdateNamespace(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	if theirs, _ := w.us().store.GetNamespace(t.Context(), "default"); !theirs.RecoveryFloor.IsZero() || theirs.Retention != 2*time.Hour {
		t.Errorf("us has %+v", theirs)
	}
	w.eu().grants(anyKey, "a")
}

func TestStandingInForARegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, everythingSpread, "eu", "us", "ap")
		w.prepare = func(s *site, c *Config) {
			if s.name == "eu" { // one database, in which all regions' tables are
				c.StandIns = map[string]store.Backend{"us": w.us().store}
			}
		}
		w.startAll()
		key := w.keyAt("us")
		first := w.eu().grants(key, "a")
		if first.Served != (store.Served{Home: "us", Forwarded: true, Epoch: 1}) {
			t.Errorf("served %+v", first.Served)
		}
		w.us().stop()
		w.eu().events.wait(t, "us", false)
		again := w.eu().grants(key, "a")
		if again.Served != (store.Served{Home: "us", Epoch: 1}) || again.Granted.Fence != first.Granted.Fence {
			t.Errorf("answer %+v", again)
		}
		if _, err := w.eu().router.Complete(t.Context(), store.CompleteRequest{Key: key, AttemptID: "a", Fence: first.Granted.Fence, Outcome: &store.Outcome{}}); err != nil {
			t.Fatal(err)
		}
		if !w.eu().events.holds(func() bool { return w.eu().events.stoodIn["us"] == 2 }) {
			t.Errorf("it did not stand in twice: %v", w.eu().events.stoodIn)
		}
		w.ap().events.wait(t, "us", false)
		_, err := w.ap().claim(key, "b")
		refuses(t, err, store.ErrHomeUnreachable)

		w.us().start()
		w.eu().events.wait(t, "us", true)
		w.eventually("us serves", func() bool { return w.us().region.atHome() == nil })
		answer, err := w.eu().claim(key, "b")
		if err != nil || answer.Completed == nil || !answer.Served.Forwarded {
			t.Errorf("once it is back: %+v, %v", answer, err)
		}
		w.stop()
	})
	topology, err := ParseTopology([]byte(threeRegions), "eu")
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(t.Context(), Config{Name: "eu", Topology: topology, Store: storetest.NewMemory(storetest.NewClock()), StandIns: map[string]store.Backend{"eu": nil}})
	if err == nil || !strings.Contains(err.Error(), "not another region") {
		t.Errorf("standing in for itself: %v", err)
	}
}

// What another store says in the middle of a move goes through as it is.
func TestAMovingNamespaceIsRefusedByItsHome(t *testing.T) {
	w := start(t, `"*": fixed us`, "eu", "us")
	frozen := store.Placement{Epoch: 1, Revision: 3, Rule: "fixed us", Move: store.Move{To: "eu", Phase: store.MoveFrozen}}
	if _, err := w.us().router.PlaceNamespace(t.Context(), "default", frozen); err != nil {
		t.Fatal(err)
	}
	_, err := w.eu().claim(anyKey, "a")
	refuses(t, err, store.ErrNamespaceMoving, `on its way to region "eu"`)
}
