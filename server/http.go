package server

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// newAdminHTTP is the server of the admin listener. It has /metrics and /healthz, and
// nothing else: no profiles, no variables. A slow reader or writer is cut off.
func newAdminHTTP(h *health, registry Registry) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4,
		Timeout:             10 * time.Second,
	}))
	mux.HandleFunc("GET /healthz", h.serveHTTP)
	return &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      20 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    8 << 10,
	}
}

// serveHTTP asks the store now: 200 {"status":"serving"}, or 503 with what is wrong. The
// notice is beside it, if there is one. Whoever asked may hang up meanwhile: that says
// nothing of the store.
func (h *health) serveHTTP(w http.ResponseWriter, _ *http.Request) {
	body := struct {
		Status  string `json:"status"`
		Problem string `json:"problem,omitempty"`
		Notice  string `json:"notice,omitempty"`
	}{Status: "serving"}
	if h.notice != nil {
		body.Notice = h.notice()
	}
	code := http.StatusOK
	if problem := h.probe(); problem != "" {
		body.Status, body.Problem = "not serving", problem
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // whoever asked has gone away
}
