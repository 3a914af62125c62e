package dial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// Resolver is a DNS server to ask.
type Resolver struct {
	Addr netip.AddrPort
	// TLSName, if not empty, has it asked over TLS alone (RFC 7858), with a
	// certificate for this name (the strict profile of RFC 8310 section 5).
	TLSName string
}

// server is a [Resolver] in use.
type server struct {
	addr netip.AddrPort
	tls  *tls.Config // nil: in the clear
}

func newServer(r Resolver, roots *x509.CertPool, now func() time.Time) server {
	s := server{addr: r.Addr}
	if r.TLSName != "" {
		s.tls = &tls.Config{
			ServerName: r.TLSName, RootCAs: roots, MinVersion: tls.VersionTLS12, Time: now,
			// A resumed handshake costs the server no signature and us no check.
			ClientSessionCache: tls.NewLRUClientSessionCache(1),
		}
	}
	return s
}

// askTLS asks over a connection of its own: answers are kept, so that queries
// are few, and an idle connection would tell when there are none.
func (s server) askTLS(ctx context.Context, wire []byte, q *dns.Msg) (*dns.Msg, error) {
	raw, err := connectOne(ctx, s.addr)
	if err != nil {
		return nil, err
	}
	c := tls.Client(raw, s.tls)
	return talk(ctx, c, func() (*dns.Msg, error) {
		if err := c.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		return askStream(c, wire, q)
	})
}
