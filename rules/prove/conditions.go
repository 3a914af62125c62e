package prove

import (
	"errors"
	"net/url"
	"slices"
	"strings"

	"sallyport/rules"
)

// errTooManyConditions says that a question about conditions has more cases
// than are looked at. It counts as not proved.
var errTooManyConditions = errors.New("too many header and query conditions meet here to be told apart")

// maxFree bounds the names that only deny rules ask about: each doubles the cases.
const maxFree = 10

// conditions returns the combinations of fields and query that matter for an
// allow rule, where these deny rules speak. A name that the rule asks about is
// as the rule wants it; one that only deny rules ask about is left out, or has
// a value that nobody names: what is absent meets no condition but of absence,
// and such a value meets none but of presence, so that every other case meets
// more of the deny rules' conditions than one of these two.
func conditions(r *rules.Rule, denies []*rules.Rule) ([]rules.Request, error) {
	fresh := freshValue(r, denies)
	base, free := fields{}, fields{}
	for _, c := range r.Conditions {
		switch c.Test {
		case rules.Present:
			base = base.with(c, fresh)
		case rules.Equals:
			base = base.with(c, c.Value)
		default:
		}
	}
	for _, d := range denies {
		for _, c := range d.Conditions {
			if !free.has(c) && !slices.ContainsFunc(r.Conditions, func(own rules.Condition) bool { return own.In == c.In && own.Name == c.Name }) {
				free = free.with(c, fresh)
			}
		}
	}
	if len(free) > maxFree {
		return nil, errTooManyConditions
	}
	var out []rules.Request
	for mask := range 1 << len(free) {
		all := slices.Clone(base)
		for i, f := range free {
			if mask>>i&1 == 1 {
				all = append(all, f)
			}
		}
		if req := all.request(); r.MeetsConditions(&req) {
			out = append(out, req)
		}
	}
	return out, nil
}

// field is a header field or a parameter with its value.
type field struct {
	rules.Condition
	value string
}

type fields []field

func (f fields) has(c rules.Condition) bool {
	return slices.ContainsFunc(f, func(x field) bool { return x.In == c.In && x.Name == c.Name })
}

func (f fields) with(c rules.Condition, value string) fields { return append(f, field{c, value}) }

// request writes fields into a request. Blanks are escaped as %20, which nobody
// reads in two ways.
func (f fields) request() (req rules.Request) {
	escape := func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }
	var query []string
	for _, x := range f {
		if x.In == rules.InQuery {
			query = append(query, escape(x.Name)+"="+escape(x.value))
			continue
		}
		if req.Header == nil {
			req.Header = map[string][]string{}
		}
		req.Header[x.Name] = append(req.Header[x.Name], x.value)
	}
	req.Query = strings.Join(query, "&")
	return req
}

// freshValue returns a value that no condition names.
func freshValue(r *rules.Rule, denies []*rules.Rule) string {
	fresh := "any"
	for {
		taken := slices.ContainsFunc(append(slices.Clone(denies), r), func(x *rules.Rule) bool {
			return slices.ContainsFunc(x.Conditions, func(c rules.Condition) bool { return strings.EqualFold(c.Value, fresh) })
		})
		if !taken {
			return fresh
		}
		fresh += "-"
	}
}
