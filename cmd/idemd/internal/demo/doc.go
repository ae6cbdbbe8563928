// Package demo plays one payment over the hops of its way, in one process, with hops that break and
// guards that can be switched. Nothing in it is random, and nobody sleeps: a break is one fault, at one exact point.
//
// The guards are those of packages client, client/guard, client/idemhttp and client/key; only the world around
// them is played.
//
// # Tour
//
//   - stage.go: [Stage], what plays have in common; play.go: one play, its faults and what it tells.
//   - names.go: the breaks and the guards. matrix.go: many plays.
//   - app.go, balancer.go, service.go, relay.go, worker.go (and the queue before it), provider.go, webhook.go,
//     mail.go: a hop each.
//   - database.go: the shop's database; wire.go: HTTP without a network.
package demo
