package scrub_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"sallyport/broker/scrub"
)

// framed is a message as gRPC sends it.
func framed(flags byte, text string) string {
	return string(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(text)))) + text
}

func zipped(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.WriteString(w, text)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// answerOf is an answer whose messages are compressed.
func answerOf(body, coding string, more http.Header) *http.Response {
	h := http.Header{"Grpc-Encoding": {coding}, "Content-Type": {"application/grpc"}, "Content-Length": {"99"}}
	maps.Copy(h, more)
	return &http.Response{StatusCode: 200, Header: h, Body: io.NopCloser(iotest.OneByteReader(strings.NewReader(body)))}
}

// TestCompressedMessages: an answer is handed on with messages that are not compressed,
// and without the secret. Of one that is cut over two messages the first half goes.
func TestCompressedMessages(t *testing.T) {
	half := len(secret) / 2
	body := framed(1, zipped(t, "say "+secret)) + framed(0, "plain "+secret) + framed(1, zipped(t, "")) + framed(0, "") +
		framed(1, "") + framed(3, zipped(t, `{"end":"`+secret+`"}`)) + framed(1, zipped(t, "x"+secret[:half])) + framed(0x80, secret[half:])
	resp := answerOf(body, "GZip", nil)
	if err := scrubber().Response(resp); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	clean := scrubber().Text(secret)
	want := framed(0, "say "+clean) + framed(0, "plain "+clean) + framed(0, "") + framed(0, "") +
		framed(0, "") + framed(2, `{"end":"`+clean+`"}`) + framed(0, scrubber().Text("x"+secret[:half])) + framed(0x80, secret[half:])
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff(http.Header{"Content-Type": {"application/grpc"}}, resp.Header); d != "" || resp.ContentLength != -1 {
		t.Errorf("length %d, header (-want +got):\n%s", resp.ContentLength, d)
	}
}

// TestCompressedMessagesThatCannotBeRead: what cannot be looked into is not handed on.
func TestCompressedMessagesThatCannotBeRead(t *testing.T) {
	for _, tt := range []struct{ name, coding, contentType string }{
		{"an unknown coding", "snappy", "application/grpc"},
		{"in base64", "gzip", "application/grpc-web-text"},
		{"two", "gzip, identity", "application/grpc"},
	} {
		resp := answerOf(framed(0, "x"), tt.coding, http.Header{"Content-Type": {tt.contentType}})
		if err := scrubber().Response(resp); err == nil || !strings.Contains(err.Error(), "compressed") {
			t.Errorf("%s is answered %v", tt.name, err)
		}
	}
	for _, name := range []string{"Grpc-Encoding", "Connect-Content-Encoding"} { // twins
		for _, coding := range []string{"identity", ""} {
			resp := &http.Response{StatusCode: 200, Header: http.Header{name: {coding}}, Body: io.NopCloser(strings.NewReader("\x00" + secret))}
			if err := scrubber().Response(resp); err != nil {
				t.Errorf("%s: %q: %v", name, coding, err)
			}
		}
	}
	packed := zipped(t, strings.Repeat("some text ", 100))
	for name, body := range map[string]string{
		"not compressed":       framed(1, "some text"),
		"cut off":              framed(1, packed)[:40],
		"cut off in its head":  framed(1, packed) + "\x00\x00",
		"a part of its coding": framed(1, packed[:40]),
		"cut off, plain":       framed(0, "some text")[:9],
		"too large":            framed(1, zipped(t, strings.Repeat("\x00", 17<<20))),
	} {
		resp := answerOf(body, "gzip", nil)
		if err := scrubber().Response(resp); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("%s: %d octets and no error", name, len(got))
		}
	}
	resp := answerOf(framed(0, strings.Repeat("y", 17<<20)), "gzip", nil) // twin of what is too large to be held
	if err := scrubber().Response(resp); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != 5+17<<20 {
		t.Errorf("a large message: %d octets, %v", n, err)
	}
}

// TestMessages: what they say, one behind the other.
func TestMessages(t *testing.T) {
	body := framed(1, zipped(t, "one")) + framed(0, "two") + framed(1, "") + framed(1, zipped(t, "three"))
	r, err := scrub.Messages("gzip", io.NopCloser(iotest.HalfReader(strings.NewReader(body))))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "onetwothree" {
		t.Errorf("%q, %v", got, err)
	}
	if r, err := scrub.Messages("snappy", http.NoBody); err == nil || r != nil {
		t.Errorf("an unknown coding: %v, %v", r, err)
	}
}

// FuzzMessages: whatever an upstream sends, what is handed on has no compressed message,
// and says as much as the messages say.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(framed(0, "plain")))
	f.Add([]byte(framed(1, zipped(f, "compressed")) + framed(2, "end")))
	f.Add([]byte(framed(1, "") + framed(1, "not compressed")))
	f.Fuzz(func(t *testing.T, body []byte) {
		resp := answerOf("", "gzip", nil)
		resp.Body = io.NopCloser(bytes.NewReader(body))
		if err := scrubber().Response(resp); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		if err != nil {
			return
		}
		says, err := scrub.Messages("gzip", io.NopCloser(bytes.NewReader(body)))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(says)
		if err != nil {
			t.Errorf("one way it cannot be read: %v", err)
		}
		n := 0
		for len(got) > 0 {
			size := int(binary.BigEndian.Uint32(got[1:5]))
			if got[0]&1 != 0 || 5+size > len(got) {
				t.Fatalf("a message of %d octets with flags %x, and %d are there", size, got[0], len(got)-5)
			}
			n, got = n+size, got[5+size:]
		}
		if n != len(text) {
			t.Errorf("%d octets are handed on, of %d", n, len(text))
		}
	})
}
