package cell_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/launcher/cell"
)

func TestRemoveAndDestroyLeaveNothing(t *testing.T) {
	name := uniqueName()
	hostBefore := host(t, name)
	n, err := cell.Open(t.Context(), cell.Config{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	hostOpen, gatewayBefore := host(t, name), gateway(t, n)

	c := mustCreate(t, n, "aaaaaaaa", 5)
	if ids, err := n.Cells(t.Context()); err != nil || !slices.Equal(ids, []string{c.ID}) {
		t.Errorf("Cells = %v, %v, want %s", ids, err, c.ID)
	}
	if err := n.Verify(t.Context()); err != nil {
		t.Errorf("Verify: %v", err)
	}
	for range 2 { // the second time there is nothing, and that is no error
		if err := n.Remove(t.Context(), c.ID); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	if got := gateway(t, n); got != gatewayBefore {
		t.Errorf("the gateway's namespace after Remove:\n%s\nwant as before:\n%s", got, gatewayBefore)
	}
	if got := host(t, name); got != hostOpen {
		t.Errorf("the host after Remove:\n%s\nwant as before:\n%s", got, hostOpen)
	}
	if ids, err := n.Cells(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("Cells = %v, %v, want none", ids, err)
	}

	mustCreate(t, n, "bbbbbbbb", 6)
	for range 2 {
		if err := n.Destroy(t.Context()); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	}
	if got := host(t, name); got != hostBefore {
		t.Errorf("the host after Destroy:\n%s\nwant as before:\n%s", got, hostBefore)
	}
}

// TestNetwork asks what leaves a network and its one cell as they are, until the
// last takes the cell away.
func TestNetwork(t *testing.T) {
	n := mustOpen(t, cell.Config{Name: uniqueName()})
	c := mustCreate(t, n, "aaaaaaaa", 5)
	for _, tt := range []struct {
		name string
		run  func(*testing.T, *cell.Network, cell.Cell)
	}{
		{"namespacesAreThoseOfIproute", namespacesAreThoseOfIproute},
		{"listenRefuses", listenRefuses},
		{"createRefusesWhatIsInUse", createRefusesWhatIsInUse},
		{"waitIsGivenUp", waitIsGivenUp},
		{"noThreadStaysBehind", noThreadStaysBehind},
		{"removeClosesConnections", removeClosesConnections},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, n, c) })
	}
}

// `ip netns` and `nsenter` know the namespaces.
func namespacesAreThoseOfIproute(t *testing.T, n *cell.Network, c cell.Cell) {
	out, err := exec.CommandContext(t.Context(), "nsenter", "--net="+c.Netns, "ip", "-o", "-4", "addr", "show", "dev", "eth0").CombinedOutput()
	if err != nil || !strings.Contains(string(out), c.Sandbox.String()+"/28") {
		t.Errorf("nsenter: %s, %v", out, err)
	}
	out, err = exec.CommandContext(t.Context(), "ip", "netns", "ls").CombinedOutput()
	if err != nil || !strings.Contains(string(out), filepath.Base(c.Netns)) {
		t.Errorf("ip netns ls: %s, %v", out, err)
	}
}

// CT-02, NW-24: a step that fails undoes those before.
func TestFailedCreateLeavesNothing(t *testing.T) {
	name := uniqueName()
	n := mustOpen(t, cell.Config{Name: name})
	hostBefore, gatewayBefore := host(t, name), gateway(t, n)
	broken := errors.New("broken on cue")
	for _, step := range cell.Steps() {
		n.FailAfter(func(s string) error {
			if s == step {
				return broken
			}
			return nil
		})
		if _, err := n.Create(t.Context(), "aaaaaaaa", 5); !errors.Is(err, broken) || !strings.Contains(err.Error(), step) {
			t.Errorf("Create with %q broken: %v", step, err)
		}
		if got := gateway(t, n); got != gatewayBefore {
			t.Errorf("the gateway's namespace after %q broke:\n%s\nwant as before:\n%s", step, got, gatewayBefore)
		}
		if got := host(t, name); got != hostBefore {
			t.Errorf("the host after %q broke:\n%s\nwant as before:\n%s", step, got, hostBefore)
		}
	}
	n.FailAfter(nil)
	ctx, cancel := context.WithCancel(t.Context())
	n.FailAfter(func(s string) error { cancel(); return nil })
	if _, err := n.Create(ctx, "aaaaaaaa", 5); !errors.Is(err, context.Canceled) {
		t.Errorf("Create cancelled half-way: %v", err)
	}
	n.FailAfter(nil)
	if got := gateway(t, n); got != gatewayBefore {
		t.Errorf("the gateway's namespace after a cancelled Create:\n%s\nwant as before:\n%s", got, gatewayBefore)
	}
	mustCreate(t, n, "aaaaaaaa", 5) // the twin
}

