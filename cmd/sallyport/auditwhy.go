package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/audit/answer"
	"sallyport/audit/index"
	"sallyport/rules"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// why is a recorded decision beside the one that its policy gives now.
type why struct {
	ID       string `json:"id"`
	Recorded struct {
		Verdict string `json:"verdict"`
		Reason  string `json:"reason"`
		Rule    string `json:"rule,omitempty"`
		Where   string `json:"where,omitempty"`
	} `json:"recorded"`
	// Same tells that the policy alone decides as it is recorded. If not, what
	// decided was not in the policy: an address, a client, a limit.
	Same   bool        `json:"same"`
	Policy explanation `json:"policy_says"`
}

func newAuditWhy() *cobra.Command {
	c := &cobra.Command{
		Use:   "why ID",
		Short: "Explain a decision with the policy that was in force",
		Long: `Why takes the policy that a record names by its digest, asks it the same question at the same
time, and tells of each rule near it whether it matches, and why not. Every policy that ever
was in force is kept. A policy that grants credentials needs their files to be read.`,
		Example: `  sallyport audit why 01JJX0000000000000000000H0
  sallyport audit why 01JJX --dir ./copy --policies ./policies --credentials ./credentials -o json`,
		Args: exactArgs(1),
	}
	c.Flags().String("policies", "", "directory of policies by digest; default: the instance's")
	c.Flags().String("credentials", "", "directory of credential files; default: those of the instance, or "+defaultCredentials)
	return answerCommand(c, askWhy, printWhy)
}

func askWhy(c *cobra.Command, args []string, x *index.Index) (*why, error) {
	s, err := answer.Show(c.Context(), x, args[0])
	if err != nil {
		return nil, err
	}
	rec := &s.Step.Record
	req, err := requestOf(rec)
	if err != nil {
		return nil, usage(fmt.Errorf("record %s: %w", rec.ID, err))
	}
	inst, err := instanceOf(c)
	if err != nil {
		return nil, err
	}
	dir, _ := c.Flags().GetString("policies")
	if dir == "" {
		dir = inst.state("policies")
	}
	creds, err := policyCredentials(c)
	if err != nil {
		return nil, err
	}
	p, err := loadPolicyByDigest(dir, rec.Policy, creds)
	if err != nil {
		return nil, usage(hint(err, "sallyport audit why --policies DIR --credentials DIR %s", rec.ID))
	}
	d := p.rules.Decide(req)
	out := &why{ID: rec.ID, Same: d.Verdict.String() == rec.Verdict && string(d.Reason) == rec.Reason}
	out.Recorded.Verdict, out.Recorded.Reason, out.Recorded.Rule, out.Recorded.Where = rec.Verdict, rec.Reason, rec.Rule, rec.Where
	out.Policy = *explained(p.rules, req, &d, asked(rec))
	return out, nil
}

// asked is the question of a record as people write it.
func asked(r *audit.Record) string {
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
		return req, fmt.Errorf("a record of kind %s is about no decision of a policy", r.Kind)
	}
	if len(r.Cut) > 0 {
		return req, errors.New("a field was too long to be kept whole")
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

func printWhy(w io.Writer, y *why) error {
	fmt.Fprintf(w, "recorded: %s (%s)\n", y.Recorded.Verdict, y.Recorded.Reason)
	printExplanation(w, &y.Policy)
	if !y.Same {
		fmt.Fprintln(w, "The policy alone decides otherwise: what decided was found out beside it, such as an\n"+
			"address, a credential, a client or a limit, or was not recorded.")
	}
	return nil
}
