package prove

import (
	"net/netip"
	"slices"
	"strings"

	"sallyport/rules"
)

// maxFacts bounds the kinds of header and query that are told apart at a place.
const maxFacts = 4096

// facts returns a request of each kind that conditions of these rules tell
// apart, each with a header and a query alone; the plainest comes first. Of a
// name that is asked for, it may be absent, have one of the values that are
// asked for or another, have two, or be spelled in a way that an allow rule does
// not take for it and a deny rule does. A query may also be one that servers
// take apart in two ways.
func facts(near ...[]*rules.Rule) ([]rules.Request, error) {
	var names []rules.Condition
	values := map[rules.Condition][]string{}
	query := false
	for _, r := range slices.Concat(near...) {
		for _, c := range r.Conditions {
			name := rules.Condition{In: c.In, Name: c.Name}
			if _, known := values[name]; !known {
				names, values[name] = append(names, name), nil
			}
			if c.Test == rules.Equals && !slices.Contains(values[name], c.Value) {
				values[name] = append(values[name], c.Value)
			}
			query = query || c.In == rules.InQuery
		}
	}
	slices.SortFunc(names, rules.Condition.Compare)
	fresh := freshAmong(slices.Concat(near...))
	all := []fields{nil}
	for _, n := range names {
		var next []fields
		for _, option := range optionsOf(n, values[n], fresh) {
			for _, f := range all {
				next = append(next, append(slices.Clone(f), option...))
			}
		}
		if all = next; len(all) > maxFacts {
			return nil, errTooManyConditions
		}
	}
	out := make([]rules.Request, 0, len(all)+1)
	for _, f := range all {
		out = append(out, f.request())
	}
	if query {
		for _, f := range all {
			if r := f.request(); r.Query == "" {
				r.Query = ";"
				out = append(out, r)
			}
		}
	}
	return out, nil
}

// optionsOf returns what may be there of a name; first nothing.
func optionsOf(n rules.Condition, values []string, fresh string) []fields {
	out := []fields{nil, {{n, fresh}}}
	other, spelled := otherName(n)
	if spelled {
		out = append(out, fields{{other, fresh}})
	}
	for _, v := range values {
		out = append(out, fields{{n, v}}, fields{{n, v}, {n, fresh}})
		if spelled {
			out = append(out, fields{{other, v}})
		}
	}
	return out
}

// otherName spells a name so that an allow rule does not take it for the same,
// and a deny rule does.
func otherName(n rules.Condition) (rules.Condition, bool) {
	other := n
	if n.In == rules.InQuery {
		other.Name += "[]"
		return other, true
	}
	if other.Name = strings.ReplaceAll(n.Name, "-", "_"); other.Name == n.Name {
		other.Name = strings.ReplaceAll(n.Name, "_", "-")
	}
	return other, other.Name != n.Name
}

// freshAmong returns a value that no condition names.
func freshAmong(list []*rules.Rule) string {
	if len(list) == 0 {
		return "any"
	}
	return freshValue(list[0], list[1:])
}

// nearAddr are the rules of both policies that may judge a request at a place.
func (x *comparer) nearAddr(c cell) [][]*rules.Rule {
	near := [][]*rules.Rule{x.old.about(c.host), x.new.about(c.host)}
	if _, isName := c.host.Name(); isName && c.addr != (netip.Addr{}) {
		near = append(near, x.old.at(x.old.policy.AboutAddr(c.addr)), x.new.at(x.new.policy.AboutAddr(c.addr)))
	}
	return near
}
