package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"sallyport/proxy/h1"
	"sallyport/rules"
	"sallyport/rules/target"
)

// form is what a request asks for, read from the octets of its request line
// and not from what net/url makes of them.
type form struct {
	endpoint target.Endpoint
	path     target.Path
	query    string
	absolute bool // the request line had a scheme and an authority
}

// A formError says why a request is refused before a policy is asked.
type formError struct {
	reason rules.Reason
	err    error
}

func (e *formError) Error() string { return e.err.Error() }

func malformed(format string, args ...any) error {
	return &formError{rules.BadRequest, fmt.Errorf(format, args...)}
}

// defaultPort of the scheme that a request came under.
func defaultPort(secure bool) uint16 {
	if secure {
		return 443
	}
	return 80
}

// readForm reads the request target in origin or absolute form (RFC 9112
// section 3.2), and the authority. Everything that names the place must name
// the same place.
func readForm(r *http.Request, secure bool) (f form, err error) {
	raw := r.RequestURI
	authority := r.Host // of an absolute URI too: net/http drops the Host header then
	if r.Method == http.MethodConnect {
		return f, malformed("CONNECT inside a stream")
	}
	if otherScheme(r) {
		return f, malformed("the :scheme of the request is not %s", schemeOf(secure))
	}
	if !strings.HasPrefix(raw, "/") {
		if authority, raw, err = cutAbsolute(raw, secure); err != nil {
			return f, err
		}
		f.absolute = true
	}
	if f.endpoint, err = target.ParseAuthority(authority, defaultPort(secure)); err != nil {
		return f, malformed("authority: %w", err)
	}
	// HTTP/2 may carry both :authority and Host (RFC 9113 section 8.3.1).
	for _, h := range r.Header["Host"] {
		if e, err := target.ParseAuthority(h, defaultPort(secure)); err != nil || e != f.endpoint {
			return f, &formError{rules.AuthorityMismatch, errors.New(":authority and Host differ")}
		}
	}
	path, query, _ := strings.Cut(raw, "?")
	if f.path, err = target.ParsePath(path); err != nil {
		return f, malformed("request target: %w", err)
	}
	if !plainQuery(query) {
		return f, malformed("request target: a control character, a space or a fragment in the query")
	}
	f.query = query
	return f, agreedLength(r)
}

// agreedLength refuses a request of HTTP/2 that states its length in more than one
// way (RFC 9113 section 8.1.1): net/http takes the first that it is told. That of
// HTTP/1 was read with its head.
func agreedLength(r *http.Request) error {
	if r.ProtoMajor != 2 {
		return nil
	}
	n, err := h1.Length(r.Header)
	switch {
	case err != nil:
		return malformed("%w", err)
	case n > 0 && r.ContentLength != n:
		return malformed("a Content-Length of %d without a body", n)
	}
	return nil
}

// cutAbsolute takes scheme and authority from an absolute URI. The scheme must
// be that of the stream: there is no other to go to from here (NM-20).
func cutAbsolute(raw string, secure bool) (authority, rest string, err error) {
	scheme, after, ok := strings.Cut(raw, "://")
	switch {
	case !ok:
		return "", "", malformed("request target has neither a path nor a scheme and an authority")
	case !strings.EqualFold(scheme, schemeOf(secure)):
		return "", "", malformed("the scheme of the request target is not %s", schemeOf(secure))
	}
	authority = after
	if i := strings.IndexAny(after, "/?#"); i >= 0 {
		authority, rest = after[:i], after[i:]
	}
	if !strings.HasPrefix(rest, "/") {
		rest = "/" + rest // RFC 9112 section 3.2.2: an empty path is a slash
	}
	return authority, rest, nil
}

func schemeOf(secure bool) string {
	if secure {
		return "https"
	}
	return "http"
}

// plainQuery reports whether q can be sent as it is. Octets outside ASCII can:
// clients do send them, and nothing here decodes a query.
func plainQuery(q string) bool {
	for i := range len(q) {
		if c := q[i]; c <= ' ' || c == 0x7f || c == '#' {
			return false
		}
	}
	return true
}

// hasToken reports whether a header field has a token in its comma-separated
// list (RFC 9110 section 5.6.1).
func hasToken(values []string, token string) bool {
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

// readUpgrade tells whether the request is an opening handshake of RFC 6455.
// That is the one upgrade there is: one for anything else is forgotten, as
// RFC 9110 section 7.8 allows, and a broken one for WebSocket is refused.
func readUpgrade(r *http.Request) (websocket bool, err error) {
	up := r.Header["Upgrade"]
	if len(up) == 0 {
		return false, nil
	}
	if !hasToken(up, "websocket") || !hasToken(r.Header["Connection"], "upgrade") {
		r.Header.Del("Upgrade")
		return false, nil
	}
	key := r.Header["Sec-Websocket-Key"]
	switch {
	case len(up) != 1 || !strings.EqualFold(up[0], "websocket"):
		return false, malformed("a choice of upgrades")
	case r.Method != http.MethodGet || !r.ProtoAtLeast(1, 1) || r.ProtoMajor != 1 || r.ContentLength != 0:
		return false, malformed("an upgrade to WebSocket is a GET of HTTP/1.1 without a body")
	case len(key) != 1 || len(key[0]) != 24 || r.Header.Get("Sec-Websocket-Version") != "13":
		return false, malformed("an upgrade to WebSocket without a key or version 13")
	}
	return true, nil
}
