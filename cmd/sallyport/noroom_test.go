package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestStatusTellsOfAFullDisk: the gateway is started again while the log's disk is
// full. status and /readyz tell so, and it goes on when there is room.
func TestStatusTellsOfAFullDisk(t *testing.T) {
	const at = "127.0.0.1:19099"
	inst := instance{fmt.Sprintf("sp-nr-%d", os.Getpid())}
	t.Cleanup(func() {
		_ = unix.Unmount(inst.auditDir(), unix.MNT_DETACH)
		_, _ = os.RemoveAll(inst.run()), os.RemoveAll(inst.state())
	})
	must(t, inst.makeDirs(accounts{}))
	s := newSupervisor(inst, io.Discard, io.Discard)
	must(t, s.stageCredentials(""))
	must(t, s.lock(t.Context()))
	t.Cleanup(s.group.stop)
	must(t, os.WriteFile(inst.run("config.yaml"), []byte("apiVersion: sallyport/v1\nkind: Gateway\nmetrics: "+at+"\n"), 0o600))
	must(t, unix.Mount("tmpfs", inst.auditDir(), "tmpfs", 0, "size=1m"))
	filler := filepath.Join(inst.auditDir(), "filler")
	_ = os.WriteFile(filler, make([]byte, 2<<20), 0o600) // as much of it as there is room for

	ctl, err := net.Listen("unix", inst.gatewaySocket())
	must(t, err)
	defer ctl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	opened := make(chan *gateway, 1)
	go func() {
		g, err := openWithRoom(ctx, inst, logOptions{}, ctl, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Error(err)
		}
		opened <- g
	}()
	st := &stage{t: t, inst: inst}
	code, _, errs := st.command("status")
	if code != exitFailed || !strings.Contains(errs, "no space left on device") || !strings.Contains(errs, "hint: df -h "+inst.auditDir()) || strings.Contains(errs, "is it running") {
		t.Errorf("status on a full disk = %d, %s", code, errs)
	}
	if err := inst.gatewayCalls().Ready(ctx); err == nil || !strings.Contains(err.Error(), "no space left on device") || strings.Contains(err.Error(), "does not answer") {
		t.Errorf("a run on a full disk: %v", err)
	}
	if err := (instance{inst.name + "-none"}).gatewayCalls().Ready(ctx); err == nil || !strings.Contains(err.Error(), "the gateway does not answer: ") {
		t.Errorf("a run without a gateway: %v", err)
	}
	if code, body := ready(ctx, t, at); code != http.StatusServiceUnavailable || !strings.Contains(body, "no space left on device") {
		t.Errorf("/readyz on a full disk: %d %s", code, body)
	}
	must(t, os.Remove(filler))
	g := <-opened
	if g == nil {
		t.Fatal("it did not open when there was room")
	}
	defer g.close()
	if err := g.records.Ready(); err != nil {
		t.Errorf("with room: %v", err)
	}
	must(t, g.health.Close())
}

// TestLogHints: room helps where there is none, and nowhere else.
func TestLogHints(t *testing.T) {
	inst := instance{"lab"}
	for why, want := range map[string]string{
		"write x.jsonl: no space left on device":                       "df -h /var/lib/lab/audit: make room",
		"write x.jsonl: disk quota exceeded":                           "df -h /var/lib/lab/audit: make room",
		"x.jsonl is gone; now: /a is not the log's directory any more": "ls -la /var/lib/lab/audit: put right",
		"open x.jsonl: read-only file system":                          "ls -la /var/lib/lab/audit: put right",
	} {
		if got := mendLog(inst, why); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", why, got, want)
		}
	}
}

// ready asks /readyz until somebody answers: between two turns nobody does.
func ready(ctx context.Context, t *testing.T, at string) (int, string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/readyz", nil)
		must(t, err)
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			body, err := io.ReadAll(resp.Body)
			must(t, err)
			_ = resp.Body.Close()
			return resp.StatusCode, string(body)
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		<-tick.C
	}
}
