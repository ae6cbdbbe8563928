package storetest

import (
	"errors"
	"strings"
	"time"

	"github.com/idemd/idemd/store"
)

// caseEmptyFingerprints: the fingerprints of a nil, an empty and a one-byte request are
// no digest, and digests of no bytes and of one.
func caseEmptyFingerprints(r *rig) {
	prints := []store.Fingerprint{{}, {Version: 1, Digest: "\x00"}, {Version: 1, Digest: "\x00\x00"}, {Version: 1, Digest: "0"}}
	for i, stored := range prints {
		key := store.Key{Namespace: hourTakeover, ID: string(rune('a' + i))}
		c := claim(key, "a")
		c.Fingerprint = stored
		r.do(c, "granted")
		for j, sent := range prints {
			c := claim(key, "b")
			c.Fingerprint = sent
			if i == j {
				r.do(c, "in progress")
			} else {
				r.refuse(c, store.ErrFingerprintMismatch)
			}
		}
	}
	c := claim(takeoverKey, "a")
	c.Fingerprint = store.Fingerprint{Version: 1}
	r.refuse(c, store.ErrInvalidArgument)
	c.Fingerprint = store.Fingerprint{Version: 1, Digest: strings.Repeat("f", store.MaxFingerprintBytes+1)}
	r.refuse(c, store.ErrInvalidArgument)
	c.Fingerprint.Digest = c.Fingerprint.Digest[1:]
	r.do(c, "granted")
}

func caseVersionedFingerprints(r *rig) {
	h := r.grant(takeoverKey, "a")
	older := claim(takeoverKey, "b")
	older.Fingerprint = store.Fingerprint{Version: 2, Digest: "other digest of the same request"}
	check := func(c call, kind string, unchecked bool) {
		r.Helper()
		equal(r, kind+" marked as not comparable", r.do(c, kind).Unchecked, unchecked)
	}
	check(older, "in progress", true)
	check(claim(takeoverKey, "b"), "in progress", false)
	equal(r, "version stored", r.record(takeoverKey).Fingerprint, fingerprintF)
	r.lapse(takeoverKey)
	check(older, "granted", true)
	equal(r, "fingerprint kept by a takeover", r.record(takeoverKey).Fingerprint, fingerprintF)
	r.refuse(complete(takeoverKey, h, done), store.ErrStaleFence)
	r.do(complete(takeoverKey, holder{"b", r.record(takeoverKey).Fence}, done), "recorded")
	check(older, "completed", true)
	look := lookup(takeoverKey)
	look.Fingerprint = older.Fingerprint
	equal(r, "outcome withheld from what cannot be compared", r.do(look, "found").Withheld, true)
	none := older
	none.Fingerprint = store.Fingerprint{}
	r.refuse(none, store.ErrFingerprintMismatch)
}

func caseTwoTenants(r *rig) {
	r.independent([]store.Key{
		{Namespace: hourTakeover, ID: "k"}, {Namespace: hourHold, ID: "k"}, {Namespace: store.DefaultNamespace, ID: "k"},
	})
	r.refuse(claim(store.Key{Namespace: "nobody", ID: "k"}, "a"), store.ErrNamespaceUnknown)
}

// caseTwoMethods also has keys that would be one if their parts were joined.
func caseTwoMethods(r *rig) {
	r.independent([]store.Key{
		{Namespace: hourTakeover, Scope: "/pay.v1.Pay/Charge", ID: "k"},
		{Namespace: hourTakeover, Scope: "/pay.v1.Pay/Refund", ID: "k"},
		{Namespace: hourTakeover, ID: "k"},
		{Namespace: hourTakeover, ID: "k", Entity: "e"},
		{Namespace: hourTakeover, Scope: "k", ID: "e"},
		{Namespace: hourTakeover, Scope: "a", ID: "b|c"},
		{Namespace: hourTakeover, Scope: "a|b", ID: "c"},
		{Namespace: hourTakeover, Scope: "a", ID: "b", Entity: "|c"},
	})
}

// independent fails the test unless each key has a record of its own.
func (r *rig) independent(keys []store.Key) {
	r.Helper()
	outcome := func(key store.Key) *store.Outcome {
		return &store.Outcome{Body: []byte(key.Namespace + "\x00" + key.Scope + "\x00" + key.ID + "\x00" + key.Entity)}
	}
	for _, key := range keys {
		got := r.do(claim(key, "a"), "granted")
		equal(r, "attempt number", got.Number, 1)
		r.do(complete(key, holder{"a", got.Fence}, outcome(key)), "recorded")
	}
	r.upkeep()
	for _, key := range keys {
		equal(r, "outcome", r.do(claim(key, "a"), "completed").Outcome, outcomeText(outcome(key)))
		equal(r, "key", r.record(key).Key, key)
	}
}

