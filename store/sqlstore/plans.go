package sqlstore

import "sync"

// planCache makes each statement once for one copy of the registry.
type planCache struct {
	texts texts

	mu      sync.Mutex
	plans   map[bucketID]*plan
	buckets map[bucketID]*bucketTexts
}

func newPlanCache(t texts) *planCache {
	return &planCache{texts: t, plans: map[bucketID]*plan{}, buckets: map[bucketID]*bucketTexts{}}
}

// plan returns the statements for grants into home; open are the buckets of its tier.
func (c *planCache) plan(home bucketID, open []bucketID) *plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plans[home] == nil {
		c.plans[home] = c.texts.plan(home, open)
	}
	return c.plans[home]
}

// bucket returns the statements on the rows of a bucket.
func (c *planCache) bucket(b bucketID) *bucketTexts {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.buckets[b] == nil {
		c.buckets[b] = c.texts.bucket(b)
	}
	return c.buckets[b]
}

// plan returns the statements for grants into home.
func (s *snapshot) plan(home bucketID) *plan { return s.statements.plan(home, s.buckets[home.tier]) }

// bucket returns the statements on the rows of a bucket.
func (s *snapshot) bucket(b bucketID) *bucketTexts { return s.statements.bucket(b) }
