package proxy_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/proxy"
	"sallyport/rules/gate"
)

// loggedLab is a lab whose records go into a real log; finish ends both and
// returns every octet of the log's files.
func loggedLab(t *testing.T) (l *lab, finish func() []byte) {
	t.Helper()
	base := t.TempDir()
	log, err := audit.Open(audit.Config{Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(base, "key"), Now: time.Now})
	must(t, err)
	g, err := gate.New(gate.Config{
		Identity: func(cell string) (gate.Identity, bool) { return l.table.Identity(cell) }, Recorder: log, Now: time.Now, Hash: log.Hash,
	})
	must(t, err)
	l = newLab(t, func(c *proxy.Config) { c.Gate = g })
	return l, func() []byte {
		must(t, errors.Join(l.stop(), log.Close()))
		all, err := os.ReadFile(filepath.Join(base, "audit", "000000000000.jsonl"))
		must(t, err)
		return all
	}
}

// checkLines: one record a line, all of them JSON that holds nothing odd.
func checkLines(t *testing.T, log []byte) []audit.Record {
	t.Helper()
	var out []audit.Record
	for line := range bytes.Lines(log) {
		var r audit.Record
		if err := json.Unmarshal(line, &r); err != nil || len(line) > 64<<10+1 {
			t.Errorf("a line of %d octets: %v: %.200q", len(line), err, line)
		}
		if int(r.Seq) != len(out) {
			t.Errorf("record %d stands at line %d", r.Seq, len(out)+1)
		}
		if i := bytes.IndexFunc(bytes.TrimSuffix(line, []byte("\n")), func(c rune) bool { return c < ' ' || c >= 0x7f && c < 0xa0 || c == 0x202e || c == 0x2066 }); i >= 0 {
			t.Errorf("a line has an odd character: %q", line)
		}
		out = append(out, r)
	}
	return out
}

// TestForgedRecordsLG01 sends what would forge or hide a record: line ends,
// quotes, escapes for terminals, and a megabyte, wherever text can stand.
func TestForgedRecordsLG01(t *testing.T) {
	l, finish := loggedLab(t)
	l.serveOrigin("any.test", false, &witness{})
	huge := strings.Repeat("A", 1<<20)
	heads := []string{
		"GET /%0d%0a{\"decision\":\"allow\"} HTTP/1.1\r\nHost: any.test\r\n\r\n",
		"GET /%0d%0a%7B%22kind%22:%22log.close%22%7D HTTP/1.1\r\nHost: any.test\r\n\r\n",
		"GET /x HTTP/1.1\r\nHost: any.test\r\nUser-Agent: \x1b]0;x\x07\xe2\x80\xae\xe2\x81\xa6\xc2\x85\r\n\r\n",
		"GET /\x1b[2J\xe2\x80\xae HTTP/1.1\r\nHost: any.test\r\n\r\n",
		"G\"ET /x HTTP/1.1\r\nHost: any.test\r\n\r\n",
		"GET /x HTTP/1.1\r\nHost: any.test\r\n{\"v\":1}\r\n\r\n",
		"GET /x\n{\"v\":1,\"seq\":7}\n HTTP/1.1\r\nHost: any.test\r\n\r\n",
		"GET /x HTTP/1.1\r\nHost: any.test\"}\n{\"v\":1\r\n\r\n",
		"GET /" + huge + " HTTP/1.1\r\nHost: any.test\r\n\r\n",
		"GET /x?" + huge[:50_000] + " HTTP/1.1\r\nHost: any.test\r\n\r\n",
		"GET /" + huge[:50_000] + " HTTP/1.1\r\nHost: any.test\r\n\r\n",
		"GET /x HTTP/1.1\r\nHost: any.test\r\nUser-Agent: " + huge + "\r\n\r\n",
		"GET /\xff\xfe\xfd HTTP/1.1\r\nHost: any.test\r\n\r\n",
	}
	for _, head := range heads {
		c, err := l.flow(t.Context(), "any.test:80")
		must(t, err)
		go func() { _, _ = io.WriteString(c, head) }() // the answer may come before its end
		_ = c.SetReadDeadline(time.Now().Add(patience))
		_, _ = http.ReadResponse(bufio.NewReader(c), nil)
		c.Close()
	}
	recs := checkLines(t, finish())
	judged := 0
	for _, r := range recs {
		if r.Kind == audit.Admit || r.Kind == audit.Refuse {
			judged++
		}
	}
	if judged != len(heads) {
		t.Errorf("%d heads made %d records of a decision", len(heads), judged)
	}
}

