package storetest

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/idemd/idemd/store"
)

var faults = []fault{
	{name: "a Claim sent again extends the lease", catchers: []string{"18 "}, claim: afterGrant(func(f *faulty, req store.ClaimRequest, g *store.Granted) {
		g.LeaseRemaining = 10 * time.Second
		g.LeaseExpiresAt = f.clock.Now().Add(g.LeaseRemaining)
		f.poke(req.Key, func(rec *store.Record) { rec.LeaseEnd = g.LeaseExpiresAt })
	})},
	{name: "a lease that stands is taken over", catchers: []string{"S1 one unexpired", "31 "}, claim: func(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		now := f.clock.Now()
		f.poke(req.Key, func(rec *store.Record) {
			if rec.AttemptID != req.AttemptID {
				rec.LeaseEnd, rec.LapsePolicy = now, store.Takeover
			}
		})
		return next(req)
	}},
	{name: "a killed holder keeps the key", catchers: []string{"11 ", "L1 "}, claim: afterGrant(func(f *faulty, req store.ClaimRequest, _ *store.Granted) {
		f.poke(req.Key, func(rec *store.Record) { rec.LeaseEnd = rec.LeaseEnd.Add(time.Hour) })
	})},
	{name: "a lease counts from the intent time", catchers: []string{"15 "}, claim: func(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		answer, err := next(req)
		if answer.Granted != nil && !req.IntentTime.IsZero() {
			answer.Granted.LeaseExpiresAt = req.IntentTime.Add(answer.Granted.LeaseRemaining)
			f.poke(req.Key, func(rec *store.Record) { rec.LeaseEnd = answer.Granted.LeaseExpiresAt })
		}
		return answer, err
	}},
	{name: "a losing Claim touches the record", catchers: []string{"20 "}, claim: func(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		answer, err := next(req)
		if answer.InProgress != nil {
			f.poke(req.Key, func(rec *store.Record) { rec.Fingerprint = req.Fingerprint })
		}
		return answer, err
	}},
	{name: "no fingerprint matches every one", catchers: []string{"02 ", "04 "}, claim: func(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		if rec := f.peek(req.Key); rec != nil && req.Fingerprint == (store.Fingerprint{}) {
			req.Fingerprint = rec.Fingerprint
		}
		return next(req)
	}},
	{name: "a fence is the time and nothing else", catchers: []string{"S2 fences grow while"}, claim: afterGrant(func(f *faulty, req store.ClaimRequest, g *store.Granted) {
		g.Fence = g.GrantedAt.UnixMicro()
		f.poke(req.Key, func(rec *store.Record) { rec.Fence = g.Fence })
	})},
	{name: "a restart forgets the time", catchers: []string{"S2 fences grow when", "S7 time goes on"}, unmodeled: true, amnesia: true},
	{name: "a Complete sent again is refused", catchers: []string{"L2 ", "18 "}, complete: func(f *faulty, req store.CompleteRequest, next completeFunc) (store.CompleteAnswer, error) {
		if rec := f.peek(req.Key); rec != nil && rec.State == store.StateCompleted && rec.Fence == req.Fence {
			return store.CompleteAnswer{}, store.Refuse(store.ErrAlreadyCompleted, "")
		}
		return next(req)
	}},
	{name: "a policy changes what was granted", catchers: []string{"a grant keeps"}, renew: func(f *faulty, req store.RenewRequest, next renewFunc) (store.RenewAnswer, error) {
		f.mu.Lock()
		limit := f.namespaces[req.Key.Namespace].MaxAttempt
		f.mu.Unlock()
		f.poke(req.Key, func(rec *store.Record) { rec.AttemptLimit = rec.GrantedAt.Add(limit) })
		return next(req)
	}},
	{name: "a mismatch gets the outcome", catchers: []string{"S8 "}, claim: func(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		answer, err := next(req)
		if rec := f.peek(req.Key); errors.Is(err, store.ErrFingerprintMismatch) && rec.State == store.StateCompleted {
			return store.ClaimAnswer{Completed: &store.Completed{Outcome: rec.Outcome, Fence: rec.Fence}}, nil
		}
		return answer, err
	}},
	{name: "the text of a mismatch names the state", catchers: []string{"S8 "}, unmodeled: true, claim: func(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		answer, err := next(req)
		if errors.Is(err, store.ErrFingerprintMismatch) {
			err = store.Refuse(store.ErrFingerprintMismatch, "it is "+[]string{"", "running", "done", "free"}[f.peek(req.Key).State])
		}
		return answer, err
	}},
	{name: "fences start again after expiry", catchers: []string{"S2 fences grow"}, claim: afterGrant(func(f *faulty, req store.ClaimRequest, g *store.Granted) {
		if g.AttemptNumber == 1 {
			g.Fence = 1
			f.poke(req.Key, func(rec *store.Record) { rec.Fence = 1 })
		}
	})},
	{name: "a Release forgets what was unsettled", catchers: []string{"S10 unknown"}, release: func(f *faulty, req store.ReleaseRequest, next releaseFunc) (store.ReleaseAnswer, error) {
		f.poke(req.Key, func(rec *store.Record) {
			if rec.Fence == req.Fence {
				rec.UnsettledSince = time.Time{}
			}
		})
		return next(req)
	}},
	{name: "a lease lapses a microsecond early", catchers: []string{"L1 "}, claim: afterGrant(func(f *faulty, req store.ClaimRequest, _ *store.Granted) {
		f.poke(req.Key, func(rec *store.Record) { rec.LeaseEnd = rec.LeaseEnd.Add(-time.Microsecond) })
	})},
	{name: "a lease lapses a microsecond late", catchers: []string{"L1 "}, claim: afterGrant(func(f *faulty, req store.ClaimRequest, _ *store.Granted) {
		f.poke(req.Key, func(rec *store.Record) { rec.LeaseEnd = rec.LeaseEnd.Add(time.Microsecond) })
	})},
	{name: "a stale Complete overwrites the outcome", catchers: []string{"14 "}, complete: func(f *faulty, req store.CompleteRequest, next completeFunc) (store.CompleteAnswer, error) {
		answer, err := next(req)
		if errors.Is(err, store.ErrStaleFence) {
			f.poke(req.Key, func(rec *store.Record) { rec.Outcome, rec.OutcomeDigest = req.Outcome, req.Outcome.Digest() })
		}
		return answer, err
	}},
	{name: "Complete takes any fence", catchers: []string{"S3 "}, complete: func(f *faulty, req store.CompleteRequest, next completeFunc) (store.CompleteAnswer, error) {
		if rec := f.peek(req.Key); rec != nil && req.Fence > 0 {
			req.Fence = rec.Fence
		}
		return next(req)
	}},
	{name: "Complete takes any attempt", catchers: []string{"S3 "}, complete: func(f *faulty, req store.CompleteRequest, next completeFunc) (store.CompleteAnswer, error) {
		if rec := f.peek(req.Key); rec != nil && req.AttemptID != "" && rec.AttemptID != "" {
			req.AttemptID = rec.AttemptID
		}
		return next(req)
	}},
	{name: "an outcome expires a second early", catchers: []string{"S4 "}, complete: func(f *faulty, req store.CompleteRequest, next completeFunc) (store.CompleteAnswer, error) {
		answer, err := next(req)
		if err == nil {
			f.poke(req.Key, func(rec *store.Record) { rec.ExpiresAt = answer.ExpiresAt.Add(-time.Second) })
		}
		return answer, err
	}},
	{name: "an outcome answers a microsecond too long", catchers: []string{"36 ", "S4 "}, complete: func(f *faulty, req store.CompleteRequest, next completeFunc) (store.CompleteAnswer, error) {
		answer, err := next(req)
		if err == nil {
			f.poke(req.Key, func(rec *store.Record) { rec.ExpiresAt = answer.ExpiresAt.Add(time.Microsecond) })
		}
		return answer, err
	}},
	{name: "a late outcome is not kept", catchers: []string{"14 "}, complete: func(f *faulty, req store.CompleteRequest, next completeFunc) (store.CompleteAnswer, error) {
		answer, err := next(req)
		f.forget(req.Key, store.EventLateOutcome)
		return answer, err
	}},
	{name: "a takeover leaves no event", catchers: []string{"17 "}, claim: afterGrant(func(f *faulty, req store.ClaimRequest, _ *store.Granted) {
		f.forget(req.Key, store.EventTakeover)
	})},
	{name: "ended attempts are forgotten", catchers: []string{"21 "}, release: func(f *faulty, req store.ReleaseRequest, next releaseFunc) (store.ReleaseAnswer, error) {
		answer, err := next(req)
		f.poke(req.Key, func(rec *store.Record) { rec.Ended = nil })
		return answer, err
	}},
	{name: "a takeover says that it is unsettled since the attempt before it", catchers: []string{"S10 unknown"}, claim: afterGrant(func(_ *faulty, _ store.ClaimRequest, g *store.Granted) {
		if g.PreviousFence != 0 && g.Unsettled {
			g.UnsettledSince = time.UnixMicro(g.PreviousFence)
		}
	})},
	{name: "a takeover is not marked", catchers: []string{"S10 unknown"}, claim: afterGrant(func(f *faulty, req store.ClaimRequest, g *store.Granted) {
		g.Unsettled = false
	})},
	{name: "HOLD is taken for TAKEOVER", catchers: []string{"S10 HOLD"}, claim: func(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		f.poke(req.Key, func(rec *store.Record) { rec.LapsePolicy = store.Takeover })
		return next(req)
	}},
	{name: "an attempt takes over from itself", catchers: []string{"22 "}, claim: func(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		now := f.clock.Now()
		f.poke(req.Key, func(rec *store.Record) {
			if rec.Lapsed(now) && rec.AttemptID == req.AttemptID {
				rec.AttemptID, rec.LapsePolicy = "", store.Takeover
			}
		})
		return next(req)
	}},
	{name: "other algorithms count as mismatches", catchers: []string{"04 "}, claim: func(_ *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		answer, err := next(req)
		if answer.FingerprintIncomparable {
			return store.ClaimAnswer{}, store.Refuse(store.ErrFingerprintMismatch, "")
		}
		return answer, err
	}},
	{name: "intent times are ignored", catchers: []string{"35 "}, claim: func(_ *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		req.IntentTime = time.Time{}
		return next(req)
	}},
	{name: "an intent is not too old at the instant itself", catchers: []string{"35 ", "S10 an intent"}, claim: func(_ *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		answer, err := next(req)
		if errors.Is(err, store.ErrKeyExpired) {
			req.IntentTime = req.IntentTime.Add(time.Microsecond)
			return next(req)
		}
		return answer, err
	}},
	{name: "a wall clock ahead leaves the retention as it is", catchers: []string{"S10 nor one"}, claim: func(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		answer, err := next(req)
		if ns := f.namespaces[req.Key.Namespace]; answer.Granted != nil && req.IntentTime.After(f.clock.Now()) {
			f.poke(req.Key, func(rec *store.Record) {
				rec.Retention = ns.Retention
				if !rec.ExpiresAt.IsZero() {
					rec.ExpiresAt = rec.LeaseEnd.Add(ns.Retention)
				}
			})
		}
		return answer, err
	}},
	{name: "no intent is ahead of the store's clock", catchers: []string{"S10 nor one", "15 "}, claim: func(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		if now := f.clock.Now(); req.IntentTime.After(now) {
			return store.ClaimAnswer{}, store.Refuse(store.ErrInvalidArgument, "")
		}
		return next(req)
	}},
	{name: "the recovery floor is ignored for what was released", catchers: []string{"S10 a floor covers"}, claim: func(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		if rec := f.peek(req.Key); rec != nil && rec.State == store.StateReleased && !rec.Expired(f.clock.Now()) {
			f.liftFloor(req.Key.Namespace)
		}
		return next(req)
	}},
	{name: "Lookup shows the outcome to other algorithms", catchers: []string{"S8 "}, lookup: func(f *faulty, req store.LookupRequest, next lookupFunc) (store.LookupAnswer, error) {
		if rec := f.peek(req.Key); rec != nil && rec.Fingerprint.Compare(req.Fingerprint) == store.MatchIncomparable {
			req.Fingerprint = rec.Fingerprint
		}
		return next(req)
	}},
	{name: "the recovery floor is ignored", catchers: []string{"S10 a recovery floor"}, claim: func(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		f.liftFloor(req.Key.Namespace)
		return next(req)
	}},
	{name: "a Renew shortens", catchers: []string{"S7 Renew"}, renew: func(f *faulty, req store.RenewRequest, next renewFunc) (store.RenewAnswer, error) {
		answer, err := next(req)
		if err == nil && req.Lease != 0 {
			answer.LeaseExpiresAt = f.clock.Now().Add(req.Lease)
			f.poke(req.Key, func(rec *store.Record) { rec.LeaseEnd = answer.LeaseExpiresAt })
		}
		return answer, err
	}},
	{name: "a late Complete has no limit", catchers: []string{"S1 an attempt ends"}, complete: func(f *faulty, req store.CompleteRequest, next completeFunc) (store.CompleteAnswer, error) {
		f.poke(req.Key, func(rec *store.Record) { rec.AttemptLimit = rec.AttemptLimit.Add(time.Hour) })
		return next(req)
	}},
	{name: "ForceRelease does not fence", catchers: []string{"12 "}, unfenced: true},
	{name: "Maintain forgets what is held", catchers: []string{"S10 HOLD"}, maintain: func(f *faulty) {
		now := f.clock.Now()
		f.remove(func(rec *store.Record) bool { return rec.LapsePolicy == store.Hold && rec.Lapsed(now) })
	}},
	{name: "Maintain forgets what is released", catchers: []string{"21 "}, maintain: func(f *faulty) {
		f.remove(func(rec *store.Record) bool { return rec.State == store.StateReleased })
	}},
	{name: "a Lookup lags one behind", catchers: []string{"S11 "}, lookup: lagging},
	{name: "two racing Claims are both granted", catchers: []string{"S1 one winner", "S11 ", "19 "}, unmodeled: true, claim: racing},
	{name: "time follows the wall clock", catchers: []string{"S7 a clock", "16 "}, unmodeled: true, source: wallOnly},
	{name: "headers are sorted", catchers: []string{"S5 a replay"}, unmodeled: true, claim: onReplay(func(o *store.Outcome) *store.Outcome {
		o.Header = slices.SortedFunc(slices.Values(o.Header), func(a, b store.MetadataEntry) int { return strings.Compare(a.Name, b.Name) })
		return o
	})},
	{name: "a trailer is lost", catchers: []string{"S5 a replay"}, claim: onReplay(func(o *store.Outcome) *store.Outcome {
		o.Trailer = nil
		return o
	})},
	{name: "an empty outcome is none", catchers: []string{"30 "}, claim: onReplay(func(o *store.Outcome) *store.Outcome {
		if o.Size() == 0 {
			return nil
		}
		return o
	})},
	{name: "the largest outcome is refused", catchers: []string{"S5 the size limit"}, unmodeled: true,
		complete: func(_ *faulty, req store.CompleteRequest, next completeFunc) (store.CompleteAnswer, error) {
			if req.Outcome.Size() == store.MaxOutcomeBytes {
				return store.CompleteAnswer{}, store.Refuse(store.ErrOutcomeTooLarge, "")
			}
			return next(req)
		}},
	{name: "a refused outcome ends the attempt", catchers: []string{"32 "}, complete: func(f *faulty, req store.CompleteRequest, next completeFunc) (store.CompleteAnswer, error) {
		answer, err := next(req)
		if errors.Is(err, store.ErrOutcomeTooLarge) {
			f.poke(req.Key, func(rec *store.Record) { rec.State = store.StateReleased })
		}
		return answer, err
	}},
	{name: "namespaces share keys", catchers: []string{"06 "}, key: func(key store.Key) store.Key {
		if key.Namespace == hourHold {
			key.Namespace = hourTakeover
		}
		return key
	}},
	{name: "scopes share keys", catchers: []string{"07 "}, key: func(key store.Key) store.Key {
		key.Scope = ""
		return key
	}},
	{name: "parts of a key are joined", catchers: []string{"07 "}, unmodeled: true, key: func(key store.Key) store.Key {
		return store.Key{Namespace: key.Namespace, ID: key.Scope + "|" + key.ID + "|" + key.Entity}
	}},
	{name: "ids are cut to their limit", catchers: []string{"08 "}, unmodeled: true, key: func(key store.Key) store.Key {
		key.ID = key.ID[:min(len(key.ID), store.MaxIDBytes)]
		return key
	}},
	{name: "control characters are dropped", catchers: []string{"09 control"}, unmodeled: true, key: func(key store.Key) store.Key {
		key.ID = strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return -1
			}
			return r
		}, key.ID)
		return key
	}},
	{name: "case is folded", catchers: []string{"09 bytes"}, unmodeled: true, key: func(key store.Key) store.Key {
		key.ID = strings.ToLower(key.ID)
		return key
	}},
	{name: "space is trimmed", catchers: []string{"09 bytes"}, unmodeled: true, key: func(key store.Key) store.Key {
		if trimmed := strings.TrimSpace(key.ID); trimmed != "" {
			key.ID = trimmed
		}
		return key
	}},
	{name: "accents are composed", catchers: []string{"09 bytes"}, unmodeled: true, key: func(key store.Key) store.Key {
		key.ID = strings.ReplaceAll(key.ID, "e\u0301", "\u00e9")
		return key
	}},
}

