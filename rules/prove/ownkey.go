package prove

import (
	"fmt"
	"slices"

	"sallyport/rules"
	"sallyport/rules/target"
)

// ownKeys compares where a caller's own key in a credential's place is refused:
// on every host that some rule grants the credential on, unless the rule that
// speaks lets it through.
func (x *comparer) ownKeys() ([]Change, error) {
	var out []Change
	for _, c := range x.credentials {
		more, err := x.ownKey(OwnKeyAllowed, c, &x.old, &x.new)
		if err != nil {
			return nil, err
		}
		less, err := x.ownKey(OwnKeyDenied, c, &x.new, &x.old)
		if err != nil {
			return nil, err
		}
		out = append(append(out, more...), less...)
	}
	return out, nil
}

// ownKey looks for requests that both policies admit, and of which only one
// cares for whose key is in it.
func (x *comparer) ownKey(kind Kind, credential string, guards, open *side) ([]Change, error) {
	grants := func(list []*rules.Rule) bool {
		return slices.ContainsFunc(list, func(r *rules.Rule) bool { return r.Credential == credential })
	}
	var out []Change
	for i := range open.list {
		r := &open.list[i]
		if r.Action != rules.AllowAction || r.Raw || r.TLS != rules.InspectTLS {
			continue
		}
		f := finder{comparer: x, rule: r}
		var hosts []string
		var first Witness
		err := f.eachHost(func(h hostOf) error {
			if !grants(guards.about(h.host)) || grants(open.about(h.host)) && !r.CallersKey || slices.Contains(hosts, h.host.String()) {
				return nil
			}
			w, found, err := x.both(r, h, guards, open)
			if err != nil || !found {
				return err
			}
			w.Request.Carries = []rules.Carry{{Credential: credential, State: rules.Foreign}}
			if err := x.verify(kind, &w); err != nil {
				return err
			}
			if hosts = append(hosts, h.host.String()); len(hosts) == 1 {
				first = w
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", r.ID, err)
		}
		if len(hosts) > 0 {
			out = append(out, Change{
				Kind: kind, Rule: *r, Carrying: Requests, Hosts: hosts, Ports: []uint16{first.Request.Endpoint.Port}, Credential: credential, Example: first,
			})
		}
	}
	return out, nil
}

// both returns a request that both policies admit and judge: the open one by r,
// the other by a rule that cares for whose key is in it.
func (x *comparer) both(r *rules.Rule, h hostOf, guards, open *side) (w Witness, found bool, err error) {
	for _, now := range x.times {
		for _, port := range r.Ports {
			c := cell{host: h.host, port: port, now: now}
			if a, ok := h.host.Addr(); ok {
				c.addr = a
			}
			w, found, err = x.bothAt(r, c, guards, open)
			if found || err != nil {
				return w, found, err
			}
		}
	}
	return w, false, nil
}

func (x *comparer) bothAt(r *rules.Rule, c cell, guards, open *side) (w Witness, found bool, err error) {
	v, u := open.view(c), guards.view(c)
	kinds, err := facts(x.nearAddr(c)...)
	if err != nil || v.carriage != inspected {
		return w, false, err
	}
	for _, m := range x.methodsOf(r) {
		for i := range kinds {
			a := ask{method: m, facts: &kinds[i]}
			s, ok := v.only(r, a)
			if !ok {
				continue
			}
			p, found, err := u.careful(&s, a)
			if found || err != nil {
				return witnessOf(c, a, p), found, err
			}
		}
	}
	return w, false, nil
}

// careful returns a path in t for which a rule speaks that refuses a caller's own key.
func (v *view) careful(t *set, a ask) (p target.Path, found bool, err error) {
	for _, r := range v.allows {
		if r.CallersKey {
			continue
		}
		if own, ok := v.only(r, a); ok {
			if p, found, err = own.common(t, nil); found || err != nil {
				return p, found, err
			}
		}
	}
	return p, false, nil
}
