package sqlstore

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore/pgtest"
)

// racingTiming covers sessions whose clocks are a second apart.
var racingTiming = Timing{MaxStatement: 6 * time.Second, MaxOffset: time.Second}

// Two and eight replicas claim the same keys at a bucket's end, some by a time before it and
// some by a time after it. Their statements are held, after their snapshots and before their
// first writes, until all are there, so that every key is truly raced for. Exactly one attempt
// may get it, and one row may be left.
func TestRaceAtBucketEnd(t *testing.T) {
	t.Parallel() // it waits for the ends of eight buckets
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	server := pgtest.New(t, pgtest.Fast) // of its own: a seal waits for all transactions
	var overlapping int
	for _, claimers := range []int{2, 8} {
		for _, isolation := range []string{"read committed", "serializable"} {
			t.Run(fmt.Sprintf("%d claimers, %s", claimers, isolation), func(t *testing.T) {
				r := newRace(t, server, claimers, isolation)
				for round := range rounds {
					overlapping += r.run(round)
				}
			})
		}
	}
	if want := 4 * rounds * racingKeys; overlapping < want || !testing.Short() && overlapping < 2000 {
		t.Errorf("%d keys were raced for, want %d: the statements did not overlap", overlapping, want)
	}
}

const (
	racingKeys = 256 // of one round
	racingGate = 7
)

type race struct {
	*stage
	claimers []*Store
	skews    []time.Duration
}

func newRace(t *testing.T, server *pgtest.Server, claimers int, isolation string) *race {
	r := &race{stage: newStageOn(t, server.NewDatabase(t), racingTiming, 1)}
	for i := range claimers {
		// Evenly from -500 ms to 500 ms.
		skew := time.Duration(-500+1000*i/(claimers-1)) * time.Millisecond
		r.skews = append(r.skews, skew)
		r.claimers = append(r.claimers, r.open("default_transaction_isolation", isolation,
			"idemd.skew", skew.String(), "idemd.gate", fmt.Sprint(racingGate)))
	}
	for range 2 {
		r.step(15 * time.Minute) // buckets for replicas that think they are behind
	}
	return r
}

// early says which claimers take a time before the bucket's end: those whose clocks are behind,
// and in every second round those whose clocks are ahead, so that they do so much earlier.
func (r *race) early(i, round int) bool { return (i < len(r.claimers)/2) == (round%2 == 0) }

// run has all claim at one bucket's end, and returns how many keys were raced for.
func (r *race) run(round int) (overlapping int) {
	r.Helper()
	old := r.bucket()
	keys := make([]store.Key, racingKeys)
	for i := range keys {
		keys[i] = r.key()
	}
	r.stepTo(old.end() - (1800 * time.Millisecond).Microseconds())
	var (
		answers = make([][]claimed, len(r.claimers))
		opens   []func()
		claims  sync.WaitGroup
	)
	for i, s := range r.claimers {
		answers[i] = make([]claimed, len(keys))
		opens = append(opens, dam(s.batches.claims[store.TierHour]))
		for k, key := range keys {
			claims.Go(func() {
				answers[i][k] = r.patiently(s, claimOf(key, fmt.Sprint("claimer-", i)))
			})
		}
		r.eventually("all claims wait for one batch", func() bool { return waitingIn(s.batches.claims[store.TierHour]) == len(keys) })
	}
	openGate := r.shut(racingGate, old, old.next())
	for i, open := range opens {
		if r.early(i, round) {
			open()
		}
	}
	early := len(r.claimers) / 2
	r.eventually("the early ones are held", func() bool { return r.held(racingGate, old) == early })
	r.offClocks(round)
	for i, open := range opens {
		if !r.early(i, round) {
			r.past(old.end(), r.skews[i])
			open()
		}
	}
	r.eventually("the late ones are held too", func() bool { return r.held(racingGate, old.next()) >= len(r.claimers)-early })
	if n := r.held(racingGate, old); n == early {
		overlapping = len(keys)
	}
	openGate()
	claims.Wait()
	r.judge(keys, answers)
	r.sealed()
	return overlapping
}

// offClocks puts some replicas' own clocks off by two buckets, either way, before they choose
// their statement. Those that think they are ahead may refuse, and are asked again.
func (r *race) offClocks(round int) {
	if len(r.claimers) < 4 {
		return
	}
	by := 30 * time.Minute
	for i, s := range r.claimers {
		if !r.early(i, round) && i%3 == 0 {
			off(s, by)
			by = -by
		}
	}
}

func (r *race) judge(keys []store.Key, answers [][]claimed) {
	r.Helper()
	winners := make([]int, len(r.claimers))
	for k, key := range keys {
		var granted []int
		for i := range answers {
			switch got := answers[i][k]; {
			case got.err != nil:
				r.Errorf("key %s, claimer %d: %s", key.ID, i, describe(got))
			case got.Granted != nil:
				granted = append(granted, i)
				winners[i]++
			case got.InProgress == nil:
				r.Errorf("key %s, claimer %d: %s; want granted or in progress", key.ID, i, describe(got))
			}
		}
		if len(granted) != 1 {
			r.Errorf("key %s: %d winners, want 1", key.ID, len(granted))
		}
		r.oneRow(key)
		if r.Failed() {
			r.FailNow()
		}
	}
	r.Logf("winners: %v of %d keys", winners, len(keys))
}
