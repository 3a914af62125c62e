package proxy

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"

	"golang.org/x/net/http2/hpack"

	"sallyport/rules"
)

// h2Wire is an HTTP/2 connection of which net/http reads every head as h2Head has
// written it anew, and all other frames as they are: net/http would answer by itself
// what no request may have, and not in our words (ADR-0046). It reads one frame at a
// time, and none before that one is dealt with.
//
// Trailers of a request whose stream net/http has reset meanwhile, with a refusal, are
// kept from it: it would take them for a stream that goes back (RFC 9113 section 5.1.1),
// and end the connection.
//
// BUG(sallyport): net/http forgets a stream a moment before its reset is written, from a
// buffer. Trailers that come in that moment still end the connection.
type h2Wire struct {
	net.Conn
	w     *h2Watch
	frame h2Frame
	in    []byte // payload of a frame of a head; reused
	out   []byte // of a head, for net/http, yet to be read
	rest  int    // octets that are passed on as they are
	last  uint32 // the latest stream

	head  h2Head
	dec   *hpack.Decoder
	enc   *hpack.Encoder
	block bytes.Buffer // of enc

	written h2Frame // of what net/http writes, by one goroutine at a time: the frame's head
	have    int     // octets of it that were written
	skip    int     // octets of the frame after it that are to come

	mu    sync.Mutex // guards the rest
	gone  [h2Gone]uint32
	ended int // of all streams that were reset
}

const (
	h2HeadSize     = 9
	h2Headers      = 0x1
	h2Reset        = 0x3
	h2Continuation = 0x9
	h2MaskID       = 1<<31 - 1 // the highest bit of a stream's number means nothing
	h2Table        = 4 << 10   // of header compression, that clients may use: the default
	h2Piece        = 16 << 10  // of a head, to net/http
	h2Gone         = 256       // streams of which is known that they were reset: the latest

	// Flags of HEADERS and CONTINUATION.
	h2EndStream  = 0x1
	h2EndHeaders = 0x4
	h2Padded     = 0x8
	h2Priority   = 0x20

	// h2Excess is how many times the bound of a head its compressed octets, and those
	// of its frames, are read to say that it is too large. Then the connection ends.
	h2Excess = 4
)

// h2Frame is the head of a frame (RFC 9113 section 4.1).
type h2Frame [h2HeadSize]byte

func (f *h2Frame) length() int     { return int(f[0])<<16 | int(f[1])<<8 | int(f[2]) }
func (f *h2Frame) kind() byte      { return f[3] }
func (f *h2Frame) has(b byte) bool { return f[4]&b != 0 }
func (f *h2Frame) stream() uint32  { return binary.BigEndian.Uint32(f[5:]) & h2MaskID }

func newH2Wire(w *h2Watch, c net.Conn) *h2Wire {
	wire := &h2Wire{Conn: c, w: w}
	wire.head.most = w.run.cfg.Limits.HeaderBytes
	wire.dec = hpack.NewDecoder(h2Table, wire.head.add)
	wire.enc = hpack.NewEncoder(&wire.block)
	wire.enc.SetMaxDynamicTableSize(0) // nothing to keep in step
	return wire
}

// Read implements net.Conn.
func (c *h2Wire) Read(b []byte) (int, error) {
	for len(c.out) == 0 && c.rest == 0 {
		c.w.dealt()
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	if len(c.out) > 0 {
		n := copy(b, c.out)
		c.out = c.out[n:]
		return n, nil
	}
	n, err := c.Conn.Read(b[:min(len(b), c.rest)])
	c.rest -= n
	return n, err
}

// next reads a frame's head, and all of it that belongs to a head.
func (c *h2Wire) next() error {
	if _, err := io.ReadFull(c.Conn, c.frame[:]); err != nil {
		return err
	}
	f := &c.frame
	switch n := f.length(); {
	case n > h2FrameBytes:
		c.w.lost(rules.BadRequest, fmt.Sprintf("a frame of %d octets", n))
	case f.kind() == h2Reset:
		c.w.reset()
	case f.kind() == h2Headers && f.stream()%2 == 1:
		return c.readHead()
	}
	c.out = append(c.out[:0], f[:]...)
	c.rest = f.length()
	return nil
}

// readHead reads the frames of a head, and has ready what net/http is to read.
func (c *h2Wire) readHead() error {
	id, whole := c.frame.stream(), c.frame.has(h2EndStream)
	trailer := id <= c.last
	if !trailer {
		c.last = id
		c.w.begun()
	}
	c.head.reset() // its compression has to be followed, whatever becomes of it
	timeouts := c.w.run.cfg.Timeouts
	_ = c.SetReadDeadline(c.w.run.cfg.Now().Add(timeouts.Header)) // a closed connection says so when it is read
	fault, err := c.gather(id)
	switch {
	case timedOut(err):
		c.w.lost(rules.Limit, fmt.Sprintf("a head was not whole after %v", timeouts.Header))
		return err
	case err != nil:
		return err
	case fault != nil:
		c.w.lost(fault.reason, fault.Error())
		c.out = append(c.out[:0], 0, 0, 1, h2Headers, h2EndHeaders, 0, 0, 0, 1, 0x80) // which nobody can read: it answers with GOAWAY
		return nil
	}
	_ = c.SetReadDeadline(noDeadline)
	fields := c.head.fields
	switch {
	case trailer && c.hasReset(id):
		return nil
	case trailer && c.head.over():
		fields = []hpack.HeaderField{{Name: ":over"}} // resets the stream; its request was recorded
	case !trailer:
		fields = c.head.judge()
	}
	c.write(id, whole, fields)
	return nil
}

// Write implements net.Conn. It takes note of the streams that are reset, which net/http
// does with each that it ends before the client has.
func (c *h2Wire) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		if c.skip > 0 {
			n := min(c.skip, len(rest))
			c.skip, rest = c.skip-n, rest[n:]
			continue
		}
		n := copy(c.written[c.have:], rest)
		c.have, rest = c.have+n, rest[n:]
		if c.have == h2HeadSize {
			c.have, c.skip = 0, c.written.length()
			if c.written.kind() == h2Reset {
				c.noteReset(c.written.stream())
			}
		}
	}
	return c.Conn.Write(b)
}

