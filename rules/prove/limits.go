package prove

import (
	"cmp"
	"fmt"
	"slices"

	"sallyport/rules"
)

// LimitChange is one limit that both policies put on the same requests. A Rate
// of N 0 is no limit; one of Period 0 is about a number at a time.
type LimitChange struct {
	Name     string // as a policy file has it
	Old, New rules.Rate
}

// Looser reports whether the new limit admits more at some time, and Tighter
// whether it admits less.
func (l LimitChange) Looser() bool { return exceeds(l.New, l.Old) }

// Tighter is the other way round.
func (l LimitChange) Tighter() bool { return exceeds(l.Old, l.New) }

// exceeds reports whether a admits at some time what b refuses. A limit holds in
// any of its periods, and a day holds whole hours and minutes.
func exceeds(a, b rules.Rate) bool {
	switch {
	case b.N == 0:
		return false
	case a.N == 0:
		return true
	case a.Period >= b.Period: // b may be spent again while a counts on
		return a.N > b.N
	default:
		return a.N*(b.Period/max(a.Period, 1)) > b.N
	}
}

func limitChanges(was, is *rules.Limits) []LimitChange {
	all := []LimitChange{
		{"requests", was.Requests, is.Requests},
		{"sent", was.Sent, is.Sent},
		{"received", was.Received, is.Received},
		{"concurrent", rules.Rate{N: was.Concurrent}, rules.Rate{N: is.Concurrent}},
		{"request_body", rules.Rate{N: was.Body}, rules.Rate{N: is.Body}},
		{"request_head", rules.Rate{N: was.Head}, rules.Rate{N: is.Head}},
	}
	return slices.DeleteFunc(all, func(l LimitChange) bool { return l.Old == l.New })
}

// kindOf says whether limits were loosened, tightened, or both.
func kindOf(list []LimitChange) Kind {
	looser := slices.ContainsFunc(list, LimitChange.Looser)
	tighter := slices.ContainsFunc(list, LimitChange.Tighter)
	switch {
	case looser && tighter:
		return LimitChanged
	case looser:
		return LimitLoosened
	default:
		return LimitTightened
	}
}

// pair is a rule of the old policy and one of the new that admit the same request.
type pair struct{ old, new string }

// limits compares the limits and the logging of what both policies admit.
func (x *comparer) limits() ([]Change, error) {
	l := limiter{comparer: x, seen: map[pair]bool{}}
	for i := range x.new.list {
		r := &x.new.list[i]
		if r.Action != rules.AllowAction {
			continue
		}
		if err := l.rule(r); err != nil {
			return nil, fmt.Errorf("rule %q: %w", r.ID, err)
		}
	}
	return append(l.changes, l.counted()...), nil
}

type limiter struct {
	*comparer
	seen    map[pair]bool
	changes []Change
	pairs   []Change // with a limit on both sides
}

func (l *limiter) rule(r *rules.Rule) error {
	f := finder{comparer: l.comparer, rule: r}
	return f.eachHost(func(h hostOf) error {
		for _, old := range l.old.about(h.host) {
			if old.Action != rules.AllowAction || old.Limits.IsZero() && r.Limits.IsZero() && old.Log == r.Log || l.seen[pair{old.ID, r.ID}] {
				continue
			}
			w, found, err := l.meet(old, r, h)
			if err != nil {
				return err
			}
			if found {
				l.add(old, r, h, w)
			}
		}
		return nil
	})
}

func (l *limiter) add(old, r *rules.Rule, h hostOf, w Witness) {
	l.seen[pair{old.ID, r.ID}] = true
	c := Change{
		Rule: *r, Was: old, Carrying: Requests, Hosts: []string{h.pattern}, Ports: []uint16{w.Request.Endpoint.Port},
		Limits: limitChanges(&old.Limits, &r.Limits), Example: w,
	}
	if len(c.Limits) > 0 {
		c.Kind = kindOf(c.Limits)
		l.changes = append(l.changes, c)
	}
	if old.Log != r.Log {
		logged := c
		logged.Kind, logged.Limits = LogChanged, nil
		l.changes = append(l.changes, logged)
	}
	if !old.Limits.IsZero() && !r.Limits.IsZero() {
		l.pairs = append(l.pairs, c)
	}
}

