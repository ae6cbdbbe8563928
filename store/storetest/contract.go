package storetest

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/idemd/idemd/store"
)

// contract are checks of what the interfaces of package store say beside the table.
var contract = []check{
	{"namespaces are kept", on(contractNamespaces)},
	{"bad namespaces are refused", on(contractBadNamespaces)},
	{"a longer retention does not revive", on(contractLongerRetention)},
	{"entity rules", on(contractEntityRules)},
	{"a grant keeps what it stamped", on(contractStamps)},
	{"what operators did stays on record", on(contractAudit)},
	{"late outcomes leave bounded evidence", on(contractEvidence)},
	{"a recovery covers every namespace", on(contractBeginRecovery)},
	{"a recovery of one namespace", on(contractBeginRecoveryOfOne)},
	{"a recovery floor is lifted by name", on(contractLiftRecovery)},
	{"a lift is confirmed", on(contractLiftIsConfirmed)},
	{"a recovery floor for new namespaces ages", on(contractFloorForNewAges)},
	{"records are listed in pages", on(contractPages)},
	{"listings of one scope or entity", on(contractListsByKey)},
	{"a page token says nothing and chooses nothing", on(contractPageTokens)},
	{"buckets are slices of their tier", on(contractBuckets)},
	{"requests of a context that is gone", on(contractContext)},
}

// contractUpdatesOfWhatWasRead: of two operators who change what they have both read, the second is refused,
// unless that is what the first has done.
func contractUpdatesOfWhatWasRead(r *rig, read store.Namespace) {
	r.Helper()
	first, second := read, read
	first.IfUpdatedAt, second.IfUpdatedAt = read.UpdatedAt, read.UpdatedAt
	first.Retention, second.LapsePolicy = 90*time.Minute, store.Takeover
	updated, err := r.UpdateNamespace(r.ctx, first)
	if err != nil || !updated.UpdatedAt.After(read.UpdatedAt) || !updated.IfUpdatedAt.IsZero() {
		r.Fatalf("the first update: %+v, %v", updated, err)
	}
	_, err = r.UpdateNamespace(r.ctx, second)
	r.refusedAs("an update of what was changed since", err, store.ErrNamespaceChanged)
	if kept, err := r.GetNamespace(r.ctx, read.Name); err != nil || !kept.SameSettings(updated) || !kept.UpdatedAt.Equal(updated.UpdatedAt) {
		r.Fatalf("after the refusal: %+v, %v; want %+v", kept, err, updated)
	}
	again, err := r.UpdateNamespace(r.ctx, first)
	if err != nil || !again.SameSettings(updated) {
		r.Fatalf("the first update again: %+v, %v", again, err)
	}
	second = again
	second.IfUpdatedAt, second.LapsePolicy = again.UpdatedAt, store.Takeover
	if both, err := r.UpdateNamespace(r.ctx, second); err != nil || both.Retention != first.Retention || both.LapsePolicy != store.Takeover {
		r.Fatalf("the second update, of what was read again: %+v, %v", both, err)
	}
}

