package gate_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/limit/ledger"
)

const (
	killedEnv   = "SALLYPORT_GATE_TEST_CHILD"
	killedPiece = 1 << 10
	killedMost  = 8 << 20 // octets a day
	killedFlows = 8
)

// gateway is a gate as a gateway has it: with a log and a ledger that outlive it.
type gateway struct {
	*gate.Gate
	log   *audit.Log
	aside *ledger.Ledger
}

func (g *gateway) close(t *testing.T) {
	t.Helper()
	if err := errors.Join(g.log.Close(), g.aside.Close()); err != nil {
		t.Error(err)
	}
}

// openGateway begins as a gateway does. Without a ledger it forgets what was set aside.
func openGateway(t *testing.T, dir string, forget bool) *gateway {
	t.Helper()
	h := newHouse(t)
	list := h.id.Policy.Rules()
	for i := range list {
		if list[i].ID == "raw" {
			list[i].Limits = rules.Limits{Sent: rules.Rate{N: killedMost, Period: 86400}}
		}
	}
	p, err := rules.Compile(rules.Source{Digest: "sha256:aa", Rules: list})
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{}
	if forget {
		if err := os.Remove(filepath.Join(dir, "aside")); err != nil {
			t.Fatal(err)
		}
	}
	if g.log, err = audit.Open(audit.Config{Dir: filepath.Join(dir, "audit"), KeyFile: filepath.Join(dir, "key"), Now: time.Now}); err != nil {
		t.Fatal(err)
	}
	if g.aside, err = ledger.Open(filepath.Join(dir, "aside")); err != nil {
		t.Fatal(err)
	}
	id := gate.Identity{Cell: "cell", Run: "run", Policy: p}
	g.Gate, err = gate.New(gate.Config{
		Identity: func(string) (gate.Identity, bool) { return id, true },
		Recorder: g.log, Now: time.Now, Hash: g.log.Hash, Ledger: g.aside,
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := query.Parse("kind=admit,done since=25h", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Recount(query.Records(filepath.Join(dir, "audit"), f)); err != nil {
		t.Fatal(err)
	}
	return g
}

// TestKilledGate is the process that TestAKillLosesNoCount kills: it carries streams of
// all lengths, and tells what crossed.
func TestKilledGate(t *testing.T) {
	dir := os.Getenv(killedEnv)
	if dir == "" {
		return // only as a child
	}
	g := openGateway(t, dir, false)
	out := os.NewFile(3, "crossed")
	// Between two streams nothing of a flow is open; this one is, whenever the process is killed.
	_, _ = g.Admit(t.Context(), request(t, rules.Connect, "raw.test:443")) // refused when the day is over
	var wg sync.WaitGroup
	for i := range killedFlows {
		wg.Go(func() {
			for pieces := 1 + i; ; pieces = (pieces*7 + i) % 500 {
				p, err := g.Admit(t.Context(), request(t, rules.Connect, "raw.test:443"))
				if err != nil {
					fmt.Fprintln(out, 0) // the day is over
					return
				}
				sent := int64(0)
				for range pieces {
					n, _ := p.Send(killedPiece) // less than all of it is told all the same
					sent += int64(n)
					fmt.Fprintln(out, n)
				}
				if err := p.Done(t.Context(), gate.Outcome{Sent: sent}); err != nil {
					panic(err)
				}
			}
		})
	}
	wg.Wait()
	select {} // until it is killed
}

// killGate starts a process, and kills it when it has told that so many octets crossed, or
// that no more may. It returns how many crossed of which it told.
func killGate(t *testing.T, dir string, least int64) (crossed int64) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledGate$")
	cmd.Env = append(os.Environ(), killedEnv+"="+dir)
	cmd.ExtraFiles, cmd.Stderr = []*os.File{write}, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	killed := false
	for in := bufio.NewScanner(read); in.Scan(); {
		n, err := strconv.ParseInt(in.Text(), 10, 64)
		if err != nil {
			t.Error(err)
		}
		if crossed += n; !killed && (crossed >= least || n == 0) {
			killed = true
			_ = cmd.Process.Kill()
		}
	}
	_ = cmd.Wait() // killed
	if !killed {
		t.Fatalf("the child ended after %d octets", crossed)
	}
	return crossed
}

// rest is how many octets may still cross.
func rest(t *testing.T, g *gateway) int64 {
	t.Helper()
	p, err := g.Admit(t.Context(), request(t, rules.Connect, "raw.test:443"))
	if err != nil {
		wantDenied(t, err, rules.Limit)
		return 0
	}
	n, err := p.Send(killedMost)
	wantDenied(t, err, rules.Limit)
	if err := p.Done(t.Context(), gate.Outcome{}); err != nil { // it did not cross
		t.Fatal(err)
	}
	return int64(n)
}

// TestAKillLosesNoCount kills a gate in the midst of streams, again and again: never does
// more cross than the limit says, and what is lost for the rest of the day is what the
// streams had set aside, not the day.
func TestAKillLosesNoCount(t *testing.T) {
	dir := t.TempDir()
	crossed := int64(0)
	for round := range 6 {
		crossed += killGate(t, dir, int64(round+1)*100<<10)
		g := openGateway(t, dir, false)
		left := rest(t, g)
		g.close(t)
		// What a flow has set aside is up to as much again as it used, and a step.
		if lost := killedMost - crossed - left; lost < 0 || lost > crossed+killedFlows*(64<<10) {
			t.Fatalf("round %d: %d crossed, %d are left: %d lost of %d", round, crossed, left, lost, killedMost)
		}
	}
	crossed += killGate(t, dir, killedMost)
	if g := openGateway(t, dir, false); crossed+rest(t, g) > killedMost {
		t.Errorf("%d crossed of %d", crossed, killedMost)
	} else {
		g.close(t)
	}
	t.Logf("%d of %d crossed, over 7 kills", crossed, killedMost)
}

// TestAKillWithoutALedger: what nobody knows counts as all that there is.
func TestAKillWithoutALedger(t *testing.T) {
	dir := t.TempDir()
	killGate(t, dir, 100<<10)
	g := openGateway(t, dir, true)
	defer g.close(t)
	if n := rest(t, g); n != 0 {
		t.Errorf("%d are left", n)
	}
}
