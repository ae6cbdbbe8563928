package identity

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"time"
)

// A certificate that nobody replaces stops everybody who needs it, on one day. So it is told before.
const (
	// warnBefore is how long before its end a certificate is told of; one that lives for less than a
	// month is in the last quarter of its life, for it is replaced in less than a week before.
	warnBefore      = 7 * 24 * time.Hour
	warnBeforeShare = 4
	// urgentShare: it is urgent in so much of that time, a day of a week.
	urgentShare = 7
	// remindEvery is how long the log says no more of a certificate than it has said.
	remindEvery = 24 * time.Hour
)

// The files that hold certificates, by the flags that name them.
const (
	certFile     = "tls-cert"
	clientCAFile = "tls-client-ca"
)

// urgency is how badly a certificate needs to be replaced.
type urgency int

const (
	lasting urgency = iota
	expiresSoon
	expiresAtOnce
	expired
	notYetValid
)

func urgencyOf(c *x509.Certificate, now time.Time) urgency {
	before := min(warnBefore, c.NotAfter.Sub(c.NotBefore)/warnBeforeShare)
	switch left := c.NotAfter.Sub(now); {
	case now.Before(c.NotBefore):
		return notYetValid // it was when it was read: the clock has been set back
	case left <= 0:
		return expired
	case left <= before/urgentShare:
		return expiresAtOnce
	case left <= before:
		return expiresSoon
	}
	return lasting
}

// ending is a certificate that ends before the others in its file.
type ending struct {
	file string
	what string // in a sentence
	cert *x509.Certificate
}

// endings are those of the files that are in force.
func (a *Authority) endings() (all []ending) {
	if a.material == nil {
		return nil
	}
	m := a.material.now()
	first := firstToEnd(m.chain)
	what := "the certificate of this server"
	if first != m.chain[0] {
		what = "a certificate above that of this server"
	}
	all = append(all, ending{certFile, what, first})
	if len(m.roots) == 1 {
		all = append(all, ending{clientCAFile, "the authority", m.roots[0]})
	} else if len(m.roots) > 1 {
		all = append(all, ending{clientCAFile, "an authority", firstOfRoots(m.roots, a.now())})
	}
	return all
}

func firstToEnd(certs []*x509.Certificate) *x509.Certificate {
	first := certs[0]
	for _, c := range certs {
		if c.NotAfter.Before(first.NotAfter) {
			first = c
		}
	}
	return first
}

// firstOfRoots is the authority that ends first, but not one that ended long ago while another is
// there: it is not missed any more, and would hide that the next one ends.
func firstOfRoots(roots []*x509.Certificate, now time.Time) *x509.Certificate {
	var told []*x509.Certificate
	last := roots[0]
	for _, c := range roots {
		if now.Before(c.NotAfter.Add(warnBefore)) {
			told = append(told, c)
		}
		if c.NotAfter.After(last.NotAfter) {
			last = c
		}
	}
	if len(told) == 0 {
		return last
	}
	return firstToEnd(told)
}

// Expiries are when the first certificate expires of each file of them, by the flag that names it:
// tls-cert, which is also what other servers are shown, and tls-client-ca.
func (a *Authority) Expiries() map[string]time.Time {
	at := map[string]time.Time{}
	for _, e := range a.endings() {
		at[e.file] = e.cert.NotAfter
	}
	return at
}

// problem is what an operator should see to; empty if it is nothing.
func (e ending) problem(now time.Time) string {
	from, until := e.cert.NotBefore.UTC().Format(time.RFC3339), e.cert.NotAfter.UTC().Format(time.RFC3339)
	switch urgencyOf(e.cert, now) {
	case lasting:
		return ""
	case notYetValid:
		return fmt.Sprintf("%s in --%s is not valid before %s: is the clock of this machine right?", e.what, e.file, from)
	case expired:
		return fmt.Sprintf("%s in --%s expired at %s: %s; replace it, the file is read again", e.what, e.file, until, consequences[e.file])
	default:
		return fmt.Sprintf("%s in --%s expires at %s: from then on %s; replace it before, the file is read again", e.what, e.file, until, consequences[e.file])
	}
}

// consequences are what happens once what is in a file has expired.
var consequences = map[string]string{
	certFile:     "nobody who verifies this server connects, nor does it to other regions",
	clientCAFile: "no certificate of it counts, neither callers' nor other regions'",
}

// reminder is what the log has said last of a file.
type reminder struct {
	of  *x509.Certificate
	was urgency
	at  time.Time
}

// remind has the log say what will expire: when it becomes worse, and once a day.
func (a *Authority) remind() {
	now := a.now()
	for _, e := range a.endings() {
		is, said := urgencyOf(e.cert, now), a.reminded[e.file]
		if is == lasting || e.cert == said.of && is <= said.was && now.Sub(said.at) < remindEvery {
			continue
		}
		a.reminded[e.file] = reminder{e.cert, is, now}
		level := slog.LevelError
		if is == expiresSoon {
			level = slog.LevelWarn
		}
		a.logger.Log(context.Background(), level, "certificate must be replaced", "problem", e.problem(now), "file", a.paths[e.file])
	}
}
