// Package identity says who a caller is and what they may do, as the files say that an operator
// gave: certificates, tokens and a policy. The files are read again when they change.
//
//   - principal.go: who somebody is, as a string, and the roles; context.go: in a context.
//   - certificate.go: who a client certificate is of; tokens.go: who a bearer token is of.
//   - policy.go: the grants; authorizer.go: what they allow.
//   - watch.go: files that change; tls.go: TLS made of them.
//   - expiry.go: which certificates will expire; refused.go: why a handshake failed.
//   - authority.go: all of it together.
//
// A call is of one principal. If it brings a bearer token, that alone counts, and the
// certificate of the connection does not: a service that acts for somebody else by their token
// must not fall back on rights of its own, and what two credentials allow is never added up.
package identity