// afterGrant is a fault in what follows a grant.
func afterGrant(change func(*faulty, store.ClaimRequest, *store.Granted)) func(*faulty, store.ClaimRequest, claimFunc) (store.ClaimAnswer, error) {
	return func(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		answer, err := next(req)
		if answer.Granted != nil {
			change(f, req, answer.Granted)
		}
		return answer, err
	}
}

// onReplay is a fault in an outcome that is given back.
func onReplay(change func(*store.Outcome) *store.Outcome) func(*faulty, store.ClaimRequest, claimFunc) (store.ClaimAnswer, error) {
	return func(_ *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
		answer, err := next(req)
		if answer.Completed != nil {
			outcome := *answer.Completed.Outcome
			answer.Completed.Outcome = change(&outcome)
		}
		return answer, err
	}
}

// racing reads, lets others go first, and decides by what it read.
func racing(f *faulty, req store.ClaimRequest, next claimFunc) (store.ClaimAnswer, error) {
	read := f.peek(req.Key)
	for range 100 {
		runtime.Gosched()
	}
	if read == nil {
		f.remove(func(rec *store.Record) bool { return rec.Key == req.Key })
	} else {
		f.poke(req.Key, func(rec *store.Record) { *rec = *read })
	}
	return next(req)
}

func (f *faulty) remove(doomed func(*store.Record) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for digest, row := range f.rows {
		if doomed(row.record) {
			delete(f.rows, digest)
		}
	}
}

// lagging answers each Lookup with what the one before it should have got.
func lagging(f *faulty, req store.LookupRequest, next lookupFunc) (store.LookupAnswer, error) {
	answer, err := next(req)
	if err != nil {
		return answer, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	answer, f.looked = f.looked, answer
	return answer, nil
}

// wallClock is a source whose monotonic clock steps with the wall.
type wallClock struct{ *Clock }

func (c wallClock) Monotonic() time.Duration { return c.Wall().Sub(Start) }

func wallOnly(c *Clock) store.ClockSource { return wallClock{c} }
