package broker

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"

	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
)

// (ADR-0035) Some APIs take their key in the first message of a WebSocket. A credential
// of type body declares the fields of it, as it does those of a body: there, and
// nowhere else, the placeholder is replaced.

// maxFirst is how long a first message may be to be filled. A longer one is not held.
const maxFirst = 64 << 10

// firstMessage holds what a client sends over a WebSocket until its first message is
// whole. Control frames, which may stand between the frames of a message (RFC 6455
// section 5.4), are not held.
type firstMessage struct {
	names               map[string]bool
	placeholder, secret string
	judge               keyJudge
	pass                gate.Pass

	head []byte // of a frame, as far as it came
	left uint64 // octets of its payload that are still to come
	mask [4]byte
	at   int  // in the mask
	side bool // it is a control frame
	last bool // it is the last of its message

	raw  []byte // the message as it came, nil before it begins
	text []byte // what it says
}

// firstOf returns nil where no field of a message is declared.
func (cc *clientCell) firstOf(p gate.Pass) *firstMessage {
	name := p.Decision().Credential
	place, ok := cc.finder.place(name)
	if !ok || place.Type != "body" {
		return nil
	}
	names := map[string]bool{}
	for _, f := range policyfile.Fields(place.Name) {
		if f.Kind == "websocket" {
			names[f.Name] = true
		}
	}
	cc.mu.Lock()
	defer cc.mu.Unlock()
	if len(names) == 0 || len(cc.exposed[name]) == 0 {
		return nil
	}
	return &firstMessage{
		names: names, placeholder: cc.finder.placeholder(name), secret: cc.exposed[name][0].Value, judge: keyJudge{p}, pass: p,
	}
}

// take takes what the client sent and returns what is to be sent on. It is done when
// what follows is none of its business.
func (m *firstMessage) take(p []byte) (out []byte, done bool, err error) {
	for len(p) > 0 {
		if m.left == 0 {
			m.head, p = append(m.head, p[0]), p[1:]
			switch {
			case len(m.head) < 2 || len(m.head) < headerLen(m.head[1]):
				continue
			case !m.begin():
				return append(append(append(out, m.raw...), m.head...), p...), true, nil
			case m.side:
				out = append(out, m.head...)
			default:
				m.raw = append(m.raw, m.head...)
			}
			m.head = m.head[:0]
		}
		n := int(min(uint64(len(p)), m.left))
		if m.side {
			out = append(out, p[:n]...)
		} else {
			m.payload(p[:n])
		}
		p, m.left = p[n:], m.left-uint64(n)
		if m.left == 0 && m.last && !m.side {
			text, err := m.filled()
			return append(append(out, text...), p...), true, err
		}
	}
	return out, false, nil
}

// begin reads a whole header. It returns false where nothing can be filled: a message
// that is no text, too long, or not in order.
func (m *firstMessage) begin() bool {
	opcode := m.head[0] & 0x0f
	m.left, m.mask = lengthAndMask(m.head)
	m.at, m.side, m.last = 0, opcode >= 8, m.head[0]&0x80 != 0
	switch {
	case m.head[0]&0x70 != 0:
		return false
	case m.side:
		return true
	case m.raw == nil && opcode != 1, m.raw != nil && opcode != 0:
		return false
	default: // headers count as well: a message may be of many frames
		return m.left <= maxFirst && len(m.raw)+int(m.left) <= maxFirst
	}
}

func (m *firstMessage) payload(p []byte) {
	m.raw = append(m.raw, p...)
	for _, c := range p {
		m.text = append(m.text, c^m.mask[m.at&3])
		m.at++
	}
}

// filled returns the message in one frame, and as it came if nothing is filled. The
// error is a [*gate.DeniedError].
func (m *firstMessage) filled() ([]byte, error) {
	scan := &jsonScan{names: m.names}
	f := &filler{
		src: bytes.NewReader(m.text), scan: scan, placeholder: []byte(m.placeholder), instead: []byte(scan.text(m.secret)), judge: m.judge,
	}
	text, err := io.ReadAll(f)
	_, bad := errors.AsType[bodyError](err)
	switch {
	case bad:
		return nil, denied(m.pass, rules.BadRequest, err)
	case err != nil:
		return nil, err
	case f.done == 0:
		return m.raw, nil
	}
	return textFrame(text), nil
}

// textFrame returns a message in one frame, masked as a client's is (RFC 6455 section
// 5.3).
func textFrame(text []byte) []byte {
	out := []byte{0x81}
	switch n := len(text); {
	case n < 126:
		out = append(out, 0x80|byte(n))
	case n < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, 0x80|126), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, 0x80|127), uint64(n))
	}
	var mask [4]byte
	_, _ = rand.Read(mask[:]) // it never fails
	out = append(out, mask[:]...)
	for i, c := range text {
		out = append(out, c^mask[i&3])
	}
	return out
}
