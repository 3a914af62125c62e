package prove_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"sallyport/rules"
	"sallyport/rules/prove"
)

// plainRule is an anyRule about requests to names, at any time.
func plainRule(t *rapid.T) rules.Rule {
	r := anyRule.Filter(func(r rules.Rule) bool { return len(r.Hosts) > 0 && !r.Raw && r.TLS == rules.InspectTLS }).Draw(t, "rule")
	r.Private, r.Expires, r.Observe = nil, 0, false
	return r
}

// TestCompareSaysWhatIsNone: a request that a change is about is one in which the
// policies differ, unless the rules that the change names for that say that it is none;
// and they say so of no request in which the policies differ.
func TestCompareSaysWhatIsNone(t *testing.T) {
	all := slices.DeleteFunc(universe(), func(w prove.Witness) bool {
		return w.Request.Question != rules.Fetch || !w.Request.Secure || w.Request.Path.Ambiguous() || w.Addr.IsValid() || rules.NeverAdmitted(w.Request.Method)
	})
	every := allow(rules.Rule{ID: "every", Hosts: hosts("a.test", "*.a.test", "b.test"), Ports: []uint16{80, 443}})
	matches := func(list []*rules.Rule, w *prove.Witness) bool {
		return slices.ContainsFunc(list, func(r *rules.Rule) bool {
			p, err := rules.Compile(rules.Source{Rules: []rules.Rule{*r}})
			if r.Action == rules.DenyAction {
				p, err = rules.Compile(rules.Source{Rules: []rules.Rule{*r, every}})
			}
			if err != nil {
				t.Fatal(err)
			}
			_, admitted := prove.Admitted(p, w)
			return admitted == (r.Action == rules.AllowAction)
		})
	}
	named := 0
	rapid.Check(t, func(t *rapid.T) {
		some := func() *rules.Policy {
			var kept []rules.Rule
			p, _ := rules.Compile(rules.Source{})
			for range rapid.IntRange(0, 3).Draw(t, "rules") {
				if q, err := rules.Compile(rules.Source{Rules: append(slices.Clone(kept), plainRule(t))}); err == nil {
					p, kept = q, q.Rules()
				}
			}
			return p
		}
		before, after := some(), some()
		changes, err := prove.Compare(before, after, nil)
		if err != nil {
			t.Fatal(err)
		}
		about := func(c *prove.Change, w *prove.Witness) bool {
			return covers(c, w) && !matches(c.But, w) && (!matches(c.Same, w) || matches(c.SameBut, w))
		}
		for i := range all {
			w := &all[i]
			_, was := prove.Admitted(before, w)
			_, is := prove.Admitted(after, w)
			kind := map[bool]prove.Kind{true: prove.NewlyAllowed, false: prove.NewlyDenied}[is]
			if was != is && !slices.ContainsFunc(changes, func(c prove.Change) bool { return c.Kind == kind && about(&c, w) }) {
				t.Fatalf("%s is %s, and no sentence is about it\nold %+v\nnew %+v", w, kind, before.Rules(), after.Rules())
			}
		}
		for i := range changes {
			c := &changes[i]
			named += len(c.But) + len(c.Same) + len(c.SameBut)
			for j := range all {
				w := &all[j]
				if !about(c, w) {
					continue
				}
				old, was := prove.Admitted(before, w)
				now, is := prove.Admitted(after, w)
				ok := true
				switch c.Kind {
				case prove.NewlyAllowed:
					ok = !was && is
				case prove.NewlyDenied:
					ok = was && !is
				case prove.CredentialGranted:
					ok = is && now.Credential != "" && (!was || old.Credential == "")
				case prove.CredentialWithdrawn:
					ok = was && old.Credential != "" && (!is || now.Credential == "")
				default:
				}
				if !ok {
					t.Fatalf("%s: %s is none of it, and no rule says so\nold %+v\nnew %+v", brief(c), w, before.Rules(), after.Rules())
				}
			}
		}
	})
	if named == 0 {
		t.Error("no change named a rule: the test asks nothing")
	}
}
