package proxy_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"sallyport/audit"
)

// TestTrailersOfH2 is DS-04 and HW-14: a trailer over the bound of a head resets its
// stream, of whose request the origin does not see the end, and which is recorded as
// broken off; the connection serves others. One within the bound goes through.
func TestTrailersOfH2(t *testing.T) {
	type end struct {
		err     error
		trailer string
	}
	for _, w := range ways() {
		if !w.h2 {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			begun, ends := make(chan struct{}), make(chan end, 1)
			l.serveOrigin("ok.test", true, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, err := io.ReadFull(r.Body, make([]byte, len("body")))
				begun <- struct{}{}
				if err == nil {
					_, err = io.Copy(io.Discard, r.Body)
				}
				ends <- end{err, r.Trailer.Get("X-Up")}
			}))
			f, c := overH2(t, l, w)
			defer c.Close()
			post := append(pseudo("POST", "https", "ok.test", "/v1/x"), field("trailer", "x-up"))
			for i, tt := range []struct {
				octets int
				want   string
			}{{32 << 10, "200"}, {80 << 10, "reset"}, {1 << 10, "200"}} {
				id := uint32(2*i + 1)
				f.begin(id, false, post...)
				must(t, f.WriteData(id, false, []byte("body")))
				<-begun
				f.head(id, field("x-up", strings.Repeat("x", tt.octets)))
				if got := f.result(); got != tt.want {
					t.Errorf("a trailer of %d octets: %s, want %s", tt.octets, got, tt.want)
				}
				saw := <-ends
				records := l.log.await(t, 2)
				if len(records) != 2 || records[1].Kind != audit.Done {
					t.Fatalf("records %+v", linesOf(records))
				}
				if whole := tt.want == "200"; whole != (saw.err == nil) || whole != (len(saw.trailer) == tt.octets) || whole != (records[1].Error == "") {
					t.Errorf("a trailer of %d octets: the origin saw %v and %d octets of it, the record says %q", tt.octets, saw.err, len(saw.trailer), records[1].Error)
				}
			}
		})
	}
}

// TestLateTrailersOfH2: trailers that were under way when their request was refused, and
// its stream reset, cost the connection nothing, and are no request.
func TestLateTrailersOfH2(t *testing.T) {
	for _, w := range ways() {
		if !w.h2 {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			l.serveOrigin("ok.test", true, &witness{})
			f, c := overH2(t, l, w)
			defer c.Close()
			for _, size := range []int{1, 80 << 10} {
				id := f.next()
				f.begin(id, false, append(pseudo("POST", "https", "ok.test", "/secret"), field("trailer", "x-up"))...)
				for reset := false; !reset; {
					fr, err := f.ReadFrame()
					must(t, err)
					_, reset = fr.(*http2.RSTStreamFrame)
				}
				f.head(id, field("x-up", strings.Repeat("x", size)))
				wantRefusal(t, l, "path_not_allowed")
				f.head(f.next(), plainHead()...)
				if got := f.result(); got != "200" {
					t.Errorf("the next request: %s", got)
				}
				f.body()
				if records := l.log.await(t, 2); len(records) != 2 || records[1].Kind != audit.Done {
					t.Errorf("records %+v", linesOf(records))
				}
			}
			// The twin: of a stream that the client has ended itself there are none.
			f.head(f.last, field("x-up", "x"))
			if got := f.result(); got != "go away" && got != "reset" {
				t.Errorf("trailers of a request that has ended: %s", got)
			}
		})
	}
}
