package region

import (
	"context"
	"errors"

	"github.com/idemd/idemd/region/placement"
	"github.com/idemd/idemd/store"
)

// A page of records ends with the record with which it has so many bytes: so it fits into a
// message, though a record may have half a megabyte.
const exportBytes = 1 << 20

// localParty is a region's own store as a [Party].
type localParty struct {
	store.Backend
	region string
}

var _ Party = (*localParty)(nil)

// Namespace implements [Party].
func (p *localParty) Namespace(ctx context.Context, name string) (store.Namespace, error) {
	return p.GetNamespace(ctx, name)
}

// Place implements [Party].
func (p *localParty) Place(ctx context.Context, namespace string, next store.Placement) (store.Placed, error) {
	return p.PlaceNamespace(ctx, namespace, next)
}

// Held implements [Party].
func (p *localParty) Held(ctx context.Context, namespace string, _ int64) (Held, error) {
	return countHeld(ctx, namespace, p.ListRecords)
}

// countHeld counts the leases that have not run out. Now is that of the first page: what was
// not held then is not held later either, if nothing is granted.
func countHeld(ctx context.Context, namespace string, list func(context.Context, store.ListRequest) (store.RecordPage, error)) (Held, error) {
	req := store.ListRequest{Namespace: namespace, Filter: store.Filter{State: store.StateInProgress}, PageSize: store.MaxPageSize}
	var held Held
	for {
		page, err := list(ctx, req)
		if err != nil {
			return Held{}, err
		}
		if held.Now.IsZero() {
			held.Now = page.Now
		}
		for _, rec := range page.Records {
			if !rec.Lapsed(page.Now) {
				held.Count++
			}
		}
		if page.NextPageToken == "" {
			return held, nil
		}
		req.PageToken = page.NextPageToken
	}
}

// Export implements [Party].
func (p *localParty) Export(ctx context.Context, namespace string, revision int64, pageToken string) (Exported, error) {
	ns, err := p.GetNamespace(ctx, namespace)
	if err != nil {
		return Exported{}, err
	}
	if err := ns.CheckMove(revision, store.MoveSealed); err != nil {
		return Exported{}, err
	}
	x := &export{store: p.Backend, has: map[store.Key]bool{}}
	return x.page(ctx, store.ListRequest{Namespace: namespace, PageSize: store.MaxPageSize, PageToken: pageToken})
}

// export collects a page of whole records.
type export struct {
	store   store.Backend
	records []store.Inspection
	has     map[store.Key]bool
}

// page is the listing's page with whole records, or as much of it as has room.
func (x *export) page(ctx context.Context, req store.ListRequest) (Exported, error) {
	list, err := x.store.ListRecords(ctx, req)
	if err != nil {
		return Exported{}, err
	}
	room := exportBytes
	for i, rec := range list.Records {
		size, err := x.add(ctx, rec.Key)
		if err != nil {
			return Exported{}, err
		}
		if room -= size; room <= 0 && i+1 < len(list.Records) {
			req.PageSize = i + 1
			return x.shorter(ctx, req)
		}
	}
	return Exported{Records: x.records, NextPageToken: list.NextPageToken}, nil
}

// shorter is the page that ends where there was no more room. What has expired meanwhile makes
// room for others in it, so all of it is looked at again.
func (x *export) shorter(ctx context.Context, req store.ListRequest) (Exported, error) {
	list, err := x.store.ListRecords(ctx, req)
	if err != nil {
		return Exported{}, err
	}
	for _, rec := range list.Records {
		if !x.has[rec.Key] {
			if _, err := x.add(ctx, rec.Key); err != nil {
				return Exported{}, err
			}
		}
	}
	return Exported{Records: x.records, NextPageToken: list.NextPageToken}, nil
}

// add reads a record, unless it has expired meanwhile.
func (x *export) add(ctx context.Context, key store.Key) (size int, err error) {
	in, err := x.store.InspectRecord(ctx, key)
	if errors.Is(err, store.ErrKeyNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	x.records, x.has[key] = append(x.records, in), true
	return sizeOf(in), nil
}

// sizeOf is about how many bytes the record has in a message.
func sizeOf(in store.Inspection) int {
	size := 1024 // all that is bounded and small
	for _, e := range in.Events {
		size += 128 + len(e.Actor) + len(e.Reason)
		if e.Outcome != nil {
			size += e.Outcome.Size()
		}
	}
	if in.Record.Outcome != nil {
		size += in.Record.Outcome.Size()
	}
	return size
}

// Forget implements [Party].
func (p *localParty) Forget(ctx context.Context, namespace string, revision int64) (bool, error) {
	ns, err := p.GetNamespace(ctx, namespace)
	if err != nil {
		return false, err
	}
	if err := ns.CheckMove(revision, store.MoveFlipped); err != nil {
		return false, err
	}
	rule, err := placement.ParseRule(ns.Placement.Rule)
	if err != nil {
		return false, err
	}
	return p.ForgetRecords(ctx, namespace, revision, func(key store.Key) bool { return rule.Home(key) == p.region })
}
