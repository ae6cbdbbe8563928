package client

import (
	"time"
)

// EventKind says what an [Event] tells.
type EventKind uint8

// The kinds of events. The first group is one event per call, and says what became of it.
const (
	// EventGranted: the key was new, or released, and the call acted.
	EventGranted EventKind = iota + 1
	// EventTakeover: an earlier attempt may have acted; the call was told to check first.
	EventTakeover
	// EventReplayed: a repeat was caught and got the stored outcome. Err is
	// [store.ErrOutcomeOmitted] if that was stored without its body, so that the repeat was
	// told only how it ended.
	EventReplayed
	// EventInProgress: a repeat was caught while another attempt held the key.
	EventInProgress
	// EventUnresolved: an attempt lapsed and the key is held for a person.
	EventUnresolved
	// EventMismatch: the key was used for another request.
	EventMismatch
	// EventRefused: the call was refused for another reason, see Err.
	EventRefused
	// EventStoreDown: the store did not answer, and the call was refused.
	EventStoreDown
	// EventFailedOpen: the store did not answer, and the call acted without a guard.
	EventFailedOpen
	// EventNoKey: the call carried no key. It was refused where one is required, and Err is
	// [store.ErrKeyRequired] then; it acted without a guard where not.
	EventNoKey

	// EventRecorded: the outcome is stored. Err is [store.ErrOutcomeTooLarge] if it was too
	// large and so is without its body, which no repeat gets; [store.ErrOutcomeOmitted] if
	// it could not be encoded.
	EventRecorded
	// EventReleased: nothing happened, and the key was released.
	EventReleased
	// EventUnknown: what happened is not known, and the key was given up as that, or lapses
	// when its lease ends if that could not be told, which loses nothing. Err says why it is not
	// known: it is the error of whoever acted, as it was returned, or of a recover hook that could
	// not find out, or says that there was a panic; and what giving up the key failed with.
	EventUnknown
	// EventNotRecorded: the caller was answered, but how the attempt ended is not stored yet.
	// It goes on in the background and ends as one of the three before or the one after.
	EventNotRecorded
	// EventRecordingFailed: how the attempt ended was known and could not be stored, see Err. The
	// key lapses, and whoever claims it next is told to check what happened; or somebody else has
	// settled it before. This is the one to be woken by.
	EventRecordingFailed
	// EventLeaseLost: the lease ended while the call acted; its context was cancelled.
	EventLeaseLost
	// EventIncomparable: it could not be checked that a repeat carries the same request,
	// because its fingerprint was made by another algorithm.
	EventIncomparable
)

var eventNames = [...]string{
	EventGranted: "granted", EventTakeover: "takeover", EventReplayed: "replayed", EventInProgress: "in_progress",
	EventUnresolved: "unresolved", EventMismatch: "mismatch", EventRefused: "refused", EventStoreDown: "store_down",
	EventFailedOpen: "failed_open", EventNoKey: "no_key", EventRecorded: "recorded", EventReleased: "released",
	EventUnknown: "unknown", EventNotRecorded: "not_recorded", EventRecordingFailed: "recording_failed",
	EventLeaseLost: "lease_lost", EventIncomparable: "incomparable",
}

// String is the event's name as a label of a metric.
func (k EventKind) String() string {
	if int(k) >= len(eventNames) || eventNames[k] == "" {
		return "invalid"
	}
	return eventNames[k]
}

// Event tells what became of a guarded call, for counting and logging. It holds no key
// and no outcome.
type Event struct {
	Kind      EventKind
	Namespace string
	Scope     string // of the key: with a [Guard] the gRPC full method, over HTTP the route, which may be a path that the caller chose
	// Observed says that nothing was enforced: what this event says would have been.
	Observed bool
	// Age is how old the outcome of a replay was, and Retention how long it is kept.
	Age, Retention time.Duration
	// Err is told to this hook alone, and logged by nobody else. Its text may be that of a
	// handler's error: whoever logs it knows whether those hold secrets.
	Err error
}

// EventOption is an option of [Do] and of [NewGuard].
type EventOption struct{ notify func(Event) }

// OnEvent has what becomes of each guarded call reported to f, for counting. f must be
// quick, and is called by many goroutines at once. If it panics, that is logged and nothing
// else comes of it.
func OnEvent(f func(Event)) EventOption { return EventOption{f} }

func (e EventOption) applyDo(o *doOptions)       { o.notify = e.notify }
func (e EventOption) applyGuard(o *guardOptions) { o.notify = e.notify }
