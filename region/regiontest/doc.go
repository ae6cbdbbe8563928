// Package regiontest runs idemd in several regions on one machine, for tests: a process per
// region, and between the regions a [Network] that delays, holds back and cuts what they say to
// each other, in each direction on its own. What callers were told is kept in a [History], whose
// Check says whether the promises were kept.
//
// Regions stand on loopback addresses, or each in a network namespace of its own where the
// machine allows it: see [Loopback] and [Namespaces].
package regiontest
