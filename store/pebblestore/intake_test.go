package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/internal/fair"
)

func queued(c class, namespace string, bytes int) *op {
	return &op{class: c, namespace: namespace, bytes: bytes}
}

func mustPut(t *testing.T, in *intake, ops ...*op) {
	t.Helper()
	for _, o := range ops {
		if err := in.put(o); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGreedyNamespaceDelaysItselfOnly(t *testing.T) {
	in := newIntake()
	for range 10_000 {
		mustPut(t, in, queued(classClaim, "greedy", opBytes))
	}
	modest := queued(classClaim, "modest", opBytes)
	mustPut(t, in, modest)
	var settling []*op
	for i := range 500 {
		o := queued(classSettle, fmt.Sprintf("ns-%d", i%7), opBytes)
		settling = append(settling, o)
		mustPut(t, in, o)
	}
	batch := map[*op]bool{}
	for _, o := range in.take(nil) {
		batch[o] = true
	}
	if !batch[modest] {
		t.Error("the modest namespace's claim is not in the next batch")
	}
	for i, o := range settling {
		if !batch[o] {
			t.Fatalf("settling operation %d is not in the next batch", i)
		}
	}
}

func TestSettlingGoesFirstAndLeavesClaimsAQuarter(t *testing.T) {
	in := newIntake()
	for range maxBatchOps {
		mustPut(t, in, queued(classClaim, "a", opBytes), queued(classSettle, "a", opBytes))
	}
	batch := in.take(nil)
	if len(batch) != maxBatchOps {
		t.Fatalf("a batch of %d, want %d", len(batch), maxBatchOps)
	}
	for i, o := range batch {
		want := classSettle
		if i >= maxBatchOps*3/4 {
			want = classClaim
		}
		if o.class != want {
			t.Fatalf("operation %d is of class %d, want %d", i, o.class, want)
		}
	}
}

func TestGreedyLookupsDoNotDelayOthersCompletes(t *testing.T) {
	in := newIntake()
	for range 5_000 {
		mustPut(t, in, queued(classSettle, "greedy", opBytes))
	}
	modest := queued(classSettle, "modest", opBytes)
	mustPut(t, in, modest)
	if batch := in.take(nil); batch[1] != modest {
		t.Error("the modest namespace is not served in turn")
	}
}

func TestOrderWithinANamespaceIsKept(t *testing.T) {
	in := newIntake()
	var want []*op
	for range 3 * maxBatchOps {
		o := queued(classClaim, "a", opBytes)
		want = append(want, o)
		mustPut(t, in, o)
	}
	var got []*op
	for len(got) < len(want) {
		got = in.take(got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("operation %d is out of order", i)
		}
	}
}

func TestBatchIsBoundedInBytes(t *testing.T) {
	in := newIntake()
	for i := range 100 {
		mustPut(t, in, queued(classSettle, fmt.Sprint("ns-", i%4), store.MaxOutcomeBytes))
	}
	if n := len(in.take(nil)); n != maxBatchBytes/store.MaxOutcomeBytes {
		t.Errorf("a batch of %d outcomes of the largest size, want %d", n, maxBatchBytes/store.MaxOutcomeBytes)
	}
}

func TestFullQueueRefuses(t *testing.T) {
	tests := map[string]struct {
		fill func(*intake)
		o    *op
	}{
		"operations of a namespace": {func(in *intake) {
			for range fair.MaxOpsNamespace {
				_ = in.put(queued(classClaim, "a", 1))
			}
		}, queued(classClaim, "a", 1)},
		"bytes of a namespace": {func(in *intake) {
			_ = in.put(queued(classClaim, "a", fair.MaxBytesNamespace))
		}, queued(classClaim, "a", 1)},
		"operations of all": {func(in *intake) {
			for i := range fair.MaxOps {
				_ = in.put(queued(classClaim, fmt.Sprint(i%100), 1))
			}
		}, queued(classClaim, "another", 1)},
		"bytes of all": {func(in *intake) {
			for i := range 4 {
				_ = in.put(queued(classClaim, fmt.Sprint(i), fair.MaxBytes/4))
			}
		}, queued(classClaim, "another", 1)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in := newIntake()
			tt.fill(in)
			err := in.put(tt.o)
			var refusal *store.Error
			if !errors.Is(err, store.ErrOverloaded) || !errors.As(err, &refusal) || refusal.RetryAfter <= 0 {
				t.Errorf("put: %v, want ErrOverloaded with a hint", err)
			}
			if err := in.put(queued(classSettle, "a", 1)); err != nil {
				t.Errorf("claims keep out what settles: %v", err)
			}
			if err := in.put(queued(classClaim, "", 1)); err != nil {
				t.Errorf("the store's own work is refused: %v", err)
			}
		})
	}
}

func TestRoomComesBack(t *testing.T) {
	in := newIntake()
	mustPut(t, in, queued(classClaim, "a", fair.MaxBytesNamespace))
	in.take(nil)
	mustPut(t, in, queued(classClaim, "a", fair.MaxBytesNamespace))
}

func TestClosedIntakeGivesWhatItHas(t *testing.T) {
	in := newIntake()
	mustPut(t, in, queued(classClaim, "a", 1))
	in.close()
	if n := len(in.take(nil)); n != 1 {
		t.Errorf("took %d, want 1", n)
	}
	if n := len(in.take(nil)); n != 0 {
		t.Errorf("took %d from an empty intake", n)
	}
	if err := in.put(queued(classClaim, "a", 1)); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("put after close: %v", err)
	}
}