// counted tells of limits that were counted together and are counted apart now,
// or the other way round.
func (l *limiter) counted() []Change {
	var out []Change
	for i := range l.pairs {
		for j := range i {
			a, b := &l.pairs[j], &l.pairs[i]
			c := *b
			c.Limits = nil
			switch {
			case a.Was.ID == b.Was.ID && a.Rule.ID != b.Rule.ID:
				c.Kind, c.With = LimitLoosened, &a.Rule
			case a.Was.ID != b.Was.ID && a.Rule.ID == b.Rule.ID:
				c.Kind, c.With = LimitTightened, a.Was
			default:
				continue
			}
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Was.ID, b.Was.ID), cmp.Compare(a.Rule.ID, b.Rule.ID))
	})
	return slices.CompactFunc(out, func(a, b Change) bool {
		return a.Kind == b.Kind && (a.Kind == LimitLoosened && a.Was.ID == b.Was.ID || a.Kind == LimitTightened && a.Rule.ID == b.Rule.ID)
	})
}

// meet returns a request that both policies admit, each by its rule.
func (l *limiter) meet(old, r *rules.Rule, h hostOf) (w Witness, found bool, err error) {
	for _, now := range l.times {
		for _, port := range r.Ports {
			for _, a := range l.addrs(h.host) {
				c := cell{h.host, port, now, a.addr}
				if !allowsAt(old, c) || !allowsAt(r, c) {
					continue
				}
				if err := l.enter(); err != nil {
					return w, false, err
				}
				before, after := l.old.view(c), l.new.view(c)
				if w, found, err = l.meetAt(old, r, c, &before, &after); found || err != nil {
					return w, found, err
				}
			}
		}
	}
	return w, false, nil
}

func (l *limiter) meetAt(old, r *rules.Rule, c cell, before, after *view) (w Witness, found bool, err error) {
	if before.carriage == raw && after.carriage == raw {
		w = Witness{Addr: c.addr, Request: rules.Request{Question: rules.Connect, Endpoint: witness(c, "", false, rootPath()).Request.Endpoint, Now: c.now}}
		return w, before.speaks == old && after.speaks == r, l.verify(LimitChanged, &w)
	}
	kinds, err := facts(l.nearAddr(c)...)
	if err != nil {
		return w, false, err
	}
	for _, m := range l.methodsNamedAndOne() {
		for i := range 2 * len(kinds) {
			a := ask{method: m, plain: i%2 == 1, facts: &kinds[i/2]}
			s, ok := before.only(old, a)
			t, ok2 := after.only(r, a)
			if !ok || !ok2 {
				continue
			}
			p, found, err := s.common(&t, nil)
			if err != nil {
				return w, false, err
			}
			if found {
				w = witnessOf(c, a, p)
				return w, true, l.verify(LimitChanged, &w)
			}
		}
	}
	return w, false, nil
}

// totals compares the limits of a run over all rules.
func (x *comparer) totals() ([]Change, error) {
	var none rules.Totals
	before, after := x.old.policy.Totals(), x.new.policy.Totals()
	if before == nil {
		before = &none
	}
	if after == nil {
		after = &none
	}
	var out []Change
	was, is := before.All(), after.All()
	for i := range was {
		if list := limitChanges(was[i].Limits, is[i].Limits); len(list) > 0 {
			out = append(out, Change{Kind: kindOf(list), Run: true, Limits: list})
		}
	}
	return out, nil
}

func (x *comparer) methodsNamedAndOne() []string {
	return append(slices.Clone(x.methodsNamed), fresh(x.methodsNamed))
}

// speaksOf reports whether a rule can admit what is asked.
func (a *ask) speaksOf(r *rules.Rule) bool {
	return (a.facts == nil || r.MeetsConditions(a.facts)) && (len(r.Methods) == 0 || slices.Contains(r.Methods, a.method)) &&
		(!a.plain || r.Credential == "")
}

// only returns what v admits by one rule.
func (v *view) only(r *rules.Rule, a ask) (s set, ok bool) {
	switch {
	case v.carriage == raw || v.carriage == unopened && !a.plain:
		return set{all: true}, v.speaks == r
	case !slices.Contains(v.allows, r):
		return s, false
	}
	if s, ok = v.admits(a); !ok || !a.speaksOf(r) {
		return s, false
	}
	for _, first := range v.allows { // in the order in which they are consulted
		switch {
		case first == r:
			s.in, s.all = r.Paths, len(r.Paths) == 0
			return s, true
		case !a.asks(first):
		case len(first.Paths) == 0:
			return set{}, false
		default:
			s.notIn = append(s.notIn, first.Paths...)
		}
	}
	return set{}, false
}
