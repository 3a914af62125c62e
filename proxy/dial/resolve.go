package dial

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/singleflight"

	"sallyport/rules"
	"sallyport/rules/target"
)

// resolver asks the configured servers for A and AAAA of a full name, and for
// what a policy has looked up beside. It applies no search list, reads no hosts file and never judges an address.
type resolver struct {
	fixed   []server
	now     func() time.Time
	timeout time.Duration
	cache   cache[target.Name, []netip.Addr]
	records cache[rules.Lookup, family] // of look-ups
	flight  singleflight.Group          // by name, and by name and type

	mu      sync.Mutex // guards system, mtime
	system  []server
	changed time.Time
}

// The bounds of one look-up.
const (
	resolvConf = "/etc/resolv.conf"
	maxAliases = 8 // CNAME records followed
	maxServers = 3 // as resolv.conf(5)
	tries      = 2 // rounds over the servers
)

var (
	errNoServer  = errors.New("no DNS server is configured")
	errNotFound  = errors.New("no such name")
	errNoAddress = errors.New("the name has no address")
)

func newResolver(list []Resolver, roots *x509.CertPool, now func() time.Time, timeout time.Duration) *resolver {
	r := &resolver{now: now, timeout: timeout}
	for _, c := range list {
		r.fixed = append(r.fixed, newServer(c, roots, now))
	}
	return r
}

// lookup returns the addresses of name, from the cache or from one look-up
// that all who ask at the same time share. The caller must not change them.
func (r *resolver) lookup(ctx context.Context, name target.Name) ([]netip.Addr, error) {
	if addrs, err, ok := r.cache.get(name, r.now()); ok {
		return addrs, err
	}
	ch := r.flight.DoChan(name.String(), func() (any, error) {
		// Cut loose from the first asker, on whom the others do not depend.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.timeout)
		defer cancel()
		return r.ask(ctx, name)
	})
	select {
	case res := <-ch:
		addrs, _ := res.Val.([]netip.Addr)
		return addrs, res.Err
	case <-ctx.Done():
		return nil, resolveError(name, ctx.Err())
	}
}

// ask makes both queries and keeps what they told.
func (r *resolver) ask(ctx context.Context, name target.Name) ([]netip.Addr, error) {
	servers, err := r.servers()
	if err != nil {
		return nil, resolveError(name, err)
	}
	four := make(chan family, 1)
	go func() { four <- r.family(ctx, servers, name, dns.TypeA) }()
	six := r.family(ctx, servers, name, dns.TypeAAAA)
	v4 := <-four

	addrs := append(v4.addrs, six.addrs...)
	if len(addrs) > 0 {
		ttl := maxTTL
		for _, f := range []family{v4, six} {
			switch {
			case len(f.addrs) > 0:
				ttl = min(ttl, f.ttl)
			case f.err != nil:
				// What could not be asked for is not dialled, so it need not be
				// vetted; it is asked for again soon.
				ttl = 0
			}
		}
		r.cache.put(name, addrs, nil, r.now(), clamp(ttl, maxTTL))
		return addrs, nil
	}
	err = errNoAddress
	final := true // nobody was unable to say
	for _, f := range []family{v4, six} {
		if f.err != nil {
			err = f.err
			final = final && errors.Is(f.err, errNotFound)
		}
	}
	err = resolveError(name, err)
	if final {
		r.cache.put(name, nil, err, r.now(), clamp(min(v4.ttl, six.ttl), maxNegativeTTL))
	}
	return nil, err
}

func resolveError(name target.Name, err error) error {
	status := statusDNS
	if isTimeout(err) {
		status = statusDNSTimeout
	}
	return &Error{Op: "resolving", To: name.String(), Status: status, Err: err}
}

// family is what became of one query.
type family struct {
	addrs []netip.Addr
	other []dns.RR // records of the type that was asked for, if that has no addresses
	ttl   time.Duration
	err   error
}

