package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"

	"sallyport/rules"
)

// h2Head is the head of a request, or a trailer, as it came over HTTP/2.
type h2Head struct {
	fields []hpack.HeaderField // sandbox-controlled
	size   int                 // of all that came, as RFC 9113 section 6.5.2 counts it
	most   int                 // beyond which no field is kept
}

func (h *h2Head) reset() {
	clear(h.fields)
	h.fields, h.size = h.fields[:0], 0
}

func (h *h2Head) add(f hpack.HeaderField) {
	if h.size += int(f.Size()); !h.over() {
		h.fields = append(h.fields, f)
	}
}

func (h *h2Head) over() bool { return h.size > h.most }

// get returns the first field of a name, "" for none.
func (h *h2Head) get(name string) string {
	for _, f := range h.fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// fault says why this is no head of a request (RFC 9113 sections 8.2 and 8.3), nil
// if it is one. What it lets pass, net/http hands on.
func (h *h2Head) fault() error {
	seen := make([]string, 0, 4) // pseudo-headers
	te := false
	for i, f := range h.fields {
		if !httpguts.ValidHeaderFieldValue(f.Value) {
			return errors.New("HTTP/2: a value with a control character")
		}
		if strings.HasPrefix(f.Name, ":") {
			if err := pseudoFault(f.Name, seen, len(seen) < i); err != nil {
				return err
			}
			seen = append(seen, f.Name)
			continue
		}
		switch {
		case !lowerName(f.Name):
			return errors.New("HTTP/2: a name with a capital letter, or that is none")
		case ofConnection(f), te && f.Name == "te":
			return errors.New("HTTP/2: a field of a connection: " + f.Name)
		}
		te = te || f.Name == "te"
	}
	return h.target()
}

// pseudoFault judges a pseudo-header by those before it; late: a field was, too.
func pseudoFault(name string, seen []string, late bool) error {
	switch {
	case late:
		return errors.New("HTTP/2: a pseudo-header after a field")
	case slices.Contains(seen, name):
		return errors.New("HTTP/2: a pseudo-header that comes twice")
	}
	switch name {
	case ":method", ":scheme", ":authority", ":path":
		return nil
	case ":protocol":
		return errors.New("HTTP/2: an extended CONNECT (RFC 8441)")
	default:
		return errors.New("HTTP/2: a pseudo-header of no request")
	}
}

// lowerName is what a name must be in HTTP/2.
func lowerName(s string) bool {
	return httpguts.ValidHeaderFieldName(s) && !strings.ContainsFunc(s, func(r rune) bool { return 'A' <= r && r <= 'Z' })
}

// ofConnection tells of a field that HTTP/2 has no use for (RFC 9113 section 8.2.2).
func ofConnection(f hpack.HeaderField) bool {
	switch f.Name {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		return true
	case "te":
		return f.Value != "trailers" && f.Value != ""
	default:
		return false
	}
}

// target judges the pseudo-headers together.
func (h *h2Head) target() error {
	method, scheme, authority, path := h.get(":method"), h.get(":scheme"), h.authority(), h.get(":path")
	switch {
	case method == "":
		return errors.New("HTTP/2: no :method")
	case method == http.MethodConnect && (scheme != "" || path != "" || authority == ""):
		return errors.New("HTTP/2: a CONNECT with :scheme or :path, or without :authority")
	case method == http.MethodConnect:
		return nil
	case scheme != "http" && scheme != "https":
		return errors.New("HTTP/2: a :scheme that is neither http nor https")
	case strings.Contains(authority, "@"):
		return errors.New("HTTP/2: user information in :authority")
	case !isPath(path):
		return errors.New("HTTP/2: no :path, or none that can be read")
	}
	return nil
}

func (h *h2Head) authority() string {
	if a := h.get(":authority"); a != "" {
		return a
	}
	return h.get("host")
}

func isPath(s string) bool {
	_, err := url.ParseRequestURI(s)
	return err == nil
}

// headerFault tells [h2Handler] that a request is refused unread. What a client calls
// so is left out of every head. Its value has three parts: the method if it is a
// token, whether the path can be read, and what is wrong; nothing: it is too large.
const headerFault = "sallyport-fault"

// judge returns what net/http is to read for a head: the same fields, or, if it has a
// fault, what of it says how to refuse it.
func (h *h2Head) judge() []hpack.HeaderField {
	if h.over() {
		return h.remains("")
	}
	if err := h.fault(); err != nil {
		return h.remains(err.Error())
	}
	return slices.DeleteFunc(h.fields, func(f hpack.HeaderField) bool { return f.Name == headerFault })
}

// remains writes the head of a request that is refused: with what the record tells of
// it, and with what the form of the answer depends on.
func (h *h2Head) remains(wrong string) []hpack.HeaderField {
	told, method, scheme, path, authority := "", http.MethodGet, "https", "/", h.authority()
	if m := h.get(":method"); rules.IsToken(m) {
		if told = m; m != http.MethodConnect {
			method = m
		}
	}
	if h.get(":scheme") == "http" {
		scheme = "http"
	}
	readable := ""
	if p := h.get(":path"); isPath(p) {
		readable, path = "path", p
	}
	if strings.Contains(authority, "@") || !httpguts.ValidHeaderFieldValue(authority) {
		authority = ""
	}
	out := []hpack.HeaderField{
		{Name: ":method", Value: method},
		{Name: ":scheme", Value: scheme},
		{Name: ":path", Value: path},
		{Name: ":authority", Value: authority},
		{Name: headerFault, Value: told + ";" + readable + ";" + wrong},
	}
	for _, name := range []string{"user-agent", "accept", "content-type", "authorization", "sec-fetch-mode"} {
		if v := h.get(name); v != "" && httpguts.ValidHeaderFieldValue(v) {
			out = append(out, hpack.HeaderField{Name: name, Value: v})
		}
	}
	return out
}

type h2FaultKey struct{}

// restored gives a request that has a fault the form in which it is refused.
func (s *Server) restored(r *http.Request) *http.Request {
	fault := r.Header.Get(headerFault)
	if fault == "" {
		return r
	}
	r.Header.Del(headerFault)
	method, fault, _ := strings.Cut(fault, ";")
	readable, wrong, _ := strings.Cut(fault, ";")
	bad := &formError{rules.BadRequest, errors.New(wrong)}
	if wrong == "" {
		bad = &formError{rules.Limit, s.largeHead()}
	}
	r = r.WithContext(context.WithValue(r.Context(), h2FaultKey{}, bad))
	if r.Method = method; readable == "" {
		r.RequestURI = ""
	}
	return r
}

// badHead says why a request is refused for its head alone, nil if it is not.
func (s *Server) badHead(r *http.Request) *formError {
	if r.ProtoMajor == 2 {
		if bad, ok := r.Context().Value(h2FaultKey{}).(*formError); ok {
			return bad
		}
	}
	if n := s.cfg.Limits.HeaderLines; lines(r.Header) > n {
		return &formError{rules.Limit, linesBound(n)}
	}
	return nil
}
