package audit_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/segment"
)

func mustUnmarshal(t testing.TB, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
}

const childEnv = "SALLYPORT_AUDIT_TEST_CHILD"

// TestKilledChild is the process that TestKill kills: it appends with many
// goroutines, and prints what was acknowledged.
func TestKilledChild(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		return // only as a child
	}
	durability, err := audit.ParseDurability(os.Getenv(childEnv + "_DURABILITY"))
	if err != nil {
		t.Fatal(err)
	}
	l := mustOpen(t, audit.Config{
		Dir: dir + "/audit", KeyFile: dir + "/key", Now: time.Now, Durability: durability,
		Interval: 3 * time.Millisecond, SegmentSize: 40 << 10, Pack: os.Getenv(childEnv+"_PACK") != "",
	})
	var mu sync.Mutex
	out := os.NewFile(3, "acknowledged")
	for w := range 8 {
		go func() {
			for i := 0; ; i++ {
				r := admit(w<<32 | i)
				r.Path = fmt.Sprintf("/%d/%d/%d", os.Getpid(), w, i)
				if err := l.Append(t.Context(), r); err != nil {
					panic(err)
				}
				mu.Lock()
				fmt.Fprintln(out, r.Seq, r.Path)
				mu.Unlock()
			}
		}()
	}
	select {} // until it is killed
}

// TestKill kills a writer 200 times at random moments, also while it ends and packs
// segments: whatever it was told is written is there, in its place, and the log
// goes on.
func TestKill(t *testing.T) {
	base := tempDir(t)
	want := map[uint64]string{}
	rng := rand.New(rand.NewPCG(3, 4))
	const rounds = 200
	for round := range rounds {
		durability := audit.Process
		if round%4 == 3 {
			durability = audit.Disk
		}
		killOnce(t, base, durability, 1+rng.IntN(200), time.Duration(rng.IntN(2000))*time.Microsecond, want)
		if round%10 == 9 { // the parent writes for a while in between
			cfg := audit.Config{Dir: base + "/audit", KeyFile: base + "/key", Now: time.Now, Interval: time.Hour}
			l := mustOpen(t, cfg)
			if r := mustVerify(t, cfg, l.Verifier()); r.Torn > 0 || r.Covered != r.Records {
				t.Errorf("Verify after Open: %v", r)
			}
			mustClose(t, l)
			if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
				t.Errorf("Verify after Close: %v", r)
			}
		}
	}
	recs := allRecords(t, base+"/audit")
	gaps := 0
	for _, r := range recs {
		if r.Kind == audit.Gap {
			gaps++
		}
	}
	for seq, path := range want {
		if seq >= uint64(len(recs)) || recs[seq].Path != path {
			t.Errorf("record %d (%s) was acknowledged, and is not there", seq, path)
		}
	}
	if gaps != rounds {
		t.Errorf("%d gap records, want one for each kill", gaps)
	}
	packed := 0
	for _, name := range segments(t, base+"/audit") {
		if strings.HasSuffix(name, segment.PackedSuffix) {
			packed++
		}
	}
	if packed == 0 {
		t.Error("no segment was packed")
	}
	t.Logf("%d records, %d of them acknowledged; %d packed segments", len(recs), len(want), packed)
}

// killOnce starts a writer, and kills it some time after so many records were
// acknowledged.
func killOnce(t *testing.T, base string, d audit.Durability, acks int, then time.Duration, want map[uint64]string) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledChild$")
	cmd.Env = append(os.Environ(), childEnv+"="+base, childEnv+"_DURABILITY="+d.String())
	if len(want)%3 == 0 { // about one in three packs
		cmd.Env = append(cmd.Env, childEnv+"_PACK=yes")
	}
	cmd.ExtraFiles = []*os.File{write}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	if d == audit.Disk {
		acks = acks/20 + 1
	}
	in := bufio.NewScanner(read)
	n := 0
	for in.Scan() {
		var seq uint64
		var path string
		if _, err := fmt.Sscan(in.Text(), &seq, &path); err != nil {
			break // the last line may be half a line
		}
		want[seq] = path
		if n++; n == acks {
			time.AfterFunc(then, func() { _ = cmd.Process.Kill() })
		}
	}
	_ = cmd.Wait() // killed
	read.Close()
	if n < acks {
		t.Fatalf("the child ended after %d records", n)
	}
}
