package e2e_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sallyport/test/lab"
)

// NW-22: what the daemons listen on is in the cells' namespace, where nothing but cells
// is; the machine that they run on has no listener of theirs but the one for metrics, at
// the address that it was given.
func TestListenersAreTheCellsAlone(t *testing.T) {
	own := sockets(t)
	if len(own) < 8 {
		t.Fatalf("the daemons have %d sockets", len(own))
	}
	var here []string
	for _, proto := range []string{"tcp", "tcp6", "udp", "udp6"} {
		here = append(here, listening(proto, read(t, "/proc/net/"+proto), own)...)
	}
	if want := []string{"tcp " + metricsAddr}; !slices.Equal(here, want) {
		t.Errorf("the daemons listen on the host at %q, want %q", here, want)
	}
	// The twin: the same search finds all four in the cells' namespace.
	var there []string
	for _, proto := range []string{"tcp", "tcp6", "udp", "udp6"} {
		out, err := exec.Command("nsenter", "--net=/run/netns/"+instance, "cat", "/proc/self/net/"+proto).Output()
		if err != nil && len(out) > 0 {
			t.Fatal(err)
		}
		there = append(there, listening(proto, string(out), own)...)
	}
	slices.Sort(there)
	if want := []string{"tcp 0.0.0.0:15001", "tcp 0.0.0.0:3128", "tcp 0.0.0.0:53", "udp 0.0.0.0:53"}; !slices.Equal(there, want) {
		t.Errorf("the daemons listen for cells at %q, want %q", there, want)
	}
	links, err := exec.Command("nsenter", "--net=/run/netns/"+instance, "ip", "-o", "link", "show", "up").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(links)) {
		if name := strings.Fields(line)[1]; name != "lo:" && !strings.HasPrefix(name, "sp-") && !strings.HasPrefix(name, "spv-") {
			t.Errorf("the cells' namespace has interface %s", name)
		}
	}
	// From the host, no address of its own has a listener at these ports.
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		ip := netip.MustParsePrefix(a.String()).Addr()
		for _, port := range []uint16{15001, 3128} {
			if c, err := net.Dial("tcp", netip.AddrPortFrom(ip, port).String()); err == nil {
				c.Close()
				t.Errorf("something listens at %v:%d", ip, port)
			}
		}
	}
}

// sockets are the inodes of every socket of the product's processes.
func sockets(t *testing.T) (own []string) {
	t.Helper()
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, exe := range exes {
		if to, _ := os.Readlink(exe); to != w.bin { // it may have ended
			continue
		}
		fds, _ := filepath.Glob(filepath.Join(filepath.Dir(exe), "fd", "*"))
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); strings.HasPrefix(to, "socket:[") {
				own = append(own, strings.Trim(to, "socket:[]"))
			}
		}
	}
	return own
}

// listening picks, of a table of sockets (proc_net_tcp(5)), those of own that anybody
// can connect or send to.
func listening(proto, table string, own []string) (out []string) {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		const listen, unconnected = "0A", "07"
		if len(f) < 10 || f[3] != map[bool]string{true: listen, false: unconnected}[strings.HasPrefix(proto, "tcp")] || !slices.Contains(own, f[9]) {
			continue
		}
		var port int
		var b [4]byte
		if n, _ := fmt.Sscanf(f[1], "%02X%02X%02X%02X:%04X", &b[3], &b[2], &b[1], &b[0], &port); n != 5 {
			out = append(out, proto+" "+f[1]) // IPv6
			continue
		}
		out = append(out, fmt.Sprintf("%s %v:%d", proto, netip.AddrFrom4(b), port))
	}
	return out
}

// EX-02: an allowed git server is no drop box: a push goes to the repository that the
// policy names, by the preset's rules, and to no other of the same server.
func TestPushGoesToNamedRepositories(t *testing.T) {
	foreign := filepath.Join(filepath.Dir(w.lab.Repo), "drop.git")
	for _, args := range [][]string{{"init", "--quiet", "--bare", foreign}, {"-C", foreign, "config", "http.receivepack", "true"}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	named := strings.TrimSuffix(strings.TrimPrefix(lab.GitPath, "/"), ".git")
	policy := "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: push, owner: tests, description: push to one repository}\n" +
		"include: [{preset: git-push@1, with: {hosts: [" + lab.FilesName + "], projects: [" + named + "]}}]\n"
	if err := os.WriteFile(filepath.Join(w.dir, "push.yaml"), []byte(policy), 0o644); err != nil {
		t.Fatal(err)
	}
	w.lab.Files.Reset()
	server := "https://" + lab.FilesName
	r := sandboxWith(t, "push.yaml", nil, "sh", "-ec", fmt.Sprintf(`export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.test GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b.test
		git clone -q %[1]s%[2]s /tmp/p; cd /tmp/p; git commit -q --allow-empty -m canary
		git push -q --force origin HEAD:refs/heads/named && echo pushed
		for to in drop.git project.wiki.git project.git.git; do git push -q %[1]s/git/$to HEAD:refs/heads/x 2>&1 || echo refused; done
		curl -sS -o /dev/null -w '%%{http_code}\n' -X POST --data-binary canary %[1]s/git/drop.git/git-receive-pack`, server, lab.GitPath))
	if !strings.Contains(r.stdout, "pushed") || strings.Count(r.stdout, "refused") != 3 || !strings.HasSuffix(strings.TrimSpace(r.stdout), "403") {
		t.Errorf("the sandbox said %q, %q", r.stdout, r.stderr)
	}
	var reasons []string
	for _, d := range r.Denials {
		reasons = append(reasons, d.Reason)
	}
	if want := slices.Repeat([]string{"path_not_allowed"}, 4); !slices.Equal(reasons, want) {
		t.Errorf("denials %+v, want %q", r.Denials, want)
	}
	for _, v := range w.lab.Files.Seen() {
		if !strings.HasPrefix(v.URI, lab.GitPath+"/") {
			t.Errorf("the server saw %s", v.URI)
		}
	}
	branches := func(repo string) string {
		out, err := exec.Command("git", "-c", "safe.directory=*", "--git-dir", repo, "for-each-ref", "--format=%(refname:short)").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if got := branches(w.lab.Repo); !strings.Contains(got, "named") {
		t.Errorf("the named repository has %q", got)
	}
	if got := branches(foreign); got != "" {
		t.Errorf("the other repository has %q", got)
	}
}
