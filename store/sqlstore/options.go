package sqlstore

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"runtime"
	"time"

	"github.com/idemd/idemd/store"
)

// Options are the settings of a [Store]. The zero Options are those of one region on one
// database.
type Options struct {
	// Region is the home region whose keys this store keeps; it is part of the names of
	// the tables. Lower-case letters, digits and '-'. Empty: "local".
	Region string
	// MustExist refuses, with ErrNoSuchRegion, to open a region of which the database has nothing,
	// before anything is made of it there.
	MustExist bool
	// Alone refuses, with ErrNoSuchRegion, to make a region in a database that has others: whoever is
	// not told that there are several has mistyped the one that there is.
	Alone bool
	// Logger gets what an operator should see. Nil: nothing is logged.
	Logger *slog.Logger
	// Observer is told what happens, for metrics. Nil: nobody is.
	Observer Observer
	// MaxConns bounds the connections of this process. Zero: four per core, at least 8.
	MaxConns int
	// MaxBatch bounds how many operations share a statement. Zero: 128. One: nothing is
	// shared.
	MaxBatch int
	// Timing bounds statements and clocks. All replicas on one database must have the same.
	Timing Timing
	// MaintainEvery is how often this process offers to maintain the buckets. Zero: ten
	// seconds. Negative: never, only Maintain does.
	MaintainEvery time.Duration
	// Wall is this process's wall clock, against which intent times are checked beside the
	// database's. Nil: time.Now.
	Wall func() time.Time
	// Monotonic is this process's monotonic clock, by which it estimates the database's since
	// it last heard of it. Nil: the operating system's.
	Monotonic func() time.Duration
	// Clock is how statements tell the time. Zero: the database's clock. For tests.
	Clock SQLClock
}

// Timing is what the protocol at a bucket's end relies on, by the database's clock.
type Timing struct {
	// MaxStatement is the longest that a statement may run. Zero: two seconds.
	MaxStatement time.Duration
	// MaxOffset is how far apart the clocks of a database's nodes, or one's readings, may
	// be; a database clock that is further behind than that is not believed. Zero: 500 ms.
	MaxOffset time.Duration
}

// window is how long after a bucket's start a grant also leaves a marker in the bucket
// before: until no statement that took an earlier time can still run.
func (t Timing) window() time.Duration {
	if seeded("window") {
		return t.MaxStatement
	}
	return 2*t.MaxStatement + t.MaxOffset
}

// SQLClock are two SQL expressions of type timestamptz. Now is when the transaction began,
// Running the time at which it is evaluated.
type SQLClock struct {
	Now, Running string
	// Rate is how much faster than real time they go. Zero: one. Sessions' timeouts are in
	// real time.
	Rate float64
}

// inRealTime are the options with a timing that is not the clock's but real.
func (o Options) inRealTime() Options {
	o.Timing.MaxStatement = time.Duration(float64(o.Timing.MaxStatement) / o.Clock.Rate)
	return o
}

// us is an expression for the microseconds of an expression for an instant, which is evaluated
// once. On CockroachDB extract is a float64 of seconds, made from one of nanoseconds: what is
// lost up to the year 2041 is less than half a microsecond, so rounding gives the exact number.
func us(instant string) string {
	return "round(extract(epoch from " + instant + ") * 1000000)::int8"
}

// Observer is told what happens in a store. Its methods must be quick, and are called by
// several goroutines.
type Observer interface {
	// Committed: operations that shared a statement were carried out; took is how long the
	// database needed.
	Committed(operations, bytes int, took time.Duration)
	// Damaged: a stored value was found damaged or unreadable.
	Damaged(err error)
	// BucketsAhead: so many buckets exist after the current one, in the tier that has the
	// fewest. With none the next claims of that tier will be refused.
	BucketsAhead(buckets int)
	// WallAhead: this process's wall clock is ahead of the database's by that much.
	WallAhead(ahead time.Duration)
}

type noObserver struct{}

func (noObserver) Committed(int, int, time.Duration) {}
func (noObserver) Damaged(error)                     {}
func (noObserver) BucketsAhead(int)                  {}
func (noObserver) WallAhead(time.Duration)           {}

var regionName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

// CheckRegion refuses what cannot be the name of a region.
func CheckRegion(name string) error {
	if !regionName.MatchString(name) {
		return fmt.Errorf("region %q: it must be 1 to 31 of a-z, 0-9 and '-', and begin with a letter", name)
	}
	return nil
}

func (o Options) withDefaults() (Options, error) {
	o.Region = cmp.Or(o.Region, "local")
	o.MaxConns = cmp.Or(o.MaxConns, max(8, 4*runtime.GOMAXPROCS(0)))
	o.MaxBatch = cmp.Or(o.MaxBatch, 128)
	o.Timing.MaxStatement = cmp.Or(o.Timing.MaxStatement, 2*time.Second)
	o.Timing.MaxOffset = cmp.Or(o.Timing.MaxOffset, 500*time.Millisecond)
	o.MaintainEvery = cmp.Or(o.MaintainEvery, 10*time.Second)
	o.Clock.Now = cmp.Or(o.Clock.Now, "now()")
	o.Clock.Rate = cmp.Or(o.Clock.Rate, 1)
	o.Clock.Running = cmp.Or(o.Clock.Running, "clock_timestamp()")
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	if o.Wall == nil {
		o.Wall = time.Now
	}
	if o.Monotonic == nil {
		o.Monotonic = store.SystemClock{}.Monotonic
	}
	return o, o.validate()
}

// minStatement is the least that a statement may be given: sessions' timeouts are in whole
// milliseconds, where zero is none.
const minStatement = 10 * time.Millisecond

// validate refuses what cannot be meant or what the protocol would not stand.
func (o Options) validate() error {
	narrowest := store.TierHour.BucketWidth()
	switch t := o.Timing; {
	case CheckRegion(o.Region) != nil:
		return CheckRegion(o.Region)
	case o.MaxConns < 1 || o.MaxConns > math.MaxInt32:
		return fmt.Errorf("MaxConns %d: it must be from 1 to %d", o.MaxConns, math.MaxInt32)
	case o.MaxBatch < 1 || o.MaxBatch > maxMaxBatch:
		return fmt.Errorf("MaxBatch %d: it must be from 1 to %d", o.MaxBatch, maxMaxBatch)
	case !(o.Clock.Rate > 0) || math.IsInf(o.Clock.Rate, 1):
		return fmt.Errorf("clock rate %v: it must be above 0", o.Clock.Rate)
	case o.inRealTime().Timing.MaxStatement < minStatement || t.MaxStatement > narrowest:
		return fmt.Errorf("MaxStatement %v: it must be from %v to %v", t.MaxStatement, minStatement, narrowest)
	case t.MaxOffset < 0 || t.MaxOffset > narrowest:
		return fmt.Errorf("MaxOffset %v: it must be from 0 to %v", t.MaxOffset, narrowest)
	case 4*t.window() > narrowest:
		return fmt.Errorf("the marker window of %v is more than a quarter of the narrowest bucket, %v", t.window(), narrowest)
	}
	return nil
}

// maxMaxBatch bounds what one statement has for parameters.
const maxMaxBatch = 4096
