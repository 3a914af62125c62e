package prove

import (
	"net/netip"
	"slices"

	"sallyport/rules"
)

// rest says what of a change's requests is no difference: what rules of its own policy
// take away from it, and what the other policy admits of it. Each rule is one that
// meets the change, so that the change is what it says, less what these say.
func (x *comparer) rest(c *Change, lacks, has *side) error {
	takes, err := x.meeting(c, has, rules.DenyAction)
	if err != nil {
		return err
	}
	c.But = takes
	if c.Same, err = x.meeting(c, lacks, rules.AllowAction); err != nil || len(c.Same) == 0 {
		return err
	}
	c.SameBut, err = x.meeting(c, lacks, rules.DenyAction)
	return err
}

// meeting returns the rules of a side with an action that are about some of a change's
// requests.
func (x *comparer) meeting(c *Change, s *side, action rules.Action) (list []*rules.Rule, err error) {
	for i := range s.list {
		r := &s.list[i]
		if r.Action != action || !c.meetsPlace(r) || !c.meetsMethods(r) || action == rules.DenyAction && len(r.Hosts) == 0 {
			continue
		}
		if action == rules.AllowAction && (c.Credential != "" && r.Credential != c.Credential || len(c.Into) > 0 && !r.Opens(c.Example.Addr)) {
			continue
		}
		found, err := x.meetsPaths(c, r)
		if err != nil {
			return nil, err
		}
		if found {
			list = append(list, r)
		}
	}
	return list, nil
}

// meetsPlace looks at hosts, ports and days.
func (c *Change) meetsPlace(r *rules.Rule) bool {
	if r.Expires != 0 && r.Expires <= c.From {
		return false
	}
	if len(r.Ports) > 0 && !slices.ContainsFunc(c.Ports, func(p uint16) bool { return slices.Contains(r.Ports, p) }) {
		return false
	}
	if len(c.Rule.Hosts) == 0 { // its ranges are what it is about
		return len(r.Hosts) == 0 && slices.ContainsFunc(r.Private, func(p netip.Prefix) bool {
			return slices.ContainsFunc(c.Rule.Private, p.Overlaps)
		})
	}
	for _, h := range c.Rule.Hosts {
		if slices.Contains(c.Hosts, h.String()) && slices.ContainsFunc(r.Hosts, func(o rules.HostPattern) bool { return meet(h, o) }) {
			return true
		}
	}
	return false
}

// meet reports whether there is a host that both patterns match.
func meet(a, b rules.HostPattern) bool {
	if a.Host == b.Host {
		return a.Wildcard == b.Wildcard
	}
	x, isName := a.Host.Name()
	y, both := b.Host.Name()
	return isName && both && (a.Wildcard && y.Below(x) || b.Wildcard && x.Below(y))
}

func (c *Change) meetsMethods(r *rules.Rule) bool {
	switch {
	case len(r.Methods) == 0 || len(c.Methods) == 0:
		return true
	case c.Except:
		return slices.ContainsFunc(r.Methods, func(m string) bool { return !slices.Contains(c.Methods, m) })
	default:
		return slices.ContainsFunc(r.Methods, func(m string) bool { return slices.Contains(c.Methods, m) })
	}
}

func (x *comparer) meetsPaths(c *Change, r *rules.Rule) (bool, error) {
	if len(r.Paths) == 0 || c.Carrying != Requests {
		return true, nil
	}
	if c.TwoReadings {
		return r.Action == rules.DenyAction, nil
	}
	var own []rules.PathPattern
	for _, p := range c.Rule.Paths {
		if slices.Contains(c.Paths, p.String()) {
			own = append(own, p)
		}
	}
	q := rules.PathQuestion{In: [][]rules.PathPattern{own}, Work: x.work}
	if r.Action == rules.DenyAction {
		q.Within = [][]rules.PathPattern{r.Paths}
	} else {
		q.In = append(q.In, r.Paths)
	}
	_, found, err := q.Find()
	return found, err
}
