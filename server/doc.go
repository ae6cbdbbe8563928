// Package server serves a [store.Backend] over gRPC: the IdempotencyService and the
// AdminService, with limits, logging, metrics, health and an orderly end.
//
// # Tour
//
//   - server.go: [Config], [Server], Serve and Shutdown; options.go: the limits of gRPC.
//   - keys.go, admin.go: the two services, thin: read the message, validate, ask, answer.
//   - session.go: many operations on one stream; session_operation.go: each goes through what its
//     call would; session_workers.go, session_outbox.go: who carries them out and who answers.
//   - receive.go: how requests are read, and how many at once; door.go: how many connections.
//   - asking*.go: how the backend is asked, and how long a request was held before.
//   - counted.go, metrics*.go: what is counted, and the meaning of each label.
//   - intercept.go: what every call goes through: recovery, status and log.
//   - rules.go: who may call what; admit.go: who asks, and whether they may. Package identity
//     knows, by the files that it watches; metrics_files.go: whether they are in force.
//   - health.go, http.go: gRPC health, /healthz and /metrics.
//   - listen.go: other machines connect only with TLS and a policy, unless allowed by name.
//
// # What stands over what
//
// From the call inwards: interceptors, service, counting, waiting ([store.Waiter]), asking,
// the backend. Where there are regions, their router stands between service and counting, and
// what other regions ask comes in below it (regions.go). The server never closes the backend: its owner does, after Shutdown has
// returned.
package server
