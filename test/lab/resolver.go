package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/miekg/dns"
)

// Resolver is an upstream DNS server that does as it is told and remembers
// what it was asked.
type Resolver struct {
	Addr netip.AddrPort

	udp, tcp *dns.Server
	done     sync.WaitGroup

	mu      sync.Mutex // guards all below
	queries []Query
	records map[string][]dns.RR
	scripts map[string]Script
	asked   map[string]int
}

// Query is one question that came.
type Query struct {
	Name string // as it was asked
	Type string
	TCP  bool
	ID   uint16
	Port uint16 // it came from
}

// Script answers the queries for a name; n counts them from 0. A nil answer is
// silence. [Reply] makes the usual ones.
type Script func(n int, q *dns.Msg) *dns.Msg

// StartResolver starts a resolver on UDP and TCP; with port 0 on one that is
// free for both. It knows no name yet.
func StartResolver(addr netip.AddrPort) (*Resolver, error) {
	r := &Resolver{records: map[string][]dns.RR{}, scripts: map[string]Script{}, asked: map[string]int{}}
	pc, l, err := listenBoth(addr)
	if err != nil {
		return nil, fmt.Errorf("starting a resolver: %w", err)
	}
	r.Addr = netip.MustParseAddrPort(l.Addr().String())
	var ready sync.WaitGroup
	ready.Add(2)
	r.udp = &dns.Server{PacketConn: pc, Handler: r, NotifyStartedFunc: ready.Done}
	r.tcp = &dns.Server{Listener: l, Handler: r, NotifyStartedFunc: ready.Done}
	r.done.Go(func() { _ = r.udp.ActivateAndServe() })
	r.done.Go(func() { _ = r.tcp.ActivateAndServe() })
	ready.Wait() // Shutdown before that is an error
	return r, nil
}

func listenBoth(addr netip.AddrPort) (net.PacketConn, net.Listener, error) {
	for try := 0; ; try++ {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
		if err != nil {
			return nil, nil, err
		}
		pc, err := net.ListenPacket("udp", l.Addr().String())
		if err == nil {
			return pc, l, nil
		}
		err = errors.Join(err, l.Close())
		if addr.Port() != 0 || try == 10 {
			return nil, nil, err
		}
	}
}

// Close stops the resolver.
func (r *Resolver) Close() error {
	r.mu.Lock()
	udp, tcp := r.udp, r.tcp
	r.udp, r.tcp = nil, nil
	r.mu.Unlock()
	if udp == nil {
		return nil
	}
	err := errors.Join(udp.Shutdown(), tcp.Shutdown())
	r.done.Wait()
	return err
}

// Set adds records to a name: "A 11.7.7.7", "CNAME other.test.", "300 A …".
// It panics on one that is none.
func (r *Resolver) Set(name string, records ...string) {
	for _, text := range records {
		rr := mustRR(name, text)
		r.mu.Lock()
		key := dns.CanonicalName(name)
		r.records[key] = append(r.records[key], rr)
		r.mu.Unlock()
	}
}

// Script has f answer for a name.
func (r *Resolver) Script(name string, f Script) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scripts[dns.CanonicalName(name)] = f
}

// Queries returns what was asked, in its order.
func (r *Resolver) Queries() []Query {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.queries)
}

// Reset forgets what was asked, and every record and script.
func (r *Resolver) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queries = nil
	clear(r.records)
	clear(r.scripts)
	clear(r.asked)
}

// ServeDNS implements dns.Handler.
func (r *Resolver) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	if m := r.answer(w, q); m != nil {
		_ = w.WriteMsg(m) // the asker may be gone
	}
}

func (r *Resolver) answer(w dns.ResponseWriter, q *dns.Msg) *dns.Msg {
	ask := q.Question[0]
	key := dns.CanonicalName(ask.Name)
	_, tcp := w.RemoteAddr().(*net.TCPAddr)
	from, _ := netip.ParseAddrPort(w.RemoteAddr().String())
	r.mu.Lock()
	r.queries = append(r.queries, Query{ask.Name, dns.Type(ask.Qtype).String(), tcp, q.Id, from.Port()})
	n := r.asked[key]
	r.asked[key]++
	script, records := r.scripts[key], r.records[key]
	r.mu.Unlock()
	if script != nil {
		return script(n, q)
	}
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	if len(records) == 0 {
		m.Rcode = dns.RcodeNameError
		return m
	}
	for _, rr := range records {
		if t := rr.Header().Rrtype; t == ask.Qtype || t == dns.TypeCNAME {
			m.Answer = append(m.Answer, rr)
		}
	}
	return m
}

// Reply makes an answer to q of records in the form "name ttl type data",
// where "@" is the name that was asked. Only those of the type that was asked,
// and aliases, are put in.
func Reply(q *dns.Msg, records ...string) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	for _, text := range records {
		rr, err := dns.NewRR("$ORIGIN " + q.Question[0].Name + "\n" + text)
		if err != nil {
			panic(fmt.Sprintf("lab: record %q: %v", text, err))
		}
		if t := rr.Header().Rrtype; t == q.Question[0].Qtype || t == dns.TypeCNAME {
			m.Answer = append(m.Answer, rr)
		}
	}
	return m
}

// Fail makes an answer of a response code alone.
func Fail(q *dns.Msg, rcode int) *dns.Msg {
	m := new(dns.Msg)
	m.SetRcode(q, rcode)
	return m
}

func mustRR(name, text string) dns.RR {
	rr, err := dns.NewRR(dns.Fqdn(name) + " 60 IN " + text)
	if err != nil {
		panic(fmt.Sprintf("lab: record %q of %q: %v", text, name, err))
	}
	return rr
}