func contractNamespaces(r *rig) {
	made := r.createNamespace(store.Namespace{Name: "a-1", Retention: 2 * time.Hour})
	want := store.Namespace{Name: "a-1", Tier: store.TierDay, Retention: 2 * time.Hour, LapsePolicy: store.Takeover,
		Lease: store.DefaultLease, MaxLease: store.MaxLease, MaxAttempt: store.DefaultMaxAttempt,
		MaxOutcomeBytes: store.MaxOutcomeBytes, CreatedAt: Start, UpdatedAt: Start}
	r.sameNamespace("created", made, want)
	r.Clock.Advance(time.Minute)
	r.sameNamespace("created again", r.createNamespace(store.Namespace{Name: "a-1", Retention: 2 * time.Hour}), want)
	_, err := r.CreateNamespace(r.ctx, store.Namespace{Name: "a-1", Retention: 3 * time.Hour})
	r.refusedAs("creating it with other settings", err, store.ErrNamespaceExists)

	changed := want
	changed.Retention, changed.LapsePolicy, changed.Lease = time.Hour, store.Hold, time.Minute
	r.updateNamespace(changed)
	changed.UpdatedAt = Start.Add(time.Minute)
	r.reopen()
	kept, err := r.GetNamespace(r.ctx, "a-1")
	if err != nil {
		r.Fatalf("GetNamespace: %v", err)
	}
	r.sameNamespace("updated", kept, changed)
	contractUpdatesOfWhatWasRead(r, kept)
	r.updateNamespace(changed)
	for _, floor := range []time.Time{Start.Add(time.Hour), time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)} {
		_, err = r.UpdateNamespace(r.ctx, store.Namespace{Name: "a-1", RecoveryFloor: floor})
		r.refusedAs("a floor that has not come", err, store.ErrInvalidArgument)
		_, err = r.CreateNamespace(r.ctx, store.Namespace{Name: "a-2", RecoveryFloor: floor})
		r.refusedAs("a floor that has not come, of a new one", err, store.ErrInvalidArgument)
	}

	_, err = r.GetNamespace(r.ctx, "nobody")
	r.refusedAs("getting one that does not exist", err, store.ErrNamespaceUnknown)
	_, err = r.UpdateNamespace(r.ctx, store.Namespace{Name: "nobody"})
	r.refusedAs("updating one that does not exist", err, store.ErrNamespaceUnknown)
	_, err = r.ListRecords(r.ctx, store.ListRequest{Namespace: "nobody"})
	r.refusedAs("listing one that does not exist", err, store.ErrNamespaceUnknown)
	list, err := r.ListNamespaces(r.ctx)
	if err != nil {
		r.Fatalf("ListNamespaces: %v", err)
	}
	var names []string
	for _, ns := range list {
		names = append(names, ns.Name)
	}
	if want := []string{"a-1", store.DefaultNamespace, hourHold, hourTakeover}; !slices.Equal(names, want) {
		r.Fatalf("namespaces: want %q, got %q", want, names)
	}
}

// sameNamespace compares all but PastRetentions, which only the store reads.
func (r *rig) sameNamespace(what string, got, want store.Namespace) {
	r.Helper()
	type times struct{ created, updated, floor instant }
	equal(r, what+": times", times{at(got.CreatedAt), at(got.UpdatedAt), at(got.RecoveryFloor)},
		times{at(want.CreatedAt), at(want.UpdatedAt), at(want.RecoveryFloor)})
	for _, ns := range []*store.Namespace{&got, &want} {
		ns.CreatedAt, ns.UpdatedAt, ns.RecoveryFloor, ns.PastRetentions = time.Time{}, time.Time{}, time.Time{}, nil
	}
	if !got.SameSettings(want) || got.Tier != want.Tier || got.Name != want.Name {
		r.Fatalf("%s: want %+v, got %+v", what, want, got)
	}
}

func (r *rig) refusedAs(what string, err, sentinel error) {
	r.Helper()
	equal(r, what, refusalOf(err).Refusal, sentinel)
}

func contractBadNamespaces(r *rig) {
	for name, bad := range map[string]store.Namespace{
		"name":              {Name: "A"},
		"retention":         {Name: "n", Retention: time.Minute - 1},
		"long retention":    {Name: "n", Retention: 35*24*time.Hour + time.Microsecond},
		"beyond the tier":   {Name: "n", Tier: store.TierHour, Retention: time.Hour + time.Microsecond},
		"short lease":       {Name: "n", Lease: time.Second - 1},
		"lease beyond max":  {Name: "n", Lease: 2 * time.Minute, MaxLease: time.Minute},
		"max lease":         {Name: "n", MaxLease: 15*time.Minute + time.Microsecond},
		"max attempt":       {Name: "n", Tier: store.TierHour, MaxAttempt: 15*time.Minute + time.Microsecond},
		"max outcome bytes": {Name: "n", MaxOutcomeBytes: store.MaxOutcomeBytes + 1},
		"min outcome bytes": {Name: "n", MaxOutcomeBytes: store.MinOutcomeBytes - 1},
	} {
		_, err := r.CreateNamespace(r.ctx, bad)
		r.refusedAs(name, err, store.ErrInvalidArgument)
		_, err = r.GetNamespace(r.ctx, bad.Name)
		if err == nil {
			r.Fatalf("%s: a refused namespace exists", name)
		}
	}
	before, err := r.GetNamespace(r.ctx, hourTakeover)
	if err != nil {
		r.Fatalf("GetNamespace: %v", err)
	}
	tooLong, otherTier := before, before
	tooLong.Retention = 2 * time.Hour // more than its tier allows
	otherTier.Tier, otherTier.Retention = store.TierDay, 2*time.Hour
	for _, bad := range []store.Namespace{tooLong, otherTier} {
		_, err = r.UpdateNamespace(r.ctx, bad)
		r.refusedAs("an update that its tier does not allow", err, store.ErrInvalidArgument)
	}
	after, err := r.GetNamespace(r.ctx, hourTakeover)
	if err != nil {
		r.Fatalf("GetNamespace: %v", err)
	}
	r.sameNamespace("after a refused update", after, before)
}

