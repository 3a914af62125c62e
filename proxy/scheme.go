package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
)

// tellScheme has an HTTP/2 server in TLS say which requests have another :scheme
// than https (RFC 9113 section 8.3.1). net/http leaves the TLS state out of such a
// request, and then fills it in before its handler sees it: what it hands a
// connection on to has to be asked in between. A server has that only once it has
// begun to serve, so it serves a listener that is at its end.
func tellScheme(s *http.Server, addr net.Addr) {
	none := newFeed(addr)
	_ = none.Close()
	_ = s.Serve(none)
	inner := s.TLSNextProto["h2"]
	if inner == nil {
		panic("proxy: net/http serves no HTTP/2 in TLS")
	}
	s.TLSNextProto["h2"] = func(hs *http.Server, c *tls.Conn, h http.Handler) { inner(hs, c, schemeTeller{h}) }
}

type schemeTeller struct{ http.Handler }

type otherSchemeKey struct{}

// ServeHTTP implements [http.Handler].
func (t schemeTeller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.TLS == nil {
		r = r.WithContext(context.WithValue(r.Context(), otherSchemeKey{}, true))
	}
	t.Handler.ServeHTTP(w, r)
}

// BaseContext is what net/http asks its own handler for: the connection's context.
func (t schemeTeller) BaseContext() context.Context {
	of, ok := t.Handler.(interface{ BaseContext() context.Context })
	if !ok {
		panic("proxy: net/http's handler of HTTP/2 has no context")
	}
	return of.BaseContext()
}

// otherScheme reports a request in TLS whose :scheme is not https.
func otherScheme(r *http.Request) bool {
	return r.ProtoMajor == 2 && r.Context().Value(otherSchemeKey{}) != nil
}
