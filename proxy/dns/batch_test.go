package dns_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"sallyport/audit"
	"sallyport/proxy/dns"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/test/lab"
)

// AppendAll records in one go, or not at all.
func (r *recorder) AppendAll(_ context.Context, recs []*audit.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return r.fail
	}
	for _, rec := range recs {
		r.all = append(r.all, *rec)
	}
	r.together = max(r.together, len(recs))
	return nil
}

// burst has w serve a socket in which all of queries lie already, each from a
// socket of its own, and returns what is answered to each, once n of them are and
// the server has ended.
func (w *world) burst(src []netip.AddrPort, queries []*mdns.Msg, n int) (answers []string) {
	w.t.Helper()
	pc, err := net.ListenPacket("udp4", "0.0.0.0:5300")
	if err != nil {
		w.t.Fatal(err)
	}
	conns := make([]net.Conn, len(queries))
	for i, m := range queries {
		m.Id = uint16(1000 + i)
		conns[i] = from(w.t, "udp", src[i], gateway)
		before := unread(w.t)
		if err := (&mdns.Conn{Conn: conns[i]}).WriteMsg(m); err != nil {
			w.t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); unread(w.t) == before; { // the kernel may take its time, on a loopback too
			if time.Now().After(end) {
				w.t.Fatalf("query %d did not arrive", i)
			}
		}
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Serve(ctx, pc, nil) }()
	answers = make([]string, len(queries))
	came, all := make(chan struct{}, len(queries)), make(chan struct{})
	var readers sync.WaitGroup
	for i, c := range conns {
		readers.Go(func() {
			m, err := (&mdns.Conn{Conn: c}).ReadMsg()
			if answers[i] = said(m); err != nil {
				return
			}
			if m.Id != queries[i].Id {
				w.t.Errorf("query %d: an answer to another", i)
			}
			came <- struct{}{}
		})
	}
	go func() { readers.Wait(); close(all) }()
	for range n {
		select {
		case <-came:
		case <-all: // by their deadline
		}
	}
	cancel()
	if err := <-ended; err != nil {
		w.t.Errorf("Serve = %v", err)
	}
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // what came is there
	}
	<-all
	return answers
}

// unread returns how much memory the queries take that lie in the server's socket.
func unread(t *testing.T) uint64 {
	t.Helper()
	all, err := lab.Sockets("udp")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(s lab.Socket) bool { return s.Own == netip.MustParseAddrPort("0.0.0.0:5300") })
	if i < 0 {
		t.Fatal("no socket of the server")
	}
	return all[i].Unread
}

// oddLot is a burst of all sorts, and what each is answered with alone.
func oddLot() (src []netip.AddrPort, queries []*mdns.Msg, want []string) {
	response := query("ok.test", mdns.TypeA)
	response.Response = true
	for _, q := range []struct {
		from netip.AddrPort
		m    *mdns.Msg
		want string
	}{
		{one, query("ok.test", mdns.TypeA), "198.18.0.1"},
		{two, query("evil.test", mdns.TypeA), "NXDOMAIN"},
		{one, query("boom.test", mdns.TypeA), "silence"},
		{nowhere, query("ok.test", mdns.TypeA), "REFUSED"},
		{two, query("ok.test", mdns.TypeA), "198.18.0.1"},
		{one, query("ok.test", mdns.TypeAAAA), "NODATA"},
		{one, query("ok.test", mdns.TypeTXT), "NODATA"},
		{one, response, "silence"},
		{two, query("x.wild.test", mdns.TypeAAAA), "NODATA"},
	} {
		src, queries, want = append(src, q.from), append(queries, q.m), append(want, q.want)
	}
	return src, queries, want
}

// TestBurst: what comes together is answered like what comes alone, to whoever
// asked, with one record each; a panic costs the one query.
func TestBurst(t *testing.T) {
	w := newWorld(t, rules.NameErrorDenied, func(c *dns.Config) { c.Gate = panicGate{c.Gate} })
	src, queries, want := oddLot()
	for i, got := range w.burst(src, queries, len(queries)-2) {
		if got != want[i] {
			t.Errorf("%v: %s, want %s", queries[i].Question[0].Name, got, want[i])
		}
	}
	recs := w.records.take()
	if len(recs) != len(queries) {
		t.Errorf("%d records for %d queries: %+v", len(recs), len(queries), recs)
	}
	refused := 0
	for _, r := range recs {
		if r.Kind == audit.Refuse {
			refused++
		}
	}
	if refused != 3 { // the panic, the stranger, the answer
		t.Errorf("%d are refused, want 3", refused)
	}
}