// contractLongerRetention: an intent whose outcome was forgotten under the old retention
// stays too old under a longer one.
func contractLongerRetention(r *rig) {
	c := claim(takeoverKey, "a")
	c.Intent = at(Start)
	h := holder{"a", r.do(c, "granted").Fence}
	r.do(complete(takeoverKey, h, done), "recorded")
	r.Clock.Advance(3 * time.Minute)
	r.refuse(c, store.ErrKeyExpired)
	longer := machineSpaces()[hourTakeover]
	longer.retention = time.Hour
	r.updateNamespace(longer.namespace(hourTakeover))
	r.reopen()
	r.refuse(c, store.ErrKeyExpired)
	r.Clock.Advance(10 * time.Minute)
	c.Key.ID, c.Intent = "newer", at(r.Clock.Wall().Add(-5*time.Minute))
	r.do(c, "granted")
}

func contractEntityRules(r *rig) {
	rules := map[store.EntityRule][2]error{ // without and with an entity
		store.EntityOptional:  {nil, nil},
		store.EntityRequired:  {store.ErrInvalidArgument, nil},
		store.EntityForbidden: {nil, store.ErrInvalidArgument},
	}
	for rule, want := range rules {
		ns := store.Namespace{Name: [...]string{"optional", "required", "forbidden"}[rule], Entity: rule}
		r.createNamespace(ns)
		for i, entity := range []string{"", "e"} {
			got := claim(store.Key{Namespace: ns.Name, ID: "k", Entity: entity}, "a").perform(r.ctx, r.Backend)
			equal(r, ns.Name+" with entity "+entity, got.Refusal, want[i])
		}
	}
}

// contractStamps changes a namespace under a holder.
func contractStamps(r *rig) {
	h := r.grant(takeoverKey, "a")
	before := r.record(takeoverKey)
	changed := machineSpaces()[hourTakeover]
	changed.retention, changed.hold, changed.maxAttempt, changed.maxLease = time.Minute, true, 30*time.Second, 30*time.Second
	r.updateNamespace(changed.namespace(hourTakeover))
	r.unchanged(takeoverKey, before, "a change of its namespace")
	renewed := renew(takeoverKey, h)
	renewed.Lease = 30 * time.Second
	for range 3 {
		r.Clock.Advance(9 * time.Second)
		r.do(renewed, "renewed")
	}
	equal(r, "lease end", r.record(takeoverKey).LeaseEnd, at(Start).add(57*time.Second))
	r.lapse(takeoverKey)
	r.do(claim(takeoverKey, "b"), "granted") // TAKEOVER was stamped
	after := r.record(takeoverKey)
	equal(r, "policy of the next grant", after.Policy, store.Hold)
	equal(r, "retention of the next grant", after.Retention, time.Minute)
	equal(r, "limit of the next grant", after.Limit, after.GrantedAt.add(30*time.Second))
}

