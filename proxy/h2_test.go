package proxy_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"sallyport/proxy"
)

// frames speaks HTTP/2 as no client library would.
type frames struct {
	*http2.Framer
	t      *testing.T
	conn   net.Conn
	block  bytes.Buffer
	enc    *hpack.Encoder
	answer *http2.MetaHeadersFrame // the latest
	last   uint32                  // stream, of those by next
}

// next returns the number of a new stream.
func (f *frames) next() uint32 {
	f.last += 1 + min(f.last, 1) // odd ones
	return f.last
}

func newFrames(t *testing.T, c net.Conn) *frames {
	t.Helper()
	_, err := io.WriteString(c, http2.ClientPreface)
	must(t, err)
	f := &frames{Framer: http2.NewFramer(c, c), t: t, conn: c}
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.enc = hpack.NewEncoder(&f.block)
	return f
}

// overH2 opens a connection that speaks HTTP/2 by frames.
func overH2(t *testing.T, l *lab, w way) (*frames, io.Closer) {
	t.Helper()
	c, err := w.open(l, t.Context(), "ok.test:443")
	must(t, err)
	tc, err := handshake(t, l, c, &tls.Config{ServerName: "ok.test", NextProtos: []string{"h2"}})
	must(t, err)
	f := newFrames(t, tc)
	must(t, f.WriteSettings())
	return f, tc
}

// head sends a request's head, in as many frames as it takes.
func (f *frames) head(id uint32, fields ...hpack.HeaderField) {
	f.t.Helper()
	f.begin(id, true, fields...)
}

// begin is head for a request that may have a body.
func (f *frames) begin(id uint32, whole bool, fields ...hpack.HeaderField) {
	f.t.Helper()
	f.block.Reset()
	for _, h := range fields {
		must(f.t, f.enc.WriteField(h))
	}
	b := f.block.Bytes()
	const most = 16 << 10
	first := b[:min(most, len(b))]
	// What follows may be refused already: then nobody reads it.
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: whole, EndHeaders: len(first) == len(b)})
	for b = b[len(first):]; len(b) > 0; {
		part := b[:min(most, len(b))]
		b = b[len(part):]
		if f.WriteContinuation(id, len(b) == 0, part) != nil {
			return
		}
	}
}

func field(name, value string) hpack.HeaderField {
	return hpack.HeaderField{Name: name, Value: value, Sensitive: true} // kept out of the table
}

func plainHead(more ...hpack.HeaderField) []hpack.HeaderField {
	return append([]hpack.HeaderField{
		field(":method", "GET"), field(":path", "/public/a"), field(":scheme", "https"), field(":authority", "ok.test"),
	}, more...)
}

// pseudo is the pseudo-headers of a request.
func pseudo(method, scheme, authority, path string) []hpack.HeaderField {
	return []hpack.HeaderField{field(":method", method), field(":scheme", scheme), field(":authority", authority), field(":path", path)}
}

// result is the status of the answer, or how it was refused.
func (f *frames) result() string {
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			return "end"
		}
		switch fr := fr.(type) {
		case *http2.MetaHeadersFrame:
			f.answer = fr
			return fr.PseudoValue("status")
		case *http2.RSTStreamFrame:
			return "reset"
		case *http2.GoAwayFrame:
			return "go away"
		}
	}
}

// body is that of the answer that result has seen the head of.
func (f *frames) body() string {
	var b strings.Builder
	for {
		fr, err := f.ReadFrame()
		must(f.t, err)
		if data, ok := fr.(*http2.DataFrame); ok {
			b.Write(data.Data())
			if data.StreamEnded() {
				return b.String()
			}
		}
	}
}

// wantDenial holds the answer that result has seen against what every refusal has.
func (f *frames) wantDenial(reason string) {
	f.t.Helper()
	resp := &http.Response{Header: http.Header{}}
	for _, h := range f.answer.RegularFields() {
		resp.Header.Add(h.Name, h.Value)
	}
	checkDenial(f.t, resp, f.body(), reason)
}

