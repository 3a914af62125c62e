package proxy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"sallyport/audit"
)

// peak watches the heap until stop is called, which returns by how much it grew.
func peak() (stop func() int64) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse)
	}
	runtime.GC()
	before := heap()
	var most atomic.Int64
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				most.Store(max(most.Load(), heap()))
			case <-end:
				return
			}
		}
	}()
	return func() int64 {
		close(end)
		<-ended
		return max(most.Load(), heap()) - before
	}
}

// TestHugeBodies is DS-07: a body of 256 MiB up and one down, with all that client,
// gateway and origin hold, in memory that has nothing to do with their size.
func TestHugeBodies(t *testing.T) {
	const size, most = 256 << 20, 32 << 20
	for _, w := range ways()[:2] { // TLS, HTTP/1.1 and HTTP/2
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			l.serveOrigin("any.test", w.h2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				rw.Header().Set("X-Got", fmt.Sprint(n))
				_, _ = io.CopyN(rw, zeroes{}, size)
			}))
			stop := peak()
			resp, err := w.client(l).Post(w.url("any.test", "/"), "x/y", io.LimitReader(zeroes{}, size))
			must(t, err)
			n, err := io.Copy(io.Discard, resp.Body)
			must(t, err)
			resp.Body.Close()
			grew := stop()
			if n != size || resp.Header.Get("X-Got") != fmt.Sprint(size) {
				t.Errorf("%d octets down, %s up", n, resp.Header.Get("X-Got"))
			}
			if grew > most {
				t.Errorf("the heap grew by %d KiB", grew>>10)
			}
			if got := l.log.await(t, 2); len(got) != 2 || got[1].Sent != size || got[1].Received != size {
				t.Errorf("records %+v", got)
			}
		})
	}
}

// random is text that does not compress, the same for a seed.
func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, seed))
	for i := 0; i+8 <= n; i += 8 {
		v := r.Uint64()
		for j := range 8 {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	return b
}

// TestLargeWebSocketMessages: 64 MiB in one message, in fragments, with and without
// compression, there and back.
func TestLargeWebSocketMessages(t *testing.T) {
	const size, fragment = 64 << 20, 1 << 20
	msg := random(size, 1)
	copy(msg[size/2:], make([]byte, size/4)) // and some that does
	for _, w := range ways() {
		if w.name != "transparent tls h1" && w.name != "connect http" {
			continue
		}
		for name, mode := range map[string]websocket.CompressionMode{"compressed": websocket.CompressionContextTakeover, "plain": websocket.CompressionDisabled} {
			t.Run(w.name+" "+name, func(t *testing.T) {
				l := newLab(t)
				l.serveOrigin("any.test", false, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					c, err := websocket.Accept(rw, r, &websocket.AcceptOptions{CompressionMode: mode})
					if err != nil {
						return
					}
					defer c.CloseNow()
					c.SetReadLimit(-1)
					kind, in, err := c.Reader(r.Context())
					if err != nil {
						return
					}
					out, err := c.Writer(r.Context(), kind)
					if err != nil {
						return
					}
					if _, err := io.CopyBuffer(struct{ io.Writer }{out}, in, make([]byte, fragment)); err == nil {
						_ = out.Close()
					}
					_, _, _ = c.Read(r.Context()) // the client's close
				}))
				c, _, err := websocket.Dial(t.Context(), w.url("any.test", "/"), &websocket.DialOptions{HTTPClient: w.client(l), CompressionMode: mode})
				must(t, err)
				defer c.CloseNow()
				c.SetReadLimit(-1)
				sent := make(chan error, 1)
				go func() { sent <- writeFragments(t.Context(), c, msg, fragment) }()
				_, in, err := c.Reader(t.Context())
				must(t, err)
				got, err := io.ReadAll(in)
				must(t, err)
				must(t, <-sent)
				if !bytes.Equal(got, msg) {
					t.Errorf("%d octets came back of %d", len(got), len(msg))
				}
				must(t, c.Close(websocket.StatusNormalClosure, ""))
				if r := l.log.await(t, 2); len(r) != 2 || r[1].Kind != audit.Done || r[1].Sent < size/2 || r[1].Received < size/2 {
					t.Errorf("records %+v", r)
				}
			})
		}
	}
}

func writeFragments(ctx context.Context, c *websocket.Conn, msg []byte, size int) error {
	out, err := c.Writer(ctx, websocket.MessageBinary)
	if err != nil {
		return err
	}
	for len(msg) > 0 {
		part := msg[:min(size, len(msg))]
		if _, err := out.Write(part); err != nil {
			return err
		}
		msg = msg[len(part):]
	}
	return out.Close()
}

// TestWebSocketHalfClose: a client that has said all it has to say still hears what
// the server says after that.
func TestWebSocketHalfClose(t *testing.T) {
	for _, w := range ways() {
		if w.h2 || w.open == nil || strings.Contains(w.name, "over h2") {
			continue // a stream of HTTP/2 by CONNECT has no half-close: docs/protocols.md
		}
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			l.serveOrigin("any.test", false, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				c, br, err := http.NewResponseController(rw).Hijack()
				if err != nil {
					return
				}
				defer c.Close()
				fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n")
				heard, err := io.ReadAll(br)
				fmt.Fprintf(c, "after %q, %v", heard, err)
			}))
			c, _ := w.raw(t, l, "any.test")
			must(t, c.SetDeadline(time.Now().Add(patience)))
			fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: any.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nall")
			switch c := c.(type) {
			case *tls.Conn:
				must(t, c.CloseWrite())
			case interface{ CloseWrite() error }:
				must(t, c.CloseWrite())
			default:
				t.Fatalf("%T has no half-close", c)
			}
			got, err := io.ReadAll(c)
			must(t, err)
			if !strings.HasSuffix(string(got), `after "all", <nil>`) {
				t.Errorf("got %q", got)
			}
			if r := l.log.await(t, 2); len(r) != 2 || r[1].Error != "" || r[1].Status != 101 {
				t.Errorf("records %+v", r)
			}
		})
	}
}
