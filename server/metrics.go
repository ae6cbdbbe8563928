package server

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Registry is where metrics are registered and read: a *prometheus.Registry, usually.
type Registry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// Metrics is what a server counts. All names begin with idemd_.
//
//	answers_total{namespace,operation,answer}    every answer and refusal; see [Answer]
//	fingerprints_incomparable_total{namespace}   claims whose fingerprint could not be compared
//	repeat_age_seconds{namespace}                age of an outcome when a repeat was given it
//	repeat_age_ratio{namespace}                  the same as a fraction of its retention: near 1
//	                                             means that repeats come almost too late
//	store_seconds{operation}                     how long the backend took
//	waiting_claims                               claims that wait for another attempt now
//	commit_operations, commit_sync_seconds       what one commit of the store held, and how
//	                                             long its sync, or its statement, took
//	commit_bytes_total                           what all commits of the store wrote
//	wall_ahead_seconds                           how far the wall clock is ahead of the store's
//	buckets_ahead                                buckets that exist after the current one, only
//	                                             for a store on a database; with 0 the next
//	                                             claims are refused
//	recovery_floor_seconds{namespace}            the recovery floor, as Unix time, while one stands
//	panics_total                                 calls that panicked
//	refused_connections_total                    connections closed because too many were open
//	listeners_full                               listeners on which all connections of those who
//	                                             are known are open: one more costs whoever has most
//	file_stale{file}                             1 while the file that is there (tls, tokens,
//	                                             policy) is no good and the one before in force
//	tls_certificate_expiry_seconds{file}         when the first certificate expires, as Unix time,
//	                                             of the file of --tls-cert or --tls-client-ca
//
// Lapses are the answers granted_takeover, unresolved and lapsed; late outcomes are the
// answers STALE_FENCE, STALE_ATTEMPT and ATTEMPT_TOO_LONG of the operation complete.
//
// The label namespace is the name of a namespace that exists, or [UnknownNamespace].
// The methods may be called by any number of goroutines.
type Metrics struct {
	registry Registry

	answers      *prometheus.CounterVec
	incomparable *prometheus.CounterVec
	repeatAge    *prometheus.HistogramVec
	repeatRatio  *prometheus.HistogramVec
	panics       prometheus.Counter

	recoveryFloor *prometheus.GaugeVec

	refusedConnections prometheus.Counter
	listenersFull      prometheus.Gauge

	store            [operations]prometheus.Observer
	commitOperations prometheus.Histogram
	commitBytes      prometheus.Counter
	commitSync       prometheus.Histogram
	wallAhead        prometheus.Gauge
	bucketsAhead     prometheus.Gauge
	bucketsTold      sync.Once

	namespaces sync.Map // name → *namespaceMetrics, of namespaces that exist
	unknown    *namespaceMetrics
	waiting    atomic.Pointer[func() int]
}

var (
	latencyBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	ageBuckets     = []float64{1, 10, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400, 35 * 86400}
	ratioBuckets   = []float64{.01, .05, .1, .25, .5, .75, .9, .95, .99, 1}
)

// NewMetrics registers the metrics. It fails if they are registered there already.
func NewMetrics(registry Registry) (*Metrics, error) {
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	}
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: name, Help: help}
	}
	byNamespace := []string{"namespace"}
	m := &Metrics{
		registry: registry,
		answers: prometheus.NewCounterVec(counter("idemd_answers_total", "Answers and refusals."),
			[]string{"namespace", "operation", "answer"}),
		incomparable: prometheus.NewCounterVec(counter("idemd_fingerprints_incomparable_total",
			"Claims whose fingerprint was made by another algorithm than the record's."), byNamespace),
		repeatAge: prometheus.NewHistogramVec(histogram("idemd_repeat_age_seconds",
			"Age of an outcome when a repeat was given it.", ageBuckets), byNamespace),
		repeatRatio: prometheus.NewHistogramVec(histogram("idemd_repeat_age_ratio",
			"Age of an outcome when a repeat was given it, as a fraction of its retention.", ratioBuckets), byNamespace),
		recoveryFloor: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "idemd_recovery_floor_seconds",
			Help: "The recovery floor, as Unix time, while one stands: unknown keys that may be from before it are refused."}, byNamespace),
		panics: prometheus.NewCounter(counter("idemd_panics_total", "Calls that panicked.")),
		refusedConnections: prometheus.NewCounter(counter("idemd_refused_connections_total",
			"Connections closed because too many were open.")),
		listenersFull: prometheus.NewGauge(prometheus.GaugeOpts{Name: "idemd_listeners_full",
			Help: "Listeners on which all connections of those who are known are open."}),
		commitOperations: prometheus.NewHistogram(histogram("idemd_commit_operations",
			"Operations in one commit of the store.", prometheus.ExponentialBuckets(1, 2, 12))),
		commitBytes: prometheus.NewCounter(counter("idemd_commit_bytes_total",
			"Bytes that the store has committed.")),
		commitSync: prometheus.NewHistogram(histogram("idemd_commit_sync_seconds",
			"How long the sync of one commit took.", latencyBuckets)),
		wallAhead: prometheus.NewGauge(prometheus.GaugeOpts{Name: "idemd_wall_ahead_seconds",
			Help: "How far the wall clock is ahead of the store's."}),
		bucketsAhead: prometheus.NewGauge(prometheus.GaugeOpts{Name: "idemd_buckets_ahead",
			Help: "Buckets that exist after the current one, in the tier that has the fewest."}),
	}
	latency := prometheus.NewHistogramVec(histogram("idemd_store_seconds",
		"How long the backend took.", latencyBuckets), []string{"operation"})
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "idemd_waiting_claims",
		Help: "Claims that wait for another attempt now."}, m.waitingClaims)
	for _, c := range []prometheus.Collector{m.answers, m.incomparable, m.repeatAge, m.repeatRatio,
		m.recoveryFloor, m.panics, m.refusedConnections, m.listenersFull, m.commitOperations, m.commitBytes, m.commitSync, m.wallAhead, latency, waiting} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	for op := range m.store {
		m.store[op] = latency.WithLabelValues(operation(op).String())
	}
	m.unknown = m.newNamespace(UnknownNamespace)
	return m, nil
}

// ObserveCommit counts one commit of the store: how many operations it held, how much it
// wrote and how long its sync took.
func (m *Metrics) ObserveCommit(ops, bytes int, sync time.Duration) {
	m.commitOperations.Observe(float64(ops))
	m.commitBytes.Add(float64(bytes))
	m.commitSync.Observe(sync.Seconds())
}

// ObserveBucketsAhead notes how many buckets exist after the current one. The gauge is there
// from the first call on: a store that needs none ahead never has too few.
func (m *Metrics) ObserveBucketsAhead(buckets int) {
	m.bucketsTold.Do(func() { m.registry.MustRegister(m.bucketsAhead) })
	m.bucketsAhead.Set(float64(buckets))
}

// ObserveWall notes how far the wall clock is ahead of the store's.
func (m *Metrics) ObserveWall(ahead time.Duration) { m.wallAhead.Set(ahead.Seconds()) }

func (m *Metrics) waitingClaims() float64 {
	if count := m.waiting.Load(); count != nil {
		return float64((*count)())
	}
	return 0
}
