package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/audit/answer"
	"sallyport/audit/index"
	"sallyport/audit/query"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// why is a recorded decision beside the one that its policy gives now.
type why struct {
	ID       string   `json:"id"`
	Asked    string   `json:"asked"`
	Recorded recorded `json:"recorded"`
	// Then is the refusal that came after the admission that Recorded is of.
	Then *recorded `json:"then_refused,omitempty"`
	// Approved says which approval let the request in; the policy is asked without it.
	Approved string `json:"approved,omitempty"`
	// Same tells that the policy alone decides as it is recorded. If not, what
	// decided was not in the policy: an address, a client, a limit. It is nil
	// where no verdict is recorded, as of what a credential was used for.
	Same *bool `json:"same,omitempty"`
	// Policy is nil where the policy cannot be asked again; NotAsked says why.
	Policy   *explanation `json:"policy_says,omitempty"`
	NotAsked string       `json:"not_asked_again,omitempty"`
}

// recorded is what the log tells of a decision.
type recorded struct {
	Kind    string `json:"kind"`
	Verdict string `json:"verdict"`
	Reason  string `json:"reason"`
	Rule    string `json:"rule,omitempty"`
	Where   string `json:"where,omitempty"`
	Scope   string `json:"scope,omitempty"`
	Policy  string `json:"policy,omitempty"` // digest
	Error   string `json:"error,omitempty"`
}

func newAuditWhy() *cobra.Command {
	c := &cobra.Command{
		Use:   "why ID",
		Short: "Explain a decision with the policy that was in force",
		Long: `Why takes the policy that a record names by its digest, asks it the same question at the same
time, and tells of each rule near it whether it matches, and why not. Every policy that ever
was in force is kept, as it stood, and needs no credential files. What a record holds only as a
keyed hash, or not at all, cannot be asked again: then it tells what was recorded, and says so.`,
		Example: `  sallyport audit why 01JJX0000000000000000000H0
  sallyport audit why 01JJX --dir ./copy --policies ./policies -o json`,
		Args: exactArgs(1),
	}
	addPolicies(c)
	return answerCommand(c, askWhy, printWhy)
}

// addPolicies gives a command --policies; keptPolicies reads it.
func addPolicies(c *cobra.Command) {
	c.Flags().String("policies", "", "directory of policies by digest; default: policies in or beside --dir, or the instance's")
}

// keptPolicies returns the directory in which the policies of a log are.
func keptPolicies(c *cobra.Command, inst instance) string {
	if dir, _ := c.Flags().GetString("policies"); dir != "" {
		return dir
	}
	return keptNear(c, inst, "policies")
}

// keptNear returns the directory of what is kept beside a log. Who copied a whole state
// directory need not name it.
func keptNear(c *cobra.Command, inst instance, name string) string {
	if dir, _ := c.Flags().GetString("dir"); dir != "" {
		for _, near := range []string{filepath.Join(dir, name), filepath.Join(dir, "..", name)} {
			if exists(near) {
				return near
			}
		}
	}
	return inst.state(name)
}

func askWhy(c *cobra.Command, args []string, x *index.Index) (*why, error) {
	s, err := answer.Show(c.Context(), x, args[0])
	if err != nil {
		return nil, err
	}
	rec := &s.Step.Record
	out := &why{ID: rec.ID, Asked: asked(rec), Recorded: recordedOf(rec), Approved: approvedBy(s)}
	if s.Done != nil && query.Denied(s.Done) {
		out.Then = new(recordedOf(s.Done))
	}
	req, err := requestOf(rec)
	switch {
	case errors.Is(err, errNoDecision):
		return nil, usage(hint(fmt.Errorf("record %s: %w", rec.ID, err), "sallyport audit show %s", rec.ID))
	case err != nil:
		out.NotAsked = err.Error()
		return out, nil
	case rec.Policy == "" && strings.HasPrefix(rec.Cell, testCells):
		out.NotAsked = "it was a test of the credential, which the endpoints in its file allow, and no policy"
		return out, nil
	case rec.Policy == "":
		out.NotAsked = "no policy was in force for " + or(rec.Cell, "whoever asked")
		return out, nil
	}
	inst, err := instanceOf(c)
	if err != nil {
		return nil, err
	}
	p, err := keptPolicy(keptPolicies(c, inst), rec.Policy)
	if err != nil {
		return nil, usage(hint(err, "sallyport audit why --policies DIR %s", rec.ID))
	}
	d := p.rules.Decide(req)
	if rec.Verdict != "" {
		out.Same = new(d.Verdict.String() == rec.Verdict && string(d.Reason) == rec.Reason)
	}
	out.Policy = explained(p.rules, req, &d, out.Asked)
	return out, nil
}

func recordedOf(r *audit.Record) recorded {
	return recorded{string(r.Kind), r.Verdict, r.Reason, r.Rule, r.Where, r.Scope, r.Policy, r.Error}
}

