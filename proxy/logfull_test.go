package proxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/audit/verify"
	"sallyport/proxy"
	"sallyport/rules/gate"
)

// newLabOnSmallDisk returns a lab whose log is on a file system of its own, of
// one megabyte, that is mounted at base.
func newLabOnSmallDisk(t *testing.T, change func(*proxy.Config)) (l *lab, log *audit.Log, base string) {
	t.Helper()
	base = t.TempDir()
	must(t, syscall.Mount("tmpfs", base, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { _ = syscall.Unmount(base, syscall.MNT_DETACH) })
	log, err := audit.Open(audit.Config{Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(t.TempDir(), "key"), Now: time.Now})
	must(t, err)
	g, err := gate.New(gate.Config{
		Identity: func(cell string) (gate.Identity, bool) { return l.table.Identity(cell) }, Recorder: log, Now: time.Now, Hash: log.Hash,
	})
	must(t, err)
	l = newLab(t, func(c *proxy.Config) {
		c.Gate = g
		change(c)
	})
	return l, log, base
}

// TestEgressStopsWithTheLogLG06: while the disk of the log is full, nothing
// leaves on any path and the sandbox is told why; with room again egress goes
// on by itself, and the log says what it did not take.
func TestEgressStopsWithTheLogLG06(t *testing.T) {
	l, log, base := newLabOnSmallDisk(t, func(*proxy.Config) {})
	o := &witness{}
	l.serveOrigin("any.test", true, o)
	l.serveRaw(func(c net.Conn) { fmt.Fprint(c, "hello") })
	clients := map[string]*http.Client{}
	for _, w := range ways() {
		clients[w.name] = w.client(l)
	}
	ask := func(w way) (status int, reason string) {
		resp, err := clients[w.name].Get(w.url("any.test", "/"))
		must(t, err)
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		must(t, err)
		return resp.StatusCode, resp.Header.Get("Sallyport-Reason")
	}
	tunnel := func() string {
		c, err := l.flow(t.Context(), "raw.test:5432")
		must(t, err)
		defer c.Close()
		b, _ := io.ReadAll(c) // a refused tunnel is reset
		return string(b)
	}
	works := func(when string) {
		t.Helper()
		for _, w := range ways() {
			if status, reason := ask(w); status != 200 || len(o.take()) != 1 {
				t.Errorf("%s, %s: %d %s", when, w.name, status, reason)
			}
		}
		if got := tunnel(); got != "hello" {
			t.Errorf("%s, tunnel: %q", when, got)
		}
	}
	works("before")
	l.dialled()
	filler := filepath.Join(base, "filler")
	if err := os.WriteFile(filler, bytes.Repeat([]byte("x"), 2<<20), 0o600); err == nil {
		t.Fatal("the disk did not become full")
	}
	refused := fillUp(t, log)
	for _, w := range ways() {
		if status, reason := ask(w); status != http.StatusServiceUnavailable || reason != "audit_unavailable" {
			t.Errorf("with a full disk, %s: %d %s", w.name, status, reason)
		}
	}
	if got := tunnel(); got != "" {
		t.Errorf("with a full disk, tunnel: %q", got)
	}
	if saw := o.take(); len(saw) > 0 || len(l.dialled()) > 0 {
		t.Errorf("with a full disk the origin saw %v", saw)
	}
	must(t, os.Remove(filler))
	works("after")
	must(t, l.stop())
	must(t, log.Close())
	checkGap(t, filepath.Join(base, "audit"), refused+len(ways())+1)
	if r, err := verify.Verify(filepath.Join(base, "audit"), log.Verifier(), verify.Options{}); err != nil || !r.Whole() {
		t.Errorf("Verify = %v, %v", r, err)
	}
}

// TestStreamsEndWithTheLogLG06: what was open before the log's disk became full
// goes on for a moment, is cut when told that this takes too long, and its
// outcome is in the log when there is room again, after the gap.
func TestStreamsEndWithTheLogLG06(t *testing.T) {
	cut := make(chan struct{})
	l, log, base := newLabOnSmallDisk(t, func(c *proxy.Config) { c.Unrecorded = cut })
	l.serveRaw(func(c net.Conn) { _, _ = io.Copy(c, c) })
	tunnel, err := l.flow(t.Context(), "raw.test:5432")
	must(t, err)
	defer tunnel.Close()
	echo := func() error {
		if _, err := fmt.Fprint(tunnel, "hello"); err != nil {
			return err
		}
		_, err := io.ReadFull(tunnel, make([]byte, 5))
		return err
	}
	must(t, echo())
	filler := filepath.Join(base, "filler")
	if err := os.WriteFile(filler, bytes.Repeat([]byte("x"), 2<<20), 0o600); err == nil {
		t.Fatal("the disk did not become full")
	}
	fillUp(t, log)
	must(t, echo()) // not at once: most full disks are full for a moment
	cut <- struct{}{}
	if n, err := io.Copy(io.Discard, tunnel); err == nil || n > 0 {
		t.Errorf("the tunnel goes on: %d octets, %v", n, err)
	}
	must(t, l.stop()) // its record has been tried
	must(t, os.Remove(filler))
	must(t, log.Close())
	checkGap(t, filepath.Join(base, "audit"), 1)
	var done []audit.Record
	for r, err := range query.Records(filepath.Join(base, "audit"), query.Where("kind", "done")) {
		must(t, err)
		done = append(done, r)
	}
	if len(done) != 1 || done[0].Reason != "audit_unavailable" || done[0].Sent != 10 || done[0].Received != 10 || !strings.Contains(done[0].Error, "the log could not be written for too long") {
		t.Errorf("outcomes: %+v", done)
	}
	if r, err := verify.Verify(filepath.Join(base, "audit"), log.Verifier(), verify.Options{}); err != nil || !r.Whole() {
		t.Errorf("Verify = %v, %v", r, err)
	}
}

// fillUp appends until a record is refused: pages that the log has may have room.
func fillUp(t *testing.T, log *audit.Log) (refused int) {
	t.Helper()
	for range 100 {
		if err := log.Append(t.Context(), &audit.Record{Kind: audit.Bypass, Error: strings.Repeat("x", 1000)}); err != nil {
			return 1
		}
	}
	t.Fatal("the log takes records on a full disk")
	return 0
}

func checkGap(t *testing.T, dir string, least int) {
	t.Helper()
	told := 0
	for r, err := range query.Records(dir, query.Filter{}) {
		must(t, err)
		if r.Kind == audit.Gap && strings.Contains(r.Error, "no space left on device") {
			var n int
			_, err := fmt.Sscanf(string(r.Data[strings.Index(string(r.Data), `"refused":`):]), `"refused":%d`, &n)
			must(t, err)
			told += n
		}
	}
	if told < least {
		t.Errorf("gap records tell of %d refused records, want %d at least", told, least)
	}
}
