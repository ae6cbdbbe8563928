// Package guardprom counts what becomes of guarded calls with Prometheus. It is apart from
// package client, so that programs which count otherwise need no Prometheus.
package guardprom

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemd/idemd/client"
)

// Metrics counts events. Pass [Metrics.Count] to [client.OnEvent].
type Metrics struct {
	events *prometheus.CounterVec
	age    *prometheus.HistogramVec
	ratio  *prometheus.HistogramVec
	scopes scopes
}

// scopes are those that have series of their own.
type scopes struct {
	mu    sync.RWMutex
	known map[string]bool
}

// maxScopes is how many there may be: a scope of HTTP may hold a path, which callers make up.
const maxScopes = 500

// label is a scope, or "other" if there are too many.
func (s *scopes) label(scope string) string {
	s.mu.RLock()
	known := s.known[scope]
	s.mu.RUnlock()
	if known || s.add(scope) {
		return scope
	}
	return "other"
}

func (s *scopes) add(scope string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxScopes && !s.known[scope] {
		return false
	}
	s.known[scope] = true
	return true
}

// New makes metrics and registers them:
//
//   - idemd_guard_events_total (namespace, scope, event, observed): see [client.EventKind].
//     Watch mismatch, unresolved, store_down, failed_open, recording_failed, lease_lost. Be woken by
//     recording_failed: what was known could not be stored. An unknown is a failure of the handler, whose error
//     the event carries, and is counted once however the key was given up.
//     A call without a key counts as no_key if it ran, and as no_key_refused if not.
//   - idemd_guard_repeat_age_seconds (namespace, scope): how old the outcome of a repeat was.
//   - idemd_guard_repeat_age_ratio (namespace, scope): the same as a fraction of retention;
//     near 1 means that retention is too short.
//
// The first 500 scopes have series of their own, and all others share the scope "other": behind
// routers that set no pattern, a scope of HTTP is the path of each request.
func New(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		scopes: scopes{known: map[string]bool{}},
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "idemd_guard_events_total", Help: "What became of guarded calls.",
		}, []string{"namespace", "scope", "event", "observed"}),
		age: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "idemd_guard_repeat_age_seconds", Help: "How old the outcome was when a repeat was caught.",
			Buckets: prometheus.ExponentialBuckets(0.1, 4, 12),
		}, []string{"namespace", "scope"}),
		ratio: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "idemd_guard_repeat_age_ratio", Help: "How old the outcome was when a repeat was caught, as a fraction of its retention.",
			Buckets: prometheus.LinearBuckets(0.1, 0.1, 10),
		}, []string{"namespace", "scope"}),
	}
	for _, c := range [...]prometheus.Collector{m.events, m.age, m.ratio} {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// nameOf is an event's label. Of calls without a key, those that ran and those that were
// refused ask for different things.
func nameOf(e client.Event) string {
	if e.Kind == client.EventNoKey && e.Err != nil {
		return "no_key_refused"
	}
	return e.Kind.String()
}

// Count counts one event. It may be called by any number of goroutines.
func (m *Metrics) Count(e client.Event) {
	observed := "false"
	if e.Observed {
		observed = "true"
	}
	scope := m.scopes.label(e.Scope)
	m.events.WithLabelValues(e.Namespace, scope, nameOf(e), observed).Inc()
	if e.Kind != client.EventReplayed {
		return
	}
	m.age.WithLabelValues(e.Namespace, scope).Observe(e.Age.Seconds())
	if e.Retention > 0 {
		m.ratio.WithLabelValues(e.Namespace, scope).Observe(e.Age.Seconds() / e.Retention.Seconds())
	}
}
