package proxy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/audit"
)

// slowLab is a lab on pipes: ok.test is served by h over HTTP/1 and HTTP/2, and
// raw.test:5432 says everything back.
type slowLab struct{ *lab }

func newSlowLab(t *testing.T, h http.Handler) *slowLab {
	t.Helper()
	l := &slowLab{newPipeLab(t)}
	l.serveOrigin("ok.test", true, h)
	raw := l.pipes.listen()
	l.setOrigin("raw.test:5432", raw.Addr().String())
	var origin sync.WaitGroup
	origin.Go(func() {
		for {
			c, err := raw.Accept()
			if err != nil {
				return
			}
			origin.Go(func() { _, _ = io.Copy(c, c); c.Close() })
		}
	})
	t.Cleanup(func() {
		_ = l.stop()
		raw.Close()
		origin.Wait()
	})
	return l
}

// open connects to a place by a door.
func (l *slowLab) open(door, hostport string) (net.Conn, error) {
	return opens()[door](l.lab, context.Background(), hostport)
}

// lasting is a stream of lines in hours: say has the other end say a line now, and
// heard is what the sandbox reads of it.
type lasting struct {
	say   func(line string)
	heard *bufio.Reader
}

// kinds are the streams that may last, each with how it is opened.
func (l *slowLab) kinds(t *testing.T, events chan string) map[string]func(door string) lasting {
	t.Helper()
	say := func(line string) {
		select {
		case events <- line:
		case <-t.Context().Done():
		}
	}
	answer := func(h2 bool) func(door string) lasting {
		return func(door string) lasting {
			tr := &http.Transport{
				DialContext:     func(context.Context, string, string) (net.Conn, error) { return l.open(door, "ok.test:443") },
				TLSClientConfig: &tls.Config{RootCAs: l.roots}, Protocols: new(http.Protocols),
			}
			tr.Protocols.SetHTTP1(!h2)
			tr.Protocols.SetHTTP2(h2)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://ok.test/v1/events", http.NoBody)
			must(t, err)
			resp, err := tr.RoundTrip(req)
			must(t, err)
			if want := map[bool]int{true: 2, false: 1}[h2]; resp.StatusCode != http.StatusOK || resp.ProtoMajor != want {
				t.Fatalf("%s over HTTP/%d", resp.Status, resp.ProtoMajor)
			}
			t.Cleanup(func() {
				resp.Body.Close()
				tr.CloseIdleConnections()
			})
			return lasting{say, bufio.NewReader(resp.Body)}
		}
	}
	echo := func(c net.Conn, br *bufio.Reader) lasting {
		t.Cleanup(func() { c.Close() })
		return lasting{func(line string) {
			if _, err := io.WriteString(c, line); err != nil {
				t.Errorf("writing: %v", err)
			}
		}, br}
	}
	return map[string]func(door string) lasting{
		"answer over h1": answer(false),
		"answer over h2": answer(true),
		"tunnel": func(door string) lasting {
			c, err := l.open(door, "raw.test:5432")
			must(t, err)
			return echo(c, bufio.NewReader(c))
		},
		"WebSocket": func(door string) lasting {
			c, err := l.open(door, "ok.test:443")
			must(t, err)
			c = tls.Client(c, &tls.Config{RootCAs: l.roots, ServerName: "ok.test"})
			_, err = io.WriteString(c, "GET /v1/ws HTTP/1.1\r\nHost: ok.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
			must(t, err)
			br := bufio.NewReader(c)
			resp, err := http.ReadResponse(br, nil)
			must(t, err)
			if resp.StatusCode != http.StatusSwitchingProtocols {
				t.Fatalf("WebSocket: %s", resp.Status)
			}
			return echo(c, br)
		},
	}
}

// slowOrigin answers with what comes of events, each at once, or says everything
// back that a WebSocket carries.
func slowOrigin(events <-chan string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/ws" {
			c, buf, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
			_, _ = io.Copy(c, buf)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case e := <-events:
				_, _ = io.WriteString(w, e)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}
}

