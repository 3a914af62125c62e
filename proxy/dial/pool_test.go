package dial_test

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"sallyport/proxy/dial"
	"sallyport/rules/gate"
	"sallyport/test/lab"
)

// TestPooling: one connection serves one cell, run and policy, and nobody else.
func TestPooling(t *testing.T) {
	w := newWorld(t, ok, nil)
	w.ids["c2"] = gate.Identity{Cell: "c2", Run: "r2", Policy: w.ids["c1"].Policy}
	w.resolver.Set("ok.test", "A 11.7.7.7")
	s := w.site("ok.test", okAddr, nil)
	want := 0
	get := func(what, cell string, fresh int) {
		t.Helper()
		for range 5 {
			p := w.fetchAs(cell, "GET", "https://ok.test/")
			resp, err := w.forward(p, nil)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			body(t, resp)
			if err := p.Done(t.Context(), gate.Outcome{}); err != nil {
				t.Fatal(err)
			}
		}
		if want += fresh; s.Connections() != want {
			t.Errorf("%s: %d connections, want %d", what, s.Connections(), want)
		}
	}
	get("first", "c1", 1)
	get("another cell", "c2", 1)
	get("the first again", "c1", 0)
	one := w.ids["c1"]
	w.ids["c1"] = gate.Identity{Cell: "c1", Run: "r1", Policy: policy(t, "sha256:two", ok)}
	get("another policy", "c1", 1)
	one.Run = "r3"
	w.ids["c1"] = one
	get("another run", "c1", 1)
	w.Forget("c1")
	get("after forgetting", "c1", 1)
	get("the other cell still", "c2", 0)
}

func TestForgetClosesWhatIsIdleAndWhatBecomesIdle(t *testing.T) {
	w := newWorld(t, ok, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	closed := make(chan string, 10)
	release := make(chan struct{})
	s := lab.NewSite("ok.test", okAddr)
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Serve(80, &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("begin"))
			_ = http.NewResponseController(w).Flush()
			if r.URL.Path == "/slow" {
				<-release
			}
		}),
		ConnState: func(_ net.Conn, st http.ConnState) {
			if st == http.StateClosed {
				closed <- "closed"
			}
		},
	}); err != nil {
		t.Fatal(err)
	}
	slow, err := w.get("http://ok.test/slow")
	if err != nil {
		t.Fatal(err)
	}
	quick, err := w.get("http://ok.test/quick")
	if err != nil {
		t.Fatal(err)
	}
	body(t, quick)
	w.Forget("c1")
	<-closed // the idle one
	close(release)
	if got := body(t, slow); got != "begin" {
		t.Errorf("a request under way was cut: %q", got)
	}
	<-closed
}

// TestManyConnectionsStayOpen: net/http's own limit of two would cost a
// handshake for most requests of a busy client.
func TestManyConnectionsStayOpen(t *testing.T) {
	w := newWorld(t, ok, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	s := w.site("ok.test", okAddr, nil)
	const n = 20
	for range 3 {
		var open []*http.Response
		for range n {
			resp, err := w.get("http://ok.test/")
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, resp)
		}
		for _, r := range open {
			body(t, r)
		}
	}
	// A body of a few octets may be read, and its connection free, before the
	// next request: fewer are possible, more are not.
	if got := s.Connections(); got > n {
		t.Errorf("%d connections for %d requests at a time", got, n)
	}
}

// TestCloseLeavesNothing: no connection and no goroutine, h1 or h2.
func TestCloseLeavesNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	w := newWorld(t, ok, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	s := w.site("ok.test", okAddr, nil)
	for _, u := range []string{"http://ok.test/", "https://ok.test/"} {
		resp, err := w.get(u)
		if err != nil {
			t.Fatal(err)
		}
		body(t, resp)
	}
	w.Close()
	_ = s.Close()
	_ = w.resolver.Close()
}

// TestPoolsAreBounded: a name whose addresses change all the time does not
// leave a pool for each.
func TestPoolsAreBounded(t *testing.T) {
	w := newWorld(t, ok, nil)
	const sets = 80
	open := make(chan int, 4*sets)
	for i := range sets {
		addr := netip.AddrFrom4([4]byte{11, 7, 7, byte(100 + i)})
		s := lab.NewSite("ok.test", addr)
		t.Cleanup(func() { _ = s.Close() })
		if err := s.Serve(80, &http.Server{
			Handler: http.NotFoundHandler(),
			ConnState: func(_ net.Conn, st http.ConnState) {
				if st == http.StateClosed {
					open <- i
				}
			},
		}); err != nil {
			t.Fatal(err)
		}
		w.resolver.Set(fmt.Sprintf("n%d.wild.test", i), "A "+addr.String())
		resp, err := w.get(fmt.Sprintf("http://n%d.wild.test/", i))
		if err != nil {
			t.Fatal(err)
		}
		body(t, resp)
	}
	// Those that have been unused for the longest time are closed.
	closed := map[int]bool{}
	for range sets - dial.PoolsPerCell {
		closed[<-open] = true
	}
	for i := range sets - dial.PoolsPerCell {
		if !closed[i] {
			t.Errorf("pool %d was not closed; %v were", i, closed)
		}
	}
}
