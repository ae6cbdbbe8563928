package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/peer"

	"github.com/idemd/idemd/server/identity"
	"github.com/idemd/idemd/store"
)

// getMetrics is what stands for the method where that is not one of gRPC.
const getMetrics = "GET /metrics"

// newAdminHTTP is the server of the admin listener. It has /metrics and /healthz, and
// nothing else: no profiles, no variables. A slow reader or writer is cut off. Health is for
// anybody, metrics are for operators.
func newAdminHTTP(h *health, registry Registry, c *calls) *http.Server {
	mux := http.NewServeMux()
	mux.Handle(getMetrics, c.operatorsOnly(promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4,
		Timeout:             10 * time.Second,
	})))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { h.serveHTTP(w, c.seesAll(r)) })
	return &http.Server{
		Handler: mux,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return peer.NewContext(ctx, &peer.Peer{Addr: c.RemoteAddr()}) // so that connectionOf finds it
		},
		ErrorLog:          slog.NewLogLogger(c.logger.Handler(), slog.LevelDebug), // handshakes that failed
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      20 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    8 << 10,
	}
}

// operatorsOnly lets in who is an operator of all namespaces, where callers are told apart: what it
// guards names them all.
func (c *calls) operatorsOnly(next http.Handler) http.Handler {
	if !c.identity.Identifies() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, err := c.operatorOfAll(r)
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		code := http.StatusForbidden
		if errors.Is(err, store.ErrUnauthenticated) {
			code = http.StatusUnauthorized
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		c.refused(ctx, nil, getMetrics, statusOf(err), err)
		http.Error(w, err.Error(), code)
	})
}

// operatorOfAll refuses who is not an operator of all namespaces. The context has who it is, if that is known.
func (c *calls) operatorOfAll(r *http.Request) (context.Context, error) {
	ctx := r.Context()
	principal, err := c.identity.Authenticate(c.credentialsOfHTTP(r))
	if err != nil {
		return ctx, err
	}
	ctx = identity.NewContext(ctx, principal)
	if err := c.identity.Authorizer().AuthorizeAll(string(principal), identity.Operator); err != nil {
		return ctx, err
	}
	connectionOf(ctx).met(principal)
	return ctx, nil
}

// seesAll reports whether whoever asks may know what namespaces there are.
func (c *calls) seesAll(r *http.Request) bool {
	if !c.identity.Identifies() {
		return true
	}
	_, err := c.operatorOfAll(r)
	return err == nil
}

// credentialsOfHTTP is what a request brings along.
func (c *calls) credentialsOfHTTP(r *http.Request) (of identity.Credentials) {
	if r.TLS != nil {
		of = c.identity.OfTLS(r.TLS)
	} else if addr, err := netip.ParseAddrPort(r.RemoteAddr); err != nil || addr.Addr().Unmap().IsLoopback() {
		of.Private = true // what is not TCP does not leave the machine
	}
	of.Authorization = r.Header.Values("Authorization")
	return of
}

// serveHTTP asks the store now: 200 {"status":"serving"}, or 503 with what is wrong. The
// notice is beside it, if there is one. Whoever asked may hang up meanwhile: that says
// nothing of the store.
func (h *health) serveHTTP(w http.ResponseWriter, named bool) {
	notice := JoinNotices(func() string { return h.notice(named) }, func() string { return h.floors.notice(named) })
	body := struct {
		Status  string `json:"status"`
		Problem string `json:"problem,omitempty"`
		Notice  string `json:"notice,omitempty"`
	}{Status: "serving", Notice: notice()}
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
