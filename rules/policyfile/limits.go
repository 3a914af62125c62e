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
			{name: "request_body", read: f.size(&dst.Body)},
			{name: "request_head", read: f.size(&dst.Head)},
		})
		if seen != nil && len(seen) == 0 {
			f.errorf(n, "limits that limit nothing; leave them out, or say requests, sent, received, concurrent, request_body or request_head")
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
		s, ok := f.amount(n)
		if !ok {
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

// amount reads how a limit is written: one that lacks its unit is a number.
func (f *file) amount(n ast.Node) (s string, ok bool) {
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		return n.GetToken().Value, true
	}
	before := len(f.errs)
	f.str(&s)(n)
	return s, len(f.errs) == before
}

// size reads a number of octets, such as 1MiB.
func (f *file) size(dst *int64) func(ast.Node) {
	return func(n ast.Node) {
		s, ok := f.amount(n)
		if !ok {
			return
		}
		if *dst, ok = parseSize(s); !ok {
			f.errorf(n, "%q is no size; write it like 1MiB, from 1, in KiB, MiB, GiB or TiB", s)
		}
	}
}

// limitsOver returns the limits of a rule, with defaults where it says nothing.
// What nobody looks into has no bodies that could be measured.
func limitsOver(l, defaults rules.Limits, blind bool) rules.Limits {
	for _, x := range []struct{ own, def *rules.Rate }{
		{&l.Requests, &defaults.Requests}, {&l.Sent, &defaults.Sent}, {&l.Received, &defaults.Received},
	} {
		if x.own.N == 0 {
			*x.own = *x.def
		}
	}
	if l.Concurrent == 0 {
		l.Concurrent = defaults.Concurrent
	}
	if l.Body == 0 && !blind {
		l.Body = defaults.Body
	}
	if l.Head == 0 && !blind {
		l.Head = defaults.Head
	}
	return l
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

// limits writes limits at a level.
func (w *writer) limits(level int, l rules.Limits) {
	if l.IsZero() {
		return
	}
	w.line(level, "limits:")
	level++
	rate := func(name string, r rules.Rate, format func(int64) string) {
		for _, p := range periods {
			if r.N > 0 && r.Period == p.seconds {
				w.text(level, name, format(r.N)+"/"+p.name)
			}
		}
	}
	rate("requests", l.Requests, func(n int64) string { return strconv.FormatInt(n, 10) })
	rate("sent", l.Sent, formatSize)
	rate("received", l.Received, formatSize)
	if l.Concurrent > 0 {
		w.line(level, "concurrent: "+strconv.FormatInt(l.Concurrent, 10))
	}
	if l.Body > 0 {
		w.text(level, "request_body", formatSize(l.Body))
	}
	if l.Head > 0 {
		w.text(level, "request_head", formatSize(l.Head))
	}
}
