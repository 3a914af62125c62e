package h1

import (
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// ReadRequest reads the head of a request, of at most most octets, and
// returns it with its body still to be read. The body is read from r, and has
// to be read to its end before r is used for anything else.
//
// A request that is refused is an [*Error], one that is too long [ErrTooLarge];
// other errors are those of the source, [io.EOF] only if nothing was read. As
// with net/http's server, Host is taken from an absolute URI where there is one,
// and no Host is left in the header.
func (r *Reader) ReadRequest(most int) (*http.Request, error) {
	block, err := r.block(most)
	if err != nil {
		return nil, err
	}
	head := string(block) // everything below is a part of it
	line, rest := cutLine(head)
	req := &http.Request{ProtoMajor: 1, ContentLength: -1, Body: http.NoBody}
	if err := requestLine(req, line); err != nil {
		return nil, err
	}
	if req.Header, err = fields(rest); err != nil {
		return nil, err
	}
	if err := hostOf(req); err != nil {
		return nil, err
	}
	req.Close = closes(req.ProtoMinor, req.Header)
	return req, r.requestBody(req)
}

// requestLine reads method, target and version (RFC 9112 section 3).
func requestLine(req *http.Request, line string) error {
	method, rest, ok1 := strings.Cut(line, " ")
	to, proto, ok2 := strings.Cut(rest, " ")
	if !ok1 || !ok2 || !token(method) || to == "" {
		return bad("malformed request line")
	}
	minor, ok := version(proto)
	if !ok && otherVersion(proto) && method != "PRI" {
		return &Error{http.StatusHTTPVersionNotSupported, "unsupported protocol version"}
	}
	if !ok {
		return bad("malformed version")
	}
	req.Method, req.RequestURI, req.Proto, req.ProtoMinor = method, to, proto, minor
	justAuthority := method == http.MethodConnect && to[0] != '/'
	if justAuthority {
		to = "http://" + to
	}
	u, err := url.ParseRequestURI(to)
	if err != nil {
		return bad("malformed request target")
	}
	if req.URL = u; justAuthority {
		u.Scheme = ""
	}
	return nil
}

// hostOf reads the authority (RFC 9112 section 3.2).
func hostOf(req *http.Request) error {
	hosts, ok := req.Header["Host"]
	switch {
	case len(hosts) > 1:
		return bad("several Host")
	case !ok && req.ProtoMinor > 0 && req.Method != http.MethodConnect:
		return bad("no Host")
	case ok && !httpguts.ValidHostHeader(hosts[0]):
		return bad("malformed Host")
	}
	if req.Host = req.URL.Host; req.Host == "" && ok {
		req.Host = hosts[0]
	}
	delete(req.Header, "Host")
	return nil
}

// requestBody finds out where the request ends (RFC 9112 section 6.3).
func (r *Reader) requestBody(req *http.Request) error {
	inChunks, err := chunked(req.ProtoMinor, req.Header)
	if err != nil {
		return err
	}
	n, err := Length(req.Header)
	if err != nil {
		return err
	}
	if !inChunks {
		if req.ContentLength = max(n, 0); n > 0 {
			req.Body = &Body{r: r, left: n}
		}
		return nil
	}
	delete(req.Header, "Content-Length") // the chunks count
	if req.Trailer, err = announced(req.Header); err != nil {
		return err
	}
	r.over = 0
	req.TransferEncoding = chunkedCoding
	req.Body = &Body{r: r, chunks: true, trailer: &req.Trailer}
	return nil
}

var chunkedCoding = []string{"chunked"}

// ExpectsContinue reports whether the client waits for 100 Continue before it
// sends the body (RFC 9110 section 10.1.1). Any other expectation is an
// [*Error].
func ExpectsContinue(req *http.Request) (bool, error) {
	e, ok := req.Header["Expect"]
	switch {
	case !ok || len(e) == 1 && e[0] == "":
		return false, nil
	case listed(e, "100-continue"):
		return req.ProtoMinor > 0 && req.ContentLength != 0, nil
	default:
		return false, &Error{http.StatusExpectationFailed, "unknown expectation"}
	}
}
