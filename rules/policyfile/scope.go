package policyfile

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
	"sallyport/rules/prove"
)

// standing is what an effective policy says of another scope, beside its rules.
type standing struct {
	name   string
	limits rules.Limits
}

func (d *policyDoc) standing() *standing { return &standing{d.name, d.totals} }

// stand reads the scopes above and below a policy.
func (d *policyDoc) stand(src Input, creds []Credential) {
	if src.Floor != nil {
		floor := read(*src.Floor, creds, rules.FloorScope)
		d.loader.beside = append(d.loader.beside, floor.loader)
		switch {
		case !floor.parsed || floor.loader.err() != nil:
		case !d.written:
			d.floor, d.floorOf = floor, floor.standing()
		case d.floorDigest() != floor.floorDigest():
			d.errorAt(1, 1, "this effective policy does not stand under the floor %q as it is now; read the file that it was made of", floor.name)
		}
	}
	if src.Run != nil {
		run := read(*src.Run, creds, rules.RunScope)
		d.loader.beside = append(d.loader.beside, run.loader)
		switch {
		case !run.parsed || run.loader.err() != nil:
		case d.written:
			d.errorAt(1, 1, "an effective policy is what it is; to narrow it, read the file that it was made of")
		default:
			d.run, d.runOf = run, run.standing()
		}
	}
}

// checkScope refuses what is not for a scope to say.
func (d *policyDoc) checkScope(seen map[string]ast.Node) {
	var not []string
	switch d.loader.scope {
	case rules.FloorScope:
		not = []string{"mode", "dns", "defaults", "floor", "run"}
	case rules.RunScope:
		not = []string{"mode", "dns", "never"}
		if d.written {
			d.errorAt(1, 1, "what narrows a run is a policy file, not an effective policy")
		}
	default:
	}
	for _, name := range not {
		if n := seen[name]; n != nil {
			d.errorf(n, "%s is for the policy to say, not for the %s", name, d.loader.scope)
		}
	}
}

// scopeWord reads the scope of a rule or statement of an effective policy.
func (d *policyDoc) scopeWord(dst *rules.Scope) func(ast.Node) {
	return func(n ast.Node) {
		d.word([]string{"floor", "run"}, func(s string) {
			scope := rules.FloorScope
			if s == "run" {
				scope = rules.RunScope
			}
			if d.loader.scope == rules.FloorScope && scope != rules.FloorScope ||
				d.loader.scope == rules.PolicyScope && (scope == rules.FloorScope && d.floorOf == nil || scope == rules.RunScope && d.runOf == nil) {
				d.errorf(n, "there is no %s here", s)
			}
			*dst = scope
		})(n)
	}
}

func (d *policyDoc) readStanding(what string, dst **standing) func(ast.Node) {
	return func(n ast.Node) {
		*dst = &standing{}
		d.mapping(n, what, []key{
			{name: "name", required: true, read: d.id(&(*dst).name)},
			{name: "limits", read: d.limits(&(*dst).limits)},
		})
	}
}

func (w *writer) standing(what string, s *standing) {
	if s == nil {
		return
	}
	w.line(0, what+":")
	w.text(1, "name", s.name)
	w.limits(1, s.limits)
}

// allTotals are the limits of a run over all rules.
func (d *policyDoc) allTotals() (t rules.Totals) {
	switch d.loader.scope {
	case rules.FloorScope:
		t.Floor = d.totals
	case rules.RunScope:
		t.Run = d.totals
	default:
		t.Policy = d.totals
	}
	if d.floorOf != nil {
		t.Floor = d.floorOf.limits
	}
	if d.runOf != nil {
		t.Run = d.runOf.limits
	}
	return t
}

// floorDigest is the digest of a floor, or of the part of a policy that is its
// floor; "" for none.
func (d *policyDoc) floorDigest() string {
	s := d.floorOf
	if d.loader.scope == rules.FloorScope {
		s = d.standing()
	}
	if s == nil {
		return ""
	}
	w := &writer{}
	w.standing("floor", s)
	list := slices.DeleteFunc(d.allRules(), func(r *ruleDoc) bool { return r.Scope != rules.FloorScope })
	slices.SortFunc(list, func(a, b *ruleDoc) int { return strings.Compare(a.ID, b.ID) })
	for _, r := range list {
		w.rule(r)
	}
	floor := rules.FloorScope
	w.never(d.scoped(), &floor)
	return Digest(w.Bytes())
}

// With returns the policy with rules that people approved at run time. They
// must not contradict the rules that there are, and admit nothing that a
// statement under never forbids.
func (p *PolicyFile) With(approved []rules.Rule) (*rules.Policy, error) {
	if len(approved) == 0 {
		return p.Policy, nil
	}
	q, err := p.Policy.With(approved)
	if err != nil {
		return nil, err
	}
	var errs []error
	work := prove.NewWork(nil)
	for _, x := range p.doc.scoped() {
		for _, s := range x.never {
			e, err := prove.Check(q.Loosest(), s.Statement, work)
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("cannot be proved: never %s: %w", s.text(), err))
			case e != nil:
				errs = append(errs, fmt.Errorf("would break: never %s: %s", s.text(), e))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return q, nil
}
