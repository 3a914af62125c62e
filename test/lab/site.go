package lab

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Site is a server, or several that belong together, that tells what it saw.
type Site struct {
	Name  string
	Addrs []netip.Addr

	closers []func() error
	done    sync.WaitGroup

	mu     sync.Mutex // guards all below
	visits []Visit
	conns  int
	udp    [][]byte
}

// Visit is one request that a site got.
type Visit struct {
	Time   time.Time
	Proto  string // HTTP/1.1, HTTP/2.0
	Secure bool
	SNI    string
	Method string
	Host   string
	URI    string // as it was on the wire
	Header http.Header
	Remote string
}

// maxVisits bounds what is kept; a load test does not need more.
const maxVisits = 10000

func newSite(name string, addrs ...netip.Addr) *Site { return &Site{Name: name, Addrs: addrs} }

// NewSite returns a site of a test's own, to be given servers.
func NewSite(name string, addrs ...netip.Addr) *Site { return newSite(name, addrs...) }

// Seen returns the requests that came, in their order.
func (s *Site) Seen() []Visit {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.visits)
}

// Connections returns how many TCP connections were opened, also those that
// asked for nothing.
func (s *Site) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns
}

// Datagrams returns what came by UDP.
func (s *Site) Datagrams() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.udp)
}

// Reset forgets what was seen.
func (s *Site) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visits, s.conns, s.udp = nil, 0, nil
}

// Untouched returns an error that says what came, if anything did.
func (s *Site) Untouched() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == 0 && len(s.udp) == 0 {
		return nil
	}
	err := fmt.Errorf("%s saw %d connections, %d requests, %d datagrams", s.Name, s.conns, len(s.visits), len(s.udp))
	if len(s.visits) > 0 {
		v := s.visits[0]
		err = fmt.Errorf("%w; the first: %s %s", err, v.Method, v.URI)
	}
	return err
}

// Close ends the site's servers and waits for them.
func (s *Site) Close() error {
	s.mu.Lock()
	closers := s.closers
	s.closers = nil
	s.mu.Unlock()
	var errs []error
	for _, c := range closers {
		errs = append(errs, ignoreClosed(c())) // a server closes its own listeners too
	}
	s.done.Wait()
	return errors.Join(errs...)
}

// record notes a request and then serves it.
func (s *Site) record(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := Visit{
			Time: time.Now(), Proto: r.Proto, Secure: r.TLS != nil, Method: r.Method, Host: r.Host,
			URI: r.RequestURI, Header: r.Header.Clone(), Remote: r.RemoteAddr,
		}
		if r.TLS != nil {
			v.SNI = r.TLS.ServerName
		}
		s.mu.Lock()
		if len(s.visits) < maxVisits {
			s.visits = append(s.visits, v)
		}
		s.mu.Unlock()
		h.ServeHTTP(w, r)
	})
}

// counted counts the connections of a listener.
type counted struct {
	net.Listener
	site *Site
}

func (c counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.site.mu.Lock()
		c.site.conns++
		c.site.mu.Unlock()
	}
	return conn, err
}

// listen opens a port on every address of the site.
func (s *Site) listen(port uint16) ([]net.Listener, error) {
	var ls []net.Listener
	for _, a := range s.Addrs {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, port)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		s.onClose(func() error { return ignoreClosed(l.Close()) })
		ls = append(ls, counted{l, s})
	}
	return ls, nil
}

func (s *Site) onClose(f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closers = append(s.closers, f)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// ServePlain serves plain HTTP/1.
func (s *Site) ServePlain(port uint16, h http.Handler) error {
	return s.Serve(port, &http.Server{Handler: h})
}

// ServeTLS serves HTTPS, h1 and h2, with a certificate for the site's name and
// addresses.
func (s *Site) ServeTLS(ca *CA, port uint16, h http.Handler) error {
	hosts := []string{s.Name}
	for _, a := range s.Addrs {
		hosts = append(hosts, a.String())
	}
	cert, err := ca.Leaf(nil, hosts...)
	if err != nil {
		return err
	}
	return s.Serve(port, &http.Server{
		Handler:   h,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
	})
}

// Serve runs srv on a port of every address of the site, over TLS if srv has
// a TLSConfig, and records what its handler is asked.
func (s *Site) Serve(port uint16, srv *http.Server) error {
	ls, err := s.listen(port)
	if err != nil {
		return err
	}
	srv.Handler = s.record(srv.Handler)
	srv.ErrorLog = quiet
	if srv.ReadHeaderTimeout == 0 {
		srv.ReadHeaderTimeout = time.Minute
	}
	for _, l := range ls {
		s.done.Go(func() {
			if srv.TLSConfig != nil {
				_ = srv.ServeTLS(l, "", "") // always ErrServerClosed in the end
			} else {
				_ = srv.Serve(l)
			}
		})
	}
	s.onClose(srv.Close)
	return nil
}

// ServeGreeting greets every connection and closes it.
func (s *Site) ServeGreeting(port uint16, greeting string) error {
	return s.ServeConn(port, func(_ context.Context, c net.Conn) {
		_, _ = c.Write([]byte(greeting)) // nobody may be there to read it
	})
}

// ServeConn hands every connection to f and closes it after that.
func (s *Site) ServeConn(port uint16, f func(context.Context, net.Conn)) error {
	ls, err := s.listen(port)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.onClose(func() error { cancel(); return nil })
	for _, l := range ls {
		s.done.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				s.done.Go(func() {
					stop := context.AfterFunc(ctx, func() { _ = c.Close() })
					defer stop()
					defer c.Close()
					f(ctx, c)
				})
			}
		})
	}
	return nil
}

// serveUDP keeps every datagram and answers none.
func (s *Site) serveUDP(port uint16) error {
	for _, a := range s.Addrs {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, port)))
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		s.onClose(c.Close)
		s.done.Go(func() {
			buf := make([]byte, 64<<10)
			for {
				n, _, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				s.mu.Lock()
				if len(s.udp) < maxVisits {
					s.udp = append(s.udp, slices.Clone(buf[:n]))
				}
				s.mu.Unlock()
			}
		})
	}
	return nil
}
