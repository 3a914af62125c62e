package dns_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/proxy/dns"
	"sallyport/rules/target"
)

func open(t *testing.T, cfg dns.NamesConfig) *dns.Names {
	t.Helper()
	n, err := dns.NewNames(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func assign(t *testing.T, n *dns.Names, cell, s string) netip.Addr {
	t.Helper()
	a, err := n.Assign(cell, name(t, s))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestNewNamesRefuses(t *testing.T) {
	dir := t.TempDir()
	for what, cfg := range map[string]dns.NamesConfig{
		"no directory":      {},
		"a missing one":     {Dir: filepath.Join(dir, "missing")},
		"IPv6":              {Dir: dir, Range: netip.MustParsePrefix("2001:db8::/64")},
		"too small":         {Dir: dir, Range: netip.MustParsePrefix("198.18.0.0/25")},
		"not masked":        {Dir: dir, Range: netip.MustParsePrefix("198.18.0.1/15")},
		"too many names":    {Dir: dir, Range: netip.MustParsePrefix("198.18.0.0/24"), PerCell: 255},
		"a negative number": {Dir: dir, PerCell: -1},
	} {
		if _, err := dns.NewNames(cfg); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
}

func TestNamesGiveOneAddressForOneName(t *testing.T) {
	n := open(t, dns.NamesConfig{Dir: t.TempDir()})
	ok1, other := assign(t, n, "one", "ok.test"), assign(t, n, "one", "other.test")
	if ok1 == other {
		t.Errorf("two names have %v", ok1)
	}
	if again := assign(t, n, "one", "OK.test."); again != ok1 {
		t.Errorf("ok.test has %v and %v", ok1, again)
	}
	assign(t, n, "two", "elsewhere.test")
	if got, found := n.Lookup("one", ok1); !found || got != name(t, "ok.test") {
		t.Errorf("Lookup = %v, %v", got, found)
	}
	if got, _ := n.Lookup("two", ok1); got == name(t, "ok.test") {
		t.Error("a cell knows what another one asked")
	}
	for _, a := range []string{"198.18.0.0", "198.18.0.9", "11.7.7.7", "::1"} {
		if got, found := n.Lookup("one", netip.MustParseAddr(a)); found {
			t.Errorf("%s was never handed out, and is %v", a, got)
		}
	}
	if _, err := n.Assign("one", target.Name{}); err == nil {
		t.Error("no name got an address")
	}
	mapped := netip.AddrFrom16(ok1.As16())
	if got, found := n.Lookup("one", mapped); !found || got != name(t, "ok.test") {
		t.Errorf("mapped: %v, %v", got, found)
	}
}

func TestNamesStayInRange(t *testing.T) {
	r := netip.MustParsePrefix("198.18.4.0/23")
	n := open(t, dns.NamesConfig{Dir: t.TempDir(), Range: r, PerCell: 508})
	seen := map[netip.Addr]bool{}
	for i := range 508 {
		a := assign(t, n, "one", fmt.Sprintf("n%d.test", i))
		last := a.As4()[3]
		if seen[a] || !r.Contains(a) || last == 0 || last == 255 || !n.Contains(a) {
			t.Fatalf("name %d has %v", i, a)
		}
		seen[a] = true
	}
	if _, err := n.Assign("one", name(t, "more.test")); !errors.Is(err, dns.ErrNoRoom) {
		t.Errorf("one more: %v", err)
	}
	if n.Room("one", name(t, "more.test")) || !n.Room("one", name(t, "n0.test")) || !n.Room("two", name(t, "more.test")) {
		t.Error("room is not told right")
	}
}

// TestNamesOutliveTheGateway: what was answered still holds after a restart.
func TestNamesOutliveTheGateway(t *testing.T) {
	dir := t.TempDir()
	n := open(t, dns.NamesConfig{Dir: dir})
	a, b := assign(t, n, "one", "a.test"), assign(t, n, "one", "b.test")
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = open(t, dns.NamesConfig{Dir: dir})
	if got, found := n.Lookup("one", a); !found || got != name(t, "a.test") {
		t.Errorf("Lookup = %v, %v", got, found)
	}
	if c := assign(t, n, "one", "c.test"); c == a || c == b {
		t.Errorf("c.test has another name's address %v", c)
	}
	if got := assign(t, n, "one", "b.test"); got != b {
		t.Errorf("b.test had %v, has %v", b, got)
	}
}

// TestTornLine: the gateway was killed while it wrote. The name was not
// answered yet, and its address goes to the next one.
func TestTornLine(t *testing.T) {
	for _, torn := range []string{"1", "198.18.0.2", "198.18.0.2 b.te", "198.18.0.2 b.test"} {
		dir := t.TempDir()
		file := filepath.Join(dir, "one.names")
		if err := os.WriteFile(file, []byte("198.18.0.1 a.test\n"+torn), 0o600); err != nil {
			t.Fatal(err)
		}
		n := open(t, dns.NamesConfig{Dir: dir})
		if got, found := n.Lookup("one", netip.MustParseAddr("198.18.0.1")); !found || got != name(t, "a.test") {
			t.Errorf("%q: Lookup = %v, %v", torn, got, found)
		}
		if got, found := n.Lookup("one", netip.MustParseAddr("198.18.0.2")); found {
			t.Errorf("%q: the torn name is %v", torn, got)
		}
		if got := assign(t, n, "one", "c.test"); got != netip.MustParseAddr("198.18.0.2") {
			t.Errorf("%q: c.test has %v", torn, got)
		}
		want := "198.18.0.1 a.test\n198.18.0.2 c.test\n"
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%q: file is %q, %v", torn, got, err)
		}
	}
}

// TestDamagedFileRefusesTheCell: a table that cannot be trusted is not used.
func TestDamagedFileRefusesTheCell(t *testing.T) {
	for what, text := range map[string]string{
		"another address":   "198.18.0.9 a.test\n",
		"an address twice":  "198.18.0.1 a.test\n198.18.0.1 b.test\n",
		"a name twice":      "198.18.0.1 a.test\n198.18.0.2 a.test\n",
		"a line lost":       "198.18.0.2 b.test\n",
		"no name":           "198.18.0.1 \n",
		"no host name":      "198.18.0.1 a b\n",
		"another spelling":  "198.18.0.1 A.test\n",
		"an empty line":     "198.18.0.1 a.test\n\n198.18.0.2 b.test\n",
		"one at the start":  "\n198.18.0.1 a.test\n",
		"binary":            "\x00\x01\x02\n",
		"another text":      "hello\n",
		"carriage return":   "198.18.0.1 a.test\r\n",
		"mapped":            "::ffff:198.18.0.1 a.test\n",
		"out of its bounds": strings.Repeat("x", 1000) + "\n",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "one.names"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		n := open(t, dns.NamesConfig{Dir: dir})
		if got, found := n.Lookup("one", netip.MustParseAddr("198.18.0.1")); found {
			t.Errorf("%s: Lookup = %v", what, got)
		}
		if a, err := n.Assign("one", name(t, "c.test")); err == nil {
			t.Errorf("%s: c.test has %v", what, a)
		}
		if n.Room("one", name(t, "c.test")) {
			t.Errorf("%s: there is room", what)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "one.names")); err != nil || string(got) != text {
			t.Errorf("%s: the file was changed to %q", what, got)
		}
		assign(t, n, "two", "c.test")
	}
}

// TestCellsCannotNamePaths.
func TestCellsCannotNamePaths(t *testing.T) {
	dir := t.TempDir()
	inner := filepath.Join(dir, "inner")
	if err := os.Mkdir(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(dir, "x.names")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(inner, "link.names")); err != nil {
		t.Fatal(err)
	}
	n := open(t, dns.NamesConfig{Dir: inner})
	for _, cell := range []string{"", ".", "..", "../x", "a/b", "/x", "A", "-a", "a.b", "a b", "a\x00", "ä", strings.Repeat("a", 65), "link"} {
		if a, err := n.Assign(cell, name(t, "a.test")); err == nil {
			t.Errorf("%q: %v", cell, a)
		}
		if _, found := n.Lookup(cell, netip.MustParseAddr("198.18.0.1")); found {
			t.Errorf("%q: found", cell)
		}
		if err := n.Forget(cell); err == nil && cell != "link" {
			t.Errorf("%q: forgotten", cell)
		}
	}
	if got, err := os.ReadFile(outside); err != nil || len(got) != 0 {
		t.Errorf("a file outside is %q, %v", got, err)
	}
	assign(t, n, "a1-b", "a.test")
}

func TestForgetAndPrune(t *testing.T) {
	dir := t.TempDir()
	n := open(t, dns.NamesConfig{Dir: dir})
	a := assign(t, n, "one", "a.test")
	assign(t, n, "two", "b.test")
	if err := n.Forget("one"); err != nil {
		t.Fatal(err)
	}
	if err := n.Forget("one"); err != nil {
		t.Errorf("twice: %v", err)
	}
	if _, found := n.Lookup("one", a); found {
		t.Error("a forgotten cell is known")
	}
	if _, found := n.Lookup("two", a); !found {
		t.Error("another cell was forgotten too")
	}
	if err := os.WriteFile(filepath.Join(dir, "old.names"), []byte("198.18.0.1 a.test\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.Prune(func(cell string) bool { return cell == "two" }); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "two.names" {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestNamesAtOnce(t *testing.T) {
	dir := t.TempDir()
	n := open(t, dns.NamesConfig{Dir: dir})
	var all sync.WaitGroup
	var mu sync.Mutex
	got := map[string]map[netip.Addr]bool{}
	for i := range 400 {
		all.Go(func() {
			s := fmt.Sprintf("n%d.test", i%40)
			a, err := n.Assign("one", name(t, s))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if got[s] == nil {
				got[s] = map[netip.Addr]bool{}
			}
			got[s][a] = true
		})
	}
	all.Wait()
	taken := map[netip.Addr]bool{}
	for s, addrs := range got {
		for a := range addrs {
			if len(addrs) != 1 || taken[a] {
				t.Errorf("%s has %v", s, addrs)
			}
			taken[a] = true
		}
	}
	_ = n.Close()
	n = open(t, dns.NamesConfig{Dir: dir})
	for s, addrs := range got {
		if a := assign(t, n, "one", s); !addrs[a] {
			t.Errorf("%s had %v, has %v", s, addrs, a)
		}
	}
}

// TestFullDisk: a name whose address could not be kept has none.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	n := open(t, dns.NamesConfig{Dir: dir})
	if _, found := n.Lookup("one", netip.MustParseAddr("198.18.0.1")); found {
		t.Fatal("found")
	}
	// The device on which every write fails, where the file is about to be made.
	if err := unix.Mknod(filepath.Join(dir, "one.names"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7))); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if a, err := n.Assign("one", name(t, "a.test")); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("Assign = %v, %v, want no space", a, err)
		}
	}
	if _, found := n.Lookup("one", netip.MustParseAddr("198.18.0.1")); found {
		t.Error("an address that was not kept is known")
	}
	assign(t, n, "two", "a.test")
}
