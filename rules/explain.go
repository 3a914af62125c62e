package rules

import (
	"fmt"
	"slices"
	"strings"

	"sallyport/rules/target"
)

// Follow asks what a request meets on its way, question after question, and
// returns the refusal that its sandbox would be told, or the decision that
// carries it. It is for tests of a policy and for people who ask why; nothing
// is recorded and no address is vetted.
func (p *Policy) Follow(r Request) Decision {
	ask := func(q Question, protocol Protocol) Decision {
		step := r
		step.Question, step.Protocol = q, protocol
		return p.Decide(step)
	}
	switch r.Question {
	case Connect:
		d := ask(Connect, 0)
		if d.Explain {
			d.Verdict, d.Explain = Deny, false
		}
		return d
	case Fetch:
		protocol := HTTP
		if r.Secure {
			protocol = TLS
		}
		for _, d := range []Decision{ask(Connect, 0), ask(Hello, protocol)} {
			if d.Verdict != Inspect {
				return d
			}
		}
		return ask(Fetch, 0)
	default:
		return p.Decide(r)
	}
}

// RuleNote says how one rule near a request stands to it.
type RuleNote struct {
	Rule   string `json:"rule"`
	Where  string `json:"where"`
	Action string `json:"action"` // allow, deny
	Scope  string `json:"scope"`
	// Matches says that the rule is about this request. If not, Reason is what
	// the rule would refuse it for, "" for a deny rule, and Text says in what
	// they differ.
	Matches bool   `json:"matches"`
	Reason  Reason `json:"reason,omitempty"`
	Text    string `json:"text"`
}

// Explain tells of each rule near a request whether it matches and, if not,
// why. Near are the rules about its host; if there are none, those whose hosts
// look like it. The notes are in the order of the rules; it never changes what
// Decide says, and allocates as it likes.
func (p *Policy) Explain(r Request) []RuleNote {
	if p == nil || !p.compiled || !wellFormed(&r) { // no rule is asked
		return nil
	}
	var notes []RuleNote
	s := survey{req: &r, depth: depthOf(&r)}
	if r.Question == Reach {
		s.depth = atRequest
		if r.Method == "" {
			s.depth = atPort
		}
	}
	for _, i := range p.nearby(r.Endpoint.Host) {
		notes = append(notes, s.note(&p.rules[i]))
	}
	if len(notes) > 0 {
		return notes
	}
	for i := range p.rules {
		rule := &p.rules[i]
		if text := resembles(rule, r.Endpoint.Host); text != "" {
			n := noteOf(rule)
			n.Text = text
			if rule.Action == AllowAction {
				n.Reason = HostNotAllowed
			}
			notes = append(notes, n)
		}
	}
	return notes
}

// nearby returns the rules about a host, each once, in their order.
func (p *Policy) nearby(h target.Host) []int32 {
	var list []int32
	p.near(h, func(i int32) bool {
		list = append(list, i)
		return true
	})
	slices.Sort(list)
	return slices.Compact(list)
}

func noteOf(r *Rule) RuleNote {
	n := RuleNote{Rule: r.ID, Where: r.Where, Action: "deny", Scope: r.Scope.String()}
	if r.Action == AllowAction {
		n.Action = "allow"
	}
	return n
}

func (s *survey) note(r *Rule) RuleNote {
	n := noteOf(r)
	if r.Action != AllowAction {
		switch {
		case s.denies(r):
			n.Matches, n.Text = true, "denies this"
		case s.cannotJudge(r):
			n.Text = "the path has two readings, and the rule has to judge paths"
		case s.cannotJudgeQuery(r):
			n.Text = "the query has two readings, and the rule has to judge queries"
		default:
			n.Text = s.apart(r)
		}
		return n
	}
	at := s.matches(r)
	switch {
	case at < atAll:
		n.Reason, n.Text = s.reasonAt(at), s.differs(r, at)
	case s.past(r):
		n.Reason, n.Text = RuleExpired, "would match, but has expired"
	default:
		n.Matches, n.Text = true, "matches"
	}
	return n
}

