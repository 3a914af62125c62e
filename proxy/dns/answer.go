package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
)

// query is one message on its way to an answer.
type query struct {
	cell   string
	client netip.AddrPort
	udp    bool
	msg    *dns.Msg
	opt    *dns.OPT
}

// Handle answers one message in wire format, and records it. It appends the
// reply to buf and returns that; nil means that nothing is sent. raw and
// client are sandbox-controlled.
func (s *Server) Handle(ctx context.Context, raw []byte, client netip.AddrPort, udp bool, buf []byte) (reply []byte) {
	client = netip.AddrPortFrom(client.Addr().Unmap(), client.Port())
	q := &query{client: client, udp: udp}
	cell, known := s.cfg.CellOf(client.Addr())
	if known {
		q.cell = cell
	}
	ctx = gate.WithOrigin(ctx, q.origin(""))
	defer s.survive(ctx, q, &reply)
	if !s.paced(ctx, q) {
		return nil
	}
	if !known {
		s.refuse(ctx, q, dns.RcodeRefused, rules.UnknownCell, nil)
		return short(raw, dns.RcodeRefused, buf)
	}
	if p, ok := readPlain(raw); ok {
		return s.handlePlain(ctx, q, p, raw, buf)
	}
	return s.handleAny(ctx, q, raw, buf)
}

var errInternal = errors.New("internal error")

// survive, deferred, keeps a panic from the other queries: it is our fault, but
// costs this one alone.
func (s *Server) survive(ctx context.Context, q *query, reply *[]byte) {
	if v := recover(); v != nil {
		s.cfg.Log.ErrorContext(ctx, "dns: panic", "cell", q.cell, "panic", fmt.Sprint(v))
		s.refuse(ctx, q, silence, rules.BadRequest, errInternal)
		*reply = nil
	}
}

// paced reports whether the cell of a query may ask now. What is dropped is
// recorded once in a while.
func (s *Server) paced(ctx context.Context, q *query) bool {
	ok, dropped := s.rates.take(q.cell, s.cfg.Now())
	if !ok && dropped > 0 {
		s.refuse(ctx, q, silence, rules.Limit, fmt.Errorf("%d queries over the rate were dropped", dropped))
	}
	return ok
}

// handleAny answers whatever comes.
func (s *Server) handleAny(ctx context.Context, q *query, raw, buf []byte) []byte {
	q.msg = new(dns.Msg)
	if err := q.msg.Unpack(raw); err != nil {
		s.refuse(ctx, q, dns.RcodeFormatError, rules.BadRequest, fmt.Errorf("reading a query: %w", err))
		return short(raw, dns.RcodeFormatError, buf)
	}
	m := s.judge(ctx, q)
	if m == nil {
		return nil
	}
	return s.pack(q, m, buf)
}

func proto(udp bool) string {
	if udp {
		return "udp"
	}
	return "tcp"
}

// silence in place of a response code: nothing is sent.
const silence = -1

// origin is what records say about the way of a query, and about the code that
// a refusal is answered with.
func (q *query) origin(code string) gate.Origin {
	return gate.Origin{Listener: "dns", Client: q.client, Proto: proto(q.udp), Tells: gate.Said{Answer: code}}
}

// codeName is the name of a response code. 16 has two, and TSIG's, which is not
// spoken here, is the one in the library's table.
func codeName(rcode int) string {
	if rcode == dns.RcodeBadVers {
		return "BADVERS"
	}
	return dns.RcodeToString[rcode]
}

// refuse records a query that the policy is not asked about, and is answered
// with a response code. Whether or not that can be written, the query is refused.
func (s *Server) refuse(ctx context.Context, q *query, rcode int, reason rules.Reason, cause error) {
	code := ""
	if rcode != silence {
		code = codeName(rcode)
	}
	ctx = gate.WithOrigin(ctx, q.origin(code))
	req := rules.Request{Question: rules.Resolve, Cell: q.cell, Carries: s.inNames(q)}
	err := s.cfg.Gate.Refuse(ctx, req, reason, cause)
	var denied *gate.DeniedError
	if !errors.As(err, &denied) || denied.Reason == rules.AuditUnavailable {
		s.cfg.Log.WarnContext(ctx, "dns: refusal not recorded", "cell", q.cell, "err", err)
	}
}

