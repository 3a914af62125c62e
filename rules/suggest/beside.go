package suggest

import (
	"slices"
	"strings"

	"sallyport/rules"
	"sallyport/rules/target"
)

// Beside returns, for each thing in which a rule is narrow, requests that differ from one
// that it admits in that alone: its methods and its paths, or the port of a stream. Of
// each list the first that is denied shows a reviewer where the rule ends; other rules
// may admit some of them.
func (r *Rule) Beside() (lists [][]rules.Request) {
	if r.Raw {
		return append(lists, r.ports())
	}
	return append(lists, r.methods(), r.paths())
}

func (r *Rule) ports() (list []rules.Request) {
	for _, port := range []uint16{22, 443, 80, 5432} {
		if port != r.Port {
			list = append(list, rules.Request{Question: rules.Connect, Endpoint: target.Endpoint{Host: r.Host, Port: port}})
		}
	}
	return list
}

// methods begins with those that do the most.
func (r *Rule) methods() (list []rules.Request) {
	for _, m := range []string{"DELETE", "PUT", "POST", "PATCH", "GET"} {
		if !slices.Contains(r.Methods, m) {
			req := r.Seen[0].Request
			req.Method = m
			list = append(list, req)
		}
	}
	return list
}

// paths are one segment longer, then one segment others.
func (r *Rule) paths() (list []rules.Request) {
	const other, enough = "other", 8
	for _, s := range r.Seen[:min(len(r.Seen), enough)] {
		at := s.Request.Path.String()
		parent := at[:strings.LastIndexByte(at, '/')+1]
		for _, text := range []string{strings.TrimRight(at, "/") + "/" + other, parent + other} {
			path, err := target.ParsePath(text)
			if err == nil && !path.Ambiguous() {
				req := s.Request
				req.Path = path
				list = append(list, req)
			}
		}
	}
	return list
}