// CT-02: a process killed between any two steps leaves a half that Cells names,
// that lets nothing through, and that Remove removes.
func TestKilledCreate(t *testing.T) {
	name := uniqueName()
	n := mustOpen(t, cell.Config{Name: name})
	hostBefore, gatewayBefore := host(t, name), gateway(t, n)
	for _, step := range cell.Steps() {
		out, err := runChild(t.Context(), name, step)
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != -1 {
			t.Fatalf("child to be killed after %q: %v\n%s", step, err, out)
		}
		if ids, err := n.Cells(t.Context()); err != nil || !slices.Equal(ids, []string{"aaaaaaaa"}) {
			t.Errorf("Cells after %q = %v, %v", step, ids, err)
		}
		if _, err := n.Create(t.Context(), "aaaaaaaa", 7); !errors.Is(err, cell.ErrExists) {
			t.Errorf("Create over a half cell: %v, want ErrExists", err)
		}
		if err := n.Repair(t.Context()); err != nil { // as the next process's Open does
			t.Errorf("Repair after %q: %v", step, err)
		}
		if err := n.Remove(t.Context(), "aaaaaaaa"); err != nil {
			t.Errorf("Remove after %q: %v", step, err)
		}
		if got := gateway(t, n); got != gatewayBefore {
			t.Errorf("the gateway's namespace after %q:\n%s\nwant as before:\n%s", step, got, gatewayBefore)
		}
		if got := host(t, name); got != hostBefore {
			t.Errorf("the host after %q:\n%s\nwant as before:\n%s", step, got, hostBefore)
		}
	}
}

// A file without a mount, as a process killed between the two leaves it.
func TestUnmountedFilesAreCleared(t *testing.T) {
	name := uniqueName()
	touch := func(path string) {
		if err := os.WriteFile(path, nil, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		t.Fatal(err)
	}
	touch("/run/netns/" + name)
	n := mustOpen(t, cell.Config{Name: name})
	touch("/run/netns/" + name + ".aaaaaaaa")
	if ids, err := n.Cells(t.Context()); err != nil || len(ids) != 1 {
		t.Errorf("Cells = %v, %v, want one", ids, err)
	}
	if err := n.Remove(t.Context(), "aaaaaaaa"); err != nil {
		t.Error(err)
	}
	if err := n.Verify(t.Context()); err != nil {
		t.Error(err)
	}
}

func createRefusesWhatIsInUse(t *testing.T, n *cell.Network, _ cell.Cell) {
	before := gateway(t, n)
	for _, tt := range []struct {
		id    string
		index int
		want  string
	}{
		{"aaaaaaaa", 6, "cell exists"},
		{"bbbbbbbb", 5, "cell exists"},
		{"bbbbbbbb", -1, "index"},
		{"bbbbbbbb", 4096, "index"},
		{"", 6, "base32"},
		{"BBBBBBBB", 6, "base32"},
		{"bbbbbbb1", 6, "base32"},
		{"bbbbbbbbb", 6, "base32"},
		{"../bbbbb", 6, "base32"}, // CT-12
		{"--host--", 6, "base32"},
		{"bbbbbbbb\n", 6, "base32"},
	} {
		if _, err := n.Create(t.Context(), tt.id, tt.index); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Create(%q, %d): %v, want %q", tt.id, tt.index, err, tt.want)
		}
	}
	if err := n.Remove(t.Context(), "../../etc"); err == nil {
		t.Error("Remove of a path succeeded")
	}
	if _, err := n.Counters(t.Context(), "../../etc"); err == nil {
		t.Error("Counters of a path succeeded")
	}
	if after := gateway(t, n); after != before {
		t.Errorf("refusals changed the namespace:\n%s\nwant:\n%s", after, before)
	}
}

// NW-23: the next owner of an address inherits no flow, rule or counter.
func TestAddressesAreReusedClean(t *testing.T) {
	l := openLab(t, cell.Config{})
	if err := l.n.Remove(t.Context(), l.b.ID); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		c := mustCreate(t, l.n, fmt.Sprintf("cccccc%c%c", 'a'+i, 'a'), 6)
		conn, _, err := dial(c, "1.1.1.1:443", limit)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := query(c, "8.8.8.8:53", "q", limit); err != nil {
			t.Fatal(err)
		}
		if b := l.counters(t, c); b != (cell.Bypass{}) {
			t.Errorf("counters of a new cell = %+v", b)
		}
		if err := send(c, "1.1.1.1:443", "x"); err != nil {
			t.Fatal(err)
		}
		if err := l.n.Remove(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
		if table := l.gateway(t, "cat", "/proc/net/nf_conntrack"); strings.Contains(table, c.Sandbox.String()) {
			t.Errorf("flows after Remove:\n%s", table)
		}
		if sockets := l.gateway(t, "ss", "-Htn"); strings.Contains(sockets, c.Sandbox.String()) {
			t.Errorf("connections of the gateway after Remove:\n%s", sockets)
		}
		conn.Close()
	}
	if _, greeting, err := dial(l.a, "1.1.1.1:443", limit); err != nil || greeting != "transparent" {
		t.Errorf("the cell that stayed: %q, %v", greeting, err)
	}
}

