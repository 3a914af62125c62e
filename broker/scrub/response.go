package scrub

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// Response takes the secrets out of an answer: now out of its headers, and out
// of body and trailers as they are read.
//
// A compressed body is read decompressed from here on, and the answer says so:
// what is compressed again would lose the flushes that streams live by. One that
// cannot be decompressed is refused; the caller then closes the body and answers
// for the upstream. The body of an upgraded connection is [NewFrames]' to scrub. [Ask] keeps upstreams from compressing in the first place.
func (s *Scrubber) Response(resp *http.Response) error {
	if s.idle() {
		return nil
	}
	s.Header(resp.Header)
	resp.Status = s.Text(resp.Status)
	if resp.Body == nil || resp.Body == http.NoBody || bodiless(resp) || resp.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	if err := decode(resp); err != nil {
		return fmt.Errorf("keeping secrets out of an answer: %w", err)
	}
	resp.Body = &trailed{ReadCloser: s.Body(resp.Body), resp: resp, s: s}
	return nil
}

// Ask changes a request so that its answer can be scrubbed: not compressed,
// nor messages within it, as gRPC, Connect and the extensions of WebSockets do, and
// in no charset of the sandbox's choosing.
func Ask(h http.Header) {
	h["Accept-Encoding"] = []string{"identity"}
	for _, name := range []string{"Sec-Websocket-Extensions", "Grpc-Accept-Encoding", "Connect-Accept-Encoding", "Accept-Charset", "A-Im"} {
		delete(h, name)
	}
}

func bodiless(resp *http.Response) bool {
	return resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified ||
		resp.Request != nil && resp.Request.Method == http.MethodHead
}

// trailed scrubs the trailers, which are there once the body has ended.
type trailed struct {
	io.ReadCloser
	resp *http.Response
	s    *Scrubber
}

// Read implements [io.Reader].
func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err != nil {
		t.s.Header(t.resp.Trailer)
	}
	return n, err
}

// Ready is [body.Ready].
func (t *trailed) Ready() bool { return ready(t.ReadCloser) }

// Close implements [io.Closer].
func (t *trailed) Close() error {
	err := t.ReadCloser.Close()
	t.s.Header(t.resp.Trailer)
	return err
}

// maxCodings bounds how often an answer is compressed over.
const maxCodings = 3

// decode replaces the body by what its content codings (RFC 9110 section 8.4)
// hold.
func decode(resp *http.Response) error {
	var names []string
	for _, line := range resp.Header["Content-Encoding"] {
		for c := range strings.SplitSeq(line, ",") {
			if c = strings.TrimSpace(c); c != "" && !strings.EqualFold(c, "identity") {
				names = append(names, c)
			}
		}
	}
	inner := Within(resp.Header)
	switch {
	case len(names) == 0 && inner == "":
		return nil
	case len(names) > maxCodings:
		return fmt.Errorf("it is compressed %d times over", len(names))
	case resp.StatusCode == http.StatusPartialContent:
		return errors.New("it is a part of something compressed")
	}
	body := resp.Body
	for _, name := range slices.Backward(names) { // the last was applied last
		r, err := decoder(name, body)
		if err != nil {
			return err
		}
		body = r
	}
	if inner != "" { // servers take that from the request, which may be compressed so
		m, err := newMessages(inner, body)
		if err != nil {
			return fmt.Errorf("its messages are compressed: %w; send requests that are not", err)
		}
		body = &unpacked{messages: m}
	}
	resp.Body, resp.ContentLength, resp.Uncompressed = body, -1, true
	// None of these is true of what is handed on.
	for _, h := range []string{within[0], within[1], "Content-Encoding", "Content-Length", "Content-Md5", "Content-Digest", "Digest", "Accept-Ranges"} {
		resp.Header.Del(h)
	}
	return nil
}
