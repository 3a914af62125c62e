package policyfile

import (
	"fmt"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
	"sallyport/rules/prove"
)

// NeverResult is one statement of never and whether it is proved.
type NeverResult struct {
	Where string `json:"where"` // file:line
	Text  string `json:"text"`  // as the effective policy writes it
	// Failure says what is wrong, "" for nothing; Example is a request that
	// is admitted and must not be.
	Failure string `json:"failure,omitempty"`
	Example string `json:"example,omitempty"`
	// Carries says what a stream carries that nobody looks into, if Example is one.
	Carries string `json:"carries,omitempty"`
	Rule    string `json:"rule,omitempty"` // what admits it
}

// neverDoc is a statement while it is read.
type neverDoc struct {
	prove.Statement
	doc    *policyDoc
	node   ast.Node
	origin string
	reason string
	scope  rules.Scope
}

func (d *policyDoc) readNever(n ast.Node) {
	before := len(d.errs)
	s := &neverDoc{doc: d, node: n, origin: d.originOf(n), scope: d.loader.scope}
	var one, many []rules.HostPattern
	keys := []key{
		{name: "credential", read: func(n ast.Node) {
			before := len(d.errs)
			if d.id(&s.Credential)(n); len(d.errs) == before {
				d.checkCredential(n, s.Credential)
			}
		}},
		{name: "host", read: d.oneHost(&one)},
		{name: "hosts", read: d.hostList(&many)},
		{name: "ports", read: d.ports(&s.Ports)},
		{name: "methods", read: d.methods(&s.Methods)},
		{name: "paths", read: d.paths(&s.Paths)},
		{name: "reason", read: d.str(&s.reason)},
	}
	if d.written {
		keys = append(keys, key{name: "origin", required: true, read: d.str(&s.origin)}, key{name: "scope", read: d.scopeWord(&s.scope)})
	}
	seen := d.mapping(n, "a statement", keys)
	switch {
	case seen == nil:
		return
	case seen["host"] != nil && seen["hosts"] != nil:
		d.errorf(seen["hosts"], "host and hosts; write one of them")
	case len(d.errs) == before && s.Credential == "" && len(one)+len(many)+len(s.Ports)+len(s.Methods)+len(s.Paths) == 0:
		d.errorf(n, "a statement that is about everything; a policy that denies everything says so with rules: []")
	}
	s.Hosts = slices.Concat(one, many)
	slices.Sort(s.Methods)
	if len(d.errs) == before {
		d.never = append(d.never, s)
	}
}

// checkCredential refuses a name that no credential has: a statement about a
// misspelled one would always hold.
func (d *policyDoc) checkCredential(n ast.Node, name string) {
	if d.loader.kept {
		return
	}
	known := make([]string, len(d.creds))
	for i := range d.creds {
		known[i] = d.creds[i].Name
	}
	if !slices.Contains(known, name) {
		d.errorf(n, "no credential is named %q%s", name, missing(name, known))
	}
}

// forbidden returns what the statements of all files keep a mode from letting
// through. One about a credential has nothing to do there: no mode grants any.
func (d *policyDoc) forbidden() (list []rules.Rule) {
	for _, x := range d.scoped() {
		for _, s := range x.never {
			if s.Credential != "" {
				continue
			}
			r := rules.Rule{
				ID: "never:" + s.origin, Where: x.at(s.node), Action: rules.DenyAction, Scope: s.scope, Purpose: s.reason,
				Hosts: s.Hosts, Ports: s.Ports, Methods: s.Methods, Paths: s.Paths,
			}
			if x.written {
				r.Where = s.origin
			}
			list = append(list, r)
		}
	}
	return list
}

// prove looks for what the policy admits although a statement forbids it, over
// all files. What a rule only observes is admitted; what the mode of the whole
// lets through is not asked, since [rules.Source.Never] takes it away.
func (d *policyDoc) prove(p *rules.Policy) []NeverResult {
	var results []NeverResult
	if d.loader.scope == rules.FloorScope {
		return nil // proved of every policy that stands under it
	}
	work := prove.NewWork(d.loader.stop)
	for _, x := range d.scoped() {
		for _, s := range x.never {
			r := NeverResult{Where: x.at(s.node), Text: s.text()}
			if x.written {
				r.Where = s.origin
			}
			switch e, err := prove.Check(p.Loosest(), s.Statement, work); {
			case err != nil:
				r.Failure = "cannot be proved: " + err.Error()
			case e != nil:
				r.Example, r.Rule = e.String(), e.Decision.Rule
				r.Failure = fmt.Sprintf("does not hold: rule %q (%s) allows %s", e.Decision.Rule, e.Decision.Where, r.Example)
				if r.Carries = e.Within(); r.Carries != "" {
					r.Failure += ", which carries " + r.Carries
				}
			}
			if r.Failure != "" {
				x.errorOf(s.node, s.origin, "this %s", r.Failure)
			}
			results = append(results, r)
		}
	}
	return results
}