// A reader in the gateway's process is woken when its cell goes.
func removeClosesConnections(t *testing.T, n *cell.Network, c cell.Cell) {
	f, err := n.Listen(t.Context(), "tcp", ":15001")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer ln.Close()
	ended := make(chan error, 1)
	accepted := make(chan struct{})
	go func() {
		conn, err := ln.Accept()
		close(accepted)
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			conn.Close()
		}
		ended <- err
	}()
	var conn net.Conn
	err = in(c, func() (err error) {
		conn, err = net.DialTimeout("tcp4", "1.1.1.1:443", limit)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	<-accepted
	if err := n.Remove(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("read returned data")
		}
	case <-time.After(limit):
		t.Error("the gateway still waits for a sandbox that is gone")
	}
}

// CT-05: many at once, from two handles as from two processes, while another
// program holds the lock for a while. NW-16.
func TestConcurrentCreates(t *testing.T) {
	name := uniqueName()
	n1 := mustOpen(t, cell.Config{Name: name})
	n2 := mustOpen(t, cell.Config{Name: name})
	lock := exec.CommandContext(t.Context(), "flock", "/run/xtables.lock", "cat")
	release, err := lock.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Start(); err != nil {
		t.Fatal(err)
	}
	const cells = 12
	var wg sync.WaitGroup
	for i := range cells {
		n := []*cell.Network{n1, n2}[i%2]
		wg.Go(func() {
			if _, err := n.Create(t.Context(), fmt.Sprintf("aaaaaaa%c", 'a'+i), i); err != nil {
				t.Error(err)
			}
		})
	}
	release.Close()
	if err := lock.Wait(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if ids, err := n1.Cells(t.Context()); err != nil || len(ids) != cells {
		t.Errorf("Cells = %v, %v, want %d", ids, err, cells)
	}
	if err := n2.Verify(t.Context()); err != nil {
		t.Errorf("Verify: %v", err)
	}
	for i := range cells {
		n := []*cell.Network{n2, n1}[i%2]
		wg.Go(func() {
			if err := n.Remove(t.Context(), fmt.Sprintf("aaaaaaa%c", 'a'+i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := n1.Verify(t.Context()); err != nil {
		t.Errorf("Verify: %v", err)
	}
}

// Who waits for another process can give up, and has not disturbed anything then.
func waitIsGivenUp(t *testing.T, n *cell.Network, c cell.Cell) {
	holder := exec.CommandContext(t.Context(), "flock", n.Namespace().Name(), "sh", "-c", "echo held; cat")
	release, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := said.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if _, err := n.Create(ctx, "bbbbbbbb", 6); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Create while another process holds the lock: %v", err)
	}
	if _, err := n.Counters(t.Context(), c.ID); err != nil {
		t.Errorf("reading needs no lock: %v", err)
	}
	release.Close()
	if err := holder.Wait(); err != nil {
		t.Error(err)
	}
	mustCreate(t, n, "bbbbbbbb", 6)
	if err := n.Remove(t.Context(), "bbbbbbbb"); err != nil {
		t.Error(err)
	}
}

// A handle on a network that was destroyed and made again by somebody else does
// not take the new one's name away.
func TestDestroyOfAnOldHandle(t *testing.T) {
	cfg := cell.Config{Name: uniqueName()}
	old := mustOpen(t, cfg)
	if err := old.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := mustOpen(t, cfg)
	if err := old.Verify(t.Context()); err == nil || !strings.Contains(err.Error(), "not the namespace") {
		t.Errorf("Verify of the old handle: %v", err)
	}
	if err := old.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.Verify(t.Context()); err != nil {
		t.Errorf("Verify of the new one: %v", err)
	}
}

// No thread that could run other code is left in another namespace.
func noThreadStaysBehind(t *testing.T, n *cell.Network, c cell.Cell) {
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := n.Counters(t.Context(), c.ID); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	ours, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var stray []string
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); { // a thread needs a moment to die
		stray = nil
		tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			if ns, err := os.Readlink(task); err == nil && ns != ours {
				stray = append(stray, task+" "+ns)
			}
		}
		if len(stray) == 0 {
			return
		}
	}
	t.Errorf("threads in other namespaces: %v", stray)
}
