package proxy_test

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"

	"sallyport/proxy"
)

// Tests in a bubble have a clock of their own. It only goes on while everything waits
// for it, so that what is to happen at once takes no time however busy the machine is,
// and an hour takes none either. Who waits for a socket does not wait for the clock: the
// network is one of pipes.

// bubble is a test in one.
func bubble(f func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) { synctest.Test(t, f) }
}

// newPipeLab is newLab on pipes.
func newPipeLab(t *testing.T, opts ...labOption) *lab {
	t.Helper()
	l := makeLab(t, opts...)
	l.pipes = &pipeNet{transparent: newPipeListener(1), explicit: newPipeListener(2), origins: map[string]*pipeListener{}}
	l.transparentPort, l.explicitAddr = 1, l.pipes.explicit.addr.String()
	s, err := proxy.New(l.cfg)
	must(t, err)
	l.serveOn(s, l.pipes.transparent, l.pipes.explicit)
	return l
}

// pipeNet is a network of pipes.
type pipeNet struct {
	transparent, explicit *pipeListener

	mu      sync.Mutex
	origins map[string]*pipeListener
}

// listen returns a listener for an origin.
func (p *pipeNet) listen() net.Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	ln := newPipeListener(1000 + len(p.origins))
	p.origins[ln.addr.String()] = ln
	return ln
}

// reach connects to an origin.
func (p *pipeNet) reach(addr string) (net.Conn, error) {
	p.mu.Lock()
	ln := p.origins[addr]
	p.mu.Unlock()
	if ln == nil {
		return nil, fmt.Errorf("nobody is at %s", addr)
	}
	return ln.dial(net.IPv4(127, 0, 0, 1), ln.addr)
}

// dialFrom connects as the cell of 127.0.0.n.
func (p *pipeNet) dialFrom(n byte, addr string) (net.Conn, error) {
	ln := p.transparent
	if addr == p.explicit.addr.String() {
		ln = p.explicit
	}
	return ln.dial(net.IPv4(127, 0, 0, n), net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
}

// pipeConn is one end of a pipe with addresses.
type pipeConn struct {
	net.Conn
	local, remote net.Addr
}

func (c *pipeConn) LocalAddr() net.Addr  { return c.local }
func (c *pipeConn) RemoteAddr() net.Addr { return c.remote }

// pipeListener is a listener to which one connects by dial.
type pipeListener struct {
	addr   *net.TCPAddr
	queue  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener(port int) *pipeListener {
	return &pipeListener{
		addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}, queue: make(chan net.Conn), closed: make(chan struct{}),
	}
}

func (p *pipeListener) Addr() net.Addr { return p.addr }

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.queue:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// dial connects from an address; to is the one that the listener's end has.
func (p *pipeListener) dial(from net.IP, to net.Addr) (net.Conn, error) {
	near, far := net.Pipe()
	client := &net.TCPAddr{IP: from, Port: 40000}
	select {
	case p.queue <- &pipeConn{far, to, client}:
		return &pipeConn{near, client, to}, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
