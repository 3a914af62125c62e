package scrub

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"sallyport/broker/needle"
)

// Frames is the upstream's half of a WebSocket (RFC 6455). It reads as the
// connection does, without the secrets, also where one is cut over frames, or over
// messages: what is searched is the payloads, one after another. Frames keep their
// lengths and their order.
//
// A frame that is masked, which a server's may not be (section 5.1), or of an
// extension, which nobody agreed on, hides what is in it: reading ends there.
type Frames struct {
	io.ReadWriteCloser
	body  *body
	clean func(string) string // of control frames
	heads []head
	given int64 // octets of payload that were handed out
	taken int64 // that came
	out   []byte

	raw     []byte // of a header, or of a control frame, as far as it came
	left    uint64 // octets of payload that are to come in this frame
	refusal atomic.Pointer[[]byte]
}

// head is what stands on the wire before an octet of the payloads.
type head struct {
	at  int64
	raw []byte
}

// maxHeads bounds how many frames wait for what is held back before them; one read
// brings a quarter of it at most.
const maxHeads = 1 << 16

var (
	errMasked    = errors.New("upstream sent a WebSocket frame that is masked")
	errExtended  = errors.New("upstream sent a WebSocket frame of an extension that was not agreed on")
	errControl   = errors.New("upstream sent a WebSocket control frame that is too long")
	errManyHeads = errors.New("upstream sent too many empty WebSocket frames")
)

// NewFrames returns the Frames of an upgraded connection. A nil or zero Scrubber
// replaces nothing.
func NewFrames(s *Scrubber, conn io.ReadWriteCloser) *Frames {
	f := &Frames{ReadWriteCloser: conn, clean: s.Text}
	set := needle.NewSet(nil)
	if !s.idle() {
		set = s.set
	}
	f.body = &body{set: set, src: conn, buf: newBuffer(bodyBuffer), strip: f.strip}
	return f
}

// Refuse has reading end with a close frame, if that can still be told apart from
// what was read before: status 1008 (RFC 6455 section 7.4.1), and why. It closes the
// connection, so that a Read that waits ends.
func (f *Frames) Refuse(why string) error {
	const mostText = 125 - 2
	why = why[:min(len(why), mostText)]
	frame := append([]byte{0x88, byte(2 + len(why)), 1008 >> 8, 1008 & 0xff}, why...)
	f.refusal.Store(&frame)
	return f.Close()
}

// CloseWrite ends the direction to upstream, where the connection can do that alone.
func (f *Frames) CloseWrite() error {
	if c, ok := f.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return f.Close()
}

// Read implements [io.Reader].
func (f *Frames) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if n := f.clear(p); n > 0 {
			return n, nil
		}
		if f.body.err != nil {
			if err := f.end(); err != nil {
				return 0, err
			}
			continue
		}
		f.body.compact()
		if !f.body.fill() {
			f.body.clean = len(f.body.buf) // patience has ended
			continue
		}
		f.body.scrub()
	}
}

// clear hands out all that may be, headers with what follows them: each Read of it is
// a write to the sandbox.
func (f *Frames) clear(p []byte) (n int) {
	for n < len(p) {
		if len(f.out) == 0 && len(f.heads) > 0 && f.heads[0].at == f.given {
			f.out, f.heads = f.heads[0].raw, f.heads[1:]
		}
		k := copy(p[n:], f.out)
		f.out = f.out[k:]
		if k == 0 {
			k = f.payload(p[n:])
		}
		if n += k; k == 0 {
			break
		}
	}
	return n
}

// payload hands out what is clean before the next header.
func (f *Frames) payload(p []byte) int {
	b := f.body
	most := int64(b.clean - b.low)
	if len(f.heads) > 0 {
		most = min(most, f.heads[0].at-f.given)
	}
	n := copy(p, b.buf[b.low:b.low+int(most)])
	b.low += n
	f.given += int64(n)
	return n
}

// end is what Read says when everything is handed out: the close frame first, if
// there is one and a frame may begin here.
func (f *Frames) end() error {
	if why := f.refusal.Swap(nil); why != nil && f.left == 0 && len(f.raw) == 0 {
		f.out = *why
		return nil
	}
	err := f.body.err
	f.body.release()
	return err
}

// Ready is [body.Ready].
func (f *Frames) Ready() bool {
	return len(f.out) > 0 || len(f.heads) > 0 && f.heads[0].at == f.given || f.body.Ready()
}

// strip takes the headers, and whole control frames, out of what was read.
func (f *Frames) strip(p []byte) (n int, err error) {
	for rest := p; len(rest) > 0; {
		if f.left > 0 && len(f.raw) == 0 {
			k := copy(p[n:], rest[:min(uint64(len(rest)), f.left)])
			rest, n = rest[k:], n+k
			f.left -= uint64(k)
			f.taken += int64(k)
			continue
		}
		f.raw, rest = append(f.raw, rest[0]), rest[1:]
		if err := f.header(); err != nil {
			return n, err
		}
	}
	return n, nil
}

// header looks whether a header, or a control frame, is whole by now.
func (f *Frames) header() error {
	if len(f.raw) < 2 {
		return nil
	}
	first, second := f.raw[0], f.raw[1]
	size, long := 2, second&0x7f
	switch {
	case first&0x70 != 0:
		return errExtended
	case second&0x80 != 0:
		return errMasked
	case first&0x08 != 0 && long > 125:
		return errControl
	case first&0x08 != 0: // section 5.5: control frames may stand between those of a message
		if size += int(long); len(f.raw) == size {
			text := f.clean(string(f.raw[2:]))
			return f.whole(append(f.raw[:2:2], text...))
		}
		return nil
	case long == 126:
		size += 2
	case long == 127:
		size += 8
	}
	if len(f.raw) < size {
		return nil
	}
	switch length := f.raw[2:]; long {
	case 126:
		f.left = uint64(binary.BigEndian.Uint16(length))
	case 127:
		f.left = binary.BigEndian.Uint64(length)
	default:
		f.left = uint64(long)
	}
	return f.whole(f.raw)
}

// whole notes what stands before the payload that comes next.
func (f *Frames) whole(raw []byte) error {
	if len(f.heads) >= maxHeads {
		return fmt.Errorf("%w: %d", errManyHeads, maxHeads)
	}
	f.heads = append(f.heads, head{f.taken, raw})
	f.raw = nil
	return nil
}
