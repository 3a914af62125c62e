package proxy_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"sallyport/audit"
)

// octetsPolicy lets 4 KiB a day through, one way or the other.
const octetsPolicy = `apiVersion: sallyport/v1
kind: Policy
metadata: {name: lab}
rules:
  - {id: there, reason: x, allow: {host: there.test, ports: [80, 443], access: write}, limits: {sent: 4KiB/day}}
  - {id: back, reason: x, allow: {host: back.test, ports: [80, 443], access: write}, limits: {received: 4KiB/day}}
  - {id: raw, reason: x, allow: {host: raw.test, ports: [5432], protocol: tcp}, limits: {sent: 4KiB/day, received: 4KiB/day}}
`

const (
	octetsMost    = 4 << 10
	octetsEach    = 2000
	octetsClients = 64
)

// unknownLength hides how long a body is.
type unknownLength struct{ io.Reader }

// octetsMoved adds up what closing records say, and expects the limit as the reason of all
// that was not let through whole. Each client has one admission with its end, or one refusal.
func octetsMoved(t *testing.T, l *lab, rule string) (sent, received int64) {
	t.Helper()
	ended := map[string]bool{}
	ends, refusals := 0, 0
	for ends+refusals < octetsClients {
		recs := l.log.await(t, 1)
		if len(recs) == 0 {
			t.Fatalf("%d ends and %d refusals of %d octetsClients", ends, refusals, octetsClients)
		}
		for _, r := range recs {
			if r.Reason == "no_request" {
				continue // a connection that net/http made in advance
			}
			switch r.Kind {
			case audit.Done:
				if ended[r.Ref] {
					t.Errorf("%s has two ends", r.Ref)
				}
				ended[r.Ref] = true
				ends++
				sent += r.Sent
				received += r.Received
			case audit.Refuse:
				refusals++
			default:
			}
			if r.Rule != rule || r.Reason != "allowed" && (r.Reason != "limit" || r.Verdict != "deny" || !strings.Contains(r.Error, "the limit of 4096 octets")) {
				t.Errorf("%s: %s %s %s %q", r.Kind, r.Verdict, r.Reason, r.Rule, r.Error)
			}
		}
	}
	if sent > octetsMost && rule != "back" || received > octetsMost && rule != "there" {
		t.Errorf("%d octets sent and %d received, over %d", sent, received, octetsMost)
	}
	return sent, received
}

// wantOver expects 429, the reason and when to come again.
func wantOver(t *testing.T, resp *http.Response, body []byte) {
	t.Helper()
	wait, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if resp.StatusCode != http.StatusTooManyRequests || err != nil || wait < 5 || wait > 86400+1440 {
		t.Errorf("%s %v\n%s", resp.Status, resp.Header, body)
	}
	checkDenial(t, resp, string(body), "limit")
}

// octetsClient has clients ask at once, and returns how many were answered with 200 and a
// whole body, and how many octets of those came.
func octetsClient(t *testing.T, l *lab, w way, host string, body func() io.Reader) (whole, came int64) {
	t.Helper()
	client := w.client(l)
	var ok, octets atomic.Int64
	var wg sync.WaitGroup
	for range octetsClients {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url(host, "/"), body())
			must(t, err)
			resp, err := client.Do(req)
			if err != nil {
				return // cut in the midst of it
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			switch {
			case resp.StatusCode != http.StatusOK:
				wantOver(t, resp, b)
			case err == nil:
				ok.Add(1)
				fallthrough
			default:
				octets.Add(int64(len(b)))
			}
		})
	}
	wg.Wait()
	return ok.Load(), octets.Load()
}

// TestOctetsSentAreExact: of 64 that declare 2,000 octets at once, two get into 4 KiB; of
// those that declare nothing, and 10,000 come, no more than 4 KiB leave.
func TestOctetsSentAreExact(t *testing.T) {
	for _, w := range ways() {
		for _, declared := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s declared %v", w.name, declared), func(t *testing.T) {
				l := newLab(t)
				l.setPolicy(octetsPolicy)
				var arrived atomic.Int64
				l.serveOrigin("there.test", w.h2, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					n, _ := io.Copy(io.Discard, r.Body)
					arrived.Add(n)
				}))
				whole, _ := octetsClient(t, l, w, "there.test", func() io.Reader {
					if declared {
						return strings.NewReader(strings.Repeat("x", octetsEach))
					}
					return unknownLength{strings.NewReader(strings.Repeat("x", 5*octetsEach))}
				})
				sent, _ := octetsMoved(t, l, "there")
				if declared && (whole != 2 || sent != 2*octetsEach || arrived.Load() != 2*octetsEach) ||
					!declared && (whole != 0 || sent == 0) || arrived.Load() > octetsMost {
					t.Errorf("%d were whole; %d octets sent, %d arrived", whole, sent, arrived.Load())
				}
			})
		}
	}
}

