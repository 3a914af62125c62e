package cell_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/launcher/cell"
)

// TestMain runs the tests in a network namespace of their own, since one of them
// flushes the tables of what it takes for the host; or a child of one.
func TestMain(m *testing.M) {
	if name := os.Getenv("CELL_TEST_NETWORK"); name != "" {
		os.Exit(child(name, os.Getenv("CELL_TEST_STEP")))
	}
	if os.Getenv("CELL_TEST_INSIDE") != "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // the child dies with the thread that started it
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), "CELL_TEST_INSIDE=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(max(exit.ExitCode(), 1))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "these tests make network namespaces: run them as root: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child makes a cell and is killed after a step of it. Without a step it only
// opens the network and says what happened.
func child(name, step string) int {
	n, err := cell.Open(context.Background(), cell.Config{Name: name})
	if err != nil {
		fmt.Println(err)
		return 3
	}
	n.FailAfter(func(s string) error {
		if s == step {
			return unix.Kill(unix.Getpid(), unix.SIGKILL)
		}
		return nil
	})
	_, err = n.Create(context.Background(), "aaaaaaaa", 5)
	fmt.Println(err)
	return 4
}

func runChild(ctx context.Context, name, step string, through ...string) (string, error) {
	args := append(through, os.Args[0])
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "CELL_TEST_NETWORK="+name, "CELL_TEST_STEP="+step)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// noise is what changes by itself: comments, counters, and what the kernel makes of a
// link's carrier, a moment after the link is there.
var noise = regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]|NO-CARRIER,| state (?:UP|DOWN|LOWERLAYERDOWN|UNKNOWN)\b| linkdown\b`)

// host is all that a network could leave on the host; files and mounts of other
// networks, which other tests make, do not count.
func host(t *testing.T, name string) string {
	t.Helper()
	var out strings.Builder
	for _, command := range [][]string{
		{"ip", "-o", "link"}, {"ip", "-o", "addr"}, {"ip", "route", "show", "table", "all"}, {"iptables-save"}, {"ip6tables-save"},
	} {
		text, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", command, err, text)
		}
		out.WriteString(noise.ReplaceAllString(string(text), ""))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, name) {
			out.WriteString(line)
		}
	}
	files, err := filepath.Glob("/run/netns/" + name + "*")
	if err != nil {
		t.Fatal(err)
	}
	return out.String() + strings.Join(files, "\n")
}

// gateway is all that a cell could leave in the gateway's namespace.
func gateway(t *testing.T, n *cell.Network) string {
	t.Helper()
	return noise.ReplaceAllString(runIn(t, n.Namespace(), "sh", "-c", `
		ip -o link; ip -o addr; ip route show table all; ip neigh; bridge fdb
		iptables-save -t raw; iptables-save -t nat; iptables-save -t filter; ip6tables-save -t filter
		cat /proc/net/nf_conntrack; ls /proc/net/ipt_hashlimit`), "")
}
