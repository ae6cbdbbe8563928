package storetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/idemd/idemd/store"
)

const (
	// benchCallers is how many callers per core the parallel benchmarks have.
	benchCallers = 32
	// benchReplayed is how many completed keys the replays go round.
	benchReplayed = 1000
)

// benchmarks are the operations that Benchmark measures. Each does the n-th one and says
// what is wrong with its answer.
var benchmarks = []struct {
	name string
	op   func(ctx context.Context, s store.Store, n int64) error
}{
	{"Claim", benchClaim},
	{"Pair", benchPair},
	{"Replay", benchReplay},
	{"LookupAbsent", benchLookupAbsent},
}

// Benchmark measures Claims of fresh keys, pairs of a Claim and its Complete, replays of
// a stored outcome of 256 bytes, and Lookups of keys that are not there: one caller at a
// time, and 32 callers per core ("parallel").
func Benchmark(b *testing.B, factory Factory) {
	for _, bench := range benchmarks {
		b.Run(bench.name, func(b *testing.B) {
			r := benchRig(b, factory)
			for n := int64(0); b.Loop(); n++ {
				benchOK(b, bench.op(r.ctx, r.Backend, n))
			}
		})
		b.Run(bench.name+"/parallel", func(b *testing.B) {
			r := benchRig(b, factory)
			var n atomic.Int64
			b.SetParallelism(benchCallers)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					benchOK(b, bench.op(r.ctx, r.Backend, n.Add(1)))
				}
			})
		})
	}
}

func benchRig(b *testing.B, factory Factory) *rig {
	r := newRig(b, factory)
	for n := range int64(benchReplayed) {
		benchOK(b, benchSettle(r.ctx, r.Backend, benchKey("replay", n)))
	}
	b.ReportAllocs()
	return r
}

func benchOK(b *testing.B, err error) {
	if err != nil {
		b.Error(err)
	}
}

func benchKey(kind string, n int64) store.Key {
	return store.Key{Namespace: store.DefaultNamespace, Scope: kind, ID: strconv.FormatInt(n, 10)}
}

var (
	benchOutcome     = &store.Outcome{Body: largeBody(256), BodyType: "example.v1.Reply"}
	benchFingerprint = store.Fingerprint{Version: 1, Digest: "0123456789abcdef0123456789abcdef"}
)

func benchGrant(ctx context.Context, s store.Store, key store.Key) (*store.Granted, error) {
	answer, err := s.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: "0123456789abcdef", Fingerprint: benchFingerprint})
	if err == nil && answer.Granted == nil {
		err = fmt.Errorf("a Claim of %q was not granted", key.ID)
	}
	return answer.Granted, err
}

func benchSettle(ctx context.Context, s store.Store, key store.Key) error {
	granted, err := benchGrant(ctx, s, key)
	if err != nil {
		return err
	}
	_, err = s.Complete(ctx, store.CompleteRequest{Key: key, AttemptID: "0123456789abcdef", Fence: granted.Fence, Outcome: benchOutcome})
	return err
}

func benchClaim(ctx context.Context, s store.Store, n int64) error {
	_, err := benchGrant(ctx, s, benchKey("claim", n))
	return err
}

func benchPair(ctx context.Context, s store.Store, n int64) error {
	return benchSettle(ctx, s, benchKey("pair", n))
}

func benchReplay(ctx context.Context, s store.Store, n int64) error {
	key := benchKey("replay", n%benchReplayed)
	answer, err := s.Claim(ctx, store.ClaimRequest{Key: key, AttemptID: "fedcba9876543210", Fingerprint: benchFingerprint})
	if err == nil && answer.Completed == nil {
		err = fmt.Errorf("a repeat of %q was not answered with its outcome", key.ID)
	}
	return err
}

func benchLookupAbsent(ctx context.Context, s store.Store, n int64) error {
	_, err := s.Lookup(ctx, store.LookupRequest{Key: benchKey("absent", n)})
	if !errors.Is(err, store.ErrKeyNotFound) {
		return fmt.Errorf("a Lookup of an absent key was not refused as such: %w", err)
	}
	return nil
}
