package broker_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"sallyport/rules"
)

// pack compresses a text in a coding.
func pack(t testing.TB, coding, text string) string {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	switch coding {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "deflate":
		w = zlib.NewWriter(&b)
	case "bare deflate":
		w, _ = flate.NewWriter(&b, flate.BestSpeed) // of a level that there is
	case "br":
		w = brotli.NewWriter(&b)
	case "zstd":
		w, _ = zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1)) // without options that could be wrong
	default:
		t.Fatal(coding)
	}
	_, err := io.WriteString(w, text)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// sendPacked sends a body in a coding as cell1 and returns what upstream is sent.
func sendPacked(t *testing.T, k *kit, url, coding string, body io.Reader, header ...string) (sent string, err error) {
	t.Helper()
	r := request("POST", url, append(header, "Content-Encoding", coding)...)
	r.Body = io.NopCloser(body)
	if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil {
		return "", err
	}
	b, err := io.ReadAll(r.Body)
	if err := r.Body.Close(); err != nil {
		t.Error(err)
	}
	if got := r.Header.Get("Content-Encoding"); got != coding {
		t.Errorf("the coding is told as %q, want %q", got, coding)
	}
	return string(b), err
}

// TestPlaceholderInCompressedBody: CR-16. What a body says under its coding is searched,
// however it is cut; what is sent is the body as it came.
func TestPlaceholderInCompressedBody(t *testing.T) {
	k := newKit(t)
	ph := k.grant("cell1", "run1", "api").Grants[0].Placeholder
	long := strings.Repeat("some text ", 20_000)
	codings := []struct{ name, header string }{
		{"gzip", "gzip"}, {"gzip", "X-GZip"}, {"deflate", "deflate"}, {"bare deflate", "deflate"}, {"br", "br"}, {"zstd", "zstd"}, {"gzip", "identity, gzip"},
	}
	for _, c := range codings {
		for name, text := range map[string]string{"short": `{"note":"` + ph + `"}`, "after much": long + ph + long, "escaped": "a=" + percentAll(ph)} {
			packed := pack(t, c.name, text)
			for cut, r := range map[string]io.Reader{"whole": strings.NewReader(packed), "octet by octet": iotest.OneByteReader(strings.NewReader(packed))} {
				t.Run(fmt.Sprintf("%s as %s, %s, %s", c.name, c.header, name, cut), func(t *testing.T) {
					sent, err := sendPacked(t, k, "https://ok.test/upload", c.header, r)
					wantDenied(t, err, rules.PlaceholderLeak)
					if len(sent) >= len(packed) {
						t.Error("all of it was sent")
					}
				})
			}
		}
		twin := pack(t, c.name, long+ph[1:])
		for _, url := range []string{"https://ok.test/upload", "https://api.test/v1/x"} {
			if sent, err := sendPacked(t, k, url, c.header, iotest.HalfReader(strings.NewReader(twin))); err != nil || sent != twin {
				t.Errorf("%s, twin to %s: %d octets, %v", c.header, url, len(sent), err)
			}
		}
	}
	twice := pack(t, "br", pack(t, "gzip", ph))
	_, err := sendPacked(t, k, "https://ok.test/upload", "gzip, br", strings.NewReader(twice))
	wantDenied(t, err, rules.PlaceholderLeak)
	_, err = sendPacked(t, k, "https://ok.test/upload", "gzip", strings.NewReader(ph)) // it is not what it says
	wantDenied(t, err, rules.PlaceholderLeak)
}

// TestBodiesThatCannotBeLookedInto (ADR-0039): with a credential they are refused, and
// the sandbox is told what to send; without one they go on as they came.
func TestBodiesThatCannotBeLookedInto(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "api")
	text := strings.Repeat("some text ", 1000)
	tests := []struct{ name, coding, body string }{
		{"an unknown coding", "compress", text},
		{"four codings", "gzip, gzip, gzip, gzip", text},
		{"not what it says", "gzip", text},
		{"cut off", "zstd", pack(t, "zstd", text)[:20]},
		{"rubbish behind it", "gzip", pack(t, "gzip", text) + "rubbish"},
		{"a bomb", "gzip", pack(t, "gzip", strings.Repeat("\x00", 40<<20))},
		{"a bomb within a bomb", "br, gzip", pack(t, "gzip", pack(t, "br", strings.Repeat("\x00", 64<<20)))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sent, err := sendPacked(t, k, "https://api.test/v1/x", tt.coding, strings.NewReader(tt.body))
			wantDenied(t, err, rules.BadRequest)
			if err == nil || !strings.Contains(err.Error(), "send ") {
				t.Errorf("%v, %d octets were sent", err, len(sent))
			}
			if sent, err := sendPacked(t, k, "https://ok.test/upload", tt.coding, strings.NewReader(tt.body)); err != nil || sent != tt.body {
				t.Errorf("twin, without a credential: %d octets, %v", len(sent), err)
			}
		})
	}
}

// framed is a message as gRPC and streams of Connect have it.
func framed(flags byte, text string) string {
	return string(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(text)))) + text
}

