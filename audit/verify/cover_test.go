package verify_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/verify"
)

// rewrite changes every host in the log: what a forger would.
func rewrite(files map[string][]byte) {
	for name := range files {
		if strings.HasSuffix(name, ".jsonl") {
			files[name] = regexp.MustCompile(`"host":"h`).ReplaceAll(files[name], []byte(`"host":"x`))
		}
	}
	delete(files, "tree")
}

// keep leaves the first n checkpoints.
func keep(files map[string][]byte, n int) {
	files["checkpoints"] = join(lines(files["checkpoints"])[:7*n])
}

// forge puts a record behind the last one.
func forge(files map[string][]byte, last, kind string) {
	all := lines(files[last])
	var seq int
	fmt.Sscanf(string(all[len(all)-2]), `{"v":1,"seq":%d`, &seq)
	files[last] = fmt.Appendf(files[last], `{"v":1,"seq":%d,"time":"2027-01-15T08:00:00Z","id":"01JJX0000000000000000000F0","kind":%q}`+"\n", seq+1, kind)
	delete(files, "tree")
}

// TestCheckpointsThatWereCut: records beyond the last checkpoint pass only where a
// live or crashed log can have them.
func TestCheckpointsThatWereCut(t *testing.T) {
	quick, slow := newFixture(t, 20), newFixtureOf(t, 20, 400*time.Millisecond)
	end := func(f *fixture) string { return f.starts[len(f.starts)-1] }
	open := func(f *fixture, files map[string][]byte) { // as if it was not closed
		l := lines(files[end(f)])
		files[end(f)] = join(l[:len(l)-2])
		delete(files, "tree")
	}
	tests := []struct {
		name string
		f    *fixture
		edit func(map[string][]byte)
		want string // "" for a log that is good
	}{
		{"no checkpoint at all", quick, func(files map[string][]byte) { rewrite(files); keep(files, 0) }, "22 records from 0 on are covered by no checkpoint (a log is signed before its first record of that kind"},
		{"nor an end", quick, func(files map[string][]byte) { rewrite(files); keep(files, 0); open(quick, files) }, "21 records from 0 on are covered by no checkpoint"},
		{"cut far back", slow, func(files map[string][]byte) { open(slow, files); keep(files, 2) }, "(they span "},
		{"the end of a closed log", quick, func(files map[string][]byte) { keep(files, 7) }, "(a log that was closed is signed to its end)"},
		{"a record behind log.close", quick, func(files map[string][]byte) { forge(files, end(quick), "admit") }, "record 22 is covered by no checkpoint (record 22 follows the end of a closed log)"},
		{"a gap behind log.close", quick, func(files map[string][]byte) { forge(files, end(quick), "gap") }, "follows the end of a closed log"},
		{"a crash", quick, func(files map[string][]byte) { open(quick, files); keep(files, 7) }, ""},
		{"a crash before it was signed", quick, func(files map[string][]byte) {
			files[quick.starts[0]] = join(lines(files[quick.starts[0]])[:1])
			for _, name := range quick.starts[1:] {
				delete(files, name)
			}
			keep(files, 0)
			delete(files, "tree")
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			anchors := [][][]byte{nil}
			if tt.want != "" && tt.f == slow {
				anchors = append(anchors, [][]byte{first(t, tt.f)}) // older than the cut
			}
			for _, a := range anchors {
				r, err := verify.Verify(tt.f.with(t, tt.edit), tt.f.key, verify.Options{Anchors: a})
				var p *verify.Problem
				switch {
				case tt.want == "" && err != nil:
					t.Errorf("Verify = %v, want good", err)
				case tt.want != "" && (!errors.As(err, &p) || p.Fault != verify.BadHistory || !strings.Contains(p.Text, tt.want)):
					t.Errorf("Verify = %v, %v; want %s %q", r, err, verify.BadHistory, tt.want)
				}
			}
		})
	}
}

// first returns a fixture's first checkpoint.
func first(t testing.TB, f *fixture) []byte {
	t.Helper()
	l := join(lines(f.files["checkpoints"])[:7])
	return l[:len(l)-1]
}

