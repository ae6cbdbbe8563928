package pebblestore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/idemd/idemd/store"
)

// row is what a store holds for one key, live or not.
type row struct {
	Record *store.Record
	Events []store.Event
}

// inspectRequest asks for a key's record and events.
type inspectRequest struct{ Key store.Key }

// listRequest asks for a key's record as a listing shows it.
type listRequest struct{ Key store.Key }

// The answers that say nothing about a key and promise that the caller must not act.
const (
	answerUnknown = "UNKNOWN" // the operation may or may not have taken effect
	answerCorrupt = "CORRUPT" // refused because what is stored is damaged
)

// keyOf returns the key that a request is about.
func keyOf(req any) store.Key {
	return reflect.ValueOf(req).FieldByName("Key").Interface().(store.Key)
}

// send runs a request on a store and returns its answer in the form of [render].
func send(ctx context.Context, b store.Backend, req any) string {
	switch req := req.(type) {
	case store.ClaimRequest:
		answer, err := b.Claim(ctx, req)
		if answer.Granted != nil {
			granted := *answer.Granted
			granted.HeldFor = 0
			answer.Granted = &granted
		}
		return render(answer, err)
	case store.RenewRequest:
		answer, err := b.Renew(ctx, req)
		answer.HeldFor = 0
		return render(answer, err)
	case store.CompleteRequest:
		answer, err := b.Complete(ctx, req)
		return render(answer, err)
	case store.ReleaseRequest:
		answer, err := b.Release(ctx, req)
		return render(answer, err)
	case store.LookupRequest:
		answer, err := b.Lookup(ctx, req)
		return render(answer, err)
	case store.ResolveRequest:
		rec, err := b.Resolve(ctx, req)
		return render(rec, err)
	case store.ForceReleaseRequest:
		rec, err := b.ForceRelease(ctx, req)
		return render(rec, err)
	case inspectRequest:
		inspection, err := b.InspectRecord(ctx, req.Key)
		return render(row{inspection.Record, inspection.Events}, err)
	case listRequest:
		page, err := b.ListRecords(ctx, store.ListRequest{Namespace: req.Key.Namespace, PageSize: store.MaxPageSize})
		i := slices.IndexFunc(page.Records, func(rec *store.Record) bool { return rec.Key == req.Key })
		if i < 0 {
			return render(nil, err)
		}
		return render(page.Records[i], err)
	}
	panic(fmt.Sprintf("no such request: %T", req))
}

// decide is what the table says: the answer to a request at a row, and the row after it.
func decide(old row, ns *store.Namespace, req any, now time.Time) (row, string) {
	var (
		answer any
		change store.Change
		err    error
	)
	switch req := req.(type) {
	case store.ClaimRequest:
		answer, change, err = store.DecideClaim(old.Record, ns, req, now, now)
	case store.RenewRequest:
		answer, change, err = store.DecideRenew(old.Record, ns, req, now)
	case store.CompleteRequest:
		answer, change, err = store.DecideComplete(old.Record, ns, req, now)
	case store.ReleaseRequest:
		answer, change, err = store.DecideRelease(old.Record, ns, req, now)
	case store.LookupRequest:
		answer, err = store.DecideLookup(old.Record, ns, req, now)
	case store.ResolveRequest:
		change, err = store.DecideResolve(old.Record, ns, req, now)
		answer = change.Record
	case store.ForceReleaseRequest:
		change, err = store.DecideForceRelease(old.Record, ns, req, now)
		answer = change.Record
	case inspectRequest:
		answer = old
		if old.Record == nil || old.Record.Expired(now) {
			err = store.ErrKeyNotFound
		}
	case listRequest:
		if old.Record != nil && !old.Record.Expired(now) {
			listed := *old.Record
			listed.Outcome = nil
			answer = listed
		}
	}
	return old.with(change, now), render(answer, err)
}

// with returns the row after a change. The events of an expired record go with it.
func (r row) with(change store.Change, now time.Time) row {
	if change.Record != nil {
		if r.Record != nil && r.Record.Expired(now) {
			r.Events = nil
		}
		r.Record = change.Record
	}
	if change.Event != nil {
		r.Events = store.AddEvent(r.Events, *change.Event)
	}
	return r
}

// emptyIsNull makes what is empty and what is absent look alike in JSON.
var emptyIsNull = strings.NewReplacer(`:""`, `:null`, `:[]`, `:null`)

// render puts an answer or a refusal into one comparable line.
func render(answer any, err error) string {
	var refusal *store.Error
	switch {
	case err == nil:
		text, jsonErr := json.Marshal(answer)
		if jsonErr != nil {
			panic(jsonErr)
		}
		return emptyIsNull.Replace(string(text))
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return answerUnknown
	case errors.Is(err, store.ErrRecordCorrupt):
		return answerCorrupt
	case errors.As(err, &refusal):
		return "refused: " + refusal.Sentinel.Error()
	default:
		return "refused: " + err.Error()
	}
}