// TestPlaceholderInCompressedMessage: CR-16. Messages that are compressed within a body are
// searched as a body is, with a credential and without.
func TestPlaceholderInCompressedMessage(t *testing.T) {
	k := newKit(t)
	ph := k.grant("cell1", "run1", "api").Grants[0].Placeholder
	const half = 9
	for _, coding := range []string{"gzip", "deflate", "br", "zstd"} {
		packed := func(text string) string { return framed(1, pack(t, coding, text)) }
		bodies := func(ph string) map[string]string {
			return map[string]string{
				"in a message":            packed("\x0a\x20" + ph),
				"in a later one":          framed(0, "first") + packed("second") + packed("x"+percentAll(ph)),
				"in one that is as it is": packed("first") + framed(0, ph),
				"over two messages":       packed("x"+ph[:half]) + framed(0, "") + packed(ph[half:]),
			}
		}
		for _, field := range []string{"Grpc-Encoding", "Connect-Content-Encoding"} {
			for _, url := range []string{"https://ok.test/upload", "https://api.test/v1/x"} {
				for name, body := range bodies(ph) {
					sent, err := sendPacked(t, k, url, "identity", iotest.OneByteReader(strings.NewReader(body)), field, coding)
					if wantDenied(t, err, rules.PlaceholderLeak); len(sent) >= len(body) {
						t.Errorf("%s, %s: all of it was sent to %s", coding, name, url)
					}
				}
				for name, body := range bodies(ph[1:] + "x") {
					if sent, err := sendPacked(t, k, url, "identity", iotest.HalfReader(strings.NewReader(body)), field, coding); err != nil || sent != body {
						t.Errorf("%s, %s, twin to %s: %d octets, %v", coding, name, url, len(sent), err)
					}
				}
			}
		}
	}
}

// TestMessagesThatCannotBeLookedInto: as bodies (ADR-0039, ADR-0051).
func TestMessagesThatCannotBeLookedInto(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "api")
	text := strings.Repeat("some text ", 1000)
	for name, tt := range map[string]struct{ coding, kind, body string }{
		"an unknown coding":  {"snappy", "application/grpc", framed(1, text)},
		"in base64":          {"gzip", "application/grpc-web-text", framed(0, text)},
		"not what it says":   {"gzip", "application/grpc", framed(1, text)},
		"no messages at all": {"gzip", "application/grpc", text},
		"cut off":            {"gzip", "application/grpc", framed(1, pack(t, "gzip", text))[:30]},
		"a bomb":             {"gzip", "application/grpc", framed(1, pack(t, "gzip", strings.Repeat("\x00", 40<<20)))},
	} {
		t.Run(name, func(t *testing.T) {
			header := []string{"Grpc-Encoding", tt.coding, "Content-Type", tt.kind}
			_, err := sendPacked(t, k, "https://api.test/v1/x", "identity", strings.NewReader(tt.body), header...)
			if wantDenied(t, err, rules.BadRequest); err == nil || !strings.Contains(err.Error(), "send ") {
				t.Error(err)
			}
			if sent, err := sendPacked(t, k, "https://ok.test/upload", "identity", strings.NewReader(tt.body), header...); err != nil || sent != tt.body {
				t.Errorf("twin, without a credential: %d octets, %v", len(sent), err)
			}
		})
	}
}

// TestPlaceholderInAWSChunks: the frames of an S3 upload do not hide what they cut.
func TestPlaceholderInAWSChunks(t *testing.T) {
	k := newKit(t)
	ph := k.grant("cell1", "run1", "api").Grants[0].Placeholder
	frame := func(text string) (body string) {
		for _, piece := range []string{text[:len(text)/2], text[len(text)/2:]} {
			body += fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece)
		}
		return body + "0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"
	}
	for name, coding := range map[string]string{"plain": "aws-chunked", "compressed": "gzip,aws-chunked"} {
		for _, leak := range []bool{true, false} {
			text := "some " + ph
			if !leak {
				text = "some " + ph[1:]
			}
			if name == "compressed" {
				text = pack(t, "gzip", text)
			}
			body := frame(text)
			sent, err := sendPacked(t, k, "https://api.test/v1/x", coding, strings.NewReader(body),
				"X-Amz-Decoded-Content-Length", fmt.Sprint(len(text)), "X-Amz-Trailer", "x-amz-checksum-crc32")
			if leak {
				wantDenied(t, err, rules.PlaceholderLeak)
			} else if err != nil || sent != body {
				t.Errorf("%s, twin: %d octets, %v", name, len(sent), err)
			}
		}
	}
}

// TestCompressedBodyIsClosed: a body that is given up ends the search.
func TestCompressedBodyIsClosed(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "api")
	r := request("POST", "https://ok.test/upload", "Content-Encoding", "gzip")
	r.Body = io.NopCloser(strings.NewReader(pack(t, "gzip", strings.Repeat("some text ", 100_000))))
	if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	if n, err := r.Body.Read(buf); n != len(buf) || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	for range 2 { // a transport may close twice
		if err := r.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	if n, err := r.Body.Read(buf); n != len(buf) || err != nil { // what it was made of is not its own to end
		t.Errorf("after it was closed: %d, %v", n, err)
	}
}
