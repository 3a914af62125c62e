package live_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/rules/gate"
	"sallyport/rules/live"
)

func cell(id, run, addr string) live.Cell {
	c := live.Cell{Identity: gate.Identity{Cell: id, Run: run}}
	if addr != "" {
		c.Addr = netip.MustParseAddr(addr)
	}
	return c
}

// state tells a table in short, from both sides.
func state(t *live.Table, ids []string, addrs []string) string {
	var out []string
	for _, id := range ids {
		if i, ok := t.Identity(id); ok {
			out = append(out, i.Cell+"="+i.Run)
		}
	}
	for _, a := range addrs {
		if c, ok := t.ByAddr(netip.MustParseAddr(a)); ok {
			out = append(out, a+"→"+c)
		}
	}
	return strings.Join(out, " ")
}

var (
	allIDs   = []string{"a", "b", "c", ""}
	allAddrs = []string{"10.213.0.2", "10.213.0.18", "10.213.0.34", "0.0.0.0"}
)

func want(t *testing.T, table *live.Table, want string) {
	t.Helper()
	if diff := cmp.Diff(want, state(table, allIDs, allAddrs)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestZeroTableKnowsNobody(t *testing.T) {
	var table live.Table
	want(t, &table, "")
	if table.Detach("a") || len(table.Cells()) != 0 {
		t.Error("the zero table holds a cell")
	}
	if _, ok := table.ByAddr(netip.Addr{}); ok {
		t.Error("no address is a cell")
	}
}

func TestAttachAndDetach(t *testing.T) {
	var table live.Table
	attach := func(c live.Cell, ok bool) {
		t.Helper()
		if err := table.Attach(c); (err == nil) != ok {
			t.Errorf("Attach(%v) = %v, want ok %v", c, err, ok)
		}
	}
	attach(cell("a", "r1", "10.213.0.2"), true)
	attach(cell("b", "r2", "::ffff:10.213.0.18"), true)
	want(t, &table, "a=r1 b=r2 10.213.0.2→a 10.213.0.18→b")

	// An address is an identity: it is never taken from a cell that has it.
	attach(cell("c", "r3", "10.213.0.2"), false)
	attach(cell("b", "r2", "10.213.0.2"), false)
	attach(cell("", "r3", "10.213.0.34"), false)
	attach(cell("c", "r3", ""), false)
	attach(cell("c", "r3", "0.0.0.0"), false)
	attach(cell("c", "r3", "fe80::1%eth0"), false)
	want(t, &table, "a=r1 b=r2 10.213.0.2→a 10.213.0.18→b")

	attach(cell("a", "r9", "10.213.0.34"), true) // moved: its old address is nobody's
	want(t, &table, "a=r9 b=r2 10.213.0.18→b 10.213.0.34→a")
	if !table.Detach("a") || table.Detach("a") {
		t.Error("Detach is wrong about what was attached")
	}
	want(t, &table, "b=r2 10.213.0.18→b")
	attach(cell("c", "r3", "10.213.0.34"), true)
	want(t, &table, "b=r2 c=r3 10.213.0.18→b 10.213.0.34→c")
}

func TestReplace(t *testing.T) {
	var table live.Table
	if err := table.Replace([]live.Cell{cell("a", "r1", "10.213.0.2"), cell("b", "r2", "10.213.0.18")}); err != nil {
		t.Fatal(err)
	}
	want(t, &table, "a=r1 b=r2 10.213.0.2→a 10.213.0.18→b")
	err := table.Replace([]live.Cell{
		cell("a", "r1", "10.213.0.2"), cell("b", "r2", "10.213.0.2"), // one address
		cell("c", "r3", "10.213.0.18"),
	})
	if err == nil || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("two cells at one address: %v", err)
	}
	want(t, &table, "c=r3 10.213.0.18→c")
	if err := table.Replace([]live.Cell{cell("a", "r1", "10.213.0.2"), cell("a", "r2", "10.213.0.18"), cell("b", "", "")}); err == nil {
		t.Error("two cells with one id, and one without an address: no error")
	}
	want(t, &table, "")
	if err := table.Replace(nil); err != nil {
		t.Error(err)
	}
}

func TestNotify(t *testing.T) {
	var table live.Table
	c, d := make(chan struct{}, 1), make(chan struct{}, 1)
	stop := table.Notify(c)
	stopD := table.Notify(d)
	told := func(ch chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	steps := []struct {
		name string
		do   func()
		told bool
	}{
		{"attach", func() { _ = table.Attach(cell("a", "r", "10.213.0.2")) }, true},
		{"refused attach", func() { _ = table.Attach(cell("b", "r", "10.213.0.2")) }, false},
		{"detach nobody", func() { table.Detach("b") }, false},
		{"detach", func() { table.Detach("a") }, true},
		{"replace", func() { _ = table.Replace(nil) }, true},
	}
	for _, s := range steps {
		s.do()
		if got := told(c); got != s.told {
			t.Errorf("%s: told %v, want %v", s.name, got, s.told)
		}
	}
	if !told(d) || told(d) {
		t.Error("a full channel is not covered by the signal in it")
	}
	stop()
	stop()
	_ = table.Replace(nil)
	if told(c) || !told(d) {
		t.Error("stop ended the wrong one")
	}
	stopD()
}

// TestReadersSeeWholeTables: under changes, a cell and its address agree, and
// every change is told (DS-14, CF-05).
func TestReadersSeeWholeTables(t *testing.T) {
	var table live.Table
	full := []live.Cell{cell("a", "r", "10.213.0.2"), cell("b", "r", "10.213.0.18")}
	if err := table.Replace(full); err != nil {
		t.Fatal(err)
	}
	c := make(chan struct{}, 1)
	defer table.Notify(c)()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 200 {
				if i == 0 {
					_ = table.Replace(full)
					_ = table.Attach(cell("c", fmt.Sprint(n), "10.213.0.34"))
					table.Detach("c")
					continue
				}
				cells := table.Cells()
				if len(cells) < 2 || len(cells) > 3 || !slices.ContainsFunc(cells, func(c live.Cell) bool { return c.Cell == "a" }) {
					t.Errorf("a torn table: %v", cells)
				}
				if id, ok := table.ByAddr(netip.MustParseAddr("10.213.0.18")); !ok || id != "b" {
					t.Errorf("b is %q", id)
				}
				table.Identity("c")
			}
		})
	}
	wg.Wait()
	select {
	case <-c:
	default:
		t.Error("nobody was told")
	}
}
