package h1_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"sallyport/proxy/h1"
)

const most = 64 << 10

// refused returns the status of a refusal, 0 for another error.
func refused(err error) int {
	var bad *h1.Error
	switch {
	case errors.As(err, &bad):
		return bad.Status
	case errors.Is(err, h1.ErrTooLarge):
		return http.StatusRequestHeaderFieldsTooLarge
	default:
		return 0
	}
}

var badRequests = []struct {
	name, text string
	status     int
}{
	{"HT-01 other coding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
	{"HT-01 coding twice", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 501},
	{"HT-01 coding with a tail", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;x\r\n\r\n", 501},
	{"HT-01 coding in HTTP/1.0", "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
	{"HT-01 coding with a blank name", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n", 400},
	{"HT-02 two lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
	{"HT-02 list", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n", 400},
	{"HT-02 plus", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n", 400},
	{"HT-02 negative", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400},
	{"HT-02 empty", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", 400},
	{"HT-02 huge", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999999999999\r\n\r\n", 400},
	{"HT-02 hexadecimal", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\n", 400},
	{"HT-04 folded line", "GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n c\r\n\r\n", 400},
	{"HT-04 folded first line", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400},
	{"HT-04 CR alone", "GET / HTTP/1.1\r\nHost: a\r\nA: b\rC: d\r\n\r\n", 400},
	{"HT-04 NUL", "GET / HTTP/1.1\r\nHost: a\r\nA: b\x00\r\n\r\n", 400},
	{"HT-04 no colon", "GET / HTTP/1.1\r\nHost: a\r\nA\r\n\r\n", 400},
	{"HT-04 no name", "GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", 400},
	{"HT-07 no Host", "GET / HTTP/1.1\r\n\r\n", 400},
	{"HT-07 two Hosts", "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", 400},
	{"HT-07 trailer that frames", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\n\r\n", 400},
	{"HT-23 version 2", "GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
	{"HT-23 version 1.2", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505},
	{"HT-23 odd version", "GET / HTTP/1.1x\r\nHost: a\r\n\r\n", 400},
	{"HT-23 no version", "GET /\r\n\r\n", 400},
	{"HT-23 two blanks", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"HW-01 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
	{"method", "G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"empty line first", "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
	{"DS-04 long line", "GET / HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("x", most) + "\r\n\r\n", 431},
}

func TestRequestsAreRefused(t *testing.T) {
	for _, tt := range badRequests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := h1.NewReader(strings.NewReader(tt.text)).ReadRequest(most)
			if got := refused(err); got != tt.status {
				t.Errorf("ReadRequest = %v (%d), want %d", err, got, tt.status)
			}
		})
	}
}

var goodRequests = []struct{ name, text, body string }{
	{"no body", "GET /a?b HTTP/1.1\r\nHost: a.test\r\nX-A: 1\r\nX-A: 2\r\n\r\n", ""},
	{"bare LF", "POST / HTTP/1.1\nHost: a\nContent-Length: 3\n\nabc", "abc"},
	{"length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "abc"},
	{"length twice", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "abc"},
	{"HT-01 both framings", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "abc"},
	{"HT-05 chunk extension", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n3;a=b\r\nabc\r\n1 \r\nd\r\n0\r\n\r\n", "abcd"},
	{"trailer", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\nX-U: 2\r\n\r\n", "abc"},
	{"absolute", "GET http://b.test/x HTTP/1.1\r\nHost: a\r\n\r\n", ""},
	{"CONNECT", "CONNECT a.test:443 HTTP/1.1\r\n\r\n", ""},
	{"HTTP/1.0", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", ""},
}

// TestRequestsAreRead reads the same in one piece and octet by octet, and
// leaves what follows where it is.
func TestRequestsAreRead(t *testing.T) {
	const next = "GET /next HTTP/1.1\r\nHost: n\r\n\r\n"
	for _, tt := range goodRequests {
		for how, slow := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "octets": iotest.OneByteReader, "end with data": iotest.DataErrReader,
		} {
			t.Run(tt.name+" "+how, func(t *testing.T) {
				r := h1.NewReader(slow(strings.NewReader(tt.text + next)))
				req, err := r.ReadRequest(most)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(req.Body)
				if err != nil || string(b) != tt.body {
					t.Errorf("body %q, %v, want %q", b, err, tt.body)
				}
				if tt.name == "trailer" && (req.Trailer.Get("X-T") != "1" || req.Trailer.Get("X-U") != "2") {
					t.Errorf("trailer %v", req.Trailer)
				}
				if body, ok := req.Body.(*h1.Body); ok && !body.Whole() {
					t.Error("the body is not at its end")
				}
				if req, err = r.ReadRequest(most); err != nil || req.RequestURI != "/next" {
					t.Errorf("what followed: %v, %v", req, err)
				}
				if _, err := r.ReadRequest(most); !errors.Is(err, io.EOF) {
					t.Errorf("at the end: %v, want EOF", err)
				}
			})
		}
	}
}

func TestChunksAreRefused(t *testing.T) {
	const head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, chunks := range map[string]string{
		"HT-04 no line end after a chunk": "3\r\nabcXX0\r\n\r\n",
		"HT-04 bare LF":                   "3\nabc\r\n0\r\n\r\n",
		"HT-04 bare LF after a chunk":     "3\r\nabc\n0\r\n\r\n",
		"HT-05 no size":                   ";a\r\nabc\r\n0\r\n\r\n",
		"HT-05 prefix":                    "0x3\r\nabc\r\n0\r\n\r\n",
		"HT-05 sign":                      "+3\r\nabc\r\n0\r\n\r\n",
		"HT-05 huge":                      "ffffffffffffffff\r\nabc\r\n0\r\n\r\n",
		"HT-05 CR in the extension":       "3;\ra\r\nabc\r\n0\r\n\r\n",
		"HT-05 long extension":            "3;" + strings.Repeat("a", 8<<10) + "\r\nabc\r\n0\r\n\r\n",
		"HT-05 hardly any data":           strings.Repeat("1;"+strings.Repeat("a", 1<<10)+"\r\na\r\n", 40) + "0\r\n\r\n",
		"HT-07 trailer that frames":       "0\r\nContent-Length: 3\r\n\r\n",
		"trailer that is none":            "0\r\nX\r\n\r\n",
		"early end":                       "3\r\nab",
		"early end in the trailer":        "0\r\nX: y\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			req, err := h1.NewReader(strings.NewReader(head + chunks)).ReadRequest(most)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(req.Body); err == nil {
				t.Errorf("read %q", b)
			} else if again, err2 := req.Body.Read(make([]byte, 1)); again != 0 || err2 == nil || errors.Is(err2, io.EOF) {
				t.Errorf("then %d, %v", again, err2)
			}
		})
	}
}

func TestResponsesAreRefused(t *testing.T) {
	for name, text := range map[string]string{
		"no version":        "200 OK\r\n\r\n",
		"version":           "HTTP/2.0 200 OK\r\n\r\n",
		"short status":      "HTTP/1.1 20 OK\r\n\r\n",
		"status 099":        "HTTP/1.1 099 OK\r\n\r\n",
		"no status":         "HTTP/1.1\r\n\r\n",
		"signed status":     "HTTP/1.1 +20 OK\r\n\r\n",
		"two lengths":       "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
		"other coding":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
		"folded line":       "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
		"control character": "HTTP/1.1 200 OK\r\nA: b\x01\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h1.NewReader(strings.NewReader(text)).ReadResponse(most, "GET")
			if refused(err) == 0 {
				t.Errorf("ReadResponse = %v", err)
			}
		})
	}
}

func TestResponsesAreRead(t *testing.T) {
	tests := []struct {
		name, method, text, body string
		length                   int64
		close                    bool
	}{
		{"length", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc", 3, false},
		{"chunks", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", "abc", -1, false},
		{"until the end", "GET", "HTTP/1.1 200 OK\r\n\r\nabc", "abc", -1, true},
		{"no reason", "GET", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "", 0, false},
		{"HEAD", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", "", 3, false},
		{"204", "GET", "HTTP/1.1 204 No Content\r\n\r\n", "", 0, false},
		{"304", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", "", 0, false},
		{"103", "GET", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", "", 0, false},
		{"closing", "GET", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na", "a", 1, true},
		{"HTTP/1.0", "GET", "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", "a", 1, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, err := h1.NewReader(strings.NewReader(tt.text)).ReadResponse(most, tt.method)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			if err != nil || string(b) != tt.body || resp.ContentLength != tt.length || resp.Close != tt.close {
				t.Errorf("body %q, %v, length %d, close %v", b, err, resp.ContentLength, resp.Close)
			}
		})
	}
}

func TestReaderHoldsNothingWhileItWaits(t *testing.T) {
	pr, pw := io.Pipe()
	r := h1.NewReader(pr)
	go func() { _, _ = io.WriteString(pw, "GET / HTTP/1.1\r\nHost: a\r\n\r\n") }()
	if err := r.Wait(); err != nil || r.Buffered() != 1 {
		t.Fatalf("Wait = %v, %d octets", err, r.Buffered())
	}
	if _, err := r.ReadRequest(most); err != nil {
		t.Fatal(err)
	}
	_ = pw.Close()
	if err := r.Wait(); !errors.Is(err, io.EOF) {
		t.Errorf("Wait = %v, want EOF", err)
	}
}

func TestUnread(t *testing.T) {
	r := h1.NewReader(strings.NewReader("GET / HTTP/1.1\r\nHost: a\r\n\r\nmore"))
	if _, err := r.ReadRequest(most); err != nil {
		t.Fatal(err)
	}
	if got := string(r.Unread()); got != "more" {
		t.Errorf("Unread = %q", got)
	}
}

func TestAppendHeader(t *testing.T) {
	h := http.Header{"B": {"2", "3"}, "A": {"1\r\nX: y\x00"}, "Bad name": {"x"}, "Skip": {"x"}}
	got := string(h1.AppendHeader(nil, h, func(name string) bool { return name == "Skip" }))
	if want := "A: 1  X: y \r\nB: 2\r\nB: 3\r\n"; got != want {
		t.Errorf("AppendHeader = %q, want %q", got, want)
	}
	var room [h1.ChunkHead]byte
	for n, want := range map[int]string{1: "1\r\n", 255: "ff\r\n", 65536: "10000\r\n", 1<<62 - 1: "3fffffffffffffff\r\n"} {
		if got := string(room[h1.PutChunkHead(room[:], n):]); got != want {
			t.Errorf("PutChunkHead(%d) = %q, want %q", n, got, want)
		}
	}
	end := string(h1.AppendLastChunk(nil, http.Header{"X-T": {"1"}, "Content-Length": {"3"}}))
	if want := "0\r\nX-T: 1\r\n\r\n"; end != want {
		t.Errorf("AppendLastChunk = %q, want %q", end, want)
	}
}

// message is what either reader makes of the same octets.
type message struct {
	Line            string
	Host            string
	Length          int64
	Close           bool
	Header, Trailer http.Header
	Body, Rest      string
}

// same normalises what net/http does on purpose and we do not.
func same(h http.Header) http.Header {
	h = h.Clone()
	delete(h, "Host")
	if len(h["Pragma"]) > 0 && h["Pragma"][0] == "no-cache" {
		delete(h, "Cache-Control") // net/http adds it
	}
	return h
}

func trailers(h http.Header) http.Header {
	out := http.Header{}
	for name, v := range h {
		if v != nil { // announced and never sent
			out[name] = v
		}
	}
	return out
}

// FuzzRequest compares with net/http: what is accepted here is accepted there,
// is the same message, and ends at the same octet.
func FuzzRequest(f *testing.F) {
	for _, tt := range badRequests {
		f.Add([]byte(tt.text))
	}
	for _, tt := range goodRequests {
		f.Add([]byte(tt.text + "rest"))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		src := bytes.NewReader(in)
		r := h1.NewReader(src)
		req, err := r.ReadRequest(most)
		if err != nil {
			return
		}
		b, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		rest, _ := io.ReadAll(src)
		ours := message{
			req.Method + " " + req.RequestURI + " " + req.Proto, req.Host, req.ContentLength, req.Close,
			same(req.Header), trailers(req.Trailer), string(b), string(r.Unread()) + string(rest),
		}
		br := bufio.NewReader(bytes.NewReader(in))
		want, err := http.ReadRequest(br)
		if err != nil {
			t.Fatalf("net/http refuses %q: %v", in, err)
		}
		if b, err = io.ReadAll(want.Body); err != nil {
			t.Fatalf("net/http refuses the body of %q: %v", in, err)
		}
		rest, _ = io.ReadAll(br)
		theirs := message{
			want.Method + " " + want.RequestURI + " " + want.Proto, want.Host, want.ContentLength, want.Close,
			same(want.Header), trailers(want.Trailer), string(b), string(rest),
		}
		if diff := cmp.Diff(theirs, ours); diff != "" {
			t.Fatalf("%q (-net/http +h1):\n%s", in, diff)
		}
	})
}

// FuzzResponse is the same for answers.
func FuzzResponse(f *testing.F) {
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcrest", "HTTP/1.0 200 OK\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\nrest",
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\nrest", "HTTP/1.1 103 X\r\n\r\n",
	} {
		f.Add([]byte(text), true)
		f.Add([]byte(text), false)
	}
	f.Fuzz(func(t *testing.T, in []byte, head bool) {
		method := "GET"
		if head {
			method = "HEAD"
		}
		src := bytes.NewReader(in)
		r := h1.NewReader(src)
		resp, err := r.ReadResponse(most, method)
		if err != nil {
			return
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return
		}
		rest, _ := io.ReadAll(src)
		ours := message{
			resp.Proto + " " + resp.Status, "", resp.ContentLength, resp.Close,
			same(resp.Header), trailers(resp.Trailer), string(b), string(r.Unread()) + string(rest),
		}
		br := bufio.NewReader(bytes.NewReader(in))
		want, err := http.ReadResponse(br, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("net/http refuses %q: %v", in, err)
		}
		if b, err = io.ReadAll(want.Body); err != nil {
			t.Fatalf("net/http refuses the body of %q: %v", in, err)
		}
		rest, _ = io.ReadAll(br)
		theirs := message{
			want.Proto + " " + want.Status, "", want.ContentLength, want.Close,
			same(want.Header), trailers(want.Trailer), string(b), string(rest),
		}
		if diff := cmp.Diff(theirs, ours); diff != "" {
			t.Fatalf("%q (-net/http +h1):\n%s", in, diff)
		}
	})
}