// family asks for one type and follows aliases.
func (r *resolver) family(ctx context.Context, servers []server, name target.Name, qtype uint16) family {
	ttl := maxTTL
	for range maxAliases + 1 {
		m, err := exchange(ctx, servers, name, qtype)
		if err != nil {
			return family{ttl: ttl, err: err}
		}
		a := read(m, name, qtype)
		ttl = min(ttl, a.ttl)
		switch {
		case a.err != nil:
			return family{ttl: ttl, err: a.err}
		case a.found():
			return family{addrs: a.addrs, other: a.other, ttl: ttl}
		case m.Rcode == dns.RcodeNameError:
			return family{ttl: min(ttl, negativeTTL(m)), err: errNotFound}
		case a.last == name:
			return family{ttl: min(ttl, negativeTTL(m))}
		}
		name = a.last
	}
	return family{ttl: ttl, err: errors.New("too many aliases")}
}

// answer is what a message says about a name: its addresses or other records, or
// the alias at which it stops.
type answer struct {
	addrs []netip.Addr
	other []dns.RR
	last  target.Name
	ttl   time.Duration
	err   error
}

func (a *answer) found() bool { return len(a.addrs)+len(a.other) > 0 }

// read follows the chain of aliases in m that begins at name, and takes the
// addresses at its end. Records of other names are not looked at.
func read(m *dns.Msg, name target.Name, qtype uint16) answer {
	a := answer{last: name, ttl: maxTTL}
	for range maxAliases + 1 {
		alias := a.collect(m, qtype)
		if a.found() || a.err != nil || alias == nil {
			return a
		}
		next, err := target.ParseName(alias.Target)
		if err != nil {
			a.err = fmt.Errorf("alias: %w", err)
			return a
		}
		a.last, a.ttl = next, min(a.ttl, seconds(alias.Hdr.Ttl))
	}
	a.err = errors.New("too many aliases")
	return a
}

// collect takes the records of the name that a has come to, and returns its
// alias if it has one.
func (a *answer) collect(m *dns.Msg, qtype uint16) (alias *dns.CNAME) {
	for _, rr := range m.Answer {
		h := rr.Header()
		owner, err := target.ParseName(h.Name)
		if err != nil || owner != a.last || h.Class != dns.ClassINET {
			continue
		}
		switch rr := rr.(type) {
		case *dns.A:
			a.add(rr.A, qtype == dns.TypeA)
		case *dns.AAAA:
			a.add(rr.AAAA, qtype == dns.TypeAAAA)
		default:
			if h.Rrtype == qtype {
				a.other = append(a.other, rr)
				break
			}
			if c, ok := rr.(*dns.CNAME); ok {
				alias = c
			}
			continue
		}
		a.ttl = min(a.ttl, seconds(h.Ttl))
	}
	return alias
}

// add keeps an address in its one spelling. One that is none spoils the answer.
func (a *answer) add(ip []byte, asked bool) {
	addr, ok := netip.AddrFromSlice(ip)
	switch {
	case !asked:
	case !ok:
		a.err = errors.New("an address record without an address")
	default:
		a.addrs = append(a.addrs, addr.Unmap())
	}
}

// seconds reads a TTL; one with the sign bit set is zero (RFC 2181 section 8).
func seconds(ttl uint32) time.Duration {
	if ttl > math.MaxInt32 {
		return 0
	}
	return time.Duration(ttl) * time.Second
}

// negativeTTL is how long it holds that there is nothing: RFC 2308 section 5.
func negativeTTL(m *dns.Msg) time.Duration {
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return min(seconds(soa.Minttl), seconds(soa.Hdr.Ttl))
		}
	}
	return 0
}

// servers returns the servers to ask. The system's are read again when their
// file has changed: a laptop moves.
func (r *resolver) servers() ([]server, error) {
	if len(r.fixed) > 0 {
		return r.fixed, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	info, err := os.Stat(resolvConf)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoServer, err)
	}
	if r.system != nil && info.ModTime().Equal(r.changed) {
		return r.system, nil
	}
	conf, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoServer, err)
	}
	r.system, r.changed = nil, info.ModTime()
	for _, s := range conf.Servers {
		addr, err := netip.ParseAddr(s)
		port, errPort := strconv.ParseUint(conf.Port, 10, 16)
		if err == nil && errPort == nil && len(r.system) < maxServers {
			r.system = append(r.system, server{addr: netip.AddrPortFrom(addr, uint16(port))})
		}
	}
	if len(r.system) == 0 {
		return nil, fmt.Errorf("%w in %s", errNoServer, resolvConf)
	}
	return r.system, nil
}
