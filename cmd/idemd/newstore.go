package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore"
)

const (
	// newStoreTime is for how long health has a notice of a store that was made new.
	newStoreTime = 24 * time.Hour
	// newStoreAsk is how long a store has to say when it was made.
	newStoreAsk = time.Second
)

// warnNew says it aloud that there was no store where one was named: there may have been one, whose disk is
// not mounted or whose region has another name, and this one grants again all that it knew.
func (n *node) warnNew(c *serveCmd) {
	if n.made && (c.DataDir != nil || c.Store != nil) {
		n.logger.Warn("made a new, empty store: it knows no key; if there was one before, stop this at once (deploy/OPERATE.md, The store is lost, or its disk is not mounted)",
			"store", c.keptIn())
	}
}

// noticeNew is the same for health, of an embedded store. It goes by when the store was made, so that a
// restart does not end it, and ends when a recovery has begun, which is what there is to do about it.
func noticeNew(db store.Namespaces) func() string {
	return func() string {
		first, err := firstNamespace(db)
		if err != nil || tooOld(first.CreatedAt) || recovered(first, first.CreatedAt) {
			return ""
		}
		return fmt.Sprintf("the store was made new at %s, and knows no key from before: if there was one, its disk is not mounted or it is lost",
			first.CreatedAt.UTC().Format(time.RFC3339))
	}
}

// noticeNewRegion is noticeNew of a region in a database, whose namespaces may be older.
func noticeNewRegion(db *sqlstore.Store, region string) func() string {
	return func() string {
		at := db.MadeAt()
		if tooOld(at) {
			return ""
		}
		first, err := firstNamespace(db)
		if err != nil || recovered(first, at) {
			return ""
		}
		return fmt.Sprintf("region %s was made new in the database at %s, and knows no key from before: if there was one, the region has another name, this is another database or it is lost",
			region, at.UTC().Format(time.RFC3339))
	}
}

func firstNamespace(db store.Namespaces) (store.Namespace, error) {
	ctx, cancel := context.WithTimeout(context.Background(), newStoreAsk)
	defer cancel()
	return db.GetNamespace(ctx, store.DefaultNamespace)
}

func tooOld(made time.Time) bool { return time.Since(made) > newStoreTime }

// recovered reports whether a recovery has begun since a time.
func recovered(ns store.Namespace, since time.Time) bool {
	return slices.ContainsFunc(ns.Recovery, func(step store.RecoveryStep) bool { return !step.At.Before(since) })
}
