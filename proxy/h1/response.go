package h1

import (
	"net/http"
	"strings"
)

// ReadResponse reads the head of the answer to a request with method, of at
// most most octets, and returns it with its body still to be read. The body is
// read from r, and has to be read to its end before r is used for anything
// else. Close says that the connection ends with the answer.
//
// An answer that cannot be understood is an [*Error], one that is too long
// [ErrTooLarge]; other errors are those of the source, [io.EOF] only if nothing
// was read.
func (r *Reader) ReadResponse(most int, method string) (*http.Response, error) {
	if err := r.expect("HTTP/1."); err != nil {
		return nil, err
	}
	block, err := r.block(most)
	if err != nil {
		return nil, err
	}
	line, rest := cutLine(string(block))
	a := &answer{resp: http.Response{ProtoMajor: 1, Body: http.NoBody}, body: Body{r: r}}
	resp := &a.resp
	if err := statusLine(resp, line); err != nil {
		return nil, err
	}
	if resp.Header, err = fields(rest); err != nil {
		return nil, err
	}
	return resp, a.findBody(method)
}

// answer is an answer and its body, which nearly all have: one allocation.
type answer struct {
	resp http.Response
	body Body
}

// expect looks at what comes first. A server that speaks something else may
// never end a line.
func (r *Reader) expect(prefix string) error {
	r.take()
	for {
		have := r.buf[r.r:min(r.w, r.r+len(prefix))]
		if string(have) != prefix[:len(have)] {
			return bad("not an answer of HTTP/1")
		}
		if len(have) == len(prefix) {
			return nil
		}
		if r.w == len(r.buf) {
			r.slide(bufferSize)
		}
		if err := r.fill(); err != nil {
			if len(have) > 0 {
				return unexpected(err)
			}
			return err
		}
	}
}

// statusLine reads version, status and reason (RFC 9112 section 4).
func statusLine(resp *http.Response, line string) error {
	proto, status, ok := strings.Cut(line, " ")
	if !ok {
		return bad("malformed status line")
	}
	minor, ok := version(proto)
	if !ok {
		return bad("malformed version")
	}
	status = strings.TrimLeft(status, " ")
	code, _, _ := strings.Cut(status, " ")
	if len(code) != 3 || !fieldText(status) {
		return bad("malformed status")
	}
	for i := range len(code) {
		if code[i] < '0' || code[i] > '9' {
			return bad("malformed status")
		}
		resp.StatusCode = resp.StatusCode*10 + int(code[i]-'0')
	}
	if resp.StatusCode < 100 {
		return bad("malformed status")
	}
	resp.Proto, resp.ProtoMinor, resp.Status = proto, minor, status
	return nil
}

// Bodiless reports whether an answer to method with status has no body,
// whatever its header says (RFC 9112 section 6.3).
func Bodiless(method string, status int) bool {
	return method == http.MethodHead || status < 200 || status == http.StatusNoContent || status == http.StatusNotModified
}

// findBody finds out where the answer ends (RFC 9112 section 6.3).
func (a *answer) findBody(method string) error {
	resp := &a.resp
	resp.Close = closes(resp.ProtoMinor, resp.Header)
	if resp.ProtoMinor > 0 && resp.Close {
		delete(resp.Header, "Connection")
	}
	inChunks, err := chunked(resp.ProtoMinor, resp.Header)
	if err != nil {
		return err
	}
	n, err := Length(resp.Header)
	if err != nil {
		return err
	}
	if inChunks {
		resp.TransferEncoding = chunkedCoding
		if resp.Trailer, err = announced(resp.Header); err != nil {
			return err
		}
	}
	switch {
	case Bodiless(method, resp.StatusCode):
		if resp.ContentLength = 0; method == http.MethodHead {
			resp.ContentLength = n
		}
	case inChunks:
		delete(resp.Header, "Content-Length") // the chunks count
		a.body.r.over = 0
		resp.ContentLength = -1
		a.body.chunks, a.body.trailer, resp.Body = true, &resp.Trailer, &a.body
	case n > 0:
		resp.ContentLength, a.body.left, resp.Body = n, n, &a.body
	case n < 0:
		resp.ContentLength, a.body.left, resp.Body = -1, -1, &a.body
		resp.Close = true
	}
	return nil
}
