package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemd/idemd/region/placement"
)

// RegionMetrics is what a server counts of other regions. It is there only where there are some.
//
//	region_peer_up{region}                     1 if the region can be reached, else 0
//	region_peer_round_trip_seconds{region}     how long it took to answer a ping
//	region_forwarded_total{home,result}        operations whose home is another region:
//	                                           answered, refused, unsent (the home was
//	                                           unreachable), broken (it did not answer), or
//	                                           canceled by the caller
//	region_stand_in_operations_total{home}     operations carried out through the database in the
//	                                           stead of a region that could not be reached
//	region_placement_disputed                  namespaces that have other placements elsewhere
//	region_store_joined                        1 if the store is home to keys, else 0
//	region_peer_store_unknown{region}          1 if the region has another store than the one that
//	                                           is known, and is not believed, else 0
//	region_move_seconds{namespace,step}        how long the namespace has been at that step of a
//	                                           move, as this server has seen it
type RegionMetrics struct {
	up        *prometheus.GaugeVec
	roundTrip *prometheus.HistogramVec
	forwarded *prometheus.CounterVec
	stoodIn   *prometheus.CounterVec
	disputed  prometheus.Gauge
	joined    prometheus.Gauge
	strangers *prometheus.GaugeVec
	moving    *prometheus.GaugeVec
}

// NewRegionMetrics registers the metrics of regions beside a server's others.
func NewRegionMetrics(m *Metrics) *RegionMetrics {
	r := &RegionMetrics{
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "idemd_region_peer_up", Help: "1 if the region can be reached, else 0."}, []string{"region"}),
		roundTrip: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "idemd_region_peer_round_trip_seconds", Help: "How long the region took to answer a ping.", Buckets: latencyBuckets}, []string{"region"}),
		forwarded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "idemd_region_forwarded_total", Help: "Operations whose home is another region, by what became of them."}, []string{"home", "result"}),
		stoodIn: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "idemd_region_stand_in_operations_total", Help: "Operations carried out through the database in the stead of a region that could not be reached."}, []string{"home"}),
		disputed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "idemd_region_placement_disputed", Help: "Namespaces that have other placements in other regions. Nothing of them is granted."}),
		joined: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "idemd_region_store_joined", Help: "1 if all other regions know this region's store and it is home to keys, else 0."}),
		strangers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "idemd_region_peer_store_unknown", Help: "1 if the region has another store than the one that is known, and is not believed, else 0."}, []string{"region"}),
		moving: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "idemd_region_move_seconds", Help: "How long the namespace has been at that step of a move, as this server has seen it. At frozen and sealed nothing new is granted."}, []string{"namespace", "step"}),
	}
	m.registry.MustRegister(r.up, r.roundTrip, r.forwarded, r.stoodIn, r.disputed, r.joined, r.strangers, r.moving)
	return r
}

// PeerUp notes whether a region can be reached.
func (r *RegionMetrics) PeerUp(name string, up bool) {
	r.up.WithLabelValues(name).Set(oneIf(up))
}

// RoundTrip notes how long a region took to answer a ping.
func (r *RegionMetrics) RoundTrip(name string, took time.Duration) {
	r.roundTrip.WithLabelValues(name).Observe(took.Seconds())
}

// Forwarded counts an operation whose home is another region.
func (r *RegionMetrics) Forwarded(home, result string) {
	r.forwarded.WithLabelValues(home, result).Inc()
}

// StoodIn counts an operation that was carried out in the stead of a region.
func (r *RegionMetrics) StoodIn(home string) { r.stoodIn.WithLabelValues(home).Inc() }

// Disputed notes how many namespaces have other placements elsewhere.
func (r *RegionMetrics) Disputed(namespaces int) { r.disputed.Set(float64(namespaces)) }

// Joined notes whether the region's own store is home to keys.
func (r *RegionMetrics) Joined(joined bool) { r.joined.Set(oneIf(joined)) }

// Stranger notes whether a region has another store than the one that is known.
func (r *RegionMetrics) Stranger(name string, is bool) {
	r.strangers.WithLabelValues(name).Set(oneIf(is))
}

// Moving notes for how long a namespace has been at a stage of a move, or that it does not move.
func (r *RegionMetrics) Moving(namespace, stage string, lasts time.Duration) {
	for _, other := range placement.Stages {
		if other != stage {
			r.moving.DeleteLabelValues(namespace, other)
		}
	}
	if stage != placement.AtRest {
		r.moving.WithLabelValues(namespace, stage).Set(lasts.Seconds())
	}
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
