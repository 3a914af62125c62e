// Package bulk moves many octets with few system calls over connections in TLS.
//
// crypto/tls hands out one record for a read, and makes a system call of each that it
// writes: 16 KiB. A [Conn] hands out as many records as are there, and writes the
// records of one piece together, so that the far end is woken once for all of them. It waits
// for nothing that it would not have waited for, holds back nothing that was written,
// and has no memory of its own while nothing is (ADR-0055).
//
// It trusts nobody, and looks at no octet.
package bulk

import (
	"crypto/tls"
	"errors"
	"os"
	"sync"
	"syscall"
)

const (
	// record is how many octets fit into a record (RFC 8446 section 5.1).
	record = 16 << 10
	// enough is what a read has to give for more to be looked for: who says little at
	// a time waits for an answer, as a rule.
	enough = 4 << 10
)

// Conn is a connection in TLS. As with [tls.Conn], one goroutine may read while another
// writes.
type Conn struct {
	*tls.Conn
	below *Socket

	reads, writes sync.Mutex // held while below is in another mode than is usual

	// What a read that did not wait came upon; guarded by reads.
	late  error // to be said by the next
	early [1]byte
	has   bool // there is an octet in early
	cut   bool // the last read filled its room: what is left of a record may be few octets
}

// Over returns the connection for t, whose handshake is over and which stands on a
// [*Socket]. From here on that may be asked for what is there, if raw is not nil.
func Over(t *tls.Conn, raw syscall.RawConn) *Conn {
	c := &Conn{Conn: t}
	if s, ok := t.NetConn().(*Socket); ok {
		s.raw = raw
		c.below = s
	}
	return c
}

// Read implements [net.Conn]. It waits until there is something, and hands out what is
// there by then, as far as it has room.
func (c *Conn) Read(p []byte) (n int, err error) {
	c.reads.Lock()
	defer c.reads.Unlock()
	switch {
	case len(p) == 0:
		return 0, nil
	case c.has:
		c.has = false
		n = 1 + c.take(p[copy(p, c.early[:]):])
	case c.late != nil:
		err, c.late = c.late, nil
		return 0, err
	default:
		n, err = c.Conn.Read(p)
		if (n >= enough || c.cut) && err == nil && c.below != nil {
			n += c.take(p[n:])
		}
	}
	c.cut = n == len(p) && n >= enough
	return n, err
}

// take reads what is there.
func (c *Conn) take(p []byte) (n int) {
	c.below.now = true
	defer func() { c.below.now = false }()
	for n < len(p) && c.late == nil {
		k, err := c.Conn.Read(p[n:])
		n += k
		if errors.Is(err, errNothing) || errors.Is(err, os.ErrDeadlineExceeded) { // the next may wait
			break
		}
		c.late = err
	}
	return n
}

// Ready reports whether Read has octets to hand out, or something to say, without
// waiting.
func (c *Conn) Ready() bool {
	c.reads.Lock()
	defer c.reads.Unlock()
	if !c.has && c.late == nil && c.below != nil {
		c.below.full = true // so that it is asked
		c.has = c.take(c.early[:]) > 0
	}
	return c.has || c.late != nil
}

// Write implements [net.Conn]. What it was given has left when it returns, in one piece with
// its records; after an error how much of it has is not known.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.writes.Lock()
	defer c.writes.Unlock()
	last := max(0, len(p)-1) / record * record // where the last record begins
	if last > 0 && c.below != nil {
		c.below.more.Store(true)
		n, err = c.Conn.Write(p[:last])
		c.below.more.Store(false)
		if err != nil {
			return n, err
		}
	}
	k, err := c.Conn.Write(p[n:])
	return n + k, err
}
