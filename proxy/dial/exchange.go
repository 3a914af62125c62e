package dial

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"sallyport/rules/target"
)

const (
	// udpSize avoids fragments, which can be forged (RFC 9715 section 3.1).
	udpSize = 1232
	// tryTimeout is how long one server has for one query.
	tryTimeout = 2 * time.Second
	// maxStrays bounds the datagrams that answer something else: a forger's.
	maxStrays = 64
)

// exchange asks the servers in turn until one of them answers: with the name's
// records, that there are none, or that there is no such name.
func exchange(ctx context.Context, servers []server, name target.Name, qtype uint16) (*dns.Msg, error) {
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name.String()), qtype)
	q.SetEdns0(udpSize, false)
	var last error
	for range tries {
		for _, s := range servers {
			q.Id = dns.Id() // of the system's random numbers, fresh for each try
			m, err := exchangeOne(ctx, s, q)
			switch {
			case err != nil:
				last = fmt.Errorf("asking %v: %w", s.addr, err)
			case m.Rcode == dns.RcodeSuccess, m.Rcode == dns.RcodeNameError:
				return m, nil
			default:
				last = fmt.Errorf("asking %v: %s", s.addr, dns.RcodeToString[m.Rcode])
			}
			if ctx.Err() != nil {
				return nil, last
			}
		}
	}
	return nil, last
}

// exchangeOne asks by UDP from a port of its own, and by TCP when the answer
// was cut (RFC 7766 section 5), or by TLS alone.
func exchangeOne(ctx context.Context, s server, q *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	wire, err := q.Pack()
	if err != nil {
		return nil, fmt.Errorf("writing a query: %w", err)
	}
	if s.tls != nil {
		return s.askTLS(ctx, wire, q)
	}
	// A connected socket: the kernel drops what does not come from the server.
	c, err := new(net.Dialer).DialUDP(ctx, "udp", netip.AddrPort{}, s.addr)
	if err != nil {
		return nil, err
	}
	m, err := talk(ctx, c, func() (*dns.Msg, error) { return askUDP(c, wire, q) })
	if err != nil || !m.Truncated {
		return m, err
	}
	t, err := connectOne(ctx, s.addr)
	if err != nil {
		return nil, err
	}
	return talk(ctx, t, func() (*dns.Msg, error) { return askStream(t, wire, q) })
}

// talk runs f, which uses c, and closes c. It ends when ctx does.
func talk(ctx context.Context, c net.Conn, f func() (*dns.Msg, error)) (*dns.Msg, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() }) // unblocks f
	defer func() {
		if stop() {
			_ = c.Close() // the answer is read, or never will be
		}
	}()
	m, err := f()
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return m, err
}

func askUDP(c *net.UDPConn, wire []byte, q *dns.Msg) (*dns.Msg, error) {
	if _, err := c.Write(wire); err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	for range maxStrays {
		n, err := c.Read(buf)
		if err != nil {
			return nil, err
		}
		m := new(dns.Msg)
		if m.Unpack(buf[:n]) == nil && answers(m, q) {
			return m, nil
		}
	}
	return nil, errors.New("too many answers to other questions")
}

func askStream(c io.ReadWriter, wire []byte, q *dns.Msg) (*dns.Msg, error) {
	framed := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(wire)), uint16(len(wire)))
	if _, err := c.Write(append(framed, wire...)); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	buf := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, buf); err != nil {
		return nil, err
	}
	m := new(dns.Msg)
	if err := m.Unpack(buf); err != nil {
		return nil, fmt.Errorf("reading an answer: %w", err)
	}
	if !answers(m, q) || m.Truncated {
		return nil, errors.New("an answer to another question")
	}
	return m, nil
}

// answers reports whether m is the answer to q: id, question and kind
// (RFC 5452 section 9.1).
func answers(m, q *dns.Msg) bool {
	if m.Id != q.Id || !m.Response || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 {
		return false
	}
	got, want := m.Question[0], q.Question[0]
	return got.Qtype == want.Qtype && got.Qclass == want.Qclass && dns.CanonicalName(got.Name) == want.Name
}
