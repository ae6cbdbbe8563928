package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemd/idemd/server/identity"
)

// watch shows for each kind of file whether the one that is there is in force, and for each file of
// certificates when the first in it expires.
func (m *Metrics) watch(files *identity.Authority) error {
	if files == nil {
		return nil
	}
	for kind := range files.Stale() {
		if err := m.ofFile("idemd_file_stale", "1 while the file that is there is no good and the one before is in force.", kind, func() float64 {
			return oneIf(files.Stale()[kind] != "")
		}); err != nil {
			return err
		}
	}
	for file := range files.Expiries() {
		if err := m.ofFile("idemd_tls_certificate_expiry_seconds", "When the first certificate in the file expires, as Unix time.", file, func() float64 {
			return float64(files.Expiries()[file].Unix())
		}); err != nil {
			return err
		}
	}
	return nil
}

// ofFile registers a gauge of one file.
func (m *Metrics) ofFile(name, help, file string, value func() float64) error {
	return m.registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"file": file}}, value))
}
