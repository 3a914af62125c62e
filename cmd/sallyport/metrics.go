package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sallyport/audit"
	"sallyport/rules"
)

// metrics counts what the log records. Every label has a closed set of values:
// neither a sandbox nor an upstream can make a new series, and no name, path or
// run is told to whoever may read this.
type metrics struct {
	reg     *prometheus.Registry
	records *prometheus.CounterVec
	refused *prometheus.CounterVec
	octets  *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

// otherLabel stands for what is not in a closed set.
const otherLabel = "other"

func newMetrics(cells func() int, ready func() error) *metrics {
	m := &metrics{
		reg: prometheus.NewRegistry(),
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sallyport_records_total", Help: "Records written to the log.",
		}, []string{"kind", "verdict"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sallyport_refusals_total", Help: "Refused requests, streams and queries.",
		}, []string{"reason"}),
		octets: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sallyport_octets_total", Help: "Octets carried: sent by sandboxes, received for them.",
		}, []string{"direction"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sallyport_request_seconds", Help: "From the admission of a request or tunnel to its end.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10), // 1 ms to 262 s
		}, []string{"verdict"}),
	}
	m.reg.MustRegister(m.records, m.refused, m.octets, m.seconds,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sallyport_cells", Help: "Cells that are attached.",
		}, func() float64 { return float64(cells()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sallyport_log_writable", Help: "1 while the log can be written; 0: egress is stopped.",
		}, func() float64 {
			if ready() != nil {
				return 0
			}
			return 1
		}),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// count takes a record that was written into account.
func (m *metrics) count(rec *audit.Record) {
	verdict := known(rec.Verdict, verdicts)
	m.records.WithLabelValues(string(rec.Kind), verdict).Inc()
	if rec.Verdict == rules.Deny.String() {
		m.refused.WithLabelValues(known(rec.Reason, reasons)).Inc()
	}
	if rec.Kind == audit.Done {
		m.octets.WithLabelValues("sent").Add(float64(rec.Sent))
		m.octets.WithLabelValues("received").Add(float64(rec.Received))
		m.seconds.WithLabelValues(verdict).Observe(float64(rec.Micros) / 1e6)
	}
}

var (
	verdicts = []string{"", rules.Deny.String(), rules.Tunnel.String(), rules.Inspect.String()}
	reasons  = func() []string {
		var all []string
		for _, r := range rules.Reasons() {
			all = append(all, string(r))
		}
		return all
	}()
)

func known(s string, set []string) string {
	if slices.Contains(set, s) {
		return s
	}
	return otherLabel
}

// healthHandler answers whoever watches over the gateway: /livez while the
// process runs, /readyz while it can record and so admit, and /metrics.
func healthHandler(m *metrics, ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, "the log cannot be written, so nothing is let through: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return mux
}

// listenHealth opens the listener for [healthHandler], nil for no address.
func listenHealth(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	if !at.IsValid() {
		return nil, nil //nolint:nilnil // none is asked for
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", at.String())
	if err != nil {
		return nil, hint(fmt.Errorf("listening for metrics: %w", err), "choose another address for metrics in the configuration")
	}
	return l, nil
}

// serveHealth serves until ctx ends.
func (g *gateway) serveHealth(ctx context.Context, l net.Listener) error {
	s := &http.Server{
		Handler:           healthHandler(g.metrics, g.records.Ready),
		ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
	}
	return serveHTTP(ctx, s, l)
}