// everyTalk runs f, with hours to live through, for every kind of stream by both doors.
func everyTalk(t *testing.T, f func(t *testing.T, l *slowLab, c lasting)) {
	t.Helper()
	for _, kind := range []string{"answer over h1", "answer over h2", "tunnel", "WebSocket"} {
		for _, door := range []string{"transparent", "connect"} {
			t.Run(kind+", "+door, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					events := make(chan string)
					l := newSlowLab(t, slowOrigin(events))
					f(t, l, l.kinds(t, events)[kind](door))
				})
			})
		}
	}
}

// hear has the other end say a line, which has to come at once.
func (c lasting) hear(t *testing.T, line string) {
	t.Helper()
	said := time.Now()
	go c.say(line + "\n")
	got, err := c.heard.ReadString('\n')
	if late := time.Since(said); err != nil || got != line+"\n" || late != 0 {
		t.Fatalf("heard %q, %v, %v after it was said; want %q at once", got, err, late, line)
	}
}

// wantCut waits until the stream is cut, which has to be after a time and not much
// later, and be in its record.
func (c lasting) wantCut(t *testing.T, l *slowLab, since time.Time, after, margin time.Duration, why string) {
	t.Helper()
	if rest, err := io.ReadAll(c.heard); len(rest) > 0 {
		t.Errorf("%q, %v came before the end", rest, err)
	}
	if took := time.Since(since); took < after || took > after+margin {
		t.Errorf("cut after %v, want %v to %v", took, after, after+margin)
	}
	records := l.log.await(t, 2)
	if len(records) != 2 || records[0].Kind != audit.Admit || records[1].Kind != audit.Done || records[1].Reason != "limit" || !strings.Contains(records[1].Error, why) {
		t.Errorf("records %+v: %q, want an admission and an end by limit: %s", linesOf(records), errorsOf(records), why)
	}
}

// TestHoursLongStreams: events, a tunnel and a WebSocket that say something in less
// than two hours each last for a day, and what is said comes at once. Then they end,
// with a record that says why.
func TestHoursLongStreams(t *testing.T) {
	everyTalk(t, func(t *testing.T, l *slowLab, c lasting) {
		began := time.Now()
		for i := range 12 {
			c.hear(t, fmt.Sprint("line ", i))
			time.Sleep(2*time.Hour - 5*time.Minute)
		}
		c.hear(t, "the last")
		c.wantCut(t, l, began, 24*time.Hour, 24*time.Hour/64, "open for as long as a connection may be")
	})
}

// TestQuietStreams: one that says nothing at all is cut after two hours, not before.
func TestQuietStreams(t *testing.T) {
	everyTalk(t, func(t *testing.T, l *slowLab, c lasting) {
		c.hear(t, "hello")
		c.wantCut(t, l, time.Now(), 2*time.Hour, 2*time.Hour/8, "nothing was sent either way for too long")
	})
}

// TestIdleBetweenRequests: a connection waits for two minutes for another request.
func TestIdleBetweenRequests(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		for _, door := range []string{"transparent", "connect"} {
			t.Run(fmt.Sprintf("h2 %t, %s", h2, door), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testIdle(t, h2, door) })
			})
		}
	}
}

func testIdle(t *testing.T, h2 bool, door string) {
	t.Helper()
	l := newSlowLab(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	opened := 0
	tr := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			opened++
			return l.open(door, "ok.test:443")
		},
		TLSClientConfig: &tls.Config{RootCAs: l.roots}, Protocols: new(http.Protocols),
	}
	tr.Protocols.SetHTTP1(!h2)
	tr.Protocols.SetHTTP2(h2)
	t.Cleanup(tr.CloseIdleConnections)
	for _, tt := range []struct {
		pause time.Duration
		want  int // connections so far
	}{{0, 1}, {2*time.Minute - time.Second, 1}, {2*time.Minute - time.Second, 1}, {2*time.Minute + time.Second, 2}} {
		time.Sleep(tt.pause)
		synctest.Wait()
		resp, err := (&http.Client{Transport: tr}).Get("https://ok.test/")
		must(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || opened != tt.want {
			t.Errorf("after %v: %s, %d connections, want %d", tt.pause, resp.Status, opened, tt.want)
		}
		if records := l.log.await(t, 2); len(records) != 2 || records[1].Kind != audit.Done || records[1].Error != "" {
			t.Errorf("records %+v", records)
		}
	}
}
