package cell_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/launcher/cell"
)

// rules prints the namespace's tables.
func rules(t *testing.T, n *cell.Network) string {
	t.Helper()
	return noise.ReplaceAllString(runIn(t, n.Namespace(), "sh", "-c", "for t in raw nat filter; do iptables-save -t $t; done"), "")
}

func TestOpenTwiceChangesNothing(t *testing.T) {
	cfg := cell.Config{Name: uniqueName()}
	n := mustOpen(t, cfg)
	mustCreate(t, n, "aaaaaaaa", 5)
	before, wholeBefore := rules(t, n), gateway(t, n)
	again := mustOpen(t, cfg)
	if after := rules(t, again); after != before {
		t.Errorf("rules after the second Open:\n%s\nwant:\n%s", after, before)
	}
	if after := gateway(t, again); after != wholeBefore {
		t.Errorf("namespace after the second Open:\n%s\nwant:\n%s", after, wholeBefore)
	}
}

// NW-18, CT-08, CF-13: whatever somebody does to the tables, Verify says so, no
// way out opens, and Open mends it.
func TestTamperedTablesAreReportedAndMended(t *testing.T) {
	l := openLab(t, cell.Config{})
	good := rules(t, l.n)
	for _, tt := range []struct {
		script, want string
	}{
		{"iptables -t nat -F", "sp-nat"},
		{"iptables -t nat -F; iptables -t nat -X", "lacks chain sp-nat"},
		{"iptables -F", "sp-in"},
		{"iptables -t raw -F", "sp-raw"},
		{"iptables -P INPUT ACCEPT", "-P INPUT ACCEPT"},
		{"iptables -I INPUT 1 -j ACCEPT", "chain INPUT"},
		{"iptables -I sp-in 1 -j ACCEPT", "sp-in"},
		{"iptables -I OUTPUT 1 -j ACCEPT", "chain OUTPUT"},
		{"iptables -A FORWARD -j ACCEPT", "chain FORWARD"},
		{"iptables -t nat -A POSTROUTING -j MASQUERADE", "chain POSTROUTING"}, // CT-01
		{"iptables -t raw -I PREROUTING 1 -j ACCEPT", "chain PREROUTING"},
		{"iptables -I sp-aaaaaaaa 1 -j ACCEPT", "sp-aaaaaaaa"},
		{"iptables -t raw -F sp-aaaaaaaa", "sp-aaaaaaaa"},
		{"iptables -F sp-cells", "sp-cells"},
		{"for i in $(seq 100); do iptables -A sp-cells -i sp-aaaaaaaa -j sp-aaaaaaaa; done", "sp-cells"},
		{"iptables -I sp-cells 1 -i sp-bbbbbbbb -j sp-aaaaaaaa", "sp-cells"},
		{"iptables -I sp-cells 1 -j ACCEPT", "sp-cells"},
		{"iptables -N sp-in.new; iptables -A sp-in.new -j ACCEPT; iptables -R INPUT 1 -j sp-in.new; iptables -F sp-in; iptables -X sp-in", "lacks chain sp-in"},
		{"iptables -N sp-zzzzzzzz; iptables -A sp-zzzzzzzz -j ACCEPT; iptables -A sp-cells -i sp-zzzzzzzz -j sp-zzzzzzzz", "no whole cell"},
		{"iptables -N x; iptables -N y; iptables -A x -j y; iptables -I sp-out 1 -j x", "not ours"},
		{"ip6tables -P OUTPUT ACCEPT", "IPv6"},
		{"ip6tables -N x; ip6tables -A x -j ACCEPT; ip6tables -A INPUT -j x", "IPv6"},
	} {
		l.gateway(t, "sh", "-c", tt.script)
		if err := l.n.Verify(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Verify after %q: %v, want it to name %q", tt.script, err, tt.want)
		}
		for _, dst := range []string{"1.1.1.1:443", on(l.b.Sandbox, 8080)} {
			if _, greeting, err := dial(l.a, dst, soon/4); err == nil && greeting != "transparent" {
				t.Errorf("after %q %s is greeted by %q", tt.script, dst, greeting)
			}
		}
		if err := l.n.Repair(t.Context()); err != nil { // which is what Open does
			t.Errorf("Repair after %q: %v", tt.script, err)
			continue
		}
		if err := l.n.Verify(t.Context()); err != nil {
			t.Errorf("Verify after Repair of %q: %v", tt.script, err)
		}
		if _, greeting, err := dial(l.a, "1.1.1.1:443", limit); err != nil || greeting != "transparent" {
			t.Errorf("after Repair of %q: %q, %v", tt.script, greeting, err)
		}
	}
	if got := rules(t, l.n); sorted(got) != sorted(good) {
		t.Errorf("rules at the end:\n%s\nwant:\n%s", got, good)
	}
}

