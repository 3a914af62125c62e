package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"

	"sallyport/broker/scrub"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// frames looks into what a sandbox sends over a WebSocket: clients mask what they
// send (RFC 6455 section 5.3), so that a placeholder in a message cannot be seen
// from outside the frame. It writes nothing of what it finds one in.
type frames struct {
	*scrub.Frames
	look guarded // over the message that is under way
	ctl  guarded // over the control frame that interrupts it
	// first is what is held until a credential was put into it; nil afterwards, and
	// where none is.
	first *firstMessage

	head []byte // of a frame, as far as it came
	left uint64 // octets of its payload that are still to come
	mask [4]byte
	at   int  // in the mask
	side bool // the frame is a control frame, between those of a message
	buf  []byte
}

// watchFrames has what is sent over an upgraded connection looked at.
//
// What comes back is scrubbed by s. Where something is refused, a close frame tells
// the sandbox's client so.
func (cc *clientCell) watchFrames(p gate.Pass, resp *http.Response, s *scrub.Scrubber) {
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if cc == nil || cc.finder == nil || !ok {
		return
	}
	resp.Body = &frames{
		Frames: scrub.NewFrames(s, conn), look: guarded{finder: cc.finder, r: &http.Request{}, pass: p}, first: cc.firstOf(p),
	}
}

// errFrame is a frame that cannot be looked at: no extension was agreed on
// (Sec-WebSocket-Extensions is taken out of the request).
var errFrame = errors.New("a WebSocket frame of an extension that was not agreed on")

// Write implements [io.Writer].
func (f *frames) Write(p []byte) (int, error) {
	if f.look.err != nil {
		return 0, f.look.err
	}
	if f.first == nil {
		return f.pass(p)
	}
	out, done, err := f.first.take(p)
	if err != nil {
		f.look.err = err
		return 0, f.refused(err)
	}
	if done {
		f.first = nil
	}
	if _, err := f.pass(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// pass looks at frames, and sends them on.
func (f *frames) pass(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if f.left == 0 {
			n, err := f.header(rest)
			if err != nil {
				f.look.err = err
				return 0, f.refused(err)
			}
			rest = rest[n:]
			continue
		}
		n := int(min(uint64(len(rest)), f.left))
		if err := f.payload(rest[:n]); err != nil {
			return 0, f.refused(err)
		}
		rest = rest[n:]
	}
	return f.Frames.Write(p)
}

// refused has the sandbox's client told of a refusal, and returns it.
func (f *frames) refused(err error) error {
	if denied, ok := errors.AsType[*gate.DeniedError](err); ok {
		_ = f.Refuse(string(denied.Reason) + " [request " + denied.ID + "]") // err is what matters
	}
	return err
}

// header takes what it needs of a frame's header (RFC 6455 section 5.2).
func (f *frames) header(p []byte) (n int, err error) {
	for n < len(p) {
		f.head = append(f.head, p[n])
		n++
		if len(f.head) < 2 || len(f.head) < headerLen(f.head[1]) {
			continue
		}
		err := f.begin()
		f.head = f.head[:0]
		return n, err
	}
	return n, nil
}

// headerLen is how long a header with this second octet is.
func headerLen(second byte) int {
	n := 2
	switch second & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if second&0x80 != 0 {
		n += 4
	}
	return n
}

// begin reads a whole header.
func (f *frames) begin() error {
	first := f.head[0]
	if first&0x70 != 0 {
		return &gate.DeniedError{Reason: rules.BadRequest, ID: f.look.pass.ID(), Decision: f.look.pass.Decision(), Err: errFrame}
	}
	f.at = 0
	f.left, f.mask = lengthAndMask(f.head)
	opcode := first & 0x0f
	f.side = opcode >= 8
	switch {
	case f.side:
		f.ctl = guarded{finder: f.look.finder}
	case opcode == 1 || opcode == 2:
		f.look.last = f.look.last[:0] // another message
	}
	return nil
}

// lengthAndMask reads what a whole header says of the payload; a mask of zeros is none.
func lengthAndMask(head []byte) (n uint64, mask [4]byte) {
	rest := head[2:]
	switch short := head[1] & 0x7f; short {
	case 126:
		n, rest = uint64(binary.BigEndian.Uint16(rest)), rest[2:]
	case 127:
		n, rest = binary.BigEndian.Uint64(rest), rest[8:]
	default:
		n = uint64(short)
	}
	copy(mask[:], rest)
	return n, mask
}

// payload looks at a part of a frame's payload.
func (f *frames) payload(p []byte) error {
	f.buf = append(f.buf[:0], p...)
	for i := range f.buf {
		f.buf[i] ^= f.mask[(f.at+i)&3]
	}
	f.at += len(p)
	f.left -= uint64(len(p))
	look := &f.look
	if f.side {
		look = &f.ctl
	}
	name, leaked := look.look(f.buf)
	if !leaked {
		return nil
	}
	_ = f.look.refuse(name, "message of a WebSocket")
	return fmt.Errorf("carrying a WebSocket: %w", f.look.err)
}
