package query

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sallyport/audit"
	"sallyport/rules"
	"sallyport/rules/near"
	"sallyport/rules/target"
)

// closed are fields whose values are known. A value that cannot be there would
// find nothing, and nothing found is an answer that people believe.
var closed = map[string][]string{
	"verdict":  {"deny", "tunnel", "inspect"},
	"reason":   reasons(),
	"question": {"resolve", "connect", "hello", "fetch", "reach"},
	"listener": {"transparent", "explicit", "dns"},
	"event":    {"use", "mint", "unsaved", "refusal", "leak", "added", "rotated", "revoked", "tested", "prepare", "switch"},
	"kind": {
		string(audit.LogOpen), string(audit.LogClose), string(audit.LogPack), string(audit.LogRetain), string(audit.PolicyLoad), string(audit.PolicyRefuse), string(audit.AccessAsked), string(audit.AccessDecided), string(audit.CellUp), string(audit.CellDown),
		string(audit.RunStart), string(audit.RunEnd), string(audit.DNS), string(audit.Admit), string(audit.Refuse), string(audit.Done),
		string(audit.Credential), string(audit.CredentialChange), string(audit.CARotate), string(audit.Bypass), string(audit.Gap), string(audit.Anchor), string(audit.Ship),
	},
}

func reasons() (names []string) {
	for _, r := range rules.Reasons() {
		names = append(names, string(r))
	}
	return names
}

func checkClosed(t term) error {
	known := closed[t.field]
	if known == nil || t.op != "=" && t.op != "!=" {
		return nil
	}
	for _, v := range t.values {
		if v == "" || slices.Contains(known, v) { // "" is for records without it
			continue
		}
		if m, alone := near.Word(v, known); alone {
			return &termError{fmt.Sprintf("%s is never %q%s", t.field, v, near.Hint(v, known)), t.field + t.op + m}
		}
		return &termError{fmt.Sprintf("%s is never %q; it is one of %s", t.field, v, strings.Join(known, " ")), meant(t, v, known[0])}
	}
	return nil
}

// meant is a term to write instead: there are two verdicts that let something through.
func meant(t term, v, other string) string {
	switch {
	case t.field != "verdict" || !strings.HasPrefix(v, "allow") && !strings.HasPrefix(v, "admit"):
		return t.field + t.op + other
	case t.op == "=":
		return "verdict=inspect,tunnel"
	}
	return "verdict=deny"
}

// spellings are fields whose values have one spelling in the log, and how a
// value that is written in another way is spelled there. The value as it was
// given is looked for too: what a sandbox sent may stand as it was sent.
var spellings = map[string]func(string) string{
	"host":   hostSpelling,
	"method": strings.ToUpper, //nolint:forbidigo // no host
	"qtype":  strings.ToUpper, //nolint:forbidigo // no host
	"id":     idSpelling,
	"ref":    idSpelling,
	"run":    idSpelling,
}

// Spell returns how the log spells a value of a field: ids in upper case.
func Spell(field, value string) string {
	if spell := spellings[field]; spell != nil {
		return spell(value)
	}
	return value
}

// hostSpelling is the canonical text of a host, or s.
func hostSpelling(s string) string {
	if h, err := target.ParseHost(strings.Trim(s, "[]")); err == nil {
		return h.String()
	}
	if n, err := target.ParseUnicodeName(strings.ToLower(s)); err == nil { //nolint:forbidigo // a reviewer's, to be spelled there
		return n.String()
	}
	return s
}

// idSpelling is a ULID in upper case, or s: Crockford's letters mean the same in either.
func idSpelling(s string) string {
	if len(s) != len("01JJX0000000000000000000F0") {
		return s
	}
	return strings.ToUpper(s) //nolint:forbidigo // no host
}

// spelled adds to the alternatives of t how the log spells them.
func (t *term) spelled() error {
	spell := spellings[t.field]
	if spell == nil || t.op != "=" && t.op != "!=" {
		return nil
	}
	var values []string
	for _, v := range t.values {
		if t.field == "host" {
			if err := noHost(t.op, v); err != nil {
				return err
			}
		}
		s := spell(v)
		switch {
		case s == v:
			values = append(values, v)
		case slices.Contains(t.values, s) || slices.Contains(values, s):
			values = append(values, v)
		default:
			values = append(values, v, s)
		}
	}
	t.values = values
	return nil
}

// noHost refuses what more than a host stands in: no record would be found.
func noHost(op, v string) error {
	_, rest, isURL := strings.Cut(v, "://")
	if !isURL {
		rest = v
	}
	host, _, _ := strings.Cut(rest, "/")
	name, port, _ := strings.Cut(host, ":")
	_, err := strconv.ParseUint(port, 10, 16)
	try := ""
	switch {
	case strings.Contains(host, "*"):
		not, _, _ := strings.Cut(op, "=")
		parts := strings.Split(host, "*")
		longest := slices.MaxFunc(parts, func(a, b string) int { return cmp.Compare(len(a), len(b)) })
		return &termError{fmt.Sprintf("%q: a star stands for itself, and in no host; ~ looks for a part", v), "host" + not + "~" + cmp.Or(longest, "stripe")}
	case err == nil && name != "":
		try = "host" + op + name + " port=" + port
	case isURL || host != rest:
		try = "host" + op + host
	default:
		return nil
	}
	return &termError{fmt.Sprintf("%q is more than a host, which is a name or an address", v), try}
}
