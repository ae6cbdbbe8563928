package storetest

import (
	"context"
	"fmt"

	"github.com/idemd/idemd/store"
)

// exportAll reads all that a store knows of a namespace's live keys.
func exportAll(ctx context.Context, b store.Backend, namespace string) ([]store.Inspection, error) {
	listed, err := listAll(ctx, b, store.ListRequest{Namespace: namespace})
	if err != nil {
		return nil, err
	}
	records := make([]store.Inspection, len(listed))
	for i, rec := range listed {
		if records[i], err = b.InspectRecord(ctx, rec.Key); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// forgetAll forgets until there is no more. It gives up on a store that never comes to its end.
func forgetAll(ctx context.Context, b store.Backend, namespace string, revision int64) error {
	for range 1000 {
		if more, err := b.ForgetRecords(ctx, namespace, revision, nil); err != nil || !more {
			return err
		}
	}
	return fmt.Errorf("there still may be more records of %q after 1000 calls", namespace)
}