// contractAudit: whatever callers do, and however often, they push no event out that tells
// what an operator did, nor do late outcomes push out takeovers.
func contractAudit(r *rig) {
	forced := r.grant(takeoverKey, "forced")
	r.do(force(takeoverKey), "changed")
	resolved := r.grant(takeoverKey, "resolved")
	r.lapse(takeoverKey)
	r.do(resolve(takeoverKey, nil), "changed")
	lapsed := r.grant(takeoverKey, "lapsed")
	r.lapse(takeoverKey)
	r.grant(takeoverKey, "holder")
	audit := func() {
		r.Helper()
		f, s := r.events(takeoverKey, store.EventForceReleased), r.events(takeoverKey, store.EventResolved)
		equal(r, "events of the ForceRelease", len(f), 1)
		equal(r, "events of the Resolve", len(s), 1)
		equal(r, "fence of the ForceRelease", f[0].Fence, forced.fence)
		equal(r, "fence of the Resolve", s[0].Fence, resolved.fence)
	}
	for i := range store.MaxEvents + 1 {
		r.refuse(complete(takeoverKey, lapsed, &store.Outcome{Body: []byte{byte(i)}}), store.ErrStaleFence)
		r.refuse(complete(takeoverKey, holder{"nobody", 1}, &store.Outcome{Body: []byte{byte(i)}}), store.ErrStaleFence)
	}
	r.upkeep()
	audit()
	takeovers := r.events(takeoverKey, store.EventTakeover)
	equal(r, "fence of the last takeover", takeovers[len(takeovers)-1].Fence, lapsed.fence)
	equal(r, "late outcomes", len(r.events(takeoverKey, store.EventLateOutcome)), store.MaxEvents)
	for _, attempt := range attemptNames(store.MaxEvents + 1) {
		r.lapse(takeoverKey)
		r.grant(takeoverKey, attempt)
	}
	r.upkeep()
	audit()
	equal(r, "takeovers", len(r.events(takeoverKey, store.EventTakeover)), store.MaxEvents)
	equal(r, "late outcomes", len(r.events(takeoverKey, store.EventLateOutcome)), store.MaxEvents)
}

// contractEvidence: a fence that was never granted leaves no evidence, and what is kept of
// large outcomes says which they were.
func contractEvidence(r *rig) {
	key := store.Key{Namespace: store.DefaultNamespace, ID: "k"} // takes outcomes of 256 KiB
	late := r.grant(key, "a")
	r.lapse(key)
	current := r.grant(key, "b")
	r.refuse(complete(key, holder{"a", current.fence + 1}, done), store.ErrStaleFence)
	r.refuse(complete(key, holder{"a", 1 << 62}, done), store.ErrStaleFence)
	equal(r, "evidence under fences never granted", len(r.events(key, store.EventLateOutcome)), 0)
	large := make([]*store.Outcome, store.MaxEvents)
	for i := range large {
		large[i] = &store.Outcome{Status: []byte{8, 9, 18, 1, byte('a' + i)}, Body: make([]byte, store.MaxOutcomeBytes-5)}
		r.refuse(complete(key, late, large[i]), store.ErrStaleFence)
	}
	r.upkeep()
	kept := r.events(key, store.EventLateOutcome)
	equal(r, "late outcomes", len(kept), len(large))
	for i, e := range kept {
		equal(r, "what is kept", outcomeText(e.Outcome), outcomeText(&store.Outcome{Status: []byte{8, 9}, BodyOmitted: true}))
		equal(r, "digest", e.OutcomeDigest, outcomeDigest(large[i]))
		equal(r, "size", e.OutcomeSize, store.MaxOutcomeBytes)
	}
}

