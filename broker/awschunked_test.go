package broker_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http/httputil"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"sallyport/broker"
)

// signedChunks frames a body as S3 clients do that sign chunks.
func signedChunks(body []byte, size int, trailer string) string {
	sig := ";chunk-signature=" + strings.Repeat("0", 64) + "\r\n"
	var b strings.Builder
	for len(body) > 0 {
		n := min(size, len(body))
		fmt.Fprintf(&b, "%x%s%s\r\n", n, sig, body[:n])
		body = body[n:]
	}
	return b.String() + "0" + sig + trailer + "\r\n"
}

const chunkTrailer = "x-amz-checksum-crc32:AAAAAA==\r\nx-amz-trailer-signature:00\r\n"

// FuzzUnframe: a body in frames comes out whole, however it is cut and read; and
// no text that is something else comes out as a whole body of the length it says.
func FuzzUnframe(f *testing.F) {
	f.Add([]byte("some text"), 4, "")
	f.Add(bytes.Repeat([]byte("0123456789abcdef"), 5000), 65536, "")
	f.Add([]byte(nil), 1, "5;x\r\nhello\r\n0\r\n\r\n")
	f.Add([]byte("x"), 1, "-1\r\n\r\n")
	f.Add([]byte("abc"), 9, "3\r\nabc\r\n0\r\nx-amz-checksum-crc32:a\r\n\r\n")
	f.Fuzz(func(t *testing.T, body []byte, size int, text string) {
		size = max(1, min(size, 1<<20))
		for _, trailer := range []bool{false, true} {
			end := ""
			if trailer {
				end = chunkTrailer
			}
			got, err := unframe(signedChunks(body, size, end), len(body), trailer, true)
			if err != nil || !bytes.Equal(got, body) {
				t.Errorf("trailer %v: %d octets, %v, want %d", trailer, len(got), err, len(body))
			}
			// Whatever it is: it ends, and is never longer than it says.
			if got, err := unframe(text, len(body), trailer, false); err == nil && len(got) != len(body) {
				t.Errorf("%q gives %d octets and says %d", text, len(got), len(body))
			}
		}
	})
}

// unframe reads a body as it would be sent, one octet at a time if it is of this
// test's own framing, in which nothing is left of signatures.
func unframe(text string, length int, trailer, own bool) ([]byte, error) {
	r := request("PUT", "https://s3.test/b/k", "X-Amz-Decoded-Content-Length", strconv.Itoa(length))
	if trailer {
		r.Header.Set("X-Amz-Trailer", "x-amz-checksum-crc32")
	}
	var in io.Reader = strings.NewReader(text)
	if own {
		in = iotest.OneByteReader(in)
	}
	r.Body = io.NopCloser(in)
	out, _, err := broker.Unframe(r, trailer)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(out)
	if err != nil || !trailer {
		return b, err
	}
	if own && strings.Contains(string(b), "amz-trailer-signature") {
		return nil, fmt.Errorf("a signature is left in %q", b)
	}
	return io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(b)))
}
