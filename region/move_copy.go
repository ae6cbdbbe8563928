package region

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemd/idemd/store"
)

// maxCopyAgain is how often a region's records are listed from the beginning again, in one go.
const maxCopyAgain = 10

// tellEvery is how many records are copied between two steps that say so.
const tellEvery = 1000

// copy carries all live records over, and tells how many. A listing may leave out what moves
// while it goes on, between two buckets for example, so it is repeated until nothing is new.
func (v *move) copy(ctx context.Context) error {
	copied := map[store.KeyDigest]struct{}{}
	for {
		before := len(copied)
		for _, source := range v.copiedFrom() {
			if err := v.copyFrom(ctx, source, copied); err != nil {
				return err
			}
		}
		if len(copied) == before {
			return v.tellOf(Step{Name: "copied", Count: int64(len(copied))})
		}
	}
}

// copyFrom carries over what of a region has not been copied.
func (v *move) copyFrom(ctx context.Context, source string, copied map[store.KeyDigest]struct{}) error {
	ahead, err := v.aheadOf(ctx, source)
	if err != nil {
		return err
	}
	party, err := v.party(source)
	if err != nil {
		return err
	}
	again := 0
	for token, more := "", true; more; more = token != "" {
		page, err := party.Export(ctx, v.Namespace, v.current.Revision, token)
		if token != "" && errors.Is(err, store.ErrInvalidArgument) { // a server that was started since
			if again++; again > maxCopyAgain {
				return &store.Error{Sentinel: store.ErrUnavailable, RetryAfter: time.Second, Cause: err, Detail: fmt.Sprintf(
					"the server of region %q does not know any more how far its records were copied; nothing is lost: run the move again", source)}
			}
			token = ""
			page, err = party.Export(ctx, v.Namespace, v.current.Revision, token)
		}
		if err != nil {
			return err
		}
		told := len(copied) / tellEvery
		if err := v.importNew(ctx, source, page.Records, ahead, copied); err != nil {
			return err
		}
		if len(copied)/tellEvery != told {
			if err := v.tellOf(Step{Name: "copied", Count: int64(len(copied))}); err != nil {
				return err
			}
		}
		token = page.NextPageToken
	}
	return nil
}

// importNew stores those of the records that are wanted and have not been.
func (v *move) importNew(ctx context.Context, source string, records []store.Inspection, ahead time.Duration, copied map[store.KeyDigest]struct{}) error {
	var fresh []store.Inspection
	var digests []store.KeyDigest
	for _, in := range records {
		digest := in.Record.Key.Digest()
		_, known := copied[digest]
		if wanted, err := v.wants(ctx, source, in.Record, known); err != nil {
			return err
		} else if !wanted {
			continue
		}
		if in.Record.State == store.StateInProgress && in.Record.LeaseEnd.After(v.last) { // a listing left it out
			return &store.Error{Sentinel: store.ErrUnavailable, Detail: "an attempt still holds a lease; run it again"}
		}
		in.Record = later(in.Record, ahead)
		fresh, digests = append(fresh, in), append(digests, digest)
	}
	if len(fresh) == 0 {
		return nil
	}
	if err := v.Local.ImportRecords(ctx, v.Namespace, v.current.Revision, fresh); err != nil {
		return err
	}
	for _, digest := range digests {
		copied[digest] = struct{}{}
	}
	return nil
}

// aheadOf is how far the clock here is ahead of a region's, and no less.
func (v *move) aheadOf(ctx context.Context, region string) (time.Duration, error) {
	there, err := v.placeAt(ctx, region, v.current)
	if err != nil {
		return 0, err
	}
	here, err := v.placeAt(ctx, v.Here, v.current)
	if err != nil {
		return 0, err
	}
	return here.Now.Sub(there.Now), nil
}

// later returns the record with what is still to come put off, by as much as its new store's
// clock is ahead: nothing expires early because of where it is. The lease's end goes along,
// because expiry is counted from it whenever the attempt is given up.
func later(rec *store.Record, ahead time.Duration) *store.Record {
	if ahead <= 0 {
		return rec
	}
	moved := *rec
	moved.AttemptLimit = moved.AttemptLimit.Add(ahead)
	moved.LeaseEnd = moved.LeaseEnd.Add(ahead)
	if !moved.ExpiresAt.IsZero() {
		moved.ExpiresAt = moved.ExpiresAt.Add(ahead)
	}
	return &moved
}

// carryHistory has the new home know what the old ones do of the namespace's past.
func (v *move) carryHistory(ctx context.Context) error {
	placed, err := v.placeAll(ctx, v.sources())
	if err != nil {
		return err
	}
	return v.takeHistory(ctx, placed)
}

func (v *move) takeHistory(ctx context.Context, placed map[string]store.Placed) error {
	for _, there := range placed {
		if err := v.Local.TakeHistory(ctx, v.current.Revision, there.Namespace); err != nil {
			return err
		}
	}
	return nil
}