func contractPages(r *rig) {
	want := map[store.Key]store.State{}
	for i, id := range attemptNames(25) {
		key := store.Key{Namespace: hourTakeover, Scope: "s", ID: id}
		h := r.grant(key, "a")
		want[key] = store.StateInProgress
		switch i % 3 {
		case 1:
			r.do(complete(key, h, done), "recorded")
			want[key] = store.StateCompleted
		case 2:
			r.do(release(key, h, store.EffectNone), "released")
			want[key] = store.StateReleased
		}
	}
	r.grant(holdKey, "a") // of another namespace
	for _, size := range []int{0, 1, 7, 25, 1000} {
		records, err := listAll(r.ctx, r.Backend, store.ListRequest{Namespace: hourTakeover, PageSize: size})
		if err != nil {
			r.Fatalf("ListRecords: %v", err)
		}
		got := map[store.Key]store.State{}
		for _, rec := range records {
			got[rec.Key] = rec.State
			equal(r, "state of "+rec.Key.ID, rec.State, want[rec.Key])
		}
		equal(r, "records", len(records), len(want))
		equal(r, "keys", len(got), len(want))
	}
	for _, bad := range []store.ListRequest{
		{Namespace: hourTakeover, PageSize: -1}, {Namespace: hourTakeover, PageSize: store.MaxPageSize + 1}, {Namespace: ""},
		{Namespace: hourTakeover, Filter: store.Filter{State: 9}},
		{Namespace: hourTakeover, Filter: store.Filter{Scope: strings.Repeat("s", store.MaxScopeBytes+1)}},
		{Namespace: hourTakeover, Filter: store.Filter{Entity: "\xff"}},
	} {
		_, err := r.ListRecords(r.ctx, bad)
		r.refusedAs("a bad listing", err, store.ErrInvalidArgument)
	}
}

// contractListsByKey: the parts of a key are compared as a whole, whatever the others hold.
func contractListsByKey(r *rig) {
	long := strings.Repeat("x", 44) // as many bytes as the code of ',' says
	keys := []store.Key{
		{ID: "1"},
		{ID: "2", Scope: "charge"},
		{ID: "3", Scope: "charge", Entity: "acme"},
		{ID: "4", Scope: "charge2", Entity: "acme"},
		{ID: "5", Scope: "Charge", Entity: "acme2"},
		{ID: "6", Entity: "charge"},
		{ID: "7", Scope: "acme", Entity: "2acme"},
		{ID: "8", Entity: "8," + long}, // its encoding ends as that of the next one does
		{ID: "9", Entity: long},
		{ID: "a", Scope: "charge", Entity: "größe"},
	}
	for _, key := range keys {
		key.Namespace = hourTakeover
		h := r.grant(key, "a")
		if key.ID == "3" {
			r.do(complete(key, h, done), "recorded")
		}
		key.Namespace = holdKey.Namespace
		r.grant(key, "a") // of another namespace
	}
	for _, c := range []struct {
		filter store.Filter
		want   string
	}{
		{store.Filter{}, "1 2 3 4 5 6 7 8 9 a"},
		{store.Filter{Scope: "charge"}, "2 3 a"},
		{store.Filter{Scope: "Charge"}, "5"},
		{store.Filter{Scope: "charg"}, ""},
		{store.Filter{Entity: "acme"}, "3 4"},
		{store.Filter{Entity: "me"}, ""},
		{store.Filter{Entity: long}, "9"},
		{store.Filter{Entity: "größe"}, "a"},
		{store.Filter{Scope: "charge", Entity: "acme"}, "3"},
		{store.Filter{Scope: "acme", Entity: "charge"}, ""},
		{store.Filter{State: store.StateInProgress, Entity: "acme"}, "4"},
		{store.Filter{State: store.StateCompleted, Scope: "charge"}, "3"},
		{store.Filter{Lapsed: true, Scope: "charge"}, ""},
	} {
		for _, size := range []int{1, 1000} {
			records, err := listAll(r.ctx, r.Backend, store.ListRequest{Namespace: hourTakeover, Filter: c.filter, PageSize: size})
			if err != nil {
				r.Fatalf("ListRecords %+v: %v", c.filter, err)
			}
			var got []string
			for _, rec := range records {
				got = append(got, rec.Key.ID[:1])
			}
			slices.Sort(got)
			equal(r, fmt.Sprintf("ids listed by %+v in pages of %d", c.filter, size), strings.Join(got, " "), c.want)
		}
	}
}

