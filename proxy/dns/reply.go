package dns

import (
	"encoding/binary"

	"github.com/miekg/dns"

	"sallyport/rules"
)

const (
	headerSize  = 12  // RFC 1035 section 4.1.1
	plainSize   = 512 // RFC 1035 section 4.2.1: without EDNS
	explanation = "sandbox egress policy: "
	maxUDP      = 1232 // nothing here comes near it; a larger reply could be made to grow
)

// reply returns an empty reply. It has an OPT record if the query had one
// (RFC 6891 section 7); cookies and the DO bit are ignored, as they may be.
func (s *Server) reply(q *query, rcode int) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q.msg)
	m.Rcode = rcode
	m.RecursionAvailable = true
	m.Compress = true
	if q.opt != nil {
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		opt.SetUDPSize(maxUDP)
		m.Extra = []dns.RR{opt}
	}
	return m
}

func (s *Server) header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: s.ttl}
}

// negative returns the SOA that lets a client remember that there is nothing
// (RFC 2308 section 3). Its owner is the root, which is above every name.
func (s *Server) negative() dns.RR {
	return &dns.SOA{
		Hdr: s.header(".", dns.TypeSOA), Ns: "sallyport.internal.", Mbox: "sallyport.internal.",
		Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: s.ttl,
	}
}

// explain adds an extended error (RFC 8914) where the client can read one.
func (s *Server) explain(m *dns.Msg, code uint16, reason rules.Reason) {
	if opt := m.IsEdns0(); opt != nil {
		opt.Option = append(opt.Option, &dns.EDNS0_EDE{InfoCode: code, ExtraText: explanation + string(reason)})
	}
}

// pack writes a reply that is no larger than the client said it can take.
func (s *Server) pack(q *query, m *dns.Msg, buf []byte) []byte {
	size := dns.MaxMsgSize
	if q.udp {
		size = plainSize
		if q.opt != nil {
			size = max(plainSize, min(int(q.opt.UDPSize()), maxUDP))
		}
	}
	out, err := m.PackBuffer(buf)
	if err == nil && len(out) > size {
		m.Truncate(size)
		out, err = m.PackBuffer(buf)
	}
	if err != nil || len(out) > size {
		return nil // cannot be said, so nothing is
	}
	return out
}

// short answers a message that cannot or must not be read with a bare header,
// if it has at least the header of a query.
func short(raw []byte, rcode int, buf []byte) []byte {
	const response, opcode, recursion = 1 << 15, 15 << 11, 1 << 8 // RFC 1035 section 4.1.1
	if len(raw) < headerSize {
		return nil
	}
	flags := binary.BigEndian.Uint16(raw[2:])
	if flags&response != 0 {
		return nil
	}
	out := append(buf[:0], raw[:2]...)
	out = binary.BigEndian.AppendUint16(out, response|flags&(opcode|recursion)|uint16(rcode))
	return append(out, make([]byte, headerSize-4)...)
}
