package proxy_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/audit"
)

const exactPolicy = `apiVersion: sallyport/v1
kind: Policy
metadata: {name: lab}
rules:
  - {id: few, reason: x, allow: {host: few.test, ports: [80, 443], access: write}, limits: {requests: 20/day}}
  - {id: held, reason: x, allow: {host: held.test, ports: [80, 443], access: write}, limits: {concurrent: 8}}
  - id: all
    reason: x
    allow: {host: all.test, ports: [80, 443], access: write}
    limits: {requests: 30/day, sent: 20KiB/day, received: 1MiB/day, concurrent: 16}
`

// post sends so many octets, and returns the status; one that is not 200 tells of a limit that
// is reached.
func post(t *testing.T, client *http.Client, url string, octets int) (status int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(strings.Repeat("x", octets)))
	must(t, err)
	resp, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusOK {
		wantOver(t, resp, b)
	}
	return resp.StatusCode
}

// reachedBy counts the records of a rule by kind and, of refusals, by what was reached.
func reachedBy(t *testing.T, l *lab, rule string, all int) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for seen := 0; seen < all; {
		recs := l.log.await(t, 1)
		if len(recs) == 0 {
			t.Fatalf("%d records of %d: %v", seen, all, counts)
		}
		for _, r := range recs {
			switch {
			case r.Rule != rule, r.Reason == "no_request": // net/http made a connection in advance
			case r.Kind == audit.Refuse && r.Reason == "limit":
				_, what, _ := strings.Cut(r.Error, "the limit of ")
				counts["refuse "+what]++
				seen++
			case r.Kind == audit.Done:
				counts["done"]++
				seen++
			case r.Kind == audit.Refuse:
				t.Errorf("%s: %s", r.Reason, r.Error)
			default:
				counts[string(r.Kind)]++
			}
		}
	}
	return counts
}

// TestRequestsAreExact: of 64 clients that ask at once, 20 are answered, and the origin
// sees those.
func TestRequestsAreExact(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			l.setPolicy(exactPolicy)
			var arrived, answered atomic.Int64
			l.serveOrigin("few.test", w.h2, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived.Add(1) }))
			client := w.client(l)
			var wg sync.WaitGroup
			for range octetsClients {
				wg.Go(func() {
					if status := post(t, client, w.url("few.test", "/"), 10); status == http.StatusOK {
						answered.Add(1)
					}
				})
			}
			wg.Wait()
			counts := reachedBy(t, l, "few", octetsClients)
			if answered.Load() != 20 || arrived.Load() != 20 || counts["admit"] != 20 || counts["done"] != 20 ||
				counts["refuse 20 requests in 86400 seconds is reached"] != octetsClients-20 {
				t.Errorf("%d answered, %d arrived, %v", answered.Load(), arrived.Load(), counts)
			}
		})
	}
}

// TestConcurrentIsExact: of 64 clients that ask at once, eight are let through as long as
// these have no answer; then there is room again.
func TestConcurrentIsExact(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			l.setPolicy(exactPolicy)
			release := make(chan struct{})
			var arrived, answered, refused atomic.Int64
			l.serveOrigin("held.test", w.h2, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				arrived.Add(1)
				<-release
			}))
			client := w.client(l)
			var wg sync.WaitGroup
			for range octetsClients {
				wg.Go(func() {
					if status := post(t, client, w.url("held.test", "/"), 10); status == http.StatusOK {
						answered.Add(1)
					} else if refused.Add(1) == octetsClients-8 {
						close(release)
					}
				})
			}
			wg.Wait()
			counts := reachedBy(t, l, "held", octetsClients)
			if answered.Load() != 8 || arrived.Load() != 8 || counts["refuse 8 at once is reached"] != octetsClients-8 {
				t.Errorf("%d answered, %d arrived, %v", answered.Load(), arrived.Load(), counts)
			}
			if status := post(t, client, w.url("held.test", "/"), 10); status != http.StatusOK {
				t.Errorf("when those have ended: %d", status)
			}
		})
	}
}