// contractPageTokens: the keys of two tenants lie among each other, and neither learns from a token
// where those of the other are, or can choose one to find out.
func contractPageTokens(r *rig) {
	for _, id := range attemptNames(20) {
		r.grant(store.Key{Namespace: hourTakeover, ID: id}, "a")
		r.grant(store.Key{Namespace: holdKey.Namespace, ID: id}, "a")
	}
	req := store.ListRequest{Namespace: hourTakeover, PageSize: 1}
	first := ""
	for {
		page, err := r.ListRecords(r.ctx, req)
		if err != nil {
			r.Fatalf("ListRecords: %v", err)
		}
		if req.PageToken = page.NextPageToken; req.PageToken == "" {
			break
		}
		first = cmp.Or(first, req.PageToken)
		for _, id := range attemptNames(20) {
			digest := store.Key{Namespace: holdKey.Namespace, ID: id}.Digest()
			if strings.Contains(strings.ToLower(req.PageToken), hex.EncodeToString(digest[:4])) {
				r.Errorf("the page token %s shows the digest of another namespace's key: %x", req.PageToken, digest)
			}
		}
	}
	other := byte('0')
	if first[len(first)-1] == other {
		other = '1'
	}
	for what, bad := range map[string]store.ListRequest{
		"of another namespace": {Namespace: holdKey.Namespace, PageToken: first},
		"of another state":     {Namespace: hourTakeover, PageToken: first, Filter: store.Filter{State: store.StateReleased}},
		"of lapsed ones":       {Namespace: hourTakeover, PageToken: first, Filter: store.Filter{Lapsed: true}},
		"of another scope":     {Namespace: hourTakeover, PageToken: first, Filter: store.Filter{Scope: "s"}},
		"of another entity":    {Namespace: hourTakeover, PageToken: first, Filter: store.Filter{Entity: "s"}},
		"that was changed":     {Namespace: hourTakeover, PageToken: first[:len(first)-1] + string(other)},
	} {
		_, err := r.ListRecords(r.ctx, bad)
		r.refusedAs("a page token "+what, err, store.ErrInvalidArgument)
	}
	page, err := r.ListRecords(r.ctx, store.ListRequest{Namespace: hourTakeover, PageSize: 1000, PageToken: first})
	if err != nil || len(page.Records) == 0 {
		r.Errorf("a larger page after a small one: %d records, %v", len(page.Records), err)
	}
}

func contractBuckets(r *rig) {
	for range 3 {
		for _, key := range []store.Key{takeoverKey, holdKey, {Namespace: store.DefaultNamespace, ID: "k"}} {
			claim(key, "a").perform(r.ctx, r.Backend)
		}
		r.Clock.Advance(7 * time.Hour)
		r.maintain()
	}
	buckets, err := r.Buckets(r.ctx)
	if err != nil {
		r.Fatalf("Buckets: %v", err)
	}
	for i, b := range buckets {
		equal(r, "width of a bucket", b.End.Sub(b.Start), b.Tier.BucketWidth())
		if b.DropAfter.Before(b.End) {
			r.Fatalf("a bucket that ends at %v can be dropped at %v", b.End, b.DropAfter)
		}
		if i > 0 && (b.Tier < buckets[i-1].Tier || b.Tier == buckets[i-1].Tier && b.Start.Before(buckets[i-1].End)) {
			r.Fatalf("buckets overlap or are not in order: %+v, %+v", buckets[i-1], b)
		}
	}
}

// contractContext: an operation whose context is gone says so, or that its effect is not
// known, or is answered as always; it is never refused for another reason.
func contractContext(r *rig) {
	h := r.grant(takeoverKey, "a")
	gone, cancel := context.WithCancel(r.ctx)
	cancel()
	for _, c := range []call{
		claim(takeoverKey, "a"), renew(takeoverKey, h), lookup(takeoverKey), inspect(takeoverKey), complete(takeoverKey, h, done),
	} {
		got := c.perform(gone, r.Backend)
		if got.Refusal != nil && !errors.Is(got.Refusal, context.Canceled) && !got.unknown() {
			r.Fatalf("%s with a context that is gone: %v", c.Kind, got.Refusal)
		}
	}
	r.do(complete(takeoverKey, h, done), "recorded")
}
