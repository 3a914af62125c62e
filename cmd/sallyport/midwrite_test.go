package main

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestAFileThatIsWrittenInPlace is read once it is closed: what is there before
// may be a policy, and a wider one.
func TestAFileThatIsWrittenInPlace(t *testing.T) {
	st := newStage(t)
	st.write("p.yaml", policyText("include: [{file: inc.yaml}]\n"))
	st.write("inc.yaml", policyText(oneHost))
	st.attach("aaaaaaaa", "run-a", "p.yaml")
	was := st.force("aaaaaaaa")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- st.reloader.follow(ctx, nil) }()
	const wide = "rules:\n  - {id: wide, reason: r, allow: {host: wide.example.com}}\n"
	f, err := os.OpenFile(st.path("inc.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
	st.must(err)
	_, err = f.WriteString(policyText(wide))
	st.must(err)
	for _, trigger := range []string{"files", "command"} {
		out := st.reloader.reload(t.Context(), trigger)
		for _, run := range out.Runs {
			if run.Outcome != refused || !strings.Contains(run.Error, st.path("inc.yaml")+" is open for writing: it is read once it is closed") {
				t.Errorf("while it is written: %+v", run)
			}
		}
		if trigger == "command" && len(out.Runs) != 1 || st.force("aaaaaaaa") != was {
			t.Errorf("while it is written: %+v", out)
		}
	}
	_, err = f.WriteString("  - {id: no, reason: r, deny: {host: wide.example.com, paths: [\"/admin/**\"]}}\n")
	st.must(err)
	st.must(f.Close())
	st.inForce("aaaaaaaa", was)
	if text, _ := st.gateway.policyText("aaaaaaaa"); !strings.Contains(text, "/admin/**") {
		t.Errorf("in force: %s", text)
	}
	cancel()
	st.must(<-done)
	if beingWritten(st.path("inc.yaml")) || beingWritten(st.path("none.yaml")) {
		t.Error("a file that nobody writes to is being written")
	}
}

// TestAFileThatIsPutBack, or whose mode is mended, leaves nothing refused.
func TestAFileThatIsPutBack(t *testing.T) {
	st := newStage(t)
	st.write("p.yaml", policyText(oneHost))
	st.attach("aaaaaaaa", "run-a", "p.yaml")
	last := func(trigger string) *reloadOut {
		t.Helper()
		st.reloader.reload(t.Context(), trigger)
		return st.reloader.status().Last
	}
	if l := last("command"); !l.ok() {
		t.Fatalf("%+v", l)
	}
	st.write("p.yaml", "garbage")
	if l := last("files"); l.ok() {
		t.Errorf("garbage: %+v", l)
	}
	st.write("p.yaml", policyText(oneHost))
	if l := last("files"); !l.ok() || l.Runs[0].Outcome != kept {
		t.Errorf("put back: %+v", l)
	}
	st.must(os.Chmod(st.path("p.yaml"), 0o666))
	if l := last("files"); l.ok() || !strings.Contains(l.Runs[0].Error, "may write") {
		t.Errorf("others may write: %+v", l)
	}
	st.must(os.Chmod(st.path("p.yaml"), 0o644))
	if l := last("files"); !l.ok() {
		t.Errorf("they may not: %+v", l)
	}
}

// TestStatusSaysHowToSeeTheError: policy lint has to know the floor to find what
// its statements refuse.
func TestStatusSaysHowToSeeTheError(t *testing.T) {
	st := newStage(t)
	st.must(st.reloader.s.lock(t.Context()))
	st.write("org.yaml", policyText("rules: []\nnever:\n  - {host: two.example.com}\n"))
	st.write("p.yaml", policyText(oneHost))
	st.must(st.reloader.s.stageFloor(st.path("org.yaml")))
	floor, err := readFloor(st.inst.under(), nil, nil)
	st.must(err)
	st.gateway.floor = floor.Floor
	p, err := loadPolicy(policySource{path: st.path("p.yaml"), floor: st.inst.under(), from: st.inst.floorFrom()}, nil)
	st.must(err)
	st.attachAs("aaaaaaaa", "run-a", st.path("p.yaml"), p)
	if out := st.reloader.reload(t.Context(), "command"); !out.ok() || out.Runs[0].Lint != "" {
		t.Errorf("%+v", out)
	}
	st.write("p.yaml", policyText(twoHosts))
	st.reloader.reload(t.Context(), "command")
	code, out, errs := st.command("status")
	want := "policy lint --floor " + st.path("org.yaml") + " " + st.path("p.yaml") + "\n"
	if code != exitFailed || !strings.HasSuffix(errs, want) || !strings.Contains(errs, "org.yaml:6: this does not hold") || !strings.Contains(errs, "| ") {
		t.Errorf("status = %d\n%s%s", code, out, errs)
	}
	_, raw, _ := st.command("status", "-o", "json")
	var r statusReport
	if err := json.Unmarshal([]byte(raw), &r); err != nil || len(r.Reload.Refused) != 1 {
		t.Fatalf("%v: %s", err, raw)
	}
	var shown, said strings.Builder
	if code := run(t.Context(), append([]string{"policy", "lint"}, strings.Fields(r.Reload.Refused[0].Lint)...), strings.NewReader(""), &shown, &said); code == 0 || !strings.Contains(shown.String()+said.String(), "does not hold") {
		t.Errorf("lint = %d\n%s%s", code, shown.String(), said.String())
	}
}
