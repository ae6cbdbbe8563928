package main

import (
	"context"
	"fmt"
	"time"

	"github.com/idemd/idemd/store"
)

const (
	// newStoreTime is for how long health has a notice of a store that was made new.
	newStoreTime = 24 * time.Hour
	// newStoreAsk is how long a store has to say when it was made.
	newStoreAsk = time.Second
)

// warnNew says it aloud that an embedded store was not there, where its directory was named: there may have
// been one, whose disk is not mounted, and this one grants again all that it knew.
func (n *node) warnNew(c *serveCmd) {
	if n.made && c.DataDir != nil {
		n.logger.Warn("made a new, empty store: it knows no key; if there was one before, stop this at once (deploy/OPERATE.md, The store is lost, or its disk is not mounted)",
			"directory", c.absDataDir())
	}
}

// noticeNew is the same for health. It goes by when the store was made, so that a restart does not end it,
// and ends when a recovery has begun, which is what there is to do about it.
func noticeNew(db store.Namespaces) func() string {
	return func() string {
		ctx, cancel := context.WithTimeout(context.Background(), newStoreAsk)
		defer cancel()
		first, err := db.GetNamespace(ctx, store.DefaultNamespace)
		if err != nil || len(first.Recovery) > 0 || time.Since(first.CreatedAt) > newStoreTime {
			return ""
		}
		return fmt.Sprintf("the store was made new at %s, and knows no key from before: if there was one, its disk is not mounted or it is lost",
			first.CreatedAt.UTC().Format(time.RFC3339))
	}
}
