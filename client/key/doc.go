// Package key makes keys: names of intents that are the same on every repeat, wherever and
// whenever it comes from.
//
// A key is made where the intent is, and kept with it: with the order, before the first
// try. [New] draws one. All others are functions of what is known again later, so that
// nothing has to be kept:
//
//	intent                                          key
//	a person's tap, an order                        New(), kept with the order
//	a step of an intent that has a key              Child(parent, "charge")
//	a step of a guarded handler, or of client.Do    Attempt.DownstreamKey("charge") of package client
//	another card after the first was declined       Attempt(parent, 2)
//	a run of a scheduled job                        Slot("nightly", scheduled)
//	an event from a queue or a webhook              Event("orders", eventID)
//
// # No key from the content of an action
//
// There is no function here that hashes a request. Two equal orders are two intents: somebody
// who buys two coffees within a minute sends the same bytes twice, and must pay twice. And
// one intent is not always the same bytes: a timestamp in it, or a new version of the app,
// would make another key of it and pay twice for one coffee. What a digest of the content is
// good for: to find out that one key was used for two requests (package fingerprint), and to
// name what is nothing but its content, such as an uploaded file.
//
// # How keys travel
//
// In gRPC metadata "idempotency-key" and in the HTTP header Idempotency-Key, one hop far: each
// hop derives keys of its own for what it calls. Never in OpenTelemetry baggage: that goes
// along to everybody who is called from then on, also to other companies and to services that
// would take the key for their own intent, and whoever knows a key can claim it or ask what
// came of it. For the same reason a key that came in is not simply passed on.
//
// # Derivation
//
// This page is exact, so that a program in another language makes the same keys;
// testdata/vectors.json has examples. Texts are bytes as they are given: nothing is case-folded
// or normalised.
//
// A derived key is the SHA-256 of a tag and some parts, each as its length in 8 big-endian
// bytes and its bytes, as 64 lower-case hexadecimal digits:
//
//	Child(parent, step)      "idemd.child.v1", parent, step
//	Attempt(parent, n)       "idemd.attempt.v1", parent, n in decimal digits
//	Event(source, id)        "idemd.event.v1", source, id
//	Downstream(key, step)    "idemd.downstream.v1", namespace, scope, id, entity, step
//
// So no two different lists of parts collide, whatever is in them. A receiver that takes
// fewer characters gets the first 32: 128 bits are enough.
//
// Slot(job, scheduled) is readable: the job, "@", and the time in UTC as 2026-10-28T02:00Z; with
// seconds, and digits of a second without zeros at the end, if it is not at a whole minute.
//
// Without a parent, an event id, a job or a time there is no intent to name: the key is
// empty, which idemd refuses with KEY_REQUIRED, instead of one that all such share.
package key
