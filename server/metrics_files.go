package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemd/idemd/server/identity"
)

// watch shows for each kind of file whether the one that is there is in force.
func (m *Metrics) watch(files *identity.Authority) error {
	if files == nil {
		return nil
	}
	for kind := range files.Stale() {
		stale := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "idemd_file_stale", Help: "1 while the file that is there is no good and the one before is in force.",
			ConstLabels: prometheus.Labels{"file": kind},
		}, func() float64 {
			if files.Stale()[kind] != "" {
				return 1
			}
			return 0
		})
		if err := m.registry.Register(stale); err != nil {
			return err
		}
	}
	return nil
}
