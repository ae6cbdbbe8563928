package sqlstore

import (
	"fmt"
	"strings"
	"time"

	"github.com/idemd/idemd/store"
)

// bucketID names a bucket. Inside this package instants are microseconds since 1970, as in
// the database's columns.
type bucketID struct {
	tier  store.Tier
	start int64
}

// bucketAt is the bucket in which an instant lies: the home of what is granted then.
func bucketAt(tier store.Tier, us int64) bucketID {
	width := tier.BucketWidth().Microseconds()
	return bucketID{tier: tier, start: us - us%width}
}

func (b bucketID) width() int64       { return b.tier.BucketWidth().Microseconds() }
func (b bucketID) end() int64         { return b.start + b.width() }
func (b bucketID) next() bucketID     { return bucketID{b.tier, b.end()} }
func (b bucketID) previous() bucketID { return bucketID{b.tier, b.start - b.width()} }

// dropAfter is when nothing in the bucket can be live any more but what maintenance moves.
func (b bucketID) dropAfter() int64 {
	return b.end() + (b.tier.MaxAttempt() + b.tier.MaxRetention()).Microseconds()
}

func (b bucketID) describe() store.Bucket {
	return store.Bucket{Tier: b.tier, Start: timeOf(b.start), End: timeOf(b.end()), DropAfter: timeOf(b.dropAfter())}
}

// tierNames are part of the tables' names.
var tierNames = map[store.Tier]string{
	store.TierHour: "hour", store.TierDay: "day", store.TierWeek: "week", store.TierMonth: "month",
}

// table is the name of the bucket's table. It needs no quotes: regions are checked when the
// store is opened.
func (b bucketID) table(region string) string {
	return fmt.Sprintf("idem_%s_%s_%d", strings.ReplaceAll(region, "-", "_"), tierNames[b.tier], b.start/time.Second.Microseconds())
}

func timeOf(us int64) time.Time { return time.UnixMicro(us).UTC() }