// sorted forgets the order of chains and jumps to cells, which has no meaning;
// Verify compares the rest in order.
func sorted(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		for j := i + 1; j < len(lines); j++ {
			if lines[j] < lines[i] {
				lines[i], lines[j] = lines[j], lines[i]
			}
		}
	}
	return strings.Join(lines, "\n")
}

func TestChangedSysctlsAreReportedAndMended(t *testing.T) {
	const lowMark = "ipfrag_low_thresh" // may not exceed the high one, which is 0
	n := mustOpen(t, cell.Config{Name: uniqueName()})
	c := mustCreate(t, n, "aaaaaaaa", 5)
	keys := append(cell.Settings(),
		"/proc/sys/net/ipv4/conf/"+c.Bridge+"/rp_filter",
		"/proc/sys/net/ipv4/conf/"+c.Bridge+"/arp_ignore",
		"/proc/sys/net/ipv6/conf/"+c.Bridge+"/disable_ipv6",
	)
	err := cell.Inside(n.Namespace(), func() error {
		others := map[string]string{}
		for _, key := range keys {
			old, err := os.ReadFile(key)
			if err != nil {
				return err
			}
			others[key] = "1"
			if strings.TrimSpace(string(old)) == "1" {
				others[key] = "0"
			}
		}
		for _, key := range keys {
			if err := os.WriteFile(key, []byte(others[key]), 0); err != nil && !strings.HasSuffix(key, lowMark) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	verdict := fmt.Sprint(n.Verify(t.Context()))
	for _, key := range keys {
		if !strings.Contains(verdict, strings.TrimPrefix(key, "/proc/sys/")) && !strings.HasSuffix(key, lowMark) {
			t.Errorf("Verify does not name %s: %s", key, verdict)
		}
	}
	if err := errors.Join(n.Repair(t.Context()), n.Verify(t.Context())); err != nil {
		t.Errorf("after Repair: %v", err)
	}
}

// Whatever could lead out is reported and not adopted; nothing is taken away
// that somebody else has put there.
func TestUplinksAreRefused(t *testing.T) {
	n := mustOpen(t, cell.Config{Name: uniqueName()})
	c := mustCreate(t, n, "aaaaaaaa", 5)
	for _, tt := range []struct{ do, undo, want string }{
		{"ip link add up0 type veth peer name up1; ip link set up0 up", "ip link del up0", "up0"},
		{"ip link add up0 type veth peer name up1; ip link set up0 master " + c.Bridge, "ip link del up0", "up0"},
		{"ip link add sp-uplink type bridge; ip link set sp-uplink up", "ip link del sp-uplink", "sp-uplink"},
		{"ip route add default via " + c.Sandbox.String(), "ip route del default", "leads out"},
		{"ip route add default via " + c.Sandbox.String() + " table 77", "ip route del default table 77", "leads out"},
	} {
		runIn(t, n.Namespace(), "sh", "-c", tt.do)
		if err := n.Verify(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Verify after %q: %v, want %q", tt.do, err, tt.want)
		}
		if err := n.Repair(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) { // and so Open
			t.Errorf("Repair after %q: %v, want %q", tt.do, err, tt.want)
		}
		runIn(t, n.Namespace(), "sh", "-c", tt.undo)
	}
	if err := n.Verify(t.Context()); err != nil {
		t.Errorf("Verify at the end: %v", err)
	}
}

func TestBrokenCellsAreReported(t *testing.T) {
	n := mustOpen(t, cell.Config{Name: uniqueName()})
	c := mustCreate(t, n, "aaaaaaaa", 5)
	for _, tt := range []struct{ do, undo, want string }{ // Repair undoes what undo does not
		{"bridge link set dev spv-aaaaaaaa isolated off", "", "isolated: false"},
		{"bridge link set dev spv-aaaaaaaa learning on", "", "learning: true"},
		{"sysctl -w net.ipv4.conf.spv-aaaaaaaa.rp_filter=0", "", "rp_filter"},
		{"ip link set spv-aaaaaaaa nomaster", "ip link set spv-aaaaaaaa master sp-aaaaaaaa", "no port"},
		{"ip addr add 10.213.9.1/28 dev sp-aaaaaaaa", "ip addr del 10.213.9.1/28 dev sp-aaaaaaaa", "no whole cell"},
		{"nsenter --net=" + c.Netns + " sysctl -w net.ipv6.conf.all.disable_ipv6=0", "nsenter --net=" + c.Netns + " sysctl -w net.ipv6.conf.all.disable_ipv6=1", "disable_ipv6"},
	} {
		runIn(t, n.Namespace(), "sh", "-c", tt.do)
		if err := n.Verify(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Verify after %q: %v, want %q", tt.do, err, tt.want)
		}
		runIn(t, n.Namespace(), "sh", "-c", tt.undo)
		if err := errors.Join(n.Repair(t.Context()), n.Verify(t.Context())); err != nil {
			t.Errorf("after Repair of %q: %v", tt.do, err)
		}
	}
}

// NW-18: what happens to the host's tables is of no consequence, and we do
// nothing to them.
func TestHostTablesDoNotMatter(t *testing.T) {
	restore := func() {
		for _, table := range []string{"nat", "filter"} {
			exec.Command("iptables", "-t", table, "-F").Run()
		}
		exec.Command("iptables", "-P", "FORWARD", "ACCEPT").Run()
	}
	defer restore()
	host := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "iptables", args...).CombinedOutput(); err != nil {
			t.Fatalf("iptables %v: %v\n%s", args, err, out)
		}
	}
	host("-A", "FORWARD", "-s", "10.213.0.0/16", "-j", "DROP")
	l := openLab(t, cell.Config{})
	out, err := exec.CommandContext(t.Context(), "iptables-save").CombinedOutput()
	if err != nil || strings.Contains(string(out), "sp-") {
		t.Errorf("the host's tables: %s, %v, want nothing of ours", out, err)
	}
	host("-F")
	host("-t", "nat", "-F")
	host("-P", "FORWARD", "ACCEPT")
	host("-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")
	if err := l.n.Verify(t.Context()); err != nil {
		t.Errorf("Verify: %v", err)
	}
	if _, greeting, err := dial(l.a, "1.1.1.1:443", limit); err != nil || greeting != "transparent" {
		t.Errorf("after the host's tables were flushed: %q, %v", greeting, err)
	}
	if err := send(l.a, "1.1.1.1:443", "x"); err != nil {
		t.Fatal(err)
	}
	l.heard()
	l.silence(t, l.a)
}

// Both backends of iptables, whichever is the machine's default.
func TestBackends(t *testing.T) {
	for _, backend := range []string{"legacy", "nft"} {
		t.Run(backend, func(t *testing.T) {
			dir := t.TempDir()
			for _, program := range []string{"iptables", "ip6tables", "iptables-save", "ip6tables-save"} {
				family, rest, _ := strings.Cut(program, "-")
				path, err := exec.LookPath(strings.TrimSuffix(family+"-"+backend+"-"+rest, "-"))
				if err == nil {
					err = os.Symlink(path, filepath.Join(dir, program))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			l := openLab(t, cell.Config{})
			if err := l.n.Verify(t.Context()); err != nil {
				t.Errorf("Verify: %v", err)
			}
			for dst, want := range map[string]string{
				"1.1.1.1:443": "transparent", on(l.b.Gateway, 3128): "transparent",
				on(l.a.Gateway, 3128): "explicit", "8.8.8.8:53": "dns/tcp",
			} {
				if _, greeting, err := dial(l.a, dst, limit); err != nil || greeting != want {
					t.Errorf("connection to %s: %q, %v, want %s", dst, greeting, err, want)
				}
			}
			l.heard()
			dropped := l.counted(t, l.a, func() {
				if err := errors.Join(send(l.a, "1.1.1.1:443", "x"), send(l.a, on(l.a.Gateway, 9999), "x")); err != nil {
					t.Fatal(err)
				}
				l.silence(t, l.a)
			})
			if dropped.UDP != 2 {
				t.Errorf("dropped %+v, want 2 of UDP", dropped)
			}
			l.gateway(t, "iptables", "-I", "sp-in", "1", "-j", "ACCEPT")
			l.gateway(t, "iptables", "-F", "sp-aaaaaaaa")
			again := mustOpen(t, l.cfg)
			if err := again.Verify(t.Context()); err != nil {
				t.Errorf("Verify after Open: %v", err)
			}
			if err := again.Remove(t.Context(), l.a.ID); err != nil {
				t.Error(err)
			}
			if err := again.Verify(t.Context()); err != nil {
				t.Errorf("Verify after Remove: %v", err)
			}
		})
	}
}

// CF-12: what cannot be enforced is refused, with words that help.
func TestOpenRefuses(t *testing.T) {
	name := uniqueName()
	t.Run("no iptables", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		refused(t, name, "install the iptables package")
	})
	t.Run("no ip6tables", func(t *testing.T) {
		dir := t.TempDir()
		path, err := exec.LookPath("iptables")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, "iptables")); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir)
		refused(t, name, "ip6tables")
	})
	t.Run("a match that the kernel lacks", func(t *testing.T) {
		dir := t.TempDir()
		path, err := exec.LookPath("iptables")
		if err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *connlimit*) echo no such match >&2; exit 2;; esac\nexec %s \"$@\"\n", path)
		if err := os.WriteFile(filepath.Join(dir, "iptables"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		refused(t, name, "xt_connlimit")
	})
	t.Run("not root", func(t *testing.T) {
		err := cell.OnThread(func() error {
			// This thread alone; it dies afterwards.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
				return errno
			}
			_, err := cell.Open(t.Context(), cell.Config{Name: name})
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "root") {
			t.Errorf("Open as nobody: %v", err)
		}
	})
	t.Run("read-only sysctls", func(t *testing.T) {
		out, err := runChild(t.Context(), name, "", "unshare", "-m", "sh", "-c",
			`mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec "$0"`)
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(out, "sysctl") {
			t.Errorf("child with read-only sysctls: %v\n%s", err, out)
		}
	})
	t.Run("the host's own namespace", func(t *testing.T) {
		path := "/run/netns/" + name
		if err := errors.Join(os.WriteFile(path, nil, 0o444), unix.Mount("/proc/self/ns/net", path, "", unix.MS_BIND, "")); err != nil {
			t.Fatal(err)
		}
		before := host(t, name)
		refused(t, name, "own namespace")
		if after := host(t, name); after != before {
			t.Errorf("the refusal changed the host:\n%s\nwant:\n%s", after, before)
		}
		if err := errors.Join(unix.Unmount(path, 0), os.Remove(path)); err != nil {
			t.Fatal(err)
		}
	})
	if left, err := filepath.Glob("/run/netns/" + name + "*"); err != nil || len(left) > 0 {
		t.Errorf("refusals left %v, %v", left, err)
	}
	mustOpen(t, cell.Config{Name: name}) // the twin
}

func refused(t *testing.T, name, want string) {
	t.Helper()
	n, err := cell.Open(t.Context(), cell.Config{Name: name})
	if err == nil {
		n.Destroy(t.Context())
		n.Close()
	}
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Open: %v, want it to say %q", err, want)
	}
}
