package policyfile

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"sallyport/rules"
)

// limits reads the limits of a rule.
func (f *file) limits(dst *rules.Limits) func(ast.Node) {
	return func(n ast.Node) {
		seen := f.mapping(n, "limits", []key{
			{name: "requests", read: f.rate(&dst.Requests, "60/min", parseCount)},
			{name: "sent", read: f.rate(&dst.Sent, "20MiB/day", parseSize)},
			{name: "received", read: f.rate(&dst.Received, "1GiB/hour", parseSize)},
			{name: "concurrent", read: f.count(&dst.Concurrent)},
			{name: "request_body", later: true},
		})
		if seen != nil && len(seen) == 0 {
			f.errorf(n, "limits that limit nothing; leave them out, or say requests, sent, received or concurrent")
		}
	}
}

// periods are those that limits count in, in seconds.
var periods = []struct {
	name    string
	seconds int64
}{{"min", 60}, {"hour", 3600}, {"day", 86400}}

// rate reads so much in a period, such as 60/min.
func (f *file) rate(dst *rules.Rate, example string, parse func(string) (int64, bool)) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		var s string
		if f.str(&s)(n); len(f.errs) > before {
			return
		}
		amount, period, _ := strings.Cut(s, "/")
		count, ok := parse(amount)
		for _, p := range periods {
			if ok && period == p.name {
				*dst = rules.Rate{N: count, Period: p.seconds}
				return
			}
		}
		f.errorf(n, "%q is no limit; write it like %s, from 1, in a min, an hour or a day", s, example)
	}
}

// count reads a plain number from 1.
func (f *file) count(dst *int64) func(ast.Node) {
	return func(n ast.Node) {
		x, ok := n.(*ast.IntegerNode)
		if ok && x.Token.Type == token.IntegerType {
			if *dst, ok = parseCount(x.Token.Value); ok {
				return
			}
		}
		f.errorf(n, "this has to be a plain number from 1")
	}
}

// parseCount reads a number in its one spelling.
func parseCount(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n > 0 && strconv.FormatInt(n, 10) == s
}

// units are those of sizes, the largest first.
var units = []struct {
	name  string
	shift int
}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}}

// parseSize reads a number of KiB, MiB, GiB or TiB.
func parseSize(s string) (int64, bool) {
	for _, u := range units {
		if number, found := strings.CutSuffix(s, u.name); found {
			n, ok := parseCount(number)
			return n << u.shift, ok && n < 1<<20
		}
	}
	return 0, false
}

func formatSize(n int64) string {
	for _, u := range units {
		if n%(1<<u.shift) == 0 {
			return fmt.Sprintf("%d%s", n>>u.shift, u.name)
		}
	}
	return strconv.FormatInt(n, 10) // none that parseSize returns
}

// limits writes the limits of a rule.
func (w *writer) limits(l rules.Limits) {
	if l.IsZero() {
		return
	}
	w.line(2, "limits:")
	rate := func(name string, r rules.Rate, format func(int64) string) {
		for _, p := range periods {
			if r.N > 0 && r.Period == p.seconds {
				w.text(3, name, format(r.N)+"/"+p.name)
			}
		}
	}
	rate("requests", l.Requests, func(n int64) string { return strconv.FormatInt(n, 10) })
	rate("sent", l.Sent, formatSize)
	rate("received", l.Received, formatSize)
	if l.Concurrent > 0 {
		w.line(3, "concurrent: "+strconv.FormatInt(l.Concurrent, 10))
	}
}