// TestOctetsReceivedAreExact is the same for what comes back: an answer that declares more
// than there is room for is refused, one that declares nothing is cut off.
func TestOctetsReceivedAreExact(t *testing.T) {
	for _, w := range ways() {
		for _, declared := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s declared %v", w.name, declared), func(t *testing.T) {
				l := newLab(t)
				l.setPolicy(octetsPolicy)
				l.serveOrigin("back.test", w.h2, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
					n := octetsEach
					if !declared {
						_ = http.NewResponseController(rw).Flush()
						n *= 5
					}
					_, _ = io.WriteString(rw, strings.Repeat("x", n))
				}))
				whole, came := octetsClient(t, l, w, "back.test", func() io.Reader { return nil })
				_, received := octetsMoved(t, l, "back")
				if declared && (whole != 2 || received != 2*octetsEach || came != 2*octetsEach) ||
					!declared && (whole != 0 || received == 0) || came > octetsMost {
					t.Errorf("%d were whole; %d octets received, %d came", whole, received, came)
				}
			})
		}
	}
}

// TestStreamsAreCutAtTheirLimit: what nobody looks into ends where the limit is reached, in
// whichever direction, and what crossed of all of them together is not more.
func TestStreamsAreCutAtTheirLimit(t *testing.T) {
	for name, open := range opens() {
		for _, way := range []string{"sent", "received"} {
			t.Run(name+" "+way, func(t *testing.T) {
				l := newLab(t)
				l.setPolicy(octetsPolicy)
				var arrived, came atomic.Int64
				l.serveRaw(func(c net.Conn) {
					if way == "received" {
						for err := error(nil); err == nil; {
							_, err = io.WriteString(c, strings.Repeat("x", 100))
						}
						return
					}
					n, _ := io.Copy(io.Discard, c)
					arrived.Add(n)
				})
				var wg sync.WaitGroup
				for range octetsClients {
					wg.Go(func() {
						c, err := open(l, t.Context(), "raw.test:5432")
						if err != nil {
							return // refused: 429, or reset
						}
						defer c.Close()
						must(t, c.SetDeadline(time.Now().Add(patience)))
						if way == "received" {
							n, _ := io.Copy(io.Discard, c)
							came.Add(n)
							return
						}
						for i := 0; i < 100 && err == nil; i++ {
							_, err = io.WriteString(c, strings.Repeat("x", 100))
						}
					})
				}
				wg.Wait()
				sent, received := octetsMoved(t, l, "raw")
				must(t, l.stop())
				if way == "sent" && (sent != octetsMost || arrived.Load() > octetsMost) || way == "received" && (received != octetsMost || came.Load() > octetsMost) {
					t.Errorf("%d sent, %d arrived; %d received, %d came", sent, arrived.Load(), received, came.Load())
				}
			})
		}
	}
}

// TestWebSocketsAreCutAtTheirLimit: so does a WebSocket, over whose limit no frame crosses.
func TestWebSocketsAreCutAtTheirLimit(t *testing.T) {
	for _, host := range []string{"there", "back"} {
		t.Run(host, func(t *testing.T) {
			l := newLab(t)
			l.setPolicy(octetsPolicy)
			var arrived, came atomic.Int64
			pump := func(c *websocket.Conn, sends bool, count *atomic.Int64) {
				defer c.CloseNow()
				for {
					if sends {
						if c.Write(t.Context(), websocket.MessageText, []byte(strings.Repeat("x", 100))) != nil {
							return
						}
						continue
					}
					_, b, err := c.Read(t.Context())
					if err != nil {
						return
					}
					count.Add(int64(len(b)))
				}
			}
			l.serveOrigin(host+".test", false, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if c, err := websocket.Accept(rw, r, nil); err == nil {
					pump(c, host == "back", &arrived)
				}
			}))
			client := ways()[0].client(l)
			var wg sync.WaitGroup
			for range octetsClients {
				wg.Go(func() {
					c, resp, err := websocket.Dial(t.Context(), "https://"+host+".test/", &websocket.DialOptions{HTTPClient: client})
					if err == nil {
						pump(c, host == "there", &came)
					} else if resp == nil || resp.StatusCode != http.StatusTooManyRequests {
						t.Errorf("%v", err)
					}
				})
			}
			wg.Wait()
			sent, received := octetsMoved(t, l, host)
			if host == "there" && (sent != octetsMost || arrived.Load() > octetsMost) || host == "back" && (received != octetsMost || came.Load() > octetsMost) {
				t.Errorf("%d sent, %d arrived; %d received, %d came", sent, arrived.Load(), received, came.Load())
			}
		})
	}
}
