// Package client is the Go client of idemd.
//
// [Do] carries out an intent once: a job, a call of a provider. A [Consumer] does so for the
// messages of a queue, a [Guard] for the methods of a gRPC server, and
// [UnaryClientInterceptor] gives the calls of such methods their keys. All of them run over
// any [store.Store]. Package idemhttp does for HTTP what Guard does for gRPC, and package guard
// has what makes an effect happen once in a database of your own.
//
// [Dial] connects to a server; [New] uses a connection that exists. A [Client] is a
// [store.Store], so code written against that interface runs over the wire and on an
// embedded store alike, and an operator's view: [store.Records] and [store.Namespaces].
//
// An attempt that died or lost a reply may have acted, and the next one is told so: what
// runs here runs at least once. An effect happens once if it is guarded itself: by
// [Attempt.DownstreamKey], by [Attempt.Fence], or by a transaction of its own. [ProviderKeys]
// says how long another system's memory of such a key lasts; [RecordFirst] is for an
// effect that nothing guards and that must not happen twice. Package client/key makes keys.
//
// # Tour
//
// What a program calls:
//
//   - do.go, do_options.go: [Do] and its options; record_first.go: [RecordFirst]; value.go:
//     values and requests as bytes.
//   - provider.go: [ProviderKeys], for Do and Guard: what is not sent again blind.
//   - consume.go: [Consumer]; consume_setup.go: [NewConsumer], and whether the namespace remembers
//     as long as the queue delivers; consume_end.go: what is to be done with a delivery.
//   - guard.go: [Guard]; guard_options.go: its options; policy.go, recover.go: how a method is
//     guarded; verify.go: [Guard.Verify]; guard_call.go: keys, owners, replays;
//     guard_metadata.go: the response metadata that a repeat gets.
//   - caller.go: [UnaryClientInterceptor].
//   - events.go: [Event], what becomes of guarded calls.
//
// What all three are made of:
//
//   - gate.go: [Gate], what guards of all protocols are made of.
//   - execution.go: one attempt, from its claim to its end; waiting.go: the claim, and asking
//     again while it waits.
//   - attempt.go: [Attempt], what the code that acts knows; [StepKey].
//   - lease.go: the right to act, renewed and counted by this process's clock.
//   - ending.go: what the end of an attempt means for its key, and [NoEffect].
//   - recorder.go: recording the end, also after the caller has gone; [Drain]. pending.go: what is not
//     recorded yet; known.go: what this process knows of a key while the store does not answer.
//
// The wire:
//
//   - client.go: [Client] and how it talks to the server; dial.go: [Dial] and its defaults.
//   - sharing.go: what goes by a session and what by calls; sessions.go: when one is opened;
//     session.go: the stream.
//   - retry.go: how a call is sent again, within a budget.
//   - routes.go: which region's server is asked; topology.go: what is known of regions;
//     home.go: the connection to another region.
//   - operations.go: the five operations on keys; operator.go: records, namespaces, buckets.
package client
