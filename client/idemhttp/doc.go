// Package idemhttp makes HTTP requests act once per Idempotency-Key, as
// draft-ietf-httpapi-idempotency-key-header has it. [Guard] is for servers: wrapped around a
// handler it runs it once per key, and gives every repeat what the first request got.
// [Transport] is for clients: it gives each request one key and sends it again under that.
//
// # A request
//
// Its key is the field Idempotency-Key, a string of structured fields (RFC 9651) such as
// "8e03978e-40d5-43e8-bc93-6894a57f9324" in its quotes. Many clients send it without them: a
// value that begins with no quote is taken as the key itself, if it is printable ASCII with
// no space, comma or quote. With quotes and without it is the same key. Two fields that differ,
// and a value that is neither, are refused; a key that is there twice, as a proxy may have it, is one.
//
// The scope of the key is the request's method and the pattern that [http.ServeMux] matched:
// "POST /orders/{id}/pay". So wrap each route's handler, not the mux. One key in two routes is two
// keys. What [http.StripPrefix] takes off the path on its way to a mux inside stands before that mux's
// pattern: "POST /v1/orders/{id}/pay". A request that is made in the process, with no RequestURI,
// does not have what was taken off it. Services that share a namespace are told apart by
// [Service]: give each a namespace or a name of its own. So it is with muxes inside that are chosen by
// the host ("a.example.com/", "b.example.com/"): a key would be one in both, unless each has a guard with
// a name, or [Policy.Fingerprint] lists Host.
//
// Under a pattern for many paths, such as "/" or "/api/{rest...}", the path follows: "POST / /orders/7/pay".
// Outside of a mux, and with routers that set no Pattern, it stands alone. Then one key in two paths is
// two keys, and not refused. A scope of more than 255 bytes ends with a hash of the whole.
//
// The fingerprint is made of the request's path, query, chosen header fields and body, as they
// came: JSON with its members in another order is another request. A repeat sends the same bytes.
//
// # A response
//
// It is held back until the handler returns and its outcome is stored. A repeat gets the same
// status, Content-Type, Content-Encoding, body, and the listed header fields, with the field
// Idempotency-Replayed: true. A field that is as what is outside the guard had set it before the handler
// ran is not stored: that is set again. Of an outcome that is too large for the store, which is if these and
// the status have more than 256 KiB together, or what the namespace sets, first the listed fields are
// left out, and then the body: repeats get 410 and the handler does not run again. More than 256 KiB of
// body are not held back but passed on as they come, also by a handler that turns out to have lost its
// lease: its caller sees that response and no 409, though what counts is another's.
//
// What a response means for its key:
//
//   - 1xx is passed on, and means nothing.
//   - 2xx, 3xx and 4xx are final and are stored; but not 401, 403, 407, 408, 409, 412, 421, 423,
//     424, 425, 428 and 429, which say that it may be otherwise later (a repeat may come with another
//     If-Match, which is not compared), nor any 4xx to an attempt that was told to check
//     ([client.Attempt.Unsettled]): an "already paid" may be about the earlier one. If the handler has
//     looked, and says with [NothingFound] that there was none, it is final. Where one of the first
//     means that nothing happened, as 412 mostly does, say so.
//   - Those, 5xx and a panic are unknown: nobody knows what happened. The key lapses: the next
//     request runs the handler, told to check first, or waits for a person under [Policy.Hold].
//   - A response during which the handler called [NoEffect], or with a status that
//     [Policy.NoEffect] lists, says that nothing happened. The next request acts as if it were
//     the first.
//   - A response that is streamed, because the handler flushes it before it returns or hijacks
//     the connection, is passed on as it comes and is not stored: how it ended is unknown. Do not
//     guard such a handler, but what it does, with [client.Do]. A reverse proxy is one: it flushes
//     what has no Content-Length.
//
// How a handler ended is known when it returns. So nothing inside may return before it: timeouts, such
// as [http.TimeoutHandler], go outside.
//
// When the caller goes away the handler goes on, on a context that ends only with the lease, which
// is renewed up to the namespace's longest attempt; a repeat gets what came of it. When the process
// ends, shut the server down, then call [client.Drain], then close the client.
//
// # Refusals
//
// A request that is refused did nothing, but for STALE_FENCE, STALE_ATTEMPT and ALREADY_COMPLETED:
// it acted and lost its lease meanwhile, so that what counts is what another request, or a person,
// made of the key. And OUTCOME_OMITTED says that an earlier request did it. The answer is a problem
// (RFC 9457) with a link to the documentation, and its member and the header field
// Idempotency-Refused are the reason:
//
//	400  KEY_REQUIRED, INVALID_ARGUMENT       no key where one is required; a malformed one
//	401  UNAUTHENTICATED                      nobody knows who owns the key
//	409  KEY_IN_PROGRESS                      another request acts; Retry-After says when to ask again
//	409  STALE_FENCE, STALE_ATTEMPT,
//	     ALREADY_COMPLETED                    another request took over; ask again to get what came of it
//	409  KEY_UNRESOLVED, UNKNOWN_HISTORY      held until a person settles it
//	410  KEY_EXPIRED, OUTCOME_OMITTED         over; what came of it must be found out elsewhere
//	411  INVALID_ARGUMENT                     neither a body nor Content-Length: is it empty, or was it read outside?
//	413  INVALID_ARGUMENT                     the body is larger than Policy.MaxBody, or than what is outside takes
//	422  FINGERPRINT_MISMATCH                 the key was used for another request
//	500  RECORD_CORRUPT
//	500                                       a mistake around the guard: its key is held by the guard outside, or the body was read outside
//	503  STORE_UNAVAILABLE and others         idemd does not answer; Retry-After says when to ask again
//
// # Tour
//
//   - guard.go: [Guard]; options.go, policy.go: how it guards.
//   - request.go: key and owner; scope.go: the route; body.go: the body; fingerprint.go: the digest, exact for other languages.
//   - response.go: what the handler writes, held back; outcome.go: what is stored of it.
//   - problem.go: refusals.
//   - transport.go: [Transport]; key.go: the field.
package idemhttp
