package proxy_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/proxy"
	"sallyport/rules/gate"
)

// nowhere takes records and keeps none.
type nowhere struct{}

func (nowhere) Append(context.Context, *audit.Record) error { return nil }

// BenchmarkAuditOverhead sends inspected keep-alive requests over 16
// connections, in turn through a gateway with a log and through one whose
// records go nowhere, and tells what the log costs: overhead-% of the time that
// a request takes, client and origin included, and audit-us of processor time
// a request (two records).
func BenchmarkAuditOverhead(b *testing.B) {
	log, err := audit.Open(audit.Config{Dir: filepath.Join(b.TempDir(), "audit"), KeyFile: filepath.Join(b.TempDir(), "key"), Now: time.Now})
	must(b, err)
	defer func() { must(b, log.Close()) }()
	with, without := benchLab(b, log, log.Hash), benchLab(b, nowhere{}, func(string) string { return "" })
	const each, conns = 4000, 16
	var wall, cpu [2]time.Duration
	for b.Loop() {
		for i, run := range []func(int, int){without, with} {
			start, began := time.Now(), processorTime(b)
			run(each, conns)
			wall[i] += time.Since(start)
			cpu[i] += processorTime(b) - began
		}
	}
	n := float64(b.N * each)
	b.ReportMetric(100*(float64(wall[1])/float64(wall[0])-1), "overhead-%")
	b.ReportMetric(100*(float64(cpu[1])/float64(cpu[0])-1), "cpu-overhead-%")
	b.ReportMetric(float64((cpu[1]-cpu[0]).Microseconds())/n, "audit-us/req")
	b.ReportMetric(float64(cpu[0].Microseconds())/n, "rest-us/req")
}

func processorTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	must(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchLab returns what sends n requests over so many connections.
func benchLab(b *testing.B, to gate.Recorder, hash func(string) string) func(n, conns int) {
	b.Helper()
	var l *lab
	g, err := gate.New(gate.Config{
		Identity: func(cell string) (gate.Identity, bool) { return l.table.Identity(cell) }, Recorder: to, Now: time.Now, Hash: hash,
	})
	must(b, err)
	l = newLab(b, func(c *proxy.Config) { c.Gate, c.Log = g, slog.New(slog.DiscardHandler) })
	l.serveOrigin("any.test", false, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "hello") }))
	w := ways()[0]
	clients := make([]*http.Client, 16)
	for i := range clients {
		clients[i] = w.client(l)
	}
	return func(n, conns int) {
		var wg sync.WaitGroup
		for _, c := range clients[:conns] {
			wg.Go(func() {
				for range n / conns {
					resp, err := c.Get("https://any.test/v1/x")
					if err != nil {
						b.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
		}
		wg.Wait()
	}
}