// An outcome that waits to be recorded counts with its bytes.
func TestWaitingOutcomesAreBounded(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	fence := mustClaim(t, s, "k", "a").Fence
	complete := func(ctx context.Context) error {
		_, err := s.Complete(ctx, store.CompleteRequest{
			Key: testClaim("k", "").Key, AttemptID: "a", Fence: fence,
			Outcome: &store.Outcome{Body: make([]byte, store.MaxOutcomeBytes)},
		})
		return err
	}
	letGo := hold(t, s)
	const fit = fair.MaxBytesNamespace / (store.MaxOutcomeBytes + opBytes)
	answers := make(chan error, fit)
	for range fit {
		go func() { answers <- complete(context.Background()) }()
	}
	waitQueued(s, classSettle, fit)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refused := make(chan error, 1)
	go func() { refused <- complete(ctx) }()
	select {
	case err := <-refused:
		if !errors.Is(err, store.ErrOverloaded) {
			t.Errorf("one more: %v, want ErrOverloaded", err)
		}
	case <-queuedMore(ctx, s, fit):
		t.Error("one more was queued")
	}
	letGo()
	for range fit {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}

// queuedMore is closed when more than n settling operations are queued.
func queuedMore(ctx context.Context, s *Store, n int) <-chan struct{} {
	more := make(chan struct{})
	go func() {
		for ctx.Err() == nil {
			s.intake.mu.Lock()
			got := s.intake.queues[classSettle].Len()
			s.intake.mu.Unlock()
			if got > n {
				close(more)
				return
			}
			runtime.Gosched()
		}
	}()
	return more
}

// Operations of no namespace in particular have a share like a namespace's: they do not
// wait without limit, and do not keep others out.
func TestOperationsOnNamespacesAreBounded(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	letGo := hold(t, s)
	for range fair.MaxOpsNamespace {
		mustPut(t, s.intake, &op{
			class: classSettle, namespace: onNamespaces, bytes: opBytes,
			run: func(*turn) error { return nil }, done: make(chan struct{}, 1),
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel() // so that what is queued does not wait
	for name, call := range map[string]func() error{
		"get":     func() error { _, err := s.GetNamespace(ended, "default"); return err },
		"list":    func() error { _, err := s.ListNamespaces(ended); return err },
		"create":  func() error { _, err := s.CreateNamespace(ended, store.Namespace{Name: "new"}); return err },
		"update":  func() error { _, err := s.UpdateNamespace(ended, store.Namespace{Name: "default"}); return err },
		"buckets": func() error { _, err := s.Buckets(ended); return err },
	} {
		if err := call(); !errors.Is(err, store.ErrOverloaded) {
			t.Errorf("%s: %v, want ErrOverloaded", name, err)
		}
	}
	other := &op{
		class: classSettle, namespace: "default", bytes: opBytes,
		run: func(*turn) error { return nil }, done: make(chan struct{}, 1),
	}
	if err := s.intake.put(other); err != nil {
		t.Errorf("they keep out a namespace: %v", err)
	}
	letGo()
	<-other.done
}

// What operators read counts as the namespace's, when it has to wait.
func TestReadingARecordIsBounded(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	letGo := hold(t, s)
	defer letGo()
	for range fair.MaxOpsNamespace {
		mustPut(t, s.intake, &op{
			class: classSettle, namespace: store.DefaultNamespace, bytes: opBytes,
			run: func(*turn) error { return nil }, done: make(chan struct{}, 1),
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.barrier(ended, store.DefaultNamespace); !errors.Is(err, store.ErrOverloaded) {
		t.Errorf("%v, want ErrOverloaded", err)
	}
	if _, err := s.barrier(ended, "another"); !errors.Is(err, context.Canceled) {
		t.Errorf("of another namespace: %v, want that it was queued", err)
	}
}

// Names that somebody makes up leave nothing behind.
func TestUnknownNamespacesAreNotQueued(t *testing.T) {
	s := mustOpen(t, testOptions(vfs.NewCrashableMem()))
	for i := range 10 {
		req := testClaim("k", "a")
		req.Key.Namespace = fmt.Sprint("made-up-", i)
		if _, err := s.Claim(t.Context(), req); !errors.Is(err, store.ErrNamespaceUnknown) {
			t.Errorf("Claim: %v, want ErrNamespaceUnknown", err)
		}
	}
	for c := range classes {
		if s.intake.queues[c].Has("made-up-0") {
			t.Errorf("class %d has a queue for a namespace that does not exist", c)
		}
	}
}
