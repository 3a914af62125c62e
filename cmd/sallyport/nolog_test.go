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

	"sallyport/audit"
)

// late is a gateway that is started again, and whose log does not open.
type late struct {
	*stage
	at     string // of /readyz
	opened chan *gateway
}

// newLate makes an instance, has spoil keep its log from opening, and starts its gateway.
func newLate(t *testing.T, at string, spoil func(instance)) *late {
	t.Helper()
	inst := instance{fmt.Sprintf("sp-nr-%d-%s", os.Getpid(), at[len(at)-1:])}
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
	spoil(inst)
	ctl, err := net.Listen("unix", inst.gatewaySocket())
	must(t, err)
	t.Cleanup(func() { _ = ctl.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	l := &late{stage: &stage{t: t, inst: inst}, at: at, opened: make(chan *gateway, 1)}
	go func() {
		g, err := openWithLog(ctx, inst, logOptions{}, ctl, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Error(err)
		}
		l.opened <- g
	}()
	return l
}

// tells checks that commands, and /readyz, say why nothing is recorded, and what helps.
func (l *late) tells(why, hint string) {
	l.t.Helper()
	code, _, errs := l.command("status")
	if code != exitFailed || !strings.Contains(errs, why) || !strings.Contains(errs, hint) || strings.Contains(errs, "is it running") {
		l.t.Errorf("status = %d, %s", code, errs)
	}
	if err := l.inst.gatewayCalls().Ready(l.t.Context()); err == nil || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "does not answer") {
		l.t.Errorf("a run: %v", err)
	}
	if code, body := ready(l.t.Context(), l.t, l.at); code != http.StatusServiceUnavailable || !strings.Contains(body, why) {
		l.t.Errorf("/readyz: %d %s", code, body)
	}
}

// goesOn waits until the gateway records.
func (l *late) goesOn() {
	l.t.Helper()
	g := <-l.opened
	if g == nil {
		l.t.Fatal("it did not open when it could")
	}
	defer g.close()
	if err := g.records.Ready(); err != nil {
		l.t.Errorf("when it could: %v", err)
	}
	must(l.t, g.health.Close())
}

// TestStatusTellsOfAFullDisk: the gateway is started again while the log's disk is
// full. status and /readyz tell so, and it goes on when there is room.
func TestStatusTellsOfAFullDisk(t *testing.T) {
	var filler string
	l := newLate(t, "127.0.0.1:19099", func(inst instance) {
		must(t, unix.Mount("tmpfs", inst.auditDir(), "tmpfs", 0, "size=1m"))
		filler = filepath.Join(inst.auditDir(), "filler")
		_ = os.WriteFile(filler, make([]byte, 2<<20), 0o600) // as much of it as there is room for
	})
	l.tells("no space left on device", "hint: df -h "+l.inst.auditDir())
	if err := (instance{l.inst.name + "-none"}).gatewayCalls().Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "the gateway does not answer: ") {
		t.Errorf("a run without a gateway: %v", err)
	}
	must(t, os.Remove(filler))
	l.goesOn()
}

// TestStatusTellsOfALogThatDoesNotOpen: its signing key was moved away while the gateway
// was down, and is put back.
func TestStatusTellsOfALogThatDoesNotOpen(t *testing.T) {
	var key string
	l := newLate(t, "127.0.0.1:19098", func(inst instance) {
		key = inst.auditKey()
		log, err := audit.Open(audit.Config{Dir: inst.auditDir(), KeyFile: key, Now: time.Now})
		must(t, err)
		must(t, log.Close())
		must(t, os.Rename(key, key+".away"))
	})
	l.tells("its signing key "+key+" is gone; restore the key", "hint: ls -la "+l.inst.auditDir())
	must(t, os.Rename(key+".away", key))
	l.goesOn()
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
