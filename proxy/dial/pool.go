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
	// What upstream may send on an HTTP/2 connection, and on one stream of it,
	// before it is read. net/http's own 1 GiB and 4 MiB would let a sandbox that
	// reads nothing fill the memory.
	h2ConnBuffer   = 32 << 20
	h2StreamBuffer = 2 << 20
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

// pool is the connections of one key: those that speak HTTP/1.1 are wires,
// those that speak HTTP/2 net/http's. Both are separated further by scheme,
// host and port.
type pool struct {
	transport *http.Transport
	tls       *tls.Config // of new connections, but for name and protocols; nil if net/http makes all of them
	idleFor   time.Duration
	used      uint64      // when, on the clock of pools; guarded by its mutex
	gone      atomic.Bool // dropped: what becomes idle is closed

	mu    sync.Mutex // guards the rest
	idle  map[wireKey][]*wire
	count int              // of all idle wires
	h2    map[wireKey]bool // what agreed on HTTP/2
	sweep *time.Timer
}

// settle closes what a request on a dropped pool may have left behind.
func (p *pool) settle() {
	if p.gone.Load() {
		p.transport.CloseIdleConnections()
	}
}

// take returns the wire that became idle last, if it is still open.
func (p *pool) take(key wireKey) *wire {
	for {
		p.mu.Lock()
		list := p.idle[key]
		if len(list) == 0 {
			p.mu.Unlock()
			return nil
		}
		w := list[len(list)-1]
		list[len(list)-1] = nil
		if p.idle[key] = list[:len(list)-1]; len(list) == 1 {
			delete(p.idle, key)
		}
		p.count--
		p.mu.Unlock()
		if idle := clock().Sub(w.since); idle < freshFor || idle < p.idleFor && w.open() {
			w.reused = true
			return w
		}
		w.close()
	}
}

// put keeps a wire for the next request, if need be in place of the one that
// has been idle for the longest time.
func (p *pool) put(w *wire) {
	w.since = clock()
	p.mu.Lock()
	ended := w
	if !p.gone.Load() && len(p.idle[w.key]) < idlePerHost {
		ended = nil
		if p.count >= idlePerPool {
			ended = p.evictLocked()
		}
		if p.idle == nil {
			p.idle = map[wireKey][]*wire{}
		}
		p.idle[w.key] = append(p.idle[w.key], w)
		if p.count++; p.sweep == nil {
			p.sweep = time.AfterFunc(p.sweepTime(), p.clean)
		}
	}
	p.mu.Unlock()
	if ended != nil {
		ended.close()
	}
}

// evictLocked takes out the wire that became idle first: the first of a list.
func (p *pool) evictLocked() *wire {
	var at wireKey
	var oldest *wire
	for key, list := range p.idle {
		if len(list) > 0 && (oldest == nil || list[0].since.Before(oldest.since)) {
			at, oldest = key, list[0]
		}
	}
	if list := p.idle[at]; len(list) > 1 {
		p.idle[at] = append(list[:0], list[1:]...)
	} else {
		delete(p.idle, at)
	}
	p.count--
	return oldest
}

// sweepTime is how often idle wires are looked at. One that its far end has
// closed stays that long at most.
func (p *pool) sweepTime() time.Duration { return min(p.idleFor/2+time.Millisecond, 15*time.Second) }

// clean closes what was idle for too long, or is closed at the far end.
func (p *pool) clean() {
	now := clock()
	var ended []*wire
	p.mu.Lock()
	for key, list := range p.idle {
		kept := list[:0]
		for _, w := range list {
			if now.Sub(w.since) < p.idleFor && w.open() {
				kept = append(kept, w)
			} else {
				ended = append(ended, w)
			}
		}
		clear(list[len(kept):])
		if p.idle[key] = kept; len(kept) == 0 {
			delete(p.idle, key)
		}
	}
	p.count -= len(ended)
	if p.count > 0 {
		p.sweep.Reset(p.sweepTime())
	} else {
		p.sweep = nil
	}
	p.mu.Unlock()
	for _, w := range ended {
		w.close()
	}
}

// speaksH2 tells whether a place is known to speak HTTP/2.
func (p *pool) speaksH2(key wireKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.h2[key]
}

func (p *pool) knowH2(key wireKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.h2 == nil {
		p.h2 = map[wireKey]bool{}
	}
	p.h2[key] = true
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
		pl = d.newPool(key.credential != "")
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
	p.mu.Lock()
	all := p.idle
	p.idle, p.count = nil, 0
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
	p.mu.Unlock()
	for _, list := range all {
		for _, w := range list {
			w.close()
		}
	}
	p.transport.CloseIdleConnections()
}

// newPool makes a pool. One whose connections show a client's certificate has
// all of them made by net/http.
func (d *Dialer) newPool(certified bool) *pool {
	cfg := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		RootCAs:            d.cfg.Roots,
		ClientSessionCache: tls.NewLRUClientSessionCache(sessions),
		Time:               d.cfg.Now,
		// Small records first would cost a system call for each of the first
		// hundred packets of an upload; nobody renders it as it comes.
		DynamicRecordSizingDisabled: true,
	}
	p := &pool{idleFor: d.cfg.Timeouts.Idle}
	if !certified {
		p.tls = cfg
	}
	p.transport = d.transport(cfg.Clone(), certified)
	return p
}

// transport returns a transport whose every connection goes through
// [Dialer.Dial]. It has no proxy and takes nothing from the environment. TLS
// is for the host of the request's URL, which [outgoing] took from the pass.
func (d *Dialer) transport(cfg *tls.Config, certified bool) *http.Transport {
	t := &http.Transport{
		DialContext:            d.dialPooled,
		TLSClientConfig:        cfg,
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
			// What comes that no sandbox reads stays within this.
			MaxReceiveBufferPerConnection: h2ConnBuffer,
			MaxReceiveBufferPerStream:     h2StreamBuffer,
			// A connection whose far end is gone is found out within a minute.
			SendPingTimeout: 45 * time.Second,
			PingTimeout:     15 * time.Second,
		},
	}
	if certified {
		t.TLSClientConfig.GetClientCertificate = d.certificate
		t.TLSClientConfig.ClientSessionCache = nil // each connection proves anew who it is
	} else {
		t.DialTLSContext = d.dialSecure
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
