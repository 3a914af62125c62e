package scrub_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
)

type flushWriter interface {
	io.WriteCloser
	Flush() error
}

var encoders = map[string]func(io.Writer) flushWriter{
	"gzip":    func(w io.Writer) flushWriter { return gzip.NewWriter(w) },
	"X-GZIP":  func(w io.Writer) flushWriter { return gzip.NewWriter(w) },
	"deflate": func(w io.Writer) flushWriter { return zlib.NewWriter(w) },
	"Deflate": func(w io.Writer) flushWriter { z, _ := flate.NewWriter(w, 5); return z }, // bare, as some servers have it
	"br":      func(w io.Writer) flushWriter { return brotli.NewWriter(w) },
	"zstd":    func(w io.Writer) flushWriter { z, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)); return z },
}

func encode(tb testing.TB, coding, text string) string {
	tb.Helper()
	var b bytes.Buffer
	w := encoders[coding](&b)
	if _, err := io.WriteString(w, text); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

func response(coding, body string) *http.Response {
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Encoding": {coding}, "Content-Length": {"1"}, "Content-Digest": {"x"}}, ContentLength: int64(len(body)),
		Body: io.NopCloser(strings.NewReader(body)), Request: &http.Request{Method: "GET"},
	}
}

func TestCompressedBodies(t *testing.T) {
	text := strings.Repeat("some text ", 1000) + `{"k":"` + secret + `"}` + strings.Repeat(" more", 1000)
	want := strings.Replace(text, secret, instead, 1)
	for coding := range encoders {
		t.Run(coding, func(t *testing.T) {
			resp := response(coding, encode(t, coding, text))
			if err := scrubber().Response(resp); err != nil {
				t.Fatal(err)
			}
			if got := readAll(t, resp.Body); got != want {
				t.Errorf("read %d octets, want %d", len(got), len(want))
			}
			if len(resp.Header) != 0 || resp.ContentLength != -1 || !resp.Uncompressed {
				t.Errorf("header %v, length %d", resp.Header, resp.ContentLength)
			}
			cut := encode(t, coding, text)
			resp = response(coding, cut[:len(cut)-5])
			if err := scrubber().Response(resp); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(resp.Body); err == nil {
				t.Error("a truncated body reads to its end")
			}
		})
	}
	twice := response("gzip, br", encode(t, "br", encode(t, "gzip", text)))
	if err := scrubber().Response(twice); err != nil || readAll(t, twice.Body) != want {
		t.Errorf("compressed twice: %v", err)
	}
	plain := response("identity", text)
	if err := scrubber().Response(plain); err != nil || readAll(t, plain.Body) != want || plain.ContentLength != int64(len(text)) {
		t.Errorf("identity: %v", err)
	}
}

func TestBodiesThatCannotBeScrubbedAreRefused(t *testing.T) {
	part := response("gzip", "x")
	part.StatusCode = http.StatusPartialContent
	for name, resp := range map[string]*http.Response{
		"unknown": response("aws-chunked", "x"), "unknown among known": response("gzip, exi", "x"),
		"many": response("gzip, gzip, gzip, gzip", "x"), "part": part,
	} {
		if err := scrubber().Response(resp); err == nil {
			t.Errorf("%s: handed on", name)
		}
	}
	head := response("exi", "")
	head.Request.Method = "HEAD"
	if err := scrubber().Response(head); err != nil || head.Header.Get("Content-Encoding") != "exi" {
		t.Errorf("twin: %v", err)
	}
}

// TestCompressedStreamsAreNotHeldUp: what a server flushes is read at once.
func TestCompressedStreamsAreNotHeldUp(t *testing.T) {
	for coding, open := range encoders {
		t.Run(coding, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pr, pw := io.Pipe()
				resp := response(coding, "")
				resp.Body = pr
				if err := scrubber().Response(resp); err != nil { // must not wait for the body
					t.Fatal(err)
				}
				w := open(pw)
				event := "data: " + secret + "\n\n"
				go func() {
					_, _ = io.WriteString(w, event)
					_ = w.Flush()
				}()
				got := make([]byte, len(event))
				if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != "data: "+instead+"\n\n" {
					t.Errorf("read %q, %v", got, err)
				}
				_ = resp.Body.Close()
				_ = pw.Close()
			})
		})
	}
}
