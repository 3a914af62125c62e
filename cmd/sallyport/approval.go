package main

import (
	"slices"
	"time"

	"sallyport/rules"
	"sallyport/rules/target"
)

// approvalWork bounds the search for what an approval lets through: a second or so.
const approvalWork = 10_000_000

// approval is an approval that is judged before it is in force.
type approval struct {
	q    *rules.Policy // with it
	rule *rules.Rule   // that it is
	now  time.Time
	work *rules.Work
}

// judge makes sure that what was asked for gets through, and something of every
// method with every path that is named beside it: what deny rules take away
// altogether was not approved, whatever its approver was told.
func (a *approval) judge(method string, path target.Path) error {
	if err := a.follow(method, path); err != nil {
		return err
	}
	for _, m := range a.rule.Methods {
		for _, pattern := range a.rule.Paths {
			example, err := a.example(m, pattern)
			if err != nil {
				return conflict("it cannot be told what %s %s lets through (%v): name fewer paths, or shorter ones", m, pattern, err)
			}
			if err := a.follow(m, example); err != nil {
				return err
			}
		}
	}
	return nil
}

// example returns a path of a pattern that no deny rule takes away, or any of it
// where they leave none.
func (a *approval) example(method string, pattern rules.PathPattern) (target.Path, error) {
	find := rules.PathQuestion{In: [][]rules.PathPattern{{pattern}}, Work: a.work}
	for _, r := range a.q.Rules() {
		if a.surelyDenied(&r, method) {
			find.Out = append(find.Out, r.Paths...)
		}
	}
	path, found, err := find.Find()
	if err == nil && !found {
		find.Out = nil
		path, _, err = find.Find()
	}
	return path, err
}

// surelyDenied reports whether a rule denies the method on its paths, whatever
// else is in the request.
func (a *approval) surelyDenied(r *rules.Rule, method string) bool {
	return r.Action == rules.DenyAction && !r.Observe && len(r.Conditions) == 0 && (r.Expires == 0 || a.now.Unix() < r.Expires) &&
		(len(r.Methods) == 0 || slices.Contains(r.Methods, method)) &&
		(len(r.Ports) == 0 || slices.Contains(r.Ports, a.rule.Ports[0])) &&
		slices.ContainsFunc(r.Hosts, func(h rules.HostPattern) bool { return h.Match(a.rule.Hosts[0].Host) })
}

// follow asks what a request meets under the approval.
func (a *approval) follow(method string, path target.Path) error {
	port := a.rule.Ports[0]
	d := a.q.Follow(rules.Request{
		Question: rules.Fetch, Endpoint: target.Endpoint{Host: a.rule.Hosts[0].Host, Port: port},
		Secure: port != 80, Method: method, Path: path, Now: a.now.Unix(),
	})
	switch {
	case d.Verdict != rules.Deny:
		return nil
	case d.Rule != "":
		return conflict("rule %s of the %s (%s) denies %s %s, and an approval beats no deny rule", d.Rule, d.Scope, d.Where, method, path)
	default:
		return conflict("%s %s would still be refused (%s): that is not for want of a rule", method, path, d.Reason)
	}
}