// asked is the question of a record as people write it.
func asked(r *audit.Record) string {
	if r.Host == "" {
		return "what could not be read"
	}
	switch r.Question {
	case rules.Resolve.String():
		return r.QType + " " + r.Host
	case rules.Fetch.String():
		return fmt.Sprintf("%s %s:%d%s", r.Method, r.Host, r.Port, r.Path)
	}
	return fmt.Sprintf("%s %s:%d", r.Question, r.Host, r.Port)
}

// requestOf makes the question of a record again, as far as it was recorded:
// what a request carried is told by the credential that it was admitted with.
func requestOf(r *audit.Record) (rules.Request, error) {
	req := rules.Request{Cell: r.Cell, Method: r.Method, Now: r.Time.Unix()}
	switch r.Question {
	case rules.Resolve.String():
		q, err := policyfile.ParseQuestion(r.QType + " " + r.Host)
		q.Cell, q.Now = req.Cell, req.Now
		return q, err
	case rules.Connect.String():
		req.Question = rules.Connect
	case rules.Hello.String():
		req.Question = rules.Hello
	case rules.Fetch.String():
		req.Question = rules.Fetch
	default:
		return req, fmt.Errorf("%w: it is of kind %s", errNoDecision, r.Kind)
	}
	if err := whole(r); err != nil {
		return req, err
	}
	host, err := target.ParseHost(r.Host)
	if err != nil {
		return req, err
	}
	req.Endpoint = target.Endpoint{Host: host, Port: r.Port}
	for _, p := range []rules.Protocol{rules.TLS, rules.HTTP, rules.Opaque} {
		if r.Proto == p.String() {
			req.Protocol = p
		}
	}
	if req.Question == rules.Fetch {
		// The record does not tell TLS from none: plain HTTP is at home on its port alone.
		req.Secure, req.Protocol = r.Port != 80 && r.Reason != string(rules.CredentialNeedsTLS), 0
	}
	if r.Path != "" {
		if req.Path, err = target.ParsePath(r.Path); err != nil {
			return req, err
		}
	}
	if r.Credential != "" && r.Verdict != rules.Deny.String() {
		req.Carries = []rules.Carry{{Credential: r.Credential, State: rules.Bound}}
	}
	return req, nil
}

// errNoDecision means that no policy was asked for a record.
var errNoDecision = errors.New("it is about no decision of a policy")

// whole returns why a record does not hold what was asked, as it was judged.
func whole(r *audit.Record) error {
	switch {
	case len(r.Cut) > 0:
		return fmt.Errorf("too long to be kept whole: %s", strings.Join(r.Cut, ", "))
	case r.Host == "":
		return errors.New("the request could not be read, so that it names no host")
	case r.Question != rules.Fetch.String():
		return nil
	case r.Reason == string(rules.PlaceholderLeak) && gate.Hashed(r):
		return errors.New("path, method or the host's name held the placeholder, and is kept as a keyed hash: audit hash VALUE compares it")
	case r.Path == "" && r.Verdict != rules.Deny.String():
		return errors.New("the rule has log: none, so that the path was not kept")
	}
	return nil
}

func printWhy(w io.Writer, y *why) error {
	rec := &y.Recorded
	rows := [][2]string{{"recorded", fmt.Sprintf("%s (%s)", rec.Verdict, rec.Reason)}}
	if rec.Verdict == "" {
		rows[0][1] = fmt.Sprintf("no verdict: it is of kind %s", rec.Kind)
	}
	if y.Approved != "" {
		rows = append(rows, [2]string{"let in by", fmt.Sprintf("rule %s at %s, which is an approval: %s", rec.Rule, rec.Where, y.Approved)})
	}
	if y.Then != nil {
		rows = append(rows, [2]string{"then", fmt.Sprintf("refused after it was admitted: %s", join(": ", y.Then.Reason, y.Then.Error))})
	}
	if y.Policy == nil {
		rows = append(rows, [2]string{"about", y.Asked}, [2]string{"rule", join(" at ", rec.Rule, rec.Where)}, [2]string{"scope", rec.Scope},
			[2]string{"policy", rec.Policy}, [2]string{"error", rec.Error}, [2]string{"again", join("not asked: ", "", y.NotAsked)})
		return printFields(w, rows)
	}
	for _, r := range rows {
		printWrapped(w, "", query.Printable(r[0]+": "+r[1]))
	}
	if y.Approved != "" {
		fmt.Fprintln(w, "What the policy says without the approval:")
	}
	printExplanation(w, y.Policy)
	if y.Same != nil && !*y.Same && y.Approved == "" {
		fmt.Fprintln(w, "The policy alone decides otherwise: what decided was found out beside it, such as an\n"+
			"address, a credential, a client or a limit, or was not recorded.")
	}
	return nil
}
