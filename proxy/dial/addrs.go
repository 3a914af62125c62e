package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"sallyport/rules"
	"sallyport/rules/gate"
)

const (
	// maxAnswer bounds the addresses of one name: each one is judged, so an
	// answer with more is refused rather than judged in part.
	maxAnswer = 64
	// maxTried bounds how many of them are dialled.
	maxTried = 8
)

// Vet tells whether p may be dialled at all, before anything is made for it: an error
// is as of [Dialer.Dial]. Whoever dials is told again.
func (d *Dialer) Vet(ctx context.Context, p gate.Pass) error {
	_, err := d.vetted(ctx, p)
	return err
}

// vetted returns the addresses of the place that p admits, in the order in
// which they are to be tried, after the policy has agreed to every one of them.
func (d *Dialer) vetted(ctx context.Context, p gate.Pass) ([]netip.Addr, error) {
	if !p.Dialable() {
		return nil, &Error{Op: "dialling", Status: statusInternal, Err: ErrNoPass}
	}
	end := p.Request().Endpoint
	if end.Port == 0 {
		return nil, &Error{Op: "dialling", To: end.String(), Status: statusInternal, Err: errors.New("no port")}
	}
	addrs, err := d.addresses(ctx, p)
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 || len(addrs) > maxAnswer {
		return nil, &Error{
			Op: "resolving", To: end.Host.String(), Status: statusDNS,
			Err: fmt.Errorf("%d addresses", len(addrs)),
		}
	}
	for _, a := range addrs {
		if err := d.cfg.Vet(ctx, p, a); err != nil {
			return nil, err
		}
		if err := d.own.refuse(p, a); err != nil {
			return nil, err
		}
	}
	addrs = interleave(addrs)
	return addrs[:min(len(addrs), maxTried)], nil
}

// addresses resolves, without judging.
func (d *Dialer) addresses(ctx context.Context, p gate.Pass) ([]netip.Addr, error) {
	host := p.Request().Endpoint.Host
	if a, ok := host.Addr(); ok {
		return []netip.Addr{a}, nil
	}
	name, ok := host.Name()
	if !ok {
		return nil, &Error{Op: "resolving", Status: statusInternal, Err: errors.New("no host")}
	}
	if addrs, ok := d.cfg.Hosts[name]; ok {
		return addrs, nil
	}
	return d.resolver.lookup(ctx, name)
}

// interleave orders addresses by RFC 8305 section 4: the families alternate,
// IPv6 first, each in the order of the answer.
func interleave(addrs []netip.Addr) []netip.Addr {
	if len(addrs) == 1 {
		return addrs
	}
	var four, six []netip.Addr
	for _, a := range addrs {
		if a.Is4() {
			four = append(four, a)
		} else {
			six = append(six, a)
		}
	}
	out := make([]netip.Addr, 0, len(addrs))
	for i := range max(len(four), len(six)) {
		if i < len(six) {
			out = append(out, six[i])
		}
		if i < len(four) {
			out = append(out, four[i])
		}
	}
	return out
}

// ownAddrs knows the addresses of this machine. A public one looks like any
// other to a policy, but behind it are the gateway itself and whatever else
// listens here, so a name that resolves to it is refused: no rule opens it.
type ownAddrs struct {
	now   func() time.Time
	named map[netip.Addr]bool // by the operator, in Config.Hosts

	mu    sync.Mutex // guards addrs and until
	addrs map[netip.Addr]bool
	until time.Time
}

// ownFresh is how long a reading of the interfaces holds.
const ownFresh = time.Second

// refuse returns a [*gate.DeniedError] if a is this machine's own address, or
// if that cannot be found out.
func (o *ownAddrs) refuse(p gate.Pass, a netip.Addr) error {
	if o.named[a] {
		return nil
	}
	deny := func(cause error) error {
		dec := p.Decision()
		dec.Verdict, dec.Reason = rules.Deny, rules.PrivateIP
		return &gate.DeniedError{Reason: rules.PrivateIP, ID: p.ID(), Decision: dec, Err: cause}
	}
	// All of 127.0.0.0/8 is local, whichever of it the interface shows, and so
	// is the unspecified address when it is dialled.
	if a.IsLoopback() || a.IsUnspecified() {
		return deny(fmt.Errorf("address %v is this machine's own", a))
	}
	own, err := o.current()
	if err != nil {
		return deny(err)
	}
	if own[a] {
		return deny(fmt.Errorf("address %v is this machine's own", a))
	}
	return nil
}

func (o *ownAddrs) current() (map[netip.Addr]bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	if o.addrs != nil && now.Before(o.until) {
		return o.addrs, nil
	}
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("reading this machine's addresses: %w", err)
	}
	addrs := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		if ip, ok := netip.AddrFromSlice(n.IP); ok {
			addrs[ip.Unmap()] = true
		}
	}
	o.addrs, o.until = addrs, now.Add(ownFresh)
	return addrs, nil
}