func (c *h2Wire) noteReset(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.gone[:], id) {
		c.gone[c.ended%h2Gone] = id
		c.ended++
	}
}

func (c *h2Wire) hasReset(id uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.gone[:], id)
}

// gather has the frames of a head decoded. A fault ends the connection: what comes
// after it cannot be read.
func (c *h2Wire) gather(id uint32) (*formError, error) {
	most := h2Excess * c.head.most
	for total := 0; ; {
		f := &c.frame
		if total += h2HeadSize + f.length(); total > most {
			return &formError{rules.Limit, fmt.Errorf("a head of more than %d octets, compressed", most)}, nil
		}
		c.in = slices.Grow(c.in[:0], f.length())[:f.length()]
		if _, err := io.ReadFull(c.Conn, c.in); err != nil {
			return nil, err
		}
		part, ok := f.unpad(c.in)
		if !ok {
			return &formError{rules.BadRequest, errors.New("padding that is longer than its frame")}, nil
		}
		_, err := c.dec.Write(part)
		if err == nil && f.has(h2EndHeaders) {
			if err = c.dec.Close(); err == nil {
				return nil, nil
			}
		}
		if err != nil {
			return &formError{rules.BadRequest, fmt.Errorf("header compression: %w", err)}, nil
		}
		if _, err := io.ReadFull(c.Conn, f[:]); err != nil {
			return nil, err
		}
		if f.kind() != h2Continuation || f.stream() != id || f.length() > h2FrameBytes {
			return &formError{rules.BadRequest, fmt.Errorf("a frame of type %d inside a head", f.kind())}, nil
		}
	}
}

// unpad takes padding and priority off the payload of a frame of a head (RFC 9113
// section 6.2). Nobody asks for the priority.
func (f *h2Frame) unpad(b []byte) ([]byte, bool) {
	if f.kind() != h2Headers {
		return b, true
	}
	pad := 0
	if f.has(h2Padded) {
		if len(b) == 0 {
			return nil, false
		}
		pad, b = int(b[0]), b[1:]
	}
	if f.has(h2Priority) {
		const size = 5
		if len(b) < size {
			return nil, false
		}
		b = b[size:]
	}
	if pad > len(b) {
		return nil, false
	}
	return b[:len(b)-pad], true
}

// write has a head ready, in as many frames as it takes.
func (c *h2Wire) write(id uint32, whole bool, fields []hpack.HeaderField) {
	c.block.Reset()
	for _, f := range fields {
		_ = c.enc.WriteField(f) // to memory
	}
	c.out = c.out[:0]
	kind, flags := byte(h2Headers), byte(0)
	if whole {
		flags = h2EndStream
	}
	for first := true; first || c.block.Len() > 0; first = false {
		part := c.block.Next(h2Piece)
		if c.block.Len() == 0 {
			flags |= h2EndHeaders
		}
		n := len(part)
		c.out = append(c.out, byte(n>>16), byte(n>>8), byte(n), kind, flags)
		c.out = binary.BigEndian.AppendUint32(c.out, id)
		c.out = append(c.out, part...)
		kind, flags = h2Continuation, 0
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
	if u, ok := c.NetConn().(interface{ UnencryptedNetConn() net.Conn }); ok {
		return tls.Client(unencrypted{in: newH2Wire(w, u.UnencryptedNetConn())}, nil), true
	}
	_ = c.SetReadDeadline(w.run.cfg.Now().Add(w.run.cfg.Timeouts.Header)) // a closed connection says so when it is read
	preface := make([]byte, len(h2Preface))
	if _, err := io.ReadFull(c, preface); err != nil || !bytes.Equal(preface, []byte(h2Preface)) {
		return nil, false
	}
	_ = c.SetReadDeadline(noDeadline)
	return tls.Client(unencrypted{in: secureH2{newH2Wire(w, c), c}}, nil), true
}