func caseLimits(r *rig) {
	key := store.Key{Namespace: store.DefaultNamespace, Scope: strings.Repeat("s", 255), ID: strings.Repeat("k", 255), Entity: strings.Repeat("é", 127) + "e"}
	r.independent([]store.Key{key})
	for _, long := range []func(k *store.Key){
		func(k *store.Key) { k.Scope += "s" },
		func(k *store.Key) { k.ID += "k" },
		func(k *store.Key) { k.Entity += "e" },
		func(k *store.Key) { k.Entity = strings.Repeat("é", 128) }, // 128 characters, 256 bytes
	} {
		over := key
		long(&over)
		r.refuse(claim(over, "a"), store.ErrInvalidArgument)
		r.refuse(lookup(over), store.ErrInvalidArgument)
		r.refuse(inspect(over), store.ErrInvalidArgument)
	}
	r.refuse(claim(takeoverKey, ""), store.ErrInvalidArgument)
	r.refuse(claim(takeoverKey, strings.Repeat("a", 65)), store.ErrInvalidArgument)
	r.grant(takeoverKey, strings.Repeat("\xff", 64))
	r.refuse(claim(store.Key{Namespace: hourTakeover, Scope: "s"}, "a"), store.ErrKeyRequired)

	random := strings.ToValidUTF8(string(largeBody(4096)), "")
	random += strings.Repeat("x", 4096-len(random))
	var texts []string
	for _, id := range []string{random, strings.Repeat("a", 4096)} {
		_, err := r.Claim(r.ctx, claim(store.Key{Namespace: hourTakeover, ID: id}, "a").claimRequest())
		if !errors.Is(err, store.ErrInvalidArgument) {
			r.Fatalf("an id of 4096 bytes: want %v, got %v", store.ErrInvalidArgument, err)
		}
		texts = append(texts, err.Error())
	}
	equal(r, "text of the refusal", texts[1], texts[0])
}

func caseBytesAsGiven(r *rig) {
	var keys []store.Key
	for _, id := range []string{
		"k", "K", " k", "k ", "k  k", "k k", "👍", "👍🏽", "\u00e9", "e\u0301", "\ufeffk", "k\u200b", "ß", "ss", "İ", "i", "\u00a0", " ",
		"%6b", "k/", "k%00", "ﬁ", "fi", "1", "01", "１",
	} {
		keys = append(keys, store.Key{Namespace: hourTakeover, ID: id}, store.Key{Namespace: hourTakeover, ID: "x", Scope: id},
			store.Key{Namespace: hourTakeover, ID: "x", Entity: id})
	}
	r.independent(keys)
}

func caseControlCharacters(r *rig) {
	for _, bad := range []string{"\x00", "k\nk", "\tk", "k\r", "\x1b[0m", "k\x7f", "k\u0085", "\xff", "k\xc3", "\xed\xa0\x80"} {
		for _, key := range []store.Key{
			{Namespace: hourTakeover, ID: bad}, {Namespace: hourTakeover, ID: "k", Scope: bad}, {Namespace: hourTakeover, ID: "k", Entity: bad},
		} {
			r.refuse(claim(key, "a"), store.ErrInvalidArgument)
			r.refuse(lookup(key), store.ErrInvalidArgument)
		}
	}
	for _, namespace := range []string{"", "-a", "A", "a_b", "a b", "é", strings.Repeat("a", 64)} {
		r.refuse(claim(store.Key{Namespace: namespace, ID: "k"}, "a"), store.ErrInvalidArgument)
	}
}

func caseEmptyResponse(r *rig) {
	r.completed(takeoverKey, "a", &store.Outcome{})
	r.upkeep()
	for _, attempt := range []string{"a", "b"} {
		equal(r, "outcome", r.do(claim(takeoverKey, attempt), "completed").Outcome, outcomeText(&store.Outcome{}))
	}
	answer, err := r.Lookup(r.ctx, store.LookupRequest{Key: takeoverKey, Fingerprint: fingerprintF})
	if err != nil || answer.Outcome == nil {
		r.Fatalf("Lookup of an empty outcome: outcome %v, error %v", answer.Outcome, err)
	}
}

func caseClaimCompleteClaim(r *rig) {
	r.do(claim(takeoverKey, "b"), "granted")
	r.do(lookup(takeoverKey), "found")
	r.do(claim(takeoverKey, "a"), "in progress")
	h := holder{"b", r.record(takeoverKey).Fence}
	r.do(complete(takeoverKey, h, done), "recorded")
	r.Clock.Advance(time.Second)
	got := r.do(claim(takeoverKey, "a"), "completed")
	equal(r, "outcome", got.Outcome, outcomeText(done))
	equal(r, "fence", got.Fence, h.fence)
	equal(r, "age", got.Age, time.Second)
	equal(r, "retention", got.Retention, 2*time.Minute)
	r.Clock.Advance(2 * time.Minute)
	r.do(claim(takeoverKey, "a"), "granted")
	r.do(claim(takeoverKey, "b"), "in progress")
}