// TestBurstIsRecordedTogether: without anything odd in it.
func TestBurstIsRecordedTogether(t *testing.T) {
	w := newWorld(t, rules.NameErrorDenied, func(c *dns.Config) { c.Workers = 1 })
	var src []netip.AddrPort
	var queries []*mdns.Msg
	for i := range 6 {
		src, queries = append(src, one), append(queries, query(fmt.Sprintf("n%d.wild.test", i), mdns.TypeA))
	}
	for i, got := range w.burst(src, queries, len(queries)) {
		if want := fmt.Sprintf("198.18.0.%d", i+1); got != want {
			t.Errorf("query %d: %s, want %s", i, got, want)
		}
	}
	if recs := w.records.take(); len(recs) != 6 || w.records.together != 6 {
		t.Errorf("%d records, %d at once, want 6", len(recs), w.records.together)
	}
	w.records.breakWith(errors.New("full"))
	for i, got := range w.burst(src, queries, len(queries)) {
		if got != "SERVFAIL" {
			t.Errorf("query %d without a record: %s", i, got)
		}
	}
}

// TestBurstIsPaced: each query of a burst counts.
func TestBurstIsPaced(t *testing.T) {
	w := newWorld(t, rules.NameErrorDenied, func(c *dns.Config) { c.Workers, c.Rate, c.Burst = 1, 1, 2 })
	var src []netip.AddrPort
	var queries []*mdns.Msg
	for range 4 {
		src, queries = append(src, one), append(queries, query("ok.test", mdns.TypeA))
	}
	answered := 0
	for _, got := range w.burst(src, queries, 2) {
		if got == "198.18.0.1" {
			answered++
		}
	}
	if recs := w.records.take(); answered != 2 || len(recs) != 3 || recs[2].Reason != "limit" && recs[0].Reason != "limit" {
		t.Errorf("%d answered, records %+v", answered, recs)
	}
}

// TestLookUpHoldsUpNobody: in a burst, the others are answered while a look-up
// takes its time, and so is a second look-up.
func TestLookUpHoldsUpNobody(t *testing.T) {
	release := make(chan struct{})
	var asked sync.WaitGroup
	asked.Add(2)
	w := newLookupWorld(t, func(context.Context, gate.Pass) ([]mdns.RR, error) {
		asked.Done()
		<-release
		return nil, nil
	})
	go func() {
		asked.Wait() // both are under way at once
		close(release)
	}()
	got := w.burst([]netip.AddrPort{one, one, one}, []*mdns.Msg{
		query("ok.test", mdns.TypeTXT), query("ok.test", mdns.TypeAAAA), query("ok.test", mdns.TypeA),
	}, 3)
	if got[0] != "NODATA" || got[1] != "NODATA" || got[2] != "198.18.0.1" {
		t.Errorf("answers %v", got)
	}
	recs := w.records.take()
	if len(recs) != 5 {
		t.Fatalf("records: %+v", recs)
	}
	for _, r := range recs[:3] {
		if r.Kind != audit.DNS {
			t.Errorf("among the first three records: %+v", r)
		}
	}
}

// slowGate records its first batch only when it is asked about another.
type slowGate struct {
	dns.Gate

	calls  atomic.Int32
	second chan struct{}
}

// AnswerAll implements [dns.Gate].
func (g *slowGate) AnswerAll(ctx context.Context, qs []gate.Query, answer func(int, rules.Decision) string, opened func(int, gate.Pass)) error {
	switch g.calls.Add(1) {
	case 1:
		select {
		case <-g.second:
		case <-ctx.Done():
			return ctx.Err()
		}
	case 2:
		close(g.second)
	}
	return g.Gate.AnswerAll(ctx, qs, answer, opened)
}

// TestSlowRecordHoldsUpNobody: what does not fit the batch that is being recorded is
// answered meanwhile.
func TestSlowRecordHoldsUpNobody(t *testing.T) {
	const n = 12 // a batch and a half
	g := &slowGate{second: make(chan struct{})}
	w := newWorld(t, rules.NameErrorDenied, func(c *dns.Config) { g.Gate, c.Gate = c.Gate, g })
	var src []netip.AddrPort
	var queries []*mdns.Msg
	for range n {
		src, queries = append(src, one), append(queries, query("ok.test", mdns.TypeA))
	}
	for i, got := range w.burst(src, queries, len(queries)) {
		if got != "198.18.0.1" {
			t.Errorf("query %d: %s", i, got)
		}
	}
	if recs := w.records.take(); len(recs) != n || g.calls.Load() != 2 {
		t.Errorf("%d records for %d queries in %d batches, want 2", len(recs), n, g.calls.Load())
	}
}
