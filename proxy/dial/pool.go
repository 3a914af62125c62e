package dial

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/rules/gate"
)

const (
	poolsPerCell  = 64        // sets of addresses
	idlePerHost   = 64        // net/http's own 2 costs a handshake for most requests of a busy client
	idlePerPool   = 256       // all hosts of one pool
	sessions      = 64        // TLS sessions kept for resumption, per pool
	maxRespHeader = 256 << 10 // octets of an answer's header
	// continueWait is how long an upload waits for upstream's 100 before it
	// begins all the same (RFC 9110 section 10.1.1 allows for servers that
	// never send one).
	continueWait = time.Second
)

// poolKey is what pooled connections have in common. The addresses are part of
// it because a rule may open or deny some: a request is carried by no other
// connection than one to an address that was vetted for itself.
type poolKey struct {
	cell, run, policy string
	// credential is there where it is a certificate that the connection shows: a
	// request without it must not travel on such a connection.
	credential string
	addrs      [maxTried]netip.Addr // sorted
}

// pool is the connections of one key. net/http separates them further by
// scheme, host and port.
type pool struct {
	transport *http.Transport
	used      uint64      // when, on the clock of pools; guarded by its mutex
	gone      atomic.Bool // dropped: what becomes idle is closed
}

// settle closes what a request on a dropped pool may have left behind.
func (p *pool) settle() {
	if p.gone.Load() {
		p.transport.CloseIdleConnections()
	}
}

// pools holds the pools in use, by cell. The zero pools is empty and ready.
type pools struct {
	mu     sync.Mutex // guards all below
	byCell map[string]map[poolKey]*pool
	clock  uint64
}

// poolFor returns the pool of p, made if need be.
func (d *Dialer) poolFor(p gate.Pass, addrs []netip.Addr) *pool {
	id := p.Identity()
	key := poolKey{cell: id.Cell, run: id.Run, policy: p.Decision().Policy}
	if d.certified(p) {
		key.credential = p.Decision().Credential
	}
	slices.SortFunc(key.addrs[:copy(key.addrs[:], addrs)], netip.Addr.Compare)
	d.pools.mu.Lock()
	defer d.pools.mu.Unlock()
	d.pools.clock++
	cell := d.pools.byCell[key.cell]
	pl, ok := cell[key]
	if !ok {
		if cell == nil {
			cell = map[poolKey]*pool{}
			if d.pools.byCell == nil {
				d.pools.byCell = map[string]map[poolKey]*pool{}
			}
			d.pools.byCell[key.cell] = cell
		}
		makeRoom(cell, key)
		pl = &pool{transport: d.transport(key.credential != "")}
		cell[key] = pl
	}
	pl.used = d.pools.clock
	return pl
}

// makeRoom drops the pools of a run or policy that key is not of, and the one
// unused for the longest time if there are too many.
func makeRoom(cell map[poolKey]*pool, key poolKey) {
	var oldest *pool
	var at poolKey
	for k, pl := range cell {
		switch {
		case k.run != key.run || k.policy != key.policy:
			delete(cell, k)
			pl.drop()
		case oldest == nil || pl.used < oldest.used:
			oldest, at = pl, k
		}
	}
	if len(cell) >= poolsPerCell {
		delete(cell, at)
		oldest.drop()
	}
}

// Forget drops the pooled connections of a cell. Those in use end with their
// request.
func (d *Dialer) Forget(cell string) {
	d.pools.mu.Lock()
	dropped := d.pools.byCell[cell]
	delete(d.pools.byCell, cell)
	d.pools.mu.Unlock()
	for _, pl := range dropped {
		pl.drop()
	}
}

// Close drops the pooled connections of every cell.
func (d *Dialer) Close() {
	d.pools.mu.Lock()
	dropped := d.pools.byCell
	d.pools.byCell = nil
	d.pools.mu.Unlock()
	for _, cell := range dropped {
		for _, pl := range cell {
			pl.drop()
		}
	}
}

func (p *pool) drop() {
	p.gone.Store(true)
	p.transport.CloseIdleConnections()
}

// transport returns a transport whose every connection goes through
// [Dialer.Dial]. It has no proxy and takes nothing from the environment. TLS is
// net/http's own: for the host of the request's URL, which [outgoing] took
// from the pass, and over HTTP/1.1 for a request that upgrades.
func (d *Dialer) transport(certified bool) *http.Transport {
	t := &http.Transport{
		DialContext: d.dialPooled,
		TLSClientConfig: &tls.Config{
			MinVersion:         tls.VersionTLS12,
			RootCAs:            d.cfg.Roots,
			ClientSessionCache: tls.NewLRUClientSessionCache(sessions),
			Time:               d.cfg.Now,
		},
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxIdleConns:           idlePerPool,
		MaxIdleConnsPerHost:    idlePerHost,
		IdleConnTimeout:        d.cfg.Timeouts.Idle,
		TLSHandshakeTimeout:    d.cfg.Timeouts.TLS,
		ResponseHeaderTimeout:  d.cfg.Timeouts.Response,
		ExpectContinueTimeout:  continueWait,
		MaxResponseHeaderBytes: maxRespHeader,
		HTTP2: &http.HTTP2Config{
			// A connection whose far end is gone is found out within a minute.
			SendPingTimeout: 45 * time.Second,
			PingTimeout:     15 * time.Second,
		},
	}
	if certified {
		t.TLSClientConfig.GetClientCertificate = d.certificate
		t.TLSClientConfig.ClientSessionCache = nil // each connection proves anew who it is
	}
	return t
}

func (d *Dialer) certified(p gate.Pass) bool {
	return d.cfg.Certified != nil && p.Request().Secure && d.cfg.Certified(p)
}

// certificate shows the certificate of the request that a connection is opened
// for. A server that does not ask for one is not shown any, and the request goes
// all the same: TLS has verified who it is.
func (d *Dialer) certificate(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	t, ok := asked.Context().Value(ticketKey{}).(*ticket)
	if !ok || !t.pass.Dialable() || !d.certified(t.pass) {
		return nil, ErrNoPass
	}
	c, err := d.cfg.Certificate(asked.Context(), t.pass)
	if err != nil {
		return nil, err
	}
	return c, asked.SupportsCertificate(c)
}

// LoadRoots returns the system's authorities and those in PEM files.
func LoadRoots(files ...string) (*x509.CertPool, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("reading the system's certificates: %w", err)
	}
	for _, f := range files {
		pem, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("reading upstream certificates: %w", err)
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading upstream certificates: %q: %w", f, errors.New("no certificate in it"))
		}
	}
	return roots, nil
}
