package audit_test

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
)

const fullEnv = "SALLYPORT_AUDIT_TEST_FULL"

// TestFullChild is the process that TestKilledOnAFullDisk kills: it appends until
// the disk is full, says so, and goes on trying.
func TestFullChild(t *testing.T) {
	dir := os.Getenv(fullEnv)
	if dir == "" {
		return // only as a child
	}
	l := mustOpen(t, audit.Config{
		Dir: dir + "/audit", KeyFile: dir + "/keys/key", Now: time.Now, Interval: 3 * time.Millisecond, SegmentSize: 40 << 10, Pack: true,
	})
	out := os.NewFile(3, "full")
	for i := 0; ; i++ {
		r := admit(i)
		if i%2 == 1 {
			r.Kind = audit.Done
		}
		if err := l.Append(t.Context(), r); errors.Is(err, syscall.ENOSPC) {
			fmt.Fprintln(out, "full")
		}
	}
}

// TestKilledOnAFullDisk: a writer dies while it cannot write, whatever it was
// half through; the log opens when there is room, and is good.
func TestKilledOnAFullDisk(t *testing.T) {
	base := t.TempDir()
	mount := func(flags uintptr, size int64) {
		if err := syscall.Mount("tmpfs", base, "tmpfs", flags, fmt.Sprintf("size=%d", size)); err != nil {
			t.Fatal(err)
		}
	}
	mount(0, 2<<20)
	t.Cleanup(func() { _ = syscall.Unmount(base, syscall.MNT_DETACH) })
	cfg := audit.Config{Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(base, "keys", "key"), Now: time.Now, Interval: time.Hour}
	rng := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		killFull(t, base, time.Duration(rng.IntN(20_000))*time.Microsecond)
		mount(syscall.MS_REMOUNT, 256<<20)
		l := mustOpen(t, cfg)
		mustClose(t, l)
		if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
			t.Errorf("Verify: %v", r)
		}
		var st syscall.Statfs_t
		if err := syscall.Statfs(base, &st); err != nil {
			t.Fatal(err)
		}
		mount(syscall.MS_REMOUNT, int64(st.Blocks-st.Bfree)*st.Bsize+1<<20)
	}
	for i, r := range allRecords(t, cfg.Dir) {
		if r.Seq != uint64(i) {
			t.Fatalf("record %d has the number %d", i, r.Seq)
		}
	}
}

// killFull starts a writer, and kills it some time after its disk is full.
func killFull(t *testing.T, base string, then time.Duration) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestFullChild$")
	cmd.Env = append(os.Environ(), fullEnv+"="+base)
	cmd.ExtraFiles = []*os.File{write}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	in := bufio.NewScanner(read)
	if !in.Scan() {
		t.Errorf("the writer ended before its disk was full")
	}
	time.AfterFunc(then, func() { _ = cmd.Process.Kill() })
	for in.Scan() { // it says so again and again
	}
	_ = cmd.Wait() // killed
}