// TestLimitsHoldTogether: 64 clients ask again and again under limits of requests, of
// octets and of how many at once. None is passed, and all that they leave is had.
func TestLimitsHoldTogether(t *testing.T) {
	const each, octets, most = 3, 1000, 20 // requests of 1,000 octets into 20 KiB
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			l.setPolicy(exactPolicy)
			var open, peak, arrived, carried atomic.Int64
			l.serveOrigin("all.test", w.h2, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				n := open.Add(1)
				for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
				}
				k, _ := io.Copy(io.Discard, r.Body)
				carried.Add(k)
				arrived.Add(1)
				open.Add(-1)
			}))
			client := w.client(l)
			var answered atomic.Int64
			var wg sync.WaitGroup
			for range octetsClients {
				wg.Go(func() {
					for range each {
						if status := post(t, client, w.url("all.test", "/"), octets); status == http.StatusOK {
							answered.Add(1)
						}
					}
				})
			}
			wg.Wait()
			asked := int64(octetsClients * each)
			for answered.Load() < most { // those that found 16 at once left some over
				if status := post(t, client, w.url("all.test", "/"), octets); status != http.StatusOK {
					t.Fatalf("%d were answered, and no more are", answered.Load())
				}
				answered.Add(1)
				asked++
			}
			for range 10 { // these fit into the octets, and into the requests
				if status := post(t, client, w.url("all.test", "/"), 10); status != http.StatusOK {
					t.Error("small ones are refused")
				}
				asked++
			}
			if status := post(t, client, w.url("all.test", "/"), 0); status == http.StatusOK {
				t.Error("one request more than there may be")
			}
			counts := reachedBy(t, l, "all", int(asked)+1)
			if counts["done"] != most+10 || arrived.Load() != most+10 || carried.Load() != most*octets+100 || peak.Load() > 16 {
				t.Errorf("%d arrived with %d octets, up to %d at once; %v", arrived.Load(), carried.Load(), peak.Load(), fmt.Sprint(counts))
			}
		})
	}
}

// TestReloadLimitsWhatIsOpen: a stream whose octets are counted goes on, and ends where the
// limit that holds now is reached; one whose octets nobody counts is cut.
func TestReloadLimitsWhatIsOpen(t *testing.T) {
	limited := func(counted, free string) string {
		return `apiVersion: sallyport/v1
kind: Policy
metadata: {name: lab}
rules:
  - {id: raw, reason: x, allow: {host: raw.test, ports: [5432], protocol: tcp}, limits: {` + counted + `}}
  - {id: free, reason: x, allow: {host: free.test, ports: [5432], protocol: tcp}` + free + `}
`
	}
	for name, open := range opens() {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.setPolicy(limited("sent: 1GiB/day", ""))
			back := func(c net.Conn) { _, _ = io.Copy(c, c) }
			l.serveRaw(back)
			l.setOrigin("free.test:5432", serveConns(t, func() { _ = l.stop() }, back).String())
			echo := func(c net.Conn) error {
				piece := []byte("0123456789")
				if _, err := c.Write(piece); err != nil {
					return err
				}
				_, err := io.ReadFull(c, piece)
				return err
			}
			counted, err := open(l, t.Context(), "raw.test:5432")
			must(t, err)
			defer counted.Close()
			free, err := open(l, t.Context(), "free.test:5432")
			must(t, err)
			defer free.Close()
			must(t, counted.SetDeadline(time.Now().Add(patience)))
			must(t, free.SetDeadline(time.Now().Add(patience)))
			must(t, echo(counted))
			must(t, echo(free))
			l.setPolicy(limited("sent: 2KiB/hour", ", limits: {sent: 1GiB/day}"))
			for err = nil; err == nil; {
				err = echo(free)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("what nobody counts stays open")
			}
			for err = nil; err == nil; {
				err = echo(counted)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("no limit ends what is counted")
			}
			ends := map[string]audit.Record{}
			for len(ends) < 2 {
				recs := l.log.await(t, 1)
				if len(recs) == 0 {
					t.Fatalf("%v", ends)
				}
				for _, r := range recs {
					if r.Kind == audit.Done {
						ends[r.Rule] = r
					}
				}
			}
			if r := ends["raw"]; r.Reason != "limit" || !strings.Contains(r.Error, "2048 octets sent in 3600 seconds") {
				t.Errorf("%+v", r)
			}
			if r := ends["free"]; !strings.Contains(r.Error, "change of policy") {
				t.Errorf("%+v", r)
			}
		})
	}
}
