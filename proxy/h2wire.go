package proxy

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"sallyport/rules"
)

// h2Wire is an HTTP/2 connection that tells its watch which heads come. net/http
// answers some of them by itself: with 431 what is far too large, with 400 or a
// reset what no request may have; and it leaves what follows a frame that is too
// long. It reads one frame at a time, and none before that one is dealt with.
type h2Wire struct {
	net.Conn
	w    *h2Watch
	head [h2HeadSize]byte // of a frame (RFC 9113 section 4.1)
	have int              // octets of head that were read
	rest int              // octets of the frame's payload that are still to come
	last uint32           // the latest stream
	more bool             // a CONTINUATION follows, which is read at once
}

const (
	h2HeadSize     = 9
	h2Headers      = 0x1
	h2Reset        = 0x3
	h2Continuation = 0x9
	h2EndHeaders   = 0x4       // a flag
	h2MaskID       = 1<<31 - 1 // the highest bit of a stream's number means nothing
)

// Read implements net.Conn.
func (c *h2Wire) Read(b []byte) (int, error) {
	if c.have == 0 && c.rest == 0 && !c.more {
		c.w.dealt()
	}
	n, err := c.Conn.Read(b)
	c.see(b[:n])
	return n, err
}

func (c *h2Wire) see(b []byte) {
	for len(b) > 0 {
		if c.rest > 0 {
			n := min(c.rest, len(b))
			c.rest, b = c.rest-n, b[n:]
			continue
		}
		n := copy(c.head[c.have:], b)
		c.have, b = c.have+n, b[n:]
		if c.have == h2HeadSize {
			c.have = 0
			c.frame()
		}
	}
}

// frame looks at a frame's head.
func (c *h2Wire) frame() {
	c.rest = int(c.head[0])<<16 | int(c.head[1])<<8 | int(c.head[2])
	if c.rest > h2Frame {
		c.w.lost(rules.BadRequest, fmt.Sprintf("a frame of %d octets", c.rest))
	}
	switch kind, flags := c.head[3], c.head[4]; kind {
	case h2Reset:
		c.w.reset()
	case h2Continuation:
		c.more = flags&h2EndHeaders == 0
	case h2Headers:
		c.more = flags&h2EndHeaders == 0
		if id := binary.BigEndian.Uint32(c.head[5:]) & h2MaskID; id > c.last { // not a trailer's
			c.last = id
			c.w.begun()
		}
	}
}

// secureH2 is an h2Wire in TLS, which net/http asks about.
type secureH2 struct {
	*h2Wire
	in *tls.Conn
}

// ConnectionState is what net/http asks for.
func (c secureH2) ConnectionState() tls.ConnectionState { return c.in.ConnectionState() }

// unencrypted hands a connection to net/http in the only form that it takes one in:
// inside a *tls.Conn that is none.
type unencrypted struct {
	net.Conn // nil
	in       net.Conn
}

// UnencryptedNetConn is what net/http asks for.
func (c unencrypted) UnencryptedNetConn() net.Conn { return c.in }

// watched returns c for net/http to serve as unencrypted, with its preface read, and
// heads told to w. false: there is no preface, and so no HTTP/2.
func (w *h2Watch) watched(c *tls.Conn) (*tls.Conn, bool) {
	wire := &h2Wire{w: w}
	if u, ok := c.NetConn().(interface{ UnencryptedNetConn() net.Conn }); ok {
		wire.Conn = u.UnencryptedNetConn()
		return tls.Client(unencrypted{in: wire}, nil), true
	}
	wire.Conn = c
	_ = c.SetReadDeadline(w.run.cfg.Now().Add(w.run.cfg.Timeouts.Header)) // a closed connection says so when it is read
	preface := make([]byte, len(h2Preface))
	if _, err := io.ReadFull(c, preface); err != nil || !bytes.Equal(preface, []byte(h2Preface)) {
		return nil, false
	}
	_ = c.SetReadDeadline(noDeadline)
	return tls.Client(unencrypted{in: secureH2{wire, c}}, nil), true
}