// inNames tells which credentials the names hold that a cause may cite.
func (s *Server) inNames(q *query) (all []rules.Carry) {
	if q.msg == nil || s.cfg.FindName == nil {
		return nil
	}
	for _, ask := range q.msg.Question[:min(len(q.msg.Question), 1)] {
		if name, err := target.ParseName(ask.Name); err == nil {
			all = append(all, s.cfg.FindName(q.cell, name)...)
		}
	}
	return all
}

// judge returns the reply to a message that could be read, or nil for none.
func (s *Server) judge(ctx context.Context, q *query) *dns.Msg {
	m := q.msg
	refused := func(rcode int, reason rules.Reason, cause error) *dns.Msg {
		s.refuse(ctx, q, rcode, reason, cause)
		return s.reply(q, rcode)
	}
	switch {
	case m.Response:
		// To answer an answer would let two servers play ping-pong.
		s.refuse(ctx, q, silence, rules.BadRequest, errors.New("an answer instead of a query"))
		return nil
	case m.Opcode != dns.OpcodeQuery:
		return refused(dns.RcodeNotImplemented, rules.BadRequest, fmt.Errorf("opcode %d", m.Opcode))
	case len(m.Question) != 1 || len(m.Answer) > 0 || len(m.Ns) > 0:
		return refused(dns.RcodeFormatError, rules.BadRequest, fmt.Errorf("%d questions, %d answers, %d authorities",
			len(m.Question), len(m.Answer), len(m.Ns)))
	}
	q.opt = m.IsEdns0()
	ask := m.Question[0]
	kind := typeName(ask.Qtype)
	switch {
	case q.opt != nil && q.opt.Version() != 0:
		return refused(dns.RcodeBadVers, rules.BadRequest, fmt.Errorf("EDNS version %d", q.opt.Version()))
	case ask.Qclass != dns.ClassINET:
		return refused(dns.RcodeRefused, rules.TypeNotAllowed, fmt.Errorf("%s %s: class %d", kind, cited(ask.Name), ask.Qclass))
	case isMeta(ask.Qtype):
		return refused(dns.RcodeRefused, rules.TypeNotAllowed, fmt.Errorf("%s %s", kind, cited(ask.Name)))
	}
	name, err := target.ParseName(ask.Name)
	if err != nil {
		rcode := dns.RcodeNameError // there is no such host
		if strings.Contains(ask.Name, `\`) {
			rcode = dns.RcodeFormatError // octets that no host name has
		}
		return refused(rcode, rules.BadRequest, fmt.Errorf("%s: %w", kind, err))
	}
	return s.message(q, s.decide(ctx, q, name, ask.Qtype))
}

// outcome is what a query gets.
type outcome struct {
	kind   kind
	reason rules.Reason
	addr   netip.Addr // virtual
	found  []dns.RR   // by a look-up
	failed error      // why there is no address: it could not be kept
}

// word is what records say of it.
func (o *outcome) word() string {
	switch {
	case o.failed != nil:
		return failure.String()
	case o.kind == virtual:
		return o.addr.String()
	default:
		return o.kind.String()
	}
}

// outcomeOf is what a decision about a name gets.
func (s *Server) outcomeOf(cell string, name target.Name, qtype uint16, d rules.Decision) outcome {
	out := outcome{kind: kindOf(d, qtype), reason: d.Reason}
	if out.kind == virtual {
		out.addr, out.failed = s.cfg.Names.Assign(cell, name)
	}
	return out
}

// ask is the question to the policy.
func (s *Server) ask(cell string, name target.Name, qtype uint16) rules.Request {
	req := rules.Request{Question: rules.Resolve, Cell: cell, Endpoint: target.Endpoint{Host: target.HostOf(name)}, Type: qtype}
	if s.cfg.FindName != nil {
		req.Carries = s.cfg.FindName(cell, name)
	}
	return req
}

// decide asks the gate, and returns what it decided and recorded.
func (s *Server) decide(ctx context.Context, q *query, name target.Name, qtype uint16) outcome {
	if qtype == dns.TypeA && !s.cfg.Names.Room(q.cell, name) {
		s.refuse(ctx, q, refusal.rcode(), rules.Limit, fmt.Errorf("query for %q: no room for another name", name))
		return outcome{kind: refusal, reason: rules.Limit}
	}
	var out outcome
	p, err := s.cfg.Gate.Answer(ctx, s.ask(q.cell, name, qtype), typeName(qtype), func(d rules.Decision) string {
		out = s.outcomeOf(q.cell, name, qtype, d)
		return out.word()
	})
	if err == nil {
		err = out.failed
	}
	if err != nil {
		s.cfg.Log.WarnContext(ctx, "dns: query not answered", "cell", q.cell, "err", err)
		return outcome{kind: failure}
	}
	if out.kind == lookup {
		return s.lookUp(ctx, q, p)
	}
	return out
}

// message writes an outcome as a reply.
func (s *Server) message(q *query, o outcome) *dns.Msg {
	ask := q.msg.Question[0]
	m := s.reply(q, o.kind.rcode())
	switch o.kind {
	case virtual:
		m.Answer = []dns.RR{&dns.A{Hdr: s.header(ask.Name, dns.TypeA), A: o.addr.AsSlice()}}
	case minimal:
		m.Answer = []dns.RR{&dns.HINFO{Hdr: s.header(ask.Name, dns.TypeHINFO), Cpu: "RFC8482"}}
	case found:
		m.Answer = s.records(ask.Name, o.found)
	case nameError, noData, absent:
		m.Ns = []dns.RR{s.negative()}
	default: // the response code says it all
	}
	if code, ok := extended(o.kind, ask.Qtype); ok {
		s.explain(m, code, o.reason)
	}
	return m
}

// extended returns the extended error (RFC 8914) that goes with an outcome.
func extended(k kind, qtype uint16) (code uint16, ok bool) {
	switch {
	case k == refusal:
		return dns.ExtendedErrorCodeProhibited, true
	case k == nameError:
		return dns.ExtendedErrorCodeBlocked, true
	case k == noData && !askedByHabit(qtype):
		return dns.ExtendedErrorCodeFiltered, true
	default:
		return 0, false
	}
}

// kind is what is answered. The zero kind refuses.
type kind uint8

const (
	refusal   kind = iota
	virtual        // A: the name's virtual address
	noData         // the name exists, this type of it does not (RFC 2308 section 2.2)
	nameError      // NXDOMAIN
	minimal        // ANY: RFC 8482 section 4.2
	failure        // SERVFAIL: what cannot be recorded, kept or looked up
	lookup         // yet to be looked up; never sent
	found          // what was looked up
	absent         // looked up, and there is nothing
)

func (k kind) rcode() int {
	switch k {
	case virtual, noData, minimal, found, absent:
		return dns.RcodeSuccess
	case nameError:
		return dns.RcodeNameError
	case failure:
		return dns.RcodeServerFailure
	default:
		return dns.RcodeRefused
	}
}

// String returns the word used in records.
func (k kind) String() string {
	switch k {
	case virtual:
		return "A"
	case noData, absent:
		return "NODATA"
	case nameError:
		return "NXDOMAIN"
	case minimal:
		return "HINFO"
	case failure:
		return "SERVFAIL"
	case lookup:
		return "look-up"
	default:
		return "REFUSED"
	}
}

// kindOf says how a decision is answered. A denied name is answered like an
// allowed one unless the policy wants NXDOMAIN: the connection ends at the
// gateway, which can say why.
func kindOf(d rules.Decision, qtype uint16) kind {
	switch {
	case d.Reason == rules.UnknownCell || d.Reason == "":
		return refusal
	case d.LookUp:
		return lookup
	case d.Verdict == rules.Deny && d.NameError:
		return nameError
	case qtype == dns.TypeA:
		return virtual
	case qtype == dns.TypeANY:
		return minimal
	default:
		return noData
	}
}

// isMeta reports whether a type is no data but an operation (RFC 6895 section
// 3.1): AXFR, IXFR, TKEY, OPT and the like. ANY is answered (RFC 8482).
func isMeta(qtype uint16) bool {
	return qtype == dns.TypeNone || qtype == dns.TypeOPT || qtype >= 128 && qtype <= 254
}

// askedByHabit reports whether stub resolvers ask a type beside A, so that an
// explanation would tell nobody anything.
func askedByHabit(qtype uint16) bool {
	return qtype == dns.TypeAAAA || qtype == dns.TypeHTTPS || qtype == dns.TypeSVCB || qtype == dns.TypeSRV
}

func typeName(qtype uint16) string { return dns.Type(qtype).String() }

// cut bounds a sandbox's text for a record.
func cut(s string) string { return s[:min(len(s), 80)] }

// cited is a name for an error. What is no name of a host is not cited: nobody looks
// for placeholders in it.
func cited(name string) string {
	if _, err := target.ParseName(name); err != nil {
		return "of no name"
	}
	return strconv.Quote(cut(name))
}
