// Package client is the Go client of idemd.
//
// [Dial] connects to a server; [New] uses a connection that exists. A [Client] is a
// [store.Store], so code written against that interface runs over the wire and on an
// embedded store alike, and an operator's view: [store.Records] and [store.Namespaces].
//
// # Tour
//
//   - client.go: [Client] and how it talks to the server.
//   - dial.go: [Dial] and its defaults.
//   - operations.go: the five operations on keys.
//   - operator.go: records, namespaces, buckets.
package client