// TestNoSecretIsLoggedLG04 sends canaries wherever secrets stand, on every path
// and into every kind of failure, and looks for them in the log.
func TestNoSecretIsLoggedLG04(t *testing.T) {
	l, finish := loggedLab(t)
	l.serveOrigin("any.test", true, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/panic") {
			panic(http.ErrAbortHandler)
		}
	}))
	l.setOrigin("ok.test:80", "127.0.0.1:1") // refuses connections
	l.setOrigin("ok.test:443", "127.0.0.1:1")
	n := 0
	for _, w := range ways() {
		client := w.client(l)
		for _, to := range []string{"any.test", "evil.test", "ok.test"} {
			for _, path := range []string{"/v1/x", "/panic", "/a/../b"} {
				req, err := http.NewRequestWithContext(t.Context(), "POST", w.url(to, "/"), strings.NewReader(`{"password":"canary-body"}`))
				must(t, err)
				req.URL.Opaque = "//" + to + path
				req.URL.RawQuery = "token=canary-token&X-Amz-Signature=canary-signature"
				req.Header.Set("Authorization", "Bearer canary-bearer")
				req.Header.Set("Proxy-Authorization", "Basic canary-basic")
				req.Header.Set("Cookie", "sid=canary-cookie")
				req.Header.Set("X-Api-Key", "canary-key")
				resp, err := client.Do(req)
				n++
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
		}
	}
	c, err := l.sandboxDial(t.Context(), l.explicitAddr)
	must(t, err)
	fmt.Fprint(c, "GET http://user:canary-userinfo@any.test/x HTTP/1.1\r\nHost: any.test\r\n\r\n")
	_, _ = http.ReadResponse(bufio.NewReader(c), nil)
	c.Close()
	log := finish()
	if i := bytes.Index(log, []byte("canary")); i >= 0 {
		t.Errorf("a secret is in the log: %q", log[max(0, i-200):min(len(log), i+50)])
	}
	if recs := checkLines(t, log); len(recs) < n {
		t.Errorf("%d requests, and %d records", n, len(recs))
	}
}

// TestRecordsShowTheFactLG11: what a record says of who asked and where it went
// is what the gateway knows, not what the request claims.
func TestRecordsShowTheFactLG11(t *testing.T) {
	l := newLab(t)
	l.serveOrigin("any.test", false, &witness{})
	l.mu.Lock()
	dialled := l.origins["any.test:443"]
	l.mu.Unlock()
	client := ways()[0].client(l)
	req, err := http.NewRequestWithContext(t.Context(), "GET", "https://any.test/x", nil)
	must(t, err)
	for _, h := range []string{"X-Sandbox-Id", "X-Sallyport-Cell", "Sallyport-Request", "X-Forwarded-For", "X-Real-Ip", "Forwarded"} {
		req.Header.Set(h, "somebody-else")
	}
	resp, err := client.Do(req)
	must(t, err)
	resp.Body.Close()
	got := l.log.await(t, 2)
	for _, r := range got {
		if r.Cell != cellID || r.Run != "run1" || r.Rule != "any" || r.Policy == "" || r.Host != "any.test" || !strings.HasPrefix(r.Client, "127.0.0.1:") {
			t.Errorf("record %+v", r)
		}
	}
	if len(got) != 2 || got[1].Addr != dialled || got[1].Ref != got[0].ID {
		t.Errorf("records %+v, want that %s was dialled", got, dialled)
	}
	c, err := l.flow(t.Context(), "any.test:443")
	must(t, err)
	defer c.Close()
	if tc, err := handshake(t, l, c, &tls.Config{ServerName: "ok.test"}); err == nil {
		_, _ = io.WriteString(tc, "GET /x HTTP/1.1\r\nHost: ok.test\r\n\r\n")
		_, _ = io.ReadAll(tc)
	}
	if r := l.log.await(t, 1); len(r) != 1 || r[0].Kind != audit.Refuse || r[0].Reason != "authority_mismatch" || r[0].Host != "any.test" || r[0].Cell != cellID {
		t.Errorf("of another server name: %+v", r)
	}
}