func caseTooLarge(r *rig) {
	h := r.grant(takeoverKey, "a")
	before := r.record(takeoverKey)
	for _, size := range []int{store.MinOutcomeBytes + 1, store.MaxOutcomeBytes + 1} { // the namespace's limit is the least
		r.refuse(complete(takeoverKey, h, &store.Outcome{Body: make([]byte, size)}), store.ErrOutcomeTooLarge)
	}
	r.unchanged(takeoverKey, before, "an outcome that is too large")
	r.do(claim(takeoverKey, "b"), "in progress")
	omitted := &store.Outcome{BodyType: "example.v1.Large", BodyOmitted: true}
	r.refuse(complete(takeoverKey, h, &store.Outcome{BodyOmitted: true, Body: []byte("x")}), store.ErrInvalidArgument)
	r.do(complete(takeoverKey, h, omitted), "recorded")
	r.upkeep()
	for _, attempt := range []string{"a", "b"} {
		equal(r, "outcome", r.do(claim(takeoverKey, attempt), "completed").Outcome, outcomeText(omitted))
	}
}

func caseRedelivery(r *rig) {
	made := at(Start)
	delivery := func(attempt string) call {
		c := claim(takeoverKey, attempt)
		c.Intent = made
		return c
	}
	h := holder{"a", r.do(delivery("a"), "granted").Fence}
	r.do(complete(takeoverKey, h, done), "recorded")
	r.do(delivery("b"), "completed")
	r.Clock.Advance(10 * time.Hour)
	r.upkeep()
	r.refuse(delivery("b"), store.ErrKeyExpired)
	r.refuse(delivery("a"), store.ErrKeyExpired)
	r.refuse(lookup(takeoverKey), store.ErrKeyNotFound)
	r.do(claim(takeoverKey, "b"), "granted") // where the time is not known it is a new intent

	// The bound is exact: intent time + retention (2 min) - skew (12 s).
	fresh := claim(store.Key{Namespace: hourTakeover, ID: "fresh"}, "a")
	fresh.Intent = at(r.Clock.Wall().Add(12*time.Second - 2*time.Minute))
	r.refuse(fresh, store.ErrKeyExpired)
	fresh.Intent = fresh.Intent.add(time.Microsecond)
	r.do(fresh, "granted")
	fresh.Key.ID, fresh.Intent = "future", at(r.Clock.Wall().Add(12*time.Second+time.Microsecond))
	r.refuse(fresh, store.ErrInvalidArgument)
	fresh.Intent = fresh.Intent.add(-time.Microsecond)
	r.do(fresh, "granted")
}

// caseExactExpiry lets every kind of record expire, with nothing dropped in between.
func caseExactExpiry(r *rig) {
	const retention = 2 * time.Minute
	for kind, prepare := range map[string]func(key store.Key, h holder){
		"completed": func(key store.Key, h holder) { r.do(complete(key, h, done), "recorded") },
		"released":  func(key store.Key, h holder) { r.do(release(key, h, store.EffectNone), "released") },
		"unknown":   func(key store.Key, h holder) { r.do(release(key, h, store.EffectUnknown), "released") },
		"forced":    func(key store.Key, _ holder) { r.do(force(key), "changed") },
		"lapsed":    func(key store.Key, _ holder) { r.lapse(key) },
	} {
		key := store.Key{Namespace: hourTakeover, ID: kind}
		h := r.grant(key, "a")
		r.Clock.Advance(time.Second)
		prepare(key, h)
		r.Clock.Advance(retention - time.Microsecond)
		r.do(lookup(key), "found")
		r.Clock.Advance(time.Microsecond)
		r.refuse(lookup(key), store.ErrKeyNotFound)
		r.refuse(inspect(key), store.ErrKeyNotFound)
		r.refuse(complete(key, h, done), store.ErrKeyNotFound)
		r.refuse(renew(key, h), store.ErrKeyNotFound)
		r.refuse(release(key, h, store.EffectNone), store.ErrKeyNotFound)
		r.refuse(resolve(key, nil), store.ErrKeyNotFound)
		r.refuse(force(key), store.ErrKeyNotFound)
		c := claim(key, "a") // its attempt id is known no more
		c.Fingerprint = fingerprintG
		got := r.do(c, "granted")
		equal(r, kind+": attempt number", got.Number, 1)
		equal(r, kind+": unsettled", got.Unsettled, false)
		equal(r, kind+": previous fence", got.Previous, 0)
		r.grows([]int64{h.fence, got.Fence})
	}
}
