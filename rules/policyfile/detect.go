package policyfile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
	"sallyport/rules/detect"
	"sallyport/rules/near"
)

// Detector returns the servers that a package manager is configured with, at least
// one. Its error says which setting to write.
type Detector func(manager string) ([]detect.Server, error)

// detected is what was asked for a manager, and where.
type detected struct {
	at      string
	private []netip.Prefix
}

// readDetectInclude reads an entry of include that names package managers. Each of
// their servers becomes a rule, which allows to read from it.
func (d *policyDoc) readDetectInclude(seen map[string]ast.Node) {
	var managers []string
	var private []netip.Prefix
	before := len(d.errs)
	d.strs(func(n ast.Node, s string) {
		switch {
		case !slices.Contains(detect.Names(), s):
			d.errorf(n, "%q is none of %s%s", s, list(detect.Names()), near.Hint(s, detect.Names()))
		case slices.Contains(managers, s):
			d.errorf(n, "%s stands twice", s)
		default:
			managers = append(managers, s)
		}
	})(seen["detect"])
	if n := seen["cidrs"]; n != nil {
		d.prefixes(&private)(n)
	}
	if len(d.errs) > before {
		return
	}
	for _, m := range managers {
		d.detect(seen["detect"], m, private)
	}
}

// detect makes the rules for one manager. Asked for again, by another file, it
// counts once.
func (d *policyDoc) detect(n ast.Node, manager string, private []netip.Prefix) {
	l := d.loader
	switch {
	case l.scope == rules.FloorScope:
		d.errorf(n, "detect is for the policy to say, not for the floor")
		return
	case l.detect == nil:
		d.errorf(n, "there is nothing here in which %s could be detected", manager)
		return
	case l.detected[manager] != nil:
		if first := l.detected[manager]; !slices.Equal(first.private, private) {
			d.errorf(n, "%s is detected with other cidrs at %s", manager, first.at)
		}
		return
	}
	l.detected[manager] = &detected{d.at(n), private}
	servers, err := l.detect(manager)
	if err != nil {
		for text := range strings.SplitSeq(err.Error(), "\n") {
			d.errorf(n, "detecting %s: %s", manager, text)
		}
		return
	}
	for i, s := range servers {
		d.rules = append(d.rules, &ruleDoc{
			doc: d, at: n, origin: s.Where, found: true, whole: true, fields: map[string]ast.Node{},
			Rule: rules.Rule{
				ID: fmt.Sprintf("detect-%s-%d", manager, i+1), Scope: l.scope, Where: s.Where, Purpose: fmt.Sprintf("%s reads from %v", manager, s.Endpoint.Host),
				Action: rules.AllowAction, Hosts: []rules.HostPattern{{Host: s.Endpoint.Host}}, Ports: []uint16{s.Endpoint.Port},
				Methods: readMethods(), Private: slices.Clone(private), Log: d.defaults.log,
			},
		})
	}
}
