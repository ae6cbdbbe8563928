// Package store is the contract of the key store: the words, the table of states and
// operations, the interfaces, the sentinels and the limits. It imports nothing but the
// standard library, and everything else imports it.
//
// # Tour
//
//   - key.go, record.go: what is kept ([Key], [Record], [Outcome], [Event]).
//   - namespace.go: policy ([Namespace], [Tier]).
//   - request.go, store.go: the operations and who implements them ([Store], [Records],
//     [Namespaces], [Maintainer]).
//   - recovery.go: the way back from a store that has forgotten something ([Recovery]).
//   - placement.go: where a namespace's keys live ([Placement]), and how they are carried to
//     another store ([Placements]).
//   - errors.go, limits.go, validate.go: refusals and what is allowed.
//   - transition*.go: the table below as pure functions, the only place where it lives.
//   - wait.go: [Waiter], which lets a Claim wait for another attempt to settle.
//
// # The table
//
// Lapsed: IN_PROGRESS and now >= lease end. Expired: now >= expires at. Live: not expired.
// Whether an expired record is still stored changes nothing but the next fence. The
// store's clock (now, whole microseconds) decides everything.
//
// Claim, first match wins:
//
//  1. bad input, or intent time > max(now, wall) + skew: INVALID_ARGUMENT (KEY_REQUIRED for
//     an empty id); unknown namespace: NAMESPACE_UNKNOWN. Wall is the wall clock beside the
//     store's, taken as at most 35 days ahead of it; it counts for nothing else
//  2. live, and this attempt id is among the ended ones: STALE_ATTEMPT
//  3. live, not RELEASED, other fingerprint: FINGERPRINT_MISMATCH, revealing nothing. One
//     that cannot be compared, because both are there but of two versions, is not another
//     one: the Claim is a repeat, marked as incomparable, and is given the outcome
//  4. COMPLETED: completed
//  5. IN_PROGRESS with this attempt id: granted again, same fence, number, previous fence and
//     unsettled; but, if it may be forgotten since its grant, unsettled from now on: if it was not
//     yet, since that grant. Lease not lapsed: its end stays. Lapsed: a fresh lease, up to the
//     attempt limit; none left (now >= limit): ATTEMPT_TOO_LONG; else, where a lease may be
//     forgotten: in progress until that has ended
//  6. IN_PROGRESS, not lapsed: in progress
//  7. lapsed under HOLD: unresolved
//  8. lapsed under TAKEOVER, where a lease may be forgotten: in progress until that has ended;
//     else granted, fence grows, number + 1, unsettled: since when the record was, or if it was not
//     since the lapsed attempt's grant; the record keeps its fingerprint; the lapsed attempt joins
//     the ended ones; event takeover
//  9. RELEASED: may be forgotten since its grant (if an operator resolved it, since then):
//     UNKNOWN_HISTORY; else granted, fence grows, number + 1, not unsettled, this fingerprint
//  10. no live record: may be forgotten: UNKNOWN_HISTORY; intent time known and
//     now >= intent time + retention - skew: KEY_EXPIRED (retention: the shortest in force
//     since intent time - skew); else granted, number 1, previous fence 0, no ended attempts
//
// May be forgotten (since an instant): a recovery floor stands, not (intent time - 1 min >
// floor, whatever the skew: it may have been lowered), and that instant <= floor. What is held or lapsed under HOLD still answers 6 or 7,
// a takeover is unsettled in any case, and what is completed stays so.
//
// A lease may be forgotten: of a lapsed record, until 15 minutes after a floor that stands, if it may
// be forgotten since its grant, or, if an operator forced its release, since then; the intent time does not matter.
// Before the floor its lease may have been made longer, or another attempt have got one, for 15
// minutes at most, whatever the namespace's longest is now.
//
// A grant has fence max(previous + 1, now in µs), where previous is that of any stored
// record, expired or not. It stamps the namespace's lapse policy (HOLD if the Claim asks
// for it), retention, attempt limit = now + max attempt, lease end = min(now + lease, limit).
// If intent time - skew > now, which only a wall clock ahead allows, the retention is the
// longest of the tier and intent time - skew - now, so that no record expires before its
// intent is too old.
//
// Renew, Complete and Release, first match wins, after bad input and unknown namespace:
//
//	                          Renew              Complete                    Release
//	no live record            KEY_NOT_FOUND      KEY_NOT_FOUND               KEY_NOT_FOUND
//	fence or attempt not      STALE_FENCE        STALE_FENCE, evidence       STALE_FENCE
//	  current
//	COMPLETED                 ALREADY_COMPLETED  same digest: OK, unchanged  ALREADY_COMPLETED
//	                                             other: ALREADY_COMPLETED
//	ended by its own Release  STALE_ATTEMPT      NONE: STALE_ATTEMPT, evid.  same effect: OK,
//	                                             UNKNOWN: as lapsed          unchanged
//	                                                                         other: STALE_ATTEMPT
//	lapsed                    LEASE_EXPIRED      now <= limit: COMPLETED     as below
//	                                             else ATTEMPT_TOO_LONG, evid.
//	IN_PROGRESS               longer (below)     COMPLETED                   NONE, not unsettled:
//	                                                                           RELEASED
//	                                                                         else lapsed now
//
// Renew: end = max(end, min(now + lease, limit)); ATTEMPT_TOO_LONG if the end already is the
// limit and now + lease is beyond it (the lease then runs out at its end). "Lapsed now":
// the state stays IN_PROGRESS and lease end = min(lease end, now), so that a Release never
// hides an earlier lapse. A Release adds the attempt to the ended ones, also when lapsed. A
// Complete takes it off again, clears unsettled and that it was released. Ended attempts are
// the last 8, oldest dropped first; one that is among them is not added again.
//
// Unsettled is a time: since when. It is the grant of the earliest attempt before the current one
// of which nobody has said what became of it, and as far back as can be (1970) where only that
// there is one is known: a row or a peer from before this was kept. An age counted from it is never
// too small. A Release with NONE under a record that is unsettled takes nothing off: it is about
// another attempt.
//
// Evidence is an event late outcome with the fence that was sent, the outcome, its digest and
// size, and the attempt's number if it is the current one. Of an outcome larger than 8 KiB
// only the code of its status is kept, with the body omitted. A fence above the record's was
// never granted: it leaves no evidence. Of each kind of event the newest 32 are kept, the
// oldest of that kind dropped first; one that differs from a kept one only in its time is
// not added again. Events go when the key begins a new life.
//
// Expires at, with the retention stamped at the grant: completion + retention; release +
// retention; in progress under TAKEOVER: lease end + retention; under HOLD: never.
//
// Lookup: no live record: KEY_NOT_FOUND; else state and times. Unsettled is shown if in
// progress and stamped so or lapsed. What is lapsed under TAKEOVER and in progress to a Claim, as a lease may
// be forgotten, is not shown as lapsed, and its lease as ending then. The outcome is shown only if the fingerprint is equal;
// otherwise it is withheld, also from one that cannot be compared.
//
// Fingerprints find callers' bugs; they guard nothing from a caller that may claim the key.
//
// Resolve and ForceRelease say which fence the record has, or that any will do.
//
// Resolve: no live record: KEY_NOT_FOUND; another fence: STALE_FENCE; not lapsed: NOT_LAPSED;
// else the fence grows, the attempt joins the ended ones and its id is cleared, unsettled is
// cleared, event resolved; with an outcome COMPLETED, without RELEASED; previous fence and
// number stay.
//
// ForceRelease: no live record: KEY_NOT_FOUND; another fence: STALE_FENCE; not IN_PROGRESS:
// NOT_HELD; else the fence grows, the attempt joins the ended ones and its id is cleared,
// lease end = min(lease end, now), lapse policy TAKEOVER, expires at = now + retention (so
// that what is unknown stays known as unknown), event force-released. Where an attempt id has
// been cleared, no attempt and no fence is current; the next grant's previous fence is the
// operator's.
//
// Import, after bad input: completed later than now: INVALID_ARGUMENT; now >= completed +
// retention: KEY_EXPIRED. A live record, except one that is RELEASED and may be forgotten (as in
// 9, without an intent time): nothing changes, and it is told whether it says the same: released, or
// completed with this outcome, and this fingerprint if one is given. Else the fence grows, no attempt is current, event imported; with an outcome COMPLETED, ended when it
// was completed; without RELEASED, ended now, so that it is newer than the floor. What is new
// has number 1, the namespace's lapse policy and retention, and was granted now, as its lease
// and attempt end now. A fingerprint that is not known cannot be compared, also with an empty one.
//
// Recovery: to begin raises the floor of every namespace to now, and the one that namespaces
// created later begin with; it counts for these for 35 days and the longest lease. An update
// never lowers a floor; to lift one takes it off. Without the operator's word it is not done
// (NOT_CONFIRMED) where nothing is known from before it, and as long as a lease may be forgotten. Both are kept with who, when and why. A move
// carries a standing floor with what began it, and past retentions, each with its last instant. While
// the namespace is sealed the floor is only noted: it stands from the flip on, or goes.
//
// Regions: behind bad input that can be told without the namespace, and an unknown namespace,
// and before all else, an operation on a key that was sent by another epoch than that of the
// namespace's placement: WRONG_REGION. Both are zero where there are no regions. While a
// namespace moves, an operation is decided as above, but what would change the record or its
// events is not done and refused: a Claim's change under FROZEN and SEALED, any other change
// under SEALED: NAMESPACE_MOVING with a hint. Under SEALED so is, behind bad input, every operation
// on a key that is not COMPLETED, a Lookup too: a home that is cut off then may be a home no more,
// and the key may have gone on elsewhere. Evidence counts as a change also if it is kept
// already, and a Renew of a lease that has not lapsed also if the lease is long enough. Under
// FLIPPED all is as without a move: the epoch keeps callers away from where the keys were. In no
// phase are a namespace's settings changed: NAMESPACE_MOVING with a hint.
package store
