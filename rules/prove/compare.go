package prove

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sallyport/rules"
	"sallyport/rules/target"
)

// Kind says in what two policies differ.
type Kind string

// The kinds of difference, in the order in which a reviewer wants them.
const (
	// NewlyAllowed: the new policy admits what the old one refuses.
	NewlyAllowed Kind = "newly_allowed"
	// CredentialGranted: requests get a credential that they did not get.
	CredentialGranted Kind = "credential_granted" //nolint:gosec // a word, no secret
	// OwnKeyAllowed: a caller's own key in a credential's place was refused.
	OwnKeyAllowed Kind = "own_key_allowed"
	// LimitLoosened, LimitChanged and LimitTightened are about what both admit.
	// Changed is looser in one way and tighter in another.
	LimitLoosened  Kind = "limit_loosened"
	LimitChanged   Kind = "limit_changed"
	LimitTightened Kind = "limit_tightened"
	// LogChanged: what both admit is recorded in another way.
	LogChanged          Kind = "log_changed"
	NewlyDenied         Kind = "newly_denied"
	CredentialWithdrawn Kind = "credential_withdrawn" //nolint:gosec // a word, no secret
	OwnKeyDenied        Kind = "own_key_denied"
)

// Carrying says what of a stream is meant.
type Carrying string

// The values of Carrying. Requests is a request that is judged.
const (
	Requests    Carrying = "requests"
	UnopenedTLS Carrying = "unopened_tls"
	AnyBytes    Carrying = "any_bytes"
)

// Change is one difference, about a part of what one rule admits: its Hosts, at
// its Ports, with its Methods and Paths, all in the spelling of the rule. It is
// about requests in all of them together; Part says that some of those are the
// same in both policies.
type Change struct {
	Kind     Kind
	Rule     rules.Rule  // of the policy that admits, or of the new one
	Was      *rules.Rule // about limits and logs: of the old policy
	Carrying Carrying
	Hosts    []string // of a rule without hosts its ranges
	Ports    []uint16
	// Methods are none for every method; with Except, every method but these.
	Methods []string
	Except  bool
	Paths   []string // none for every path
	// TwoReadings: it is only about paths that servers read in two ways.
	TwoReadings bool
	// Facts: it is only about requests with some headers or some queries, as its
	// Example has.
	Facts bool
	Plain bool // it is only about plain HTTP
	// Into: it is only about names that resolve to addresses in these ranges.
	Into []netip.Prefix
	// From is when it begins, in seconds since the Unix epoch; 0 for always.
	From int64
	Part bool
	// But are deny rules of the policy that admits: what they refuse is no part of the
	// change. Same are allow rules of the other policy: what they admit is none either,
	// except what SameBut, its deny rules, refuse.
	But, Same, SameBut []*rules.Rule

	Credential string // of the kinds that are about one
	Limits     []LimitChange
	// With is the other rule where two rules count apart what one counted, or
	// one counts what two did; Limits are empty then.
	With *rules.Rule
	// Run: the limits are those of a run over all rules; Rule is empty then.
	Run     bool
	Example Witness
}

// Witness is a request, or a stream that nobody looks into, that two policies
// answer in different ways.
type Witness struct {
	Request rules.Request
	// Addr is what its host resolved to, where that matters.
	Addr   netip.Addr
	Before rules.Decision
	After  rules.Decision
}

// String writes what is asked as a policy's tests do.
func (w Witness) String() string {
	s := Example{Request: w.Request}.String()
	if _, isName := w.Request.Endpoint.Host.Name(); isName && w.Addr.IsValid() {
		s += " at " + w.Addr.String()
	}
	return s
}

// maxCells bounds a comparison.
const maxCells = 4_000_000

// compareWork bounds the searches for paths of a comparison.
const compareWork = 1 << 25

// errTooLarge says that a comparison was given up.
var errTooLarge = errors.New("the policies meet in too many places to be compared")

