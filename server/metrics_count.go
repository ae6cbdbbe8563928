package server

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemd/idemd/store"
)

// namespaceMetrics are the metrics with one value of the label namespace. They are
// resolved when they are first counted, so that counting is cheap and what never happens
// takes no space.
type namespaceMetrics struct {
	metrics *Metrics
	name    string
	answers []atomic.Pointer[prometheus.Counter] // by operation and answer
	repeats atomic.Pointer[repeatMetrics]
}

type repeatMetrics struct{ age, ratio prometheus.Observer }

func (m *Metrics) newNamespace(name string) *namespaceMetrics {
	return &namespaceMetrics{
		metrics: m,
		name:    name,
		answers: make([]atomic.Pointer[prometheus.Counter], int(operations)*answers),
	}
}

// namespace returns the metrics of a namespace. An answer that proves that it exists
// adds it, so a caller cannot make labels.
func (m *Metrics) namespace(name string, answer Answer) *namespaceMetrics {
	if known, ok := m.namespaces.Load(name); ok {
		return known.(*namespaceMetrics)
	}
	if name == "" || !answer.proves() {
		return m.unknown
	}
	known, _ := m.namespaces.LoadOrStore(name, m.newNamespace(name))
	return known.(*namespaceMetrics)
}

// count counts one answer.
func (m *Metrics) count(op operation, namespace string, answer Answer) *namespaceMetrics {
	ns := m.namespace(namespace, answer)
	slot := &ns.answers[int(op)*answers+int(answer)]
	counter := slot.Load()
	if counter == nil {
		resolved := m.answers.WithLabelValues(ns.name, op.String(), answer.String())
		counter = &resolved
		slot.Store(counter)
	}
	(*counter).Inc()
	return ns
}

// refused counts a refusal.
func (m *Metrics) refused(op operation, namespace string, err error) {
	m.count(op, namespace, refusal(err))
}

// done counts AnswerOK, or the refusal.
func (m *Metrics) done(op operation, namespace string, err error) {
	answer := AnswerOK
	if err != nil {
		answer = refusal(err)
	}
	m.count(op, namespace, answer)
}

// claimed counts the answer of a Claim.
func (m *Metrics) claimed(namespace string, claim store.ClaimAnswer, err error) {
	if err != nil {
		m.refused(opClaim, namespace, err)
		return
	}
	ns := m.count(opClaim, namespace, claimAnswer(claim))
	if claim.FingerprintIncomparable {
		m.incomparable.WithLabelValues(ns.name).Inc()
	}
	if claim.Completed != nil {
		ns.repeat(claim.Completed)
	}
}

func claimAnswer(claim store.ClaimAnswer) Answer {
	switch {
	case claim.InProgress != nil:
		return AnswerInProgress
	case claim.Completed != nil:
		return AnswerCompleted
	case claim.Unresolved != nil:
		return AnswerUnresolved
	default:
		return grantedAnswer(claim.Granted)
	}
}

// grantedAnswer tells the grants apart. The store's clock at the decision is the lease's
// end less what remained of it; a fresh grant was made at that very instant.
func grantedAnswer(g *store.Granted) Answer {
	now := g.LeaseExpiresAt.Add(-g.LeaseRemaining)
	switch {
	case !g.GrantedAt.Equal(now):
		return AnswerGrantedAgain
	case g.AttemptNumber == 1:
		return AnswerGrantedNew
	case g.Unsettled:
		return AnswerGrantedTakeover
	default:
		return AnswerGrantedReleased
	}
}

// repeat observes how old the outcome was that a repeat was given.
func (ns *namespaceMetrics) repeat(c *store.Completed) {
	repeats := ns.repeats.Load()
	if repeats == nil {
		repeats = &repeatMetrics{
			age:   ns.metrics.repeatAge.WithLabelValues(ns.name),
			ratio: ns.metrics.repeatRatio.WithLabelValues(ns.name),
		}
		ns.repeats.Store(repeats)
	}
	repeats.age.Observe(c.Age.Seconds())
	if c.Retention > 0 {
		repeats.ratio.Observe(c.Age.Seconds() / c.Retention.Seconds())
	}
}
