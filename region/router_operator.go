package region

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/idemd/idemd/store"
)

// InspectRecord implements [store.Records].
func (r *Router) InspectRecord(ctx context.Context, key store.Key) (store.Inspection, error) {
	return route(ctx, r, inspecting, key)
}

// Resolve implements [store.Records].
func (r *Router) Resolve(ctx context.Context, req store.ResolveRequest) (*store.Record, error) {
	return route(ctx, r, resolving, req)
}

// ForceRelease implements [store.Records].
func (r *Router) ForceRelease(ctx context.Context, req store.ForceReleaseRequest) (*store.Record, error) {
	return route(ctx, r, forcing, req)
}

// ListRecords implements [store.Records]: the homes are asked one after the other. The token of
// a page says which one is next. One of several that cannot be reached is passed over, and named.
func (r *Router) ListRecords(ctx context.Context, req store.ListRequest) (store.RecordPage, error) {
	if err := req.Validate(); err != nil {
		return store.RecordPage{}, err
	}
	k, err := r.region.find(ctx, req.Namespace)
	if err != nil {
		return store.RecordPage{}, err
	}
	homes := k.rule.Regions()
	at := 0
	if req.PageToken != "" {
		home, inner, ok := strings.Cut(req.PageToken, tokenSeparator)
		if at = slices.Index(homes, home); !ok || at < 0 {
			return store.RecordPage{}, store.Refuse(store.ErrInvalidArgument, fmt.Sprintf("the page token is not one of namespace %q as it is placed now; begin anew", req.Namespace))
		}
		req.PageToken = inner
	}
	page, err := ask(ctx, r, listing, req, homes[at], k.ns.Placement.Epoch)
	switch {
	case errors.Is(err, store.ErrWrongRegion):
		return store.RecordPage{}, undecided(req.Namespace, homes[at], err)
	case errors.Is(err, store.ErrHomeUnreachable) && len(homes) > 1:
		page.Missing = fmt.Sprintf("region %q: %v", homes[at], err)
	case err != nil:
		return store.RecordPage{}, err
	}
	switch {
	case page.NextPageToken != "":
		page.NextPageToken = homes[at] + tokenSeparator + page.NextPageToken
	case at+1 < len(homes):
		page.NextPageToken = homes[at+1] + tokenSeparator
	}
	return page, nil
}

// tokenSeparator stands between a region and its store's own page token. No region's name has it.
const tokenSeparator = "/"

// Buckets implements [store.Maintainer]: those of this region's store.
func (r *Router) Buckets(ctx context.Context) ([]store.Bucket, error) { return r.local.Buckets(ctx) }

// Maintain implements [store.Maintainer], for this region's store.
func (r *Router) Maintain(ctx context.Context) (store.Maintenance, error) {
	return r.local.Maintain(ctx)
}