// differs says in what an allow rule and the request part.
func (s *survey) differs(r *Rule, at stage) string {
	switch at {
	case atPort:
		return fmt.Sprintf("port %d is none of %s", s.req.Endpoint.Port, join(r.Ports))
	case atProtocol:
		return "carries streams without looking into them, and this is a request"
	case atMethod:
		if neverMethod(s.req.Method) {
			return s.req.Method + " cannot be allowed"
		}
		return fmt.Sprintf("method %q is none of %s", s.req.Method, join(r.Methods))
	case atQuery:
		if target.AmbiguousQuery(s.req.Query) {
			return "the query has two readings, and the rule asks for " + s.unmet(r, InQuery)
		}
		words := s.unmet(r, InQuery)
		if more := s.unmet(r, InHeader); more != "" {
			words += ", " + more
		}
		return "asks for " + words
	case atHeader:
		return "asks for " + s.unmet(r, InHeader)
	default:
		if s.req.Path.Ambiguous() {
			return fmt.Sprintf("path %s has two readings", s.req.Path)
		}
		return fmt.Sprintf("path %s matches none of %s", s.req.Path, join(r.Paths))
	}
}

// unmet names the conditions that a request does not meet, with the values that the
// rule asks for and never the request's.
func (s *survey) unmet(r *Rule, part Part) string {
	var words []string
	for i := range r.Conditions {
		c := &r.Conditions[i]
		if c.In == part && (r.Action == AllowAction && !c.surely(s.req) || r.Action != AllowAction && !c.maybe(s.req)) {
			words = append(words, c.Asked())
		}
	}
	return strings.Join(words, ", ")
}

// apart says why a deny rule about the host leaves the request alone.
func (s *survey) apart(r *Rule) string {
	switch {
	case len(r.Ports) > 0 && s.depth == atHost:
		return "denies some ports of this host only: " + join(r.Ports)
	case len(r.Ports) > 0 && !r.covers(s.req.Endpoint.Port):
		return fmt.Sprintf("denies other ports: %s", join(r.Ports))
	case s.depth < atRequest:
		return "denies some requests to this host only"
	case !r.deniesMethod(s.req.Method):
		return fmt.Sprintf("denies other methods: %s", join(r.Methods))
	case !r.deniesPath(s.req):
		return fmt.Sprintf("denies other paths: %s", join(r.Paths))
	case !r.meets(s.req, InQuery):
		return "denies requests with " + s.unmet(r, InQuery)
	default:
		return "denies requests with " + s.unmet(r, InHeader)
	}
}

func join[T any](list []T) string {
	words := make([]string, len(list))
	for i, x := range list {
		words[i] = fmt.Sprint(x)
	}
	return strings.Join(words, ", ")
}

// resembles says what a rule about another host has to do with this one, "" if
// nothing: an apex and its wildcard, a parent, a child, one letter's difference.
func resembles(r *Rule, h target.Host) string {
	name, ok := h.Name()
	if !ok {
		return ""
	}
	for _, x := range r.Hosts {
		other, ok := x.Host.Name()
		switch {
		case !ok:
		case x.Wildcard && other == name:
			return fmt.Sprintf("%s is every name below %s, not %s itself", x, name, name)
		case !x.Wildcard && name.Below(other):
			return fmt.Sprintf("%s is that name alone, not the names below it", x)
		case other.Below(name):
			return fmt.Sprintf("%s is below %s", x, name)
		case oneOff(other.String(), name.String()):
			return fmt.Sprintf("%s is spelled like it, but is another name", x)
		}
	}
	return ""
}

// oneOff reports two texts that differ in one character: another, one more or
// one less.
func oneOff(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 || a == b {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) == len(b) {
		return a[i+1:] == b[i+1:]
	}
	return a[i:] == b[i+1:]
}