// TestAnchorBeyondTheCheckpoints: a checkpoint is in the log before it is
// anywhere else, for verify as for who opens the log to write it.
func TestAnchorBeyondTheCheckpoints(t *testing.T) {
	f := newFixture(t, 20)
	for name, cut := range map[string]int{"emptied": 0, "cut": 2} {
		dir := f.with(t, func(files map[string][]byte) { keep(files, cut); delete(files, "tree") })
		_, err := verify.Verify(dir, f.key, verify.Options{Anchors: [][]byte{f.anchor}})
		var p *verify.Problem
		if !errors.As(err, &p) || p.Fault != verify.BadHistory || !strings.Contains(p.Text, "the checkpoints were cut: an anchor is checkpoint") {
			t.Errorf("%s: Verify = %v, want that the checkpoints were cut", name, err)
		}
	}
}

// TestWhatIsRefusedIsNotSigned: opening a log whose checkpoints were cut would
// sign what a forger wrote.
func TestWhatIsRefusedIsNotSigned(t *testing.T) {
	f := newFixture(t, 20)
	base := filepath.Dir(f.dir)
	if err := os.Remove(filepath.Join(base, "key.anchor")); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(map[string][]byte){
		"no checkpoint":         func(files map[string][]byte) { rewrite(files); keep(files, 0) },
		"end of a closed log":   func(files map[string][]byte) { keep(files, 7); delete(files, "tree") },
		"records after the end": func(files map[string][]byte) { forge(files, f.starts[len(f.starts)-1], "admit") },
	} {
		dir := f.with(t, edit)
		_, err := audit.Open(audit.Config{Dir: dir, KeyFile: filepath.Join(base, "key"), Now: time.Now})
		var bad *audit.RecoveryError
		if !errors.As(err, &bad) || !strings.Contains(bad.Fault, "covered by no checkpoint") {
			t.Errorf("%s: Open = %v, want a refusal", name, err)
		}
	}
	l, err := audit.Open(audit.Config{Dir: f.dir, KeyFile: filepath.Join(base, "key"), Now: time.Now}) // the log itself opens
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestOldRecordsAreSignedFirst: however late the next checkpoint is, and
// wherever the clock is set, what a crash leaves uncovered is of a moment.
func TestOldRecordsAreSignedFirst(t *testing.T) {
	for _, steps := range [][]time.Duration{
		{2 * time.Second},
		{time.Hour},
		{-time.Hour},
		{1400 * time.Millisecond, -2800 * time.Millisecond}, // neither is far from the first
		{-1400 * time.Millisecond, 2800 * time.Millisecond},
	} {
		var mu sync.Mutex
		now := time.Unix(1_800_000_000, 0)
		base := tempDir(t)
		l, err := audit.Open(audit.Config{
			Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(base, "key"), Interval: time.Hour,
			Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now },
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 9 {
			mu.Lock()
			now = now.Add(steps[i%len(steps)])
			mu.Unlock()
			if err := l.Append(t.Context(), &audit.Record{Kind: audit.Admit, Host: "h.example", Port: 443}); err != nil {
				t.Fatal(err)
			}
			if r, err := verify.Verify(filepath.Join(base, "audit"), l.Verifier(), verify.Options{}); err != nil || i == 0 && r.Covered == r.Records {
				t.Errorf("steps %v, record %d: Verify = %v, %v", steps, i, r, err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNothingIsLeftOfAnAnchoredLog: a log of which nothing is left was rolled
// back.
func TestNothingIsLeftOfAnAnchoredLog(t *testing.T) {
	f := newFixture(t, 20)
	empty := f.with(t, func(files map[string][]byte) { clear(files) })
	for _, dir := range []string{empty, filepath.Join(empty, "none")} {
		_, err := verify.Verify(dir, f.key, verify.Options{Anchors: [][]byte{f.anchor}})
		var p *verify.Problem
		if !errors.As(err, &p) || p.Fault != verify.RolledBack || !strings.Contains(p.Text, "rollback") {
			t.Errorf("Verify(%s) = %v, want a rollback", dir, err)
		}
	}
}
