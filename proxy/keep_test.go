package proxy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"sallyport/audit"
	"sallyport/proxy"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// keeper keeps what it is told of one exchange.
type keeper struct {
	mu            sync.Mutex
	level         rules.LogLevel
	head          string
	request, body strings.Builder
	answer        string
}

func (k *keeper) Request(p []byte) { k.mu.Lock(); defer k.mu.Unlock(); k.request.Write(p) }
func (k *keeper) Body(p []byte)    { k.mu.Lock(); defer k.mu.Unlock(); k.body.Write(p) }

func (k *keeper) Answer(status int, head http.Header) {
	k.answer = fmt.Sprint(status, " ", head.Get("X-Origin"))
}

func (k *keeper) Done() json.RawMessage {
	k.mu.Lock()
	defer k.mu.Unlock()
	out, _ := json.Marshal(map[string]string{"head": k.head, "request": k.request.String(), "answer": k.answer, "body": k.body.String()})
	return out
}

// TestKeep: what a rule says to log is handed over on every path, and the
// closing record says what was made of it; of other requests nothing is.
func TestKeep(t *testing.T) {
	for _, w := range ways() {
		var mu sync.Mutex
		var kept []*keeper
		l := newLab(t, func(c *proxy.Config) {
			c.Keep = func(p gate.Pass, r *http.Request) proxy.Keeper {
				mu.Lock()
				defer mu.Unlock()
				k := &keeper{level: p.Decision().Log, head: r.Method + " " + r.Header.Get("X-Sandbox")}
				kept = append(kept, k)
				return k
			}
		})
		l.setPolicy(strings.Replace(labPolicy, "  - id: any\n    reason: test\n", "  - id: any\n    reason: test\n    log: request_response\n", 1))
		o := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			rw.Header().Set("X-Origin", "yes")
			fmt.Fprintf(rw, "got %d", len(b))
		})
		l.serveOrigin("any.test", w.h2, o)
		l.serveOrigin("ok.test", w.h2, o)
		client := w.client(l)
		for _, to := range []string{"any.test", "ok.test", "evil.test"} {
			req, err := http.NewRequestWithContext(t.Context(), "POST", w.url(to, "/v1/x"), strings.NewReader("hello"))
			must(t, err)
			req.Header.Set("X-Sandbox", "mine")
			resp, err := client.Do(req)
			must(t, err)
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		got := l.log.await(t, 5)
		_ = l.stop()
		want := `{"answer":"200 yes","body":"got 5","head":"POST mine","request":"hello"}`
		for _, r := range got {
			data := ""
			if r.Kind == audit.Done && r.Host == "any.test" {
				data = want
			}
			if string(r.Data) != data {
				t.Errorf("%s: the record %s of %s has data %s, want %s", w.name, r.Kind, r.Host, r.Data, data)
			}
		}
		if len(got) != 5 || len(kept) != 1 || kept[0].level != rules.LogRequestResponse {
			t.Errorf("%s: %d records, %d kept", w.name, len(got), len(kept))
		}
	}
}

// TestPanicInAKeeperIsRecorded: an admission has its outcome, and the answer arrived.
func TestPanicInAKeeperIsRecorded(t *testing.T) {
	for _, w := range ways() {
		l := newLab(t, func(c *proxy.Config) {
			c.Keep = func(gate.Pass, *http.Request) proxy.Keeper { return brokenKeeper{new(keeper)} }
		})
		l.setPolicy(strings.Replace(labPolicy, "  - id: any\n    reason: test\n", "  - id: any\n    reason: test\n    log: request_response\n", 1))
		l.serveOrigin("any.test", w.h2, &witness{})
		client := w.client(l)
		for range 2 {
			resp, err := client.Get(w.url("any.test", "/"))
			must(t, err)
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %d", w.name, resp.StatusCode)
			}
		}
		ends := 0
		for _, r := range l.log.await(t, 4) {
			if r.Kind == audit.Done && r.Status == http.StatusOK && strings.Contains(r.Error, "panic") && r.Data == nil {
				ends++
			}
		}
		if ends != 2 {
			t.Errorf("%s: %d of 2 outcomes", w.name, ends)
		}
		_ = l.stop()
	}
}

// brokenKeeper breaks on what it kept.
type brokenKeeper struct{ *keeper }

func (brokenKeeper) Done() json.RawMessage { panic("on cue") }
