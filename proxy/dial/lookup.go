package dial

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
)

// The bounds of an answer. One with more is refused rather than given in part.
const (
	maxRecords = 32
	maxText    = 4096 // octets of all of its text
)

// LookUp (ADR-0022) asks the configured servers for the records of the name and type that
// p admits (dns.resolve), and returns what was found, made anew: nothing but
// data of that type, in its one spelling, and no record if there are none or no
// such name. The records are the caller's. Of the sandbox's own message nothing
// goes out, since the query is written from what the policy says.
//
// Every address of an answer is vetted, and one bad address refuses all of it:
// a [*gate.DeniedError]. Every other failure is an [*Error].
func (d *Dialer) LookUp(ctx context.Context, p gate.Pass) ([]dns.RR, error) {
	name, ok := p.Request().Endpoint.Host.Name()
	if !ok || !p.LooksUp() {
		return nil, &Error{Op: "resolving", Status: statusInternal, Err: ErrNoPass}
	}
	ask := rules.Lookup{Name: name, Type: p.Request().Type}
	found, err := d.lookUp(ctx, ask)
	if err != nil {
		return nil, err
	}
	if n := len(found.addrs) + len(found.other); n > maxRecords {
		return nil, resolveError(name, fmt.Errorf("%d records", n))
	}
	for _, a := range found.addrs {
		if err := d.cfg.Vet(ctx, p, a); err != nil {
			return nil, err
		}
		if err := d.own.refuse(p, a); err != nil {
			return nil, err
		}
	}
	list, err := found.remade(ask)
	if err != nil {
		return nil, resolveError(name, err)
	}
	return list, nil
}

// lookUp looks up, without judging. A name whose addresses are configured is
// not asked for.
func (d *Dialer) lookUp(ctx context.Context, ask rules.Lookup) (family, error) {
	addrs, ok := d.cfg.Hosts[ask.Name]
	if !ok {
		return d.resolver.find(ctx, ask)
	}
	f := family{ttl: maxTTL}
	for _, a := range addrs {
		if ask.Type == dns.TypeAAAA && a.Is6() {
			f.addrs = append(f.addrs, a)
		}
	}
	return f, nil
}

// find returns the records of a name, from the cache or from one look-up that
// all who ask at the same time share.
func (r *resolver) find(ctx context.Context, ask rules.Lookup) (family, error) {
	if f, err, ok := r.records.get(ask, r.now()); ok {
		return f, err
	}
	ch := r.flight.DoChan(fmt.Sprintf("%s/%d", ask.Name, ask.Type), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.timeout)
		defer cancel()
		servers, err := r.servers()
		if err != nil {
			return family{}, resolveError(ask.Name, err)
		}
		f := r.family(ctx, servers, ask.Name, ask.Type)
		most := maxTTL
		if len(f.addrs)+len(f.other) == 0 {
			most = maxNegativeTTL
		}
		switch {
		case errors.Is(f.err, errNotFound): // nothing of this type either
			f.err = nil
		case f.err != nil:
			return family{}, resolveError(ask.Name, f.err)
		}
		r.records.put(ask, f, nil, r.now(), clamp(f.ttl, most))
		return f, nil
	})
	select {
	case res := <-ch:
		f, _ := res.Val.(family)
		return f, res.Err
	case <-ctx.Done():
		return family{}, resolveError(ask.Name, ctx.Err())
	}
}

// remade returns the records of an answer as ours.
func (f *family) remade(ask rules.Lookup) (list []dns.RR, err error) {
	h := dns.RR_Header{
		Name: dns.Fqdn(ask.Name.String()), Rrtype: ask.Type, Class: dns.ClassINET,
		Ttl: uint32(clamp(f.ttl, maxTTL) / time.Second),
	}
	for _, a := range f.addrs {
		list = append(list, address(h, a))
	}
	text := 0
	for _, rr := range f.other {
		again, err := remake(h, rr, &text)
		if err != nil {
			return nil, err
		}
		list = append(list, again)
	}
	if text > maxText {
		return nil, fmt.Errorf("%d octets of text", text)
	}
	return list, nil
}

func address(h dns.RR_Header, a netip.Addr) dns.RR {
	b := a.As16()
	return &dns.AAAA{Hdr: h, AAAA: b[:]}
}

// remake writes the data of a record anew, and adds the length of its text.
func remake(h dns.RR_Header, rr dns.RR, text *int) (dns.RR, error) {
	switch rr := rr.(type) {
	case *dns.CNAME:
		to, err := spelled(rr.Target)
		return &dns.CNAME{Hdr: h, Target: to}, err
	case *dns.MX:
		to, err := spelled(rr.Mx)
		return &dns.MX{Hdr: h, Preference: rr.Preference, Mx: to}, err
	case *dns.SRV:
		to, err := spelled(rr.Target)
		return &dns.SRV{Hdr: h, Priority: rr.Priority, Weight: rr.Weight, Port: rr.Port, Target: to}, err
	case *dns.TXT:
		for _, s := range rr.Txt {
			*text += len(s)
		}
		return &dns.TXT{Hdr: h, Txt: append([]string(nil), rr.Txt...)}, nil
	case *dns.CAA:
		*text += len(rr.Tag) + len(rr.Value)
		return &dns.CAA{Hdr: h, Flag: rr.Flag, Tag: rr.Tag, Value: rr.Value}, nil
	default:
		return nil, fmt.Errorf("a record of type %s", dns.Type(h.Rrtype))
	}
}

// spelled returns the one spelling of a name in an answer. The root says that
// there is no such service (RFC 2782, RFC 7505).
func spelled(s string) (string, error) {
	if s == "." {
		return s, nil
	}
	n, err := target.ParseName(s)
	if err != nil {
		return "", fmt.Errorf("a name in the answer: %w", err)
	}
	return dns.Fqdn(n.String()), nil
}
