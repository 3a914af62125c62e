package dns

import (
	"context"
	"encoding/binary"

	"github.com/miekg/dns"

	"sallyport/rules/target"
)

// Nearly every query is for A or AAAA of an ordinary name, with at most an
// empty OPT record. Those are read and answered here, octet by octet, at a
// fraction of the cost of a dns.Msg; whatever is not exactly that goes the
// long way. A fuzz test holds the two ways to the same answer.

// plain is such a query.
type plain struct {
	name  target.Name
	qtype uint16
	end   int // of the question
	edns  bool
}

const (
	flagQR, flagRD, flagRA = 1 << 15, 1 << 8, 1 << 7 // RFC 1035 section 4.1.1
	maskPlain              = 0xFFFF &^ (flagRD | 1<<5 | 1<<4)
	optSize                = 11     // an OPT record without options
	nameRef                = 0xC00C // compressed: the name at octet 12
)

// readPlain reads a plain query; ok is false for every other message.
func readPlain(raw []byte) (p plain, ok bool) {
	if len(raw) < headerSize || binary.BigEndian.Uint16(raw[2:])&maskPlain != 0 {
		return p, false // AD and CD mean nothing here; any other flag is odd
	}
	const counts = 1 << 48 // one question, no answer, no authority
	n := binary.BigEndian.Uint64(raw[4:])
	if n>>1 != counts>>1 { // no or one additional record
		return p, false
	}
	var text [256]byte
	used, at := readName(raw, &text)
	if used == 0 || at+4 > len(raw) || binary.BigEndian.Uint16(raw[at+2:]) != dns.ClassINET {
		return p, false
	}
	p.qtype, p.end = binary.BigEndian.Uint16(raw[at:]), at+4
	if p.qtype != dns.TypeA && p.qtype != dns.TypeAAAA {
		return p, false
	}
	if !p.readOPT(raw[p.end:], n&1 == 1) {
		return p, false
	}
	name, err := target.ParseName(string(text[:used]))
	p.name = name
	return p, err == nil
}

// readName reads an uncompressed name of ordinary octets at the beginning of
// the question, with a dot after each label. at is what follows it; used is 0
// if there is no such name.
func readName(raw []byte, text *[256]byte) (used, at int) {
	at = headerSize
	for at < len(raw) {
		l := int(raw[at])
		at++
		if l == 0 {
			return used, at
		}
		if l > 63 || at+l > len(raw) || used+l+1 > len(text) {
			return 0, at
		}
		for _, c := range raw[at : at+l] {
			if !hostOctet(c) {
				return 0, at
			}
			text[used] = c
			used++
		}
		text[used] = '.'
		used++
		at += l
	}
	return 0, at
}

// readOPT reads what follows the question: nothing, or an OPT record of
// version 0 without options (RFC 6891 section 6.1.2).
func (p *plain) readOPT(rest []byte, there bool) bool {
	if !there {
		return len(rest) == 0
	}
	if len(rest) != optSize || rest[0] != 0 || binary.BigEndian.Uint16(rest[1:]) != dns.TypeOPT ||
		rest[5] != 0 || rest[6] != 0 || binary.BigEndian.Uint16(rest[9:]) != 0 {
		return false
	}
	p.edns = true
	return true
}

// hostOctet reports whether an octet needs no second thought in a name.
func hostOctet(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// handlePlain decides a plain query and writes the reply.
func (s *Server) handlePlain(ctx context.Context, q *query, p plain, raw, buf []byte) []byte {
	return s.replyPlain(q, p, s.decide(ctx, q, p.name, p.qtype), raw, buf)
}

// replyPlain writes the reply to a plain query.
func (s *Server) replyPlain(q *query, p plain, o outcome, raw, buf []byte) []byte {
	if o.kind == found || o.kind == absent {
		if q.msg = new(dns.Msg); q.msg.Unpack(raw) != nil {
			return nil // it was read before, so it can be
		}
		q.opt = q.msg.IsEdns0()
		return s.pack(q, s.message(q, o), buf)
	}
	be := binary.BigEndian
	out := append(buf[:0], raw[:p.end]...)
	flags := be.Uint16(raw[2:])&(flagRD|1<<4) | flagQR | flagRA | uint16(o.kind.rcode())
	be.PutUint16(out[2:], flags)
	be.PutUint32(out[6:], 0)
	be.PutUint16(out[10:], 0)
	switch o.kind {
	case virtual:
		out[7] = 1
		out = be.AppendUint16(out, nameRef)
		out = be.AppendUint16(out, dns.TypeA)
		out = be.AppendUint16(out, dns.ClassINET)
		out = be.AppendUint32(out, s.ttl)
		out = be.AppendUint16(out, 4)
		a := o.addr.As4()
		out = append(out, a[:]...)
	case nameError, noData:
		out[9] = 1
		out = append(out, s.soa...)
	default: // the response code says it all
	}
	if p.edns {
		out[11] = 1
		out = append(out, 0)
		out = be.AppendUint16(out, dns.TypeOPT)
		out = be.AppendUint16(out, maxUDP)
		out = be.AppendUint32(out, 0)
		if code, ok := extended(o.kind, p.qtype); ok {
			out = be.AppendUint16(out, uint16(4+2+len(explanation)+len(o.reason)))
			out = be.AppendUint16(out, dns.EDNS0EDE)
			out = be.AppendUint16(out, uint16(2+len(explanation)+len(o.reason)))
			out = be.AppendUint16(out, code)
			out = append(append(out, explanation...), o.reason...)
		} else {
			out = be.AppendUint16(out, 0)
		}
	}
	return out // shorter than plainSize whatever the name, so it fits every client
}
