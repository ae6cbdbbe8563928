package pebblestore_test

import (
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/storetest"
)

// callers is how many goroutines call at once, a processor, in the parallel benchmarks.
const callers = 128

func openBench(b *testing.B, opts pebblestore.Options) *pebblestore.Store {
	b.Helper()
	s, err := pebblestore.Open(b.TempDir(), opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

func claimRequest(id string) store.ClaimRequest {
	return store.ClaimRequest{
		Key:         store.Key{Namespace: store.DefaultNamespace, Scope: "/bank.v1.Transfers/Create", ID: id, Entity: "account-1"},
		AttemptID:   "0123456789abcdef",
		Fingerprint: store.Fingerprint{Version: 1, Digest: "0123456789abcdef0123456789abcdef"},
	}
}

var benchOutcome = &store.Outcome{Body: make([]byte, 100), BodyType: "bank.v1.Transfer"}

func claim(tb testing.TB, s store.Store, id string) store.ClaimAnswer {
	answer, err := s.Claim(tb.Context(), claimRequest(id))
	if err != nil {
		tb.Error(err)
	}
	return answer
}

func complete(tb testing.TB, s store.Store, id string, fence int64) {
	req := claimRequest(id)
	_, err := s.Complete(tb.Context(), store.CompleteRequest{
		Key: req.Key, AttemptID: req.AttemptID, Fence: fence, Outcome: benchOutcome,
	})
	if err != nil {
		tb.Error(err)
	}
}

// parallel runs op from many goroutines, each with ids of its own.
func parallel(b *testing.B, op func(id string)) {
	var next atomic.Int64
	b.SetParallelism(callers)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			op(strconv.FormatInt(next.Add(1), 10))
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

func BenchmarkClaim(b *testing.B) {
	s := openBench(b, pebblestore.Options{})
	parallel(b, func(id string) { claim(b, s, id) })
}

func BenchmarkPair(b *testing.B) {
	s := openBench(b, pebblestore.Options{})
	parallel(b, func(id string) { complete(b, s, id, claim(b, s, id).Granted.Fence) })
}

// BenchmarkReplay claims completed keys, more than fit into the cache of records.
func BenchmarkReplay(b *testing.B) {
	for _, keys := range []int64{100, 200_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			s := openBench(b, pebblestore.Options{})
			fill(b, s, keys)
			b.ResetTimer()
			parallel(b, func(id string) {
				n, _ := strconv.ParseInt(id, 10, 64)
				if claim(b, s, strconv.FormatInt(n*7919%keys, 10)).Completed == nil {
					b.Error("not completed")
				}
			})
		})
	}
}

// fill completes the keys 0 to n-1.
func fill(b *testing.B, s *pebblestore.Store, n int64) {
	var next atomic.Int64
	done := make(chan struct{})
	const workers = 256
	for range workers {
		go func() {
			for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
				id := strconv.FormatInt(i, 10)
				complete(b, s, id, claim(b, s, id).Granted.Fence)
			}
			done <- struct{}{}
		}()
	}
	for range workers {
		<-done
	}
}

func BenchmarkLoneClaim(b *testing.B) {
	s := openBench(b, pebblestore.Options{})
	var took []time.Duration
	for b.Loop() {
		begun := time.Now()
		claim(b, s, strconv.Itoa(len(took)))
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
}

func BenchmarkLoneReplay(b *testing.B) {
	s := openBench(b, pebblestore.Options{})
	complete(b, s, "x", claim(b, s, "x").Granted.Fence)
	for b.Loop() {
		claim(b, s, "x")
	}
}

// BenchmarkAbsent claims keys that are not there, with the same number of rows spread
// over one or six buckets.
func BenchmarkAbsent(b *testing.B) {
	for _, buckets := range []int{1, 6} {
		b.Run(fmt.Sprintf("buckets=%d", buckets), func(b *testing.B) {
			clock := storetest.NewClock()
			s := openBench(b, pebblestore.Options{Source: clock, MaintainEvery: -1})
			const rows = 600_000
			for i := range buckets {
				var next atomic.Int64
				done := make(chan struct{})
				for range 256 {
					go func() {
						for n := next.Add(1); n <= int64(rows/buckets); n = next.Add(1) {
							claim(b, s, fmt.Sprintf("old-%d-%d", i, n))
						}
						done <- struct{}{}
					}()
				}
				for range 256 {
					<-done
				}
				if i < buckets-1 {
					clock.Advance(store.TierDay.BucketWidth())
				}
			}
			time.Sleep(time.Second) // let compactions end: they are not what is measured
			b.ResetTimer()
			parallel(b, func(id string) {
				if claim(b, s, "new-"+id).Granted == nil {
					b.Error("not granted")
				}
			})
		})
	}
}
