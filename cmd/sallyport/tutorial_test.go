package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
)

const tutorialPage = "../../docs/policy.md"

// tutorialLog is what the run of the tutorial left in its log.
const tutorialLog = `
{"time":"2026-01-31T12:00:00Z","id":"01KGA0000000000000000000A1","kind":"admit","run":"01KGA0000000000000000000R1","verdict":"inspect","reason":"allowed","rule":"read-charges","where":"policy.yaml:6","question":"fetch","proto":"h1","host":"api.example.com","port":443,"method":"GET","path":"/v1/charges/ch_1aB2cD3"}
{"time":"2026-01-31T12:00:02Z","id":"01KGA0000000000000000000A2","kind":"refuse","run":"01KGA0000000000000000000R1","verdict":"deny","reason":"method_not_allowed","question":"fetch","proto":"h1","host":"api.example.com","port":443,"method":"POST","path":"/v1/charges"}
{"time":"2026-01-31T12:00:03Z","id":"01KGA0000000000000000000A3","kind":"refuse","run":"01KGA0000000000000000000R1","verdict":"deny","reason":"method_not_allowed","question":"fetch","proto":"h1","host":"api.example.com","port":443,"method":"POST","path":"/v1/charges/ch_1aB2cD3/capture"}
{"time":"2026-01-31T12:00:05Z","id":"01KGA0000000000000000000A4","kind":"refuse","run":"01KGA0000000000000000000R1","verdict":"deny","reason":"denied_by_rule","rule":"no-refunds","where":"policy.yaml:9","question":"fetch","proto":"h1","host":"api.example.com","port":443,"method":"POST","path":"/v1/refunds"}
`

func writeTutorialLog(t *testing.T, dir string) {
	t.Helper()
	now := time.Date(2026, 1, 31, 11, 0, 0, 0, time.UTC)
	l, err := audit.Open(audit.Config{Dir: dir, KeyFile: filepath.Join(t.TempDir(), "key"), Now: func() time.Time { return now }, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(strings.TrimSpace(tutorialLog)) {
		var r audit.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if err := l.Append(context.Background(), &r); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

var (
	tutorialPart = regexp.MustCompile("(?ms)^## From a denied request to a reviewed rule\n.*?^## ")
	fileBlock    = regexp.MustCompile("(?ms)`([a-z-]+\\.yaml)`[^`\n]*:\n\n```yaml\n(.*?)^```$")
	consoleBlock = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")
)

// TestTutorialIsWhatIsPrinted runs the commands of the tutorial in docs/policy.md,
// with its files and a log, and holds what they print against the page. -update
// writes it anew.
func TestTutorialIsWhatIsPrinted(t *testing.T) {
	page, err := filepath.Abs(tutorialPage)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeTutorialLog(t, filepath.Join(dir, "audit"))
	t.Chdir(dir)
	part := tutorialPart.FindString(string(text))
	names := fileBlock.FindAllStringSubmatch(part, -1)
	if len(names) != 2 {
		t.Fatalf("the tutorial has %d files, want 2", len(names))
	}
	for _, m := range names {
		if err := os.WriteFile(m[1], []byte(m[2]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	commands := 0
	got := consoleBlock.ReplaceAllStringFunc(part, func(block string) string {
		var out strings.Builder
		out.WriteString("```console\n")
		for line := range strings.Lines(block) {
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ sallyport ")
			if !ok {
				continue
			}
			commands++
			var printed bytes.Buffer
			run(t.Context(), append(strings.Fields(command), "--instance=tutorial"), strings.NewReader(""), &printed, &printed)
			out.WriteString("$ sallyport " + command + "\n" + printed.String())
		}
		out.WriteString("```")
		return out.String()
	})
	if commands < 8 {
		t.Fatalf("only %d commands were run", commands)
	}
	if *update {
		if err := os.WriteFile(page, bytes.Replace(text, []byte(part), []byte(got), 1), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(part, got); diff != "" {
		t.Errorf("docs/policy.md does not show what is printed: make golden (-page +printed)\n%s", diff)
	}
}
