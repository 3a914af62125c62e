package dial

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/rules/gate"
)

const (
	idlePerHost   = 64        // net/http's own 2 costs a handshake for most requests of a busy client
	idlePerPool   = 256       // all hosts of one pool
	sessions      = 64        // TLS sessions kept for resumption, per pool
	maxRespHeader = 256 << 10 // octets of an answer's header
	// continueWait is how long an upload waits for upstream's 100 before it
	// begins all the same (RFC 9110 section 10.1.1 allows for servers that
	// never send one).
	continueWait = time.Second
)

// poolKey is what a pooled connection was admitted under. The rule is part of
// it because a rule may open address ranges (cidrs) that another, for the same
// host, does not: a connection made under one is no proof for the other.
type poolKey struct{ cell, run, policy, scope, rule string }

// pool is the connections of one key. net/http separates them further by
// scheme, host and port.
type pool struct {
	transport *http.Transport
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
	mu     sync.Mutex // guards byCell
	byCell map[string]map[poolKey]*pool
}

// poolFor returns the pool of p, made if need be. A cell that comes with
// another run or policy loses the pools of the one before.
func (d *Dialer) poolFor(p gate.Pass) *pool {
	id, dec := p.Identity(), p.Decision()
	key := poolKey{id.Cell, id.Run, dec.Policy, dec.Scope, dec.Rule}
	d.pools.mu.Lock()
	defer d.pools.mu.Unlock()
	cell := d.pools.byCell[key.cell]
	if pl, ok := cell[key]; ok {
		return pl
	}
	if cell == nil {
		cell = map[poolKey]*pool{}
		if d.pools.byCell == nil {
			d.pools.byCell = map[string]map[poolKey]*pool{}
		}
		d.pools.byCell[key.cell] = cell
	}
	for k, old := range cell {
		if k.run != key.run || k.policy != key.policy {
			delete(cell, k)
			old.drop()
		}
	}
	pl := &pool{transport: d.transport()}
	cell[key] = pl
	return pl
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
func (d *Dialer) transport() *http.Transport {
	return &http.Transport{
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
