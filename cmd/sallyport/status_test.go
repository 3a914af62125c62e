package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
)

// command runs one of the stage's commands.
func (st *stage) command(args ...string) (code int, out, errs string) {
	st.t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(st.t.Context(), append(args, "--instance", st.inst.name), strings.NewReader(""), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// TestStatusTellsOfShippersAndAnchors asks for the state of collectors and
// anchors that work, and of those that do not.
func TestStatusTellsOfShippersAndAnchors(t *testing.T) {
	kept := filepath.Join(t.TempDir(), "not-there-yet")
	st := newStageWith(t, func(st *stage) {
		config := "apiVersion: sallyport/v1\nkind: Gateway\nlog: {anchors: [{file: " + filepath.Join(kept, "checkpoint") + "}]}\n"
		st.must(os.WriteFile(st.inst.run("config.yaml"), []byte(config), 0o600))
	})
	st.must(st.reloader.s.lock(t.Context()))
	st.reloader.s.collectors = []string{"otlp=https://up.example", "syslog=tls://down.example"}
	st.must(os.Mkdir(st.inst.state("ship"), 0o700))
	bookmark := func(text, state string) {
		t.Helper()
		c, err := parseCollector(text)
		st.must(err)
		st.must(os.WriteFile(st.inst.state("ship", c.bookmark()), []byte(state), 0o600))
	}
	bookmark("otlp=https://up.example", `{"next":1,"dropped":3}`)
	bookmark("syslog=tls://down.example", `{"next":0,"behind":"2026-01-31T12:00:00Z","error":"connection refused"}`)
	until := func(what string, is func(statusReport) bool) (r statusReport) {
		t.Helper()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for range 1000 {
			_, out, errs := st.command("status", "-o", "json")
			r = statusReport{}
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				t.Fatalf("%v: %s", err, errs)
			}
			if is(r) {
				return r
			}
			<-tick.C
		}
		t.Fatalf("never came: %s: %+v", what, r)
		return r
	}
	r := until("an anchor that is behind", func(r statusReport) bool { return len(r.Gateway.Anchors) == 1 && r.Gateway.Anchors[0].Behind != nil })
	if a := r.Gateway.Anchors[0]; a.Records != 0 || a.Waiting == 0 || !strings.Contains(a.Error, "no such file") {
		t.Errorf("an anchor that is behind: %+v", a)
	}
	code, out, errs := st.command("status")
	if code != exitFailed || !strings.Contains(errs, "gets no checkpoints") || !strings.Contains(out, ", 0 records kept, ") {
		t.Errorf("status = %d\n%s%s", code, out, errs)
	}

	st.must(os.Mkdir(kept, 0o755))
	r = until("a checkpoint", func(r statusReport) bool {
		return len(r.Gateway.Anchors) == 1 && r.Gateway.Anchors[0].Records > 0 && r.Gateway.Anchors[0].Behind == nil
	})
	if len(r.Shippers) != 2 {
		t.Fatalf("shippers are %+v", r.Shippers)
	}
	if s := r.Shippers[0]; s.Collector != "otlp=https://up.example/v1/logs" || s.State != "ok" || s.Next != 1 || s.Dropped != 3 || s.Waiting != r.Gateway.Signed-1 {
		t.Errorf("one that works: %+v", s)
	}
	if s := r.Shippers[1]; s.State != "behind" || s.Behind == nil || s.Error != "connection refused" || s.Waiting != r.Gateway.Signed {
		t.Errorf("one that does not: %+v", s)
	}
	code, out, errs = st.command("status")
	if code != exitFailed || !strings.Contains(errs, "the collector syslog=tls://down.example:6514 gets no records: connection refused") {
		t.Errorf("status = %d, %s", code, errs)
	}
	for _, want := range []string{
		" 3 dropped: otlp=https://up.example/v1/logs\n", "shipper     behind since 01-31 12:00, ", " 0 dropped: syslog=tls://down.example:6514\n", "anchor      ok, ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("status does not say %q:\n%s", want, out)
		}
	}
	for line := range strings.Lines(out) {
		if len([]rune(line)) > 101 {
			t.Errorf("a line of status is wider than 100 columns: %s", line)
		}
	}

	bookmark("syslog=tls://down.example", `{"next":2}`)
	if code, out, errs = st.command("status"); code != 0 || errs != "" {
		t.Errorf("status when all is well = %d\n%s%s", code, out, errs)
	}
	bookmark("syslog=tls://down.example", `two`)
	if code, out, errs = st.command("status"); code != exitFailed || !strings.Contains(out, "unknown") || !strings.Contains(errs, "reading the bookmark") {
		t.Errorf("status of a bookmark that cannot be read = %d\n%s%s", code, out, errs)
	}
}

// A name that is long is told whole, on as many lines as it takes.
func TestStatusFoldsLongNames(t *testing.T) {
	long := "command /opt/keep/" + strings.Repeat("checkpoint-", 20) + "end"
	r := &statusReport{Shippers: []shipperOut{{State: "ok", Collector: "otlp=https://" + strings.Repeat("logs.", 30) + "example"}}}
	r.Gateway.Anchors = []audit.AnchorState{{Name: long}}
	var out bytes.Buffer
	must(t, printStatus(&out, r))
	for line := range strings.Lines(out.String()) {
		if len([]rune(line)) > 101 {
			t.Errorf("a line of status is wider than 100 columns: %s", line)
		}
	}
	whole := strings.Join(strings.Fields(out.String()), "")
	for _, want := range []string{strings.ReplaceAll(long, " ", ""), r.Shippers[0].Collector} {
		if !strings.Contains(whole, want) {
			t.Errorf("status does not tell all of %s:\n%s", want, &out)
		}
	}
}

// TestRetainCommand has a gateway remove what is old in its log.
func TestRetainCommand(t *testing.T) {
	st := newStageWith(t, func(st *stage) {
		now := time.Now().Add(-100 * 24 * time.Hour)
		l, err := audit.Open(audit.Config{
			Dir: st.inst.auditDir(), KeyFile: st.inst.auditKey(), Now: func() time.Time { return now }, SegmentSize: 400, Interval: time.Hour,
		})
		st.must(err)
		for range 5 {
			st.must(l.Append(t.Context(), &audit.Record{Kind: audit.Admit, Host: "a.test"}))
		}
		st.must(l.Close())
	})
	if code, out, errs := st.command("audit", "retain", "--keep", "200d"); code != 0 || out != "audit retain: nothing is older than 200d\n" {
		t.Errorf("nothing so old = %d, %s%s", code, out, errs)
	}
	code, out, errs := st.command("audit", "retain", "--keep", "30d", "-o", "json")
	var removed audit.Removed
	if err := json.Unmarshal([]byte(out), &removed); code != 0 || err != nil || removed.Records == 0 || len(removed.Segments) == 0 {
		t.Errorf("retain = %d, %v\n%s%s", code, err, out, errs)
	}
	public, err := os.ReadFile(filepath.Join(st.inst.auditDir(), "log.pub"))
	st.must(err)
	st.must(os.WriteFile(st.inst.auditPublicKey(), public, 0o644))
	if code, out, errs := st.command("audit", "verify"); code != 0 || !strings.Contains(out, "removed") {
		t.Errorf("verify = %d, %s%s", code, out, errs)
	}
}