// TestUnreadableH2 is DS-04 and HW-03: what cannot be read of HTTP/2 is refused and
// recorded once, on a connection that has said nothing else and on one that is in
// use; the connection's own record is not "no request".
func TestUnreadableH2(t *testing.T) {
	large := func(n int) []hpack.HeaderField {
		var out []hpack.HeaderField
		for i := range n {
			out = append(out, field(fmt.Sprintf("a%d", i), strings.Repeat("x", 1<<10)))
		}
		return out
	}
	tests := []struct {
		name string
		send func(f *frames, id uint32)
		want string
	}{
		{"userinfo in the authority", func(f *frames, id uint32) {
			f.head(id, field(":method", "GET"), field(":path", "/"), field(":scheme", "https"), field(":authority", "ok.test@evil.test"))
		}, "400"},
		{"no path", func(f *frames, id uint32) { f.head(id, field(":method", "GET"), field(":scheme", "https")) }, "400"},
		{"a path that is none", func(f *frames, id uint32) { f.head(id, pseudo("GET", "https", "ok.test", "public")...) }, "400"},
		{"no method", func(f *frames, id uint32) { f.head(id, field(":path", "/"), field(":scheme", "https")) }, "400"},
		{"a scheme that is none", func(f *frames, id uint32) { f.head(id, pseudo("GET", "file", "ok.test", "/")...) }, "400"},
		{"CN-12 a CONNECT with a path", func(f *frames, id uint32) { f.head(id, pseudo("CONNECT", "https", "ok.test:443", "/")...) }, "400"},
		{"CN-12 a CONNECT to nowhere", func(f *frames, id uint32) { f.head(id, field(":method", "CONNECT")) }, "400"},
		{"CN-12 an extended CONNECT", func(f *frames, id uint32) {
			f.head(id, append([]hpack.HeaderField{field(":protocol", "websocket")}, pseudo("CONNECT", "https", "ok.test", "/public/a")...)...)
		}, "400"},
		{"a pseudo-header twice", func(f *frames, id uint32) {
			f.head(id, append(pseudo("GET", "https", "ok.test", "/public/a"), field(":path", "/public/secret"))...)
		}, "400"},
		{"a pseudo-header after a field", func(f *frames, id uint32) {
			f.head(id, plainHead(field("a", "b"), field(":authority", "evil.test"))...)
		}, "400"},
		{"a pseudo-header of an answer", func(f *frames, id uint32) {
			f.head(id, append([]hpack.HeaderField{field(":status", "200")}, plainHead()...)...)
		}, "400"},
		{"DS-04 head over the bound", func(f *frames, id uint32) { f.head(id, plainHead(large(80)...)...) }, "431"},
		{"DS-04 head of thrice the bound", func(f *frames, id uint32) { f.head(id, plainHead(large(200)...)...) }, "431"},
		{"DS-04 path over the bound", func(f *frames, id uint32) {
			f.head(id, pseudo("GET", "https", "ok.test", "/"+strings.Repeat("x", 70<<10))...)
		}, "431"},
		{"DS-04 head far over it", func(f *frames, id uint32) { f.head(id, plainHead(large(1000)...)...) }, "go away"},
		{"DS-04 CONTINUATION without end", func(f *frames, id uint32) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndStream: true})
			empty := binary.BigEndian.AppendUint32([]byte{0, 0, 0, byte(http2.FrameContinuation), 0}, id)
			_, _ = f.conn.Write(bytes.Repeat(empty, 30_000)) // 270,000 octets, of which none is of a field
		}, "go away"},
		{"another frame inside a head", func(f *frames, id uint32) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndStream: true})
			_ = f.WritePing(false, [8]byte{})
		}, "go away"},
		{"padding of more than there is", func(f *frames, id uint32) {
			_ = f.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersPadded|http2.FlagHeadersEndHeaders, id, []byte{200, 0x82})
		}, "go away"},
		{"DS-04 head that a table makes large", func(f *frames, id uint32) {
			f.head(id, plainHead(slices.Repeat([]hpack.HeaderField{{Name: "a", Value: strings.Repeat("x", 4000)}}, 50)...)...)
		}, "431"},
		{"DS-04 frame over the bound", func(f *frames, id uint32) { _ = f.WriteRawFrame(http2.FrameHeaders, 0, id, make([]byte, 65<<10)) }, "go away"},
		{"HW-03 field of a connection", func(f *frames, id uint32) { f.head(id, plainHead(field("connection", "close"))...) }, "400"},
		{"HW-03 connection named once more", func(f *frames, id uint32) { f.head(id, plainHead(field("proxy-connection", "keep-alive"))...) }, "400"},
		{"HW-03 te", func(f *frames, id uint32) { f.head(id, plainHead(field("te", "gzip"))...) }, "400"},
		{"HW-03 te twice", func(f *frames, id uint32) { f.head(id, plainHead(field("te", "trailers"), field("te", "trailers"))...) }, "400"},
		{"HW-02 upgrade to h2c", func(f *frames, id uint32) { f.head(id, plainHead(field("upgrade", "h2c"))...) }, "400"},
		{"HT-01 transfer coding", func(f *frames, id uint32) { f.head(id, plainHead(field("transfer-encoding", "chunked"))...) }, "400"},
		{"HW-03 capitals in a name", func(f *frames, id uint32) { f.head(id, plainHead(field("Abc", "x"))...) }, "400"},
		{"HW-03 line end in a value", func(f *frames, id uint32) { f.head(id, plainHead(field("abc", "x\r\ny: z"))...) }, "400"},
		{"an even stream", func(f *frames, id uint32) { f.head(id+1, plainHead()...) }, "go away"},
		{"compression that is none", func(f *frames, id uint32) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, EndStream: true, EndHeaders: true})
		}, "go away"},
		{"a frame of no known stream", func(f *frames, id uint32) { _ = f.WriteData(id+20, true, []byte("x")) }, "go away"},
		{"a broken frame", func(f *frames, _ uint32) { _ = f.WriteRawFrame(http2.FrameWindowUpdate, 0, 0, []byte{0}) }, "go away"},
	}
	for _, w := range ways() {
		if !w.h2 {
			continue
		}
		for _, used := range []bool{false, true} {
			l := newLab(t)
			o := &witness{}
			l.serveOrigin("ok.test", true, o)
			for _, tt := range tests {
				t.Run(fmt.Sprintf("%s, used %v, %s", w.name, used, tt.name), func(t *testing.T) {
					f, c := overH2(t, l, w)
					defer c.Close()
					id := uint32(1)
					if used {
						f.head(id, plainHead()...)
						if got := f.result(); got != "200" {
							t.Errorf("the twin: %s", got)
						}
						l.log.await(t, 2)
						l.dialled()
						o.take()
						id += 2
					}
					tt.send(f, id)
					if got := f.result(); got != tt.want {
						t.Errorf("got %s, want %s", got, tt.want)
					}
					reason := "bad_request"
					if strings.HasPrefix(tt.name, "DS-04") && !strings.Contains(tt.name, "frame") {
						reason = "limit"
					}
					if tt.want != "go away" {
						f.wantDenial(reason)
					}
					if r := wantRefusal(t, l, reason); r.Error == "" {
						t.Error("the record does not say what was wrong")
					}
					_ = c.Close()
					wantNothingDialled(t, l)
					if saw := o.take(); len(saw) > 0 {
						t.Errorf("the origin saw %+v", saw)
					}
				})
			}
			must(t, l.stop())
			if rest := l.log.take(); len(rest) > 0 {
				t.Errorf("%s: more records: %+v", w.name, linesOf(rest))
			}
		}
	}
}

// TestSlowHeadOfH2 is DS-03: a head that does not end is given up, as one of HTTP/1 is,
// and a connection that is merely idle is not.
func TestSlowHeadOfH2(t *testing.T) {
	for _, w := range ways() {
		if !w.h2 {
			continue
		}
		t.Run(w.name, bubble(func(t *testing.T) {
			l := newPipeLab(t, func(c *proxy.Config) { c.Timeouts = proxy.Timeouts{Header: time.Second, Drain: time.Second} })
			l.serveOrigin("ok.test", true, &witness{})
			f, c := overH2(t, l, w)
			defer c.Close()
			f.head(1, plainHead()...)
			if got := f.result(); got != "200" {
				t.Errorf("the twin: %s", got)
			}
			l.log.await(t, 2)
			l.dialled()
			must(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, EndStream: true}))
			if got := f.result(); got != "end" && got != "go away" {
				t.Errorf("got %s, want the end", got)
			}
			if r := wantRefusal(t, l, "limit"); !strings.Contains(r.Error, "not whole after 1s") {
				t.Errorf("record %+v", r)
			}
			wantNothingDialled(t, l)
		}))
	}
}
