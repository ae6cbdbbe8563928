// Package storepb is the one two-way table between package store and the wire: store
// types and proto messages, sentinels and statuses. Client and server both use it, so
// that what one says the other understands.
//
// # Tour
//
//   - status.go, reasons.go: [ToStatus] and [FromStatus], and the table of sentinels,
//     codes and reasons.
//   - types.go: keys, fingerprints, outcomes, enums, times and durations.
//   - requests.go, answers.go: the five operations of [store.Store].
//   - admin.go, records.go: the operator's view.
//
// # Rules
//
// A message that comes from the network never makes a function of this package panic,
// whatever it holds or lacks. A request that cannot be said in store types is refused
// with [store.ErrInvalidArgument]; everything else about it is for its Validate method,
// which the caller runs next. An answer that cannot be understood becomes
// [store.ErrInternal]: it is never taken for a grant.
//
// Times are cut to whole microseconds. Byte slices are shared between a message and the
// store type made from it, in both directions.
package storepb
