package proxy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"sallyport/audit"
)

// TestSplitOverH2: what HTTP/2 can carry in a pseudo-header, and HTTP/1 to the origin
// would read as more than that, and spellings of the place that say something else.
func TestSplitOverH2(t *testing.T) {
	tests := []struct {
		name                    string
		method, authority, path string
		more                    []hpack.HeaderField
		status, reason, saw     string // what the origin saw
	}{
		{"HT-01 a request in the path", "GET", "ok.test", "/public/a HTTP/1.1\r\nHost: evil.test\r\n\r\nGET /secret", nil, "400", "bad_request", ""},
		{"HT-01 a space in the path", "GET", "ok.test", "/public/a HTTP/1.1", nil, "400", "bad_request", ""},
		{"HT-01 a bare line feed in the path", "GET", "ok.test", "/public/a\nX: y", nil, "400", "bad_request", ""},
		{"HT-16 a request in the method", "GET /secret HTTP/1.1", "ok.test", "/public/a", nil, "400", "bad_request", ""},
		{"HT-01 a line end in the place", "GET", "ok.test\r\nX: y", "/public/a", nil, "400", "bad_request", ""},
		{"HT-04 a folded value", "GET", "ok.test", "/public/a", []hpack.HeaderField{field("a", "b\r\n c")}, "400", "bad_request", ""},
		{"HT-02 chunked by name", "POST", "ok.test", "/v1/charges", []hpack.HeaderField{field("transfer-encoding", "chunked")}, "400", "bad_request", ""},
		{"NM-09 user information", "GET", "ok.test:80@evil.test", "/public/a", nil, "400", "bad_request", ""},
		{"NM-23 a port with a zero before", "GET", "ok.test:0443", "/public/a", nil, "400", "bad_request", ""},
		{"NM-01 two dots behind", "GET", "ok.test..", "/public/a", nil, "400", "bad_request", ""},
		{"NM-15 nothing but a port", "GET", ":443", "/public/a", nil, "400", "bad_request", ""},
		{"HW-11 another port", "GET", "ok.test:80", "/public/a", nil, "421", "authority_mismatch", ""},
		{"NM-01 a dot behind", "GET", "ok.test.", "/public/a", nil, "200", "", "ok.test /public/a"},
		{"NM-03 capitals", "GET", "OK.test:443", "/public/a", nil, "200", "", "ok.test /public/a"},
	}
	for _, w := range ways() {
		if !w.h2 {
			continue
		}
		for _, h2Origin := range []bool{false, true} {
			l := newLab(t)
			o := &witness{}
			l.serveOrigin("ok.test", h2Origin, o)
			f, c := overH2(t, l, w)
			id := uint32(1)
			for _, tt := range tests {
				t.Run(fmt.Sprintf("%s, origin h2 %v, %s", w.name, h2Origin, tt.name), func(t *testing.T) {
					f.t = t
					f.head(id, append(pseudo(tt.method, "https", tt.authority, tt.path), tt.more...)...)
					id += 2
					if got := f.result(); got != tt.status {
						t.Fatalf("got %s, want %s", got, tt.status)
					}
					if tt.reason == "" {
						f.body()
						l.log.await(t, 2)
					} else {
						f.wantDenial(tt.reason)
						wantRefusal(t, l, tt.reason)
					}
					got := ""
					for _, s := range o.take() {
						got += s.Host + " " + s.URI
					}
					if got != tt.saw {
						t.Errorf("the origin saw %q, want %q", got, tt.saw)
					}
				})
			}
			_ = c.Close()
		}
	}
}

// TestFloodsOfH2 is DS-01: frames that cost their sender little. Another connection is
// served meanwhile, and whatever was admitted has an end in the log.
func TestFloodsOfH2(t *testing.T) {
	const many = 3000
	floods := map[string]func(f *frames){
		"rapid reset": func(f *frames) {
			for i := range uint32(many) {
				f.head(2*i+1, plainHead()...)
				_ = f.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
			}
		},
		"settings": func(f *frames) {
			for range many {
				_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 16})
			}
		},
		"pings": func(f *frames) {
			for range many {
				_ = f.WritePing(false, [8]byte{})
			}
		},
		"windows": func(f *frames) {
			for range many {
				_ = f.WriteWindowUpdate(0, 1)
			}
		},
		"empty data": func(f *frames) {
			f.begin(1, false, pseudo("POST", "https", "ok.test", "/v1/charges")...)
			for range many {
				_ = f.WriteData(1, false, nil)
			}
		},
		"priorities": func(f *frames) {
			for i := range uint32(many) {
				_ = f.WritePriority(2*i+1, http2.PriorityParam{StreamDep: 0, Weight: 9})
			}
		},
	}
	for name, flood := range floods {
		t.Run(name, func(t *testing.T) {
			w := ways()[0]
			for _, v := range ways() {
				if v.h2 {
					w = v
					break
				}
			}
			l := newLab(t)
			l.serveOrigin("ok.test", true, &witness{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f, c := overH2(t, l, w)
			conn := f.conn
			f.Framer = http2.NewFramer(conn, bytes.NewReader(nil))
			go func() { _, _ = io.Copy(io.Discard, conn) }() // until it is closed
			context.AfterFunc(ctx, func() { _ = c.Close() })
			flood(f)
			next, c2 := overH2(t, l, w)
			next.head(1, plainHead()...)
			if got := next.result(); got != "200" {
				t.Errorf("the neighbour got %s", got)
			}
			_ = c2.Close()
			cancel()
			must(t, l.stop())
			open := map[string]bool{}
			for _, r := range l.log.take() {
				if r.Kind == audit.Admit {
					open[r.ID] = true
				}
				delete(open, r.Ref) // of a done record
			}
			if len(open) > 0 {
				t.Errorf("%d of what was admitted has no end", len(open))
			}
		})
	}
}