// Compare returns in what two policies differ in what they admit, grant, limit
// and log: every difference is told, and each with a request that was asked of
// both. Whole policies that only observe are compared as if they enforced;
// single rules that only observe admit, as they do. Rules count until they
// expire, so that two policies may differ from some day on only. An error says
// that it could not be answered, or is that of stop, which may be nil and is
// asked while it goes on.
func Compare(before, after *rules.Policy, stop func() error) ([]Change, error) {
	x := comparer{world: world{names: map[target.Name]bool{}, work: &rules.Work{Left: compareWork, Stop: stop}}}
	x.old, x.new = newSide(before), newSide(after)
	x.old.work, x.new.work = x.work, x.work
	for _, s := range []*side{&x.old, &x.new} {
		for i := range s.list {
			x.mention(s.list[i].Hosts, s.list[i].Private, true)
			x.learn(&s.list[i])
		}
	}
	x.ranges = append(x.ranges, rules.SpecialRanges()...)
	slices.Sort(x.methodsNamed)
	x.methodsNamed = slices.Compact(x.methodsNamed)
	slices.Sort(x.times)
	x.times = slices.Compact(x.times)
	slices.Sort(x.credentials)
	x.credentials = slices.Compact(x.credentials)
	var all []Change
	for _, step := range []func() ([]Change, error){x.gained, x.granted, x.ownKeys, x.limits, x.totals} {
		list, err := step()
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	order := []Kind{
		NewlyAllowed, CredentialGranted, OwnKeyAllowed, LimitLoosened, LimitChanged, LimitTightened,
		LogChanged, NewlyDenied, CredentialWithdrawn, OwnKeyDenied,
	}
	slices.SortStableFunc(all, func(a, b Change) int { return slices.Index(order, a.Kind) - slices.Index(order, b.Kind) })
	return all, nil
}

// Kinds returns a request of each kind that headers and queries make to a host, as far
// as two policies tell them apart there: each has a header and a query alone. It is one
// where both say the same, or no rule asks for either; an error says that there are too
// many.
func Kinds(before, after *rules.Policy, h target.Host) ([]rules.Request, error) {
	was, is := newSide(before), newSide(after)
	a, b := append(was.about(h), was.ranges...), append(is.about(h), is.ranges...)
	if alike(a, b) {
		return make([]rules.Request, 1), nil
	}
	return facts(a, b)
}

func newSide(p *rules.Policy) side {
	p = p.Loosest()
	s := side{policy: p, list: p.Rules()}
	for i := range s.list {
		if r := &s.list[i]; r.Action == rules.DenyAction && len(r.Hosts) == 0 {
			s.ranges = append(s.ranges, r)
		}
	}
	return s
}

// comparer compares two policies.
type comparer struct {
	world
	old, new     side
	methodsNamed []string // by any rule
	times        []int64  // at which rules expire, and 0
	credentials  []string
	cells        int
}

// enter counts a cell that is looked at.
func (x *comparer) enter() error {
	if x.cells++; x.cells > maxCells {
		return errTooLarge
	}
	return x.work.Spend(1)
}

func (x *comparer) learn(r *rules.Rule) {
	x.methodsNamed = append(x.methodsNamed, r.Methods...)
	x.times = append(x.times, 0, r.Expires)
	if r.Credential != "" {
		x.credentials = append(x.credentials, r.Credential)
	}
}

// gained compares what is admitted, in both directions.
func (x *comparer) gained() ([]Change, error) {
	allowed, err := x.direction(NewlyAllowed, &x.old, &x.new, "")
	if err != nil {
		return nil, err
	}
	denied, err := x.direction(NewlyDenied, &x.new, &x.old, "")
	return append(allowed, denied...), err
}

// granted compares what each credential is granted to.
func (x *comparer) granted() ([]Change, error) {
	var all []Change
	for _, c := range x.credentials {
		more, err := x.direction(CredentialGranted, &x.old, &x.new, c)
		if err != nil {
			return nil, err
		}
		less, err := x.direction(CredentialWithdrawn, &x.new, &x.old, c)
		if err != nil {
			return nil, err
		}
		all = append(append(all, more...), less...)
	}
	return all, nil
}

// direction returns what has admits and lacks does not, or what has grants a
// credential to and lacks does not.
func (x *comparer) direction(kind Kind, lacks, has *side, credential string) ([]Change, error) {
	var all []Change
	for i := range has.list {
		r := &has.list[i]
		if r.Action != rules.AllowAction || credential != "" && r.Credential != credential {
			continue
		}
		f := finder{comparer: x, kind: kind, lacks: lacks, has: has, rule: r, credential: credential, found: map[part]int{}, same: map[partAt]bool{}}
		if err := f.look(); err != nil {
			return nil, fmt.Errorf("rule %q: %w", r.ID, err)
		}
		list := f.changes()
		for i := range list {
			if err := x.rest(&list[i], lacks, has); err != nil {
				return nil, fmt.Errorf("rule %q: %w", r.ID, err)
			}
		}
		all = append(all, list...)
	}
	return all, nil
}

// verify asks both policies, which have the last word.
func (x *comparer) verify(kind Kind, w *Witness) error {
	var before, after bool
	w.Before, before = Admitted(x.old.policy, w)
	w.After, after = Admitted(x.new.policy, w)
	// What is refused is granted nothing, whatever the refusal says of it.
	other := before != after || w.Before.Credential != w.After.Credential
	var ok bool
	switch kind {
	case NewlyAllowed, OwnKeyAllowed:
		ok = !before && after
	case NewlyDenied, OwnKeyDenied:
		ok = before && !after
	case CredentialGranted:
		ok = after && w.After.Credential != "" && other
	case CredentialWithdrawn:
		ok = before && w.Before.Credential != "" && other
	default:
		ok = before && after
	}
	if !ok {
		return fmt.Errorf("%s seemed to be %s and is not (%s, %s)", w, kind, w.Before.Reason, w.After.Reason)
	}
	return nil
}

// Admitted asks a policy what would be asked until something is carried.
func Admitted(p *rules.Policy, w *Witness) (rules.Decision, bool) {
	r := w.Request
	d := p.Follow(r)
	carried := d.Verdict != rules.Deny
	if r.Question == rules.Connect {
		carried = d.Verdict == rules.Tunnel
	}
	if !carried || !w.Addr.IsValid() {
		return d, carried
	}
	if d.Verdict == rules.Tunnel { // of a stream, not of the request
		r.Method, r.Path = "", target.Path{}
		r.Protocol = rules.Opaque
		if w.Request.Question == rules.Fetch {
			r.Protocol = rules.TLS
		}
	}
	r.Question, r.Addr = rules.Reach, w.Addr
	reach := p.Decide(r)
	if reach.Verdict == rules.Deny {
		return reach, false
	}
	return d, true
}
