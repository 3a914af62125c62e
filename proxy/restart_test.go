package proxy_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/proxy"
)

// TestRestartLosesNoConnection: the listening sockets outlive the server, so that a
// client which connects while one server ends and the next begins is served by the
// one or by the other; so is every request that was not under way.
func TestRestartLosesNoConnection(t *testing.T) {
	l := newLab(t, func(c *proxy.Config) { c.Timeouts.Drain = time.Hour })
	l.serveOrigin("ok.test", false, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	var held []*net.TCPListener
	for range 2 {
		ln, err := net.Listen("tcp4", "0.0.0.0:0")
		must(t, err)
		defer ln.Close()
		held = append(held, ln.(*net.TCPListener))
	}
	l.transparentPort = held[0].Addr().(*net.TCPAddr).Port
	l.explicitAddr = (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: held[1].Addr().(*net.TCPAddr).Port}).String()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients sync.WaitGroup
	var answered atomic.Int64
	for _, w := range ways() {
		if w.open != nil && w.name[:7] == "connect" && w.name[8] == 'o' {
			continue // all of these share one connection, which is under way
		}
		client := w.client(l)
		client.Transport.(*http.Transport).DisableKeepAlives = true
		clients.Go(func() {
			for ctx.Err() == nil {
				resp, err := client.Get(w.url("ok.test", "/public/a"))
				if err != nil {
					t.Errorf("%s: after %d answers: %v", w.name, answered.Load(), err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 {
					t.Errorf("%s: %s", w.name, resp.Status)
				}
				answered.Add(1)
			}
		})
	}
	const restarts, between = 8, 40
	for range restarts {
		before := answered.Load()
		stop := l.serveCopies(held)
		for answered.Load() < before+between && !t.Failed() {
			l.log.await(t, 10)
		}
		stop()
	}
	// The last requests may wait for a server.
	cancel()
	stop := l.serveCopies(held)
	clients.Wait()
	stop()
	t.Logf("%d answers over %d restarts", answered.Load(), restarts)
}
