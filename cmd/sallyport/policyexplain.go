package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit/query"
	"sallyport/broker"
	"sallyport/rules"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// explanation is what explain answers.
type explanation struct {
	Request    string `json:"request"`
	Question   string `json:"question"`
	Verdict    string `json:"verdict"`
	Reason     string `json:"reason"`
	Fault      string `json:"fault,omitempty"` // what is wrong with the request itself
	WouldDeny  string `json:"would_deny,omitempty"`
	Rule       string `json:"rule,omitempty"`
	Where      string `json:"where,omitempty"`
	Scope      string `json:"scope"` // which scope spoke
	Credential string `json:"credential,omitempty"`
	// Limits are those of the rule, in the words of a policy file.
	Limits map[string]string `json:"limits,omitempty"`
	Policy string            `json:"policy"`
	Run    string            `json:"run,omitempty"` // under whose policy it was asked
	Near   []rules.RuleNote  `json:"near"`
}

func newPolicyExplain() *cobra.Command {
	var path, run string
	var headers []string
	c := &cobra.Command{
		Use:   "explain {[METHOD] URL | HOST:PORT | TYPE NAME}",
		Short: "Say what a policy decides about a request, a stream or a DNS query, and why",
		Long: `Explain asks a policy what a sandbox would ask, question after question: may the stream be
opened, may its first bytes be what they are, may the request be sent. It prints the decision,
the rule that spoke, the credential and the limits that it gives, and of each rule near it why
it does not match. With --as it asks the policy that a run is or was under, as the log names it.
-H names a header of the request. A key in the place of a credential is one of the caller's own,
as at the gateway; placeholder-of-NAME stands for the placeholder of the credential NAME.
Exit codes: 0 it is allowed; 1 it is denied; 2 usage.`,
		Example: `  sallyport policy explain -p policy.yaml https://api.example.com/v1/charges
  sallyport policy explain -p policy.yaml DELETE https://api.example.com/v1/charges/1
  sallyport policy explain -p policy.yaml -H "X-Mode: dry" https://api.example.com/v1/charges
  sallyport policy explain -p policy.yaml db.example.com:5432
  sallyport policy explain -p policy.yaml A api.example.com
  sallyport policy explain --as 01JJX0000000000000000000H0 https://api.example.com/`,
		Args: oneOrTwoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			p, err := explainedPolicy(c, path, run)
			if err != nil {
				return usage(err)
			}
			asked := strings.Join(args, " ")
			if len(args) == 1 && strings.Contains(asked, "://") {
				asked = "GET " + asked
			}
			creds, err := policyCredentials(c)
			if err != nil && (run == "" || c.Flags().Changed("credentials")) {
				return usage(err)
			} // whoever reviews a run needs no credential files: see [broker.Preview]
			e, err := explain(p, creds, asked, headers)
			if err != nil {
				return usage(hintMeant(c, path, run, asked, err))
			}
			e.Run = run
			if asJSON {
				err = printJSON(c.OutOrStdout(), e)
			} else {
				printExplanation(c.OutOrStdout(), e)
			}
			if err == nil && e.Verdict == rules.Deny.String() {
				return &exitError{code: exitFailed}
			}
			return err
		},
	}
	c.Flags().StringVarP(&path, "policy", "p", "", "policy file")
	c.Flags().StringArrayVarP(&headers, "header", "H", nil, "\"Name: value\" of the request, as rules may ask for and keys stand in")
	c.Flags().StringVar(&run, "as", "", "ask the policy of this run")
	c.Flags().String("dir", "", "with --as: directory of the log; default: the instance's")
	c.Flags().String("policies", "", "with --as: directory of policies by digest; default: the instance's")
	addOutput(c)
	return c
}

func oneOrTwoArgs(c *cobra.Command, args []string) error {
	if len(args) != 1 && len(args) != 2 {
		return usage(hint(fmt.Errorf("%s takes 1 or 2 arguments, not %d", c.CommandPath(), len(args)), "%s --help", c.CommandPath()))
	}
	return nil
}

// explainedPolicy reads the policy that is asked: a file, or that of a run.
func explainedPolicy(c *cobra.Command, path, run string) (*rules.Policy, error) {
	switch {
	case path == "" && run == "":
		return nil, hint(errors.New("no policy is named"), "%s -p policy.yaml URL", c.CommandPath())
	case path != "" && run != "":
		return nil, hint(errors.New("-p and --as both name a policy"), "%s -p policy.yaml URL", c.CommandPath())
	case run != "" && (c.Flags().Changed("narrow") || c.Flags().Changed("floor")):
		return nil, hint(errors.New("--narrow and --floor go with -p: what a run is under is known"), "%s --as %s URL", c.CommandPath(), run)
	case run != "":
		return policyOfRun(c, run)
	}
	files, err := newPolicyFiles(c)
	if err != nil {
		return nil, err
	}
	p, failing, err := readAnyway(files, path) // whoever asks may be after why a test fails
	if err != nil {
		return nil, err
	}
	for _, e := range failing {
		fmt.Fprintf(c.ErrOrStderr(), "warning: %v\n", e)
	}
	return p.Unproven(), nil
}

// hintMeant adds to an error about what is asked what could be typed instead.
func hintMeant(c *cobra.Command, path, run, asked string, err error) error {
	meant := meantRequest(asked)
	switch {
	case meant == "":
		return err
	case run != "":
		return hint(err, "%s --as %s %s", c.CommandPath(), run, meant)
	default:
		return hint(err, "%s -p %s %s", c.CommandPath(), path, meant)
	}
}

// meantRequest is a request that could be asked in place of one that is not
// understood, "" if nobody can tell what was meant.
func meantRequest(asked string) string {
	words := strings.Fields(asked)
	if len(words) == 0 {
		return ""
	}
	method, place := "GET", words[len(words)-1]
	if len(words) == 2 && rules.IsMethod(words[0]) {
		method = words[0]
	}
	if _, rest, ok := strings.Cut(place, "://"); ok {
		place = rest
	}
	e, ok := target.Guess(place)
	if !ok {
		return ""
	}
	port := e.Port
	if port == 0 {
		port = 443
	}
	path := "/"
	if i := strings.IndexAny(place, "/?#"); i >= 0 && place[i] == '/' {
		path = place[i:]
	}
	return fmt.Sprintf("%s https://%s%s", method, target.Endpoint{Host: e.Host, Port: port}.Authority(443), path)
}

// policyOfRun returns the policy that a run was under last, as its records name
// it.
func policyOfRun(c *cobra.Command, run string) (*rules.Policy, error) {
	dir, inst, err := auditDirOf(c)
	if err != nil {
		return nil, err
	}
	digest := ""
	for rec, err := range orInterrupted(recordsOf(c, dir, query.Where("run", query.Spell("run", run)), nil)) {
		if _, bad := errors.AsType[*query.LineError](err); bad {
			continue
		}
		if err != nil {
			return nil, err
		}
		if rec.Policy != "" {
			digest = rec.Policy
		}
	}
	if digest == "" {
		return nil, hint(fmt.Errorf("the log names no policy of run %q", run), "sallyport audit top --by run")
	}
	p, err := keptPolicy(keptPolicies(c, inst), digest)
	if err != nil {
		return nil, hint(err, "%s --as %s --policies DIR URL", c.CommandPath(), run)
	}
	return p.rules, nil
}

// readHeaders reads header fields as curl takes them.
func readHeaders(list []string) (map[string][]string, error) {
	out := map[string][]string{}
	for _, h := range list {
		name, value, ok := strings.Cut(h, ":")
		canonical := rules.CanonicalHeader(name)
		if !ok || canonical == "" {
			return nil, hint(fmt.Errorf("%q is no header field", h), `-H "X-Mode: safe"`)
		}
		out[canonical] = append(out[canonical], strings.Trim(value, " \t"))
	}
	return out, nil
}

func explain(p *rules.Policy, creds []policyfile.Credential, asked string, headers []string) (*explanation, error) {
	req, err := policyfile.ParseQuestion(asked)
	if err != nil {
		return nil, err
	}
	if req.Header, err = readHeaders(headers); err != nil {
		return nil, err
	}
	if len(req.Header) > 0 && req.Question != rules.Fetch {
		return nil, hint(errors.New("only a request has headers"), "ask METHOD URL, or leave -H out")
	}
	if other, err := otherAuthority(&req); other || err != nil {
		return &explanation{
			Request: asked, Question: req.Question.String(), Verdict: rules.Deny.String(), Reason: string(rules.AuthorityMismatch),
			Scope: rules.PolicyScope.String(), Policy: p.Digest(), Near: []rules.RuleNote{},
		}, err
	}
	for name := range req.Header {
		if why := rules.Unjudged(name); why != "" {
			return nil, fmt.Errorf("-H %q decides nothing: %s", name, why)
		}
	}
	if req.Question == rules.Fetch {
		if req.Carries, err = broker.Preview(p.Credentials(), creds, headOf(&req)); err != nil {
			return nil, err
		}
	}
	req.Now = time.Now().Unix()
	d := p.Follow(req)
	if d.Verdict == rules.Tunnel && req.Question == rules.Fetch {
		req.Question = rules.Connect // the stream is carried unopened: no rule judges what is in it
	}
	return explained(p, req, &d, asked), nil
}

// headOf returns a request's head as the gateway would read it.
func headOf(req *rules.Request) *http.Request {
	uri := req.Path.String()
	if req.Query != "" {
		uri += "?" + req.Query
	}
	return &http.Request{Method: req.Method, Host: req.Endpoint.String(), RequestURI: uri, Header: req.Header}
}

// otherAuthority takes the Host out of what is asked, and reports one that names
// another place than the address. The gateway refuses that before any rule speaks.
func otherAuthority(req *rules.Request) (other bool, err error) {
	hosts := req.Header["Host"]
	delete(req.Header, "Host")
	port := uint16(80)
	if req.Secure {
		port = 443
	}
	for _, h := range hosts {
		at, err := target.ParseAuthority(h, port)
		if err != nil {
			return false, fmt.Errorf("-H Host: %w", err)
		}
		other = other || at != req.Endpoint
	}
	return other, nil
}

// explained tells a decision about a question, and of each rule near it why.
func explained(p *rules.Policy, req rules.Request, d *rules.Decision, asked string) *explanation {
	fault := ""
	if d.Reason == rules.BadRequest && req.Question == rules.Fetch {
		fault = rules.MethodFault(req.Method)
	}
	notes := p.Explain(req)
	if notes == nil {
		notes = []rules.RuleNote{} // a list in JSON, also of none
	}
	for i := range notes {
		if notes[i].Reason == rules.RuleExpired {
			notes[i].Text += endOf(p, notes[i].Rule)
		}
	}
	return &explanation{
		Request: asked, Question: req.Question.String(), Verdict: d.Verdict.String(), Reason: string(d.Reason), Fault: fault, WouldDeny: string(d.Observed),
		Rule: d.Rule, Where: d.Where, Scope: d.Scope, Credential: d.Credential, Limits: limitsOf(d.Limits), Policy: p.Digest(), Near: notes,
	}
}

// endOf says since when a rule no longer holds.
func endOf(p *rules.Policy, id string) string {
	list := p.Rules()
	if i := slices.IndexFunc(list, func(r rules.Rule) bool { return r.ID == id }); i >= 0 {
		return " on " + day(list[i].Expires)
	}
	return ""
}

func limitsOf(l *rules.Limits) map[string]string {
	if l == nil {
		return nil
	}
	return policyfile.LimitTexts(*l)
}

// credentialText says what a decision has to do with the credential that it names.
func credentialText(e *explanation) string {
	switch rules.Reason(e.Reason) {
	case rules.ForeignCredential:
		return fmt.Sprintf("a key of the caller's own stands where credential %s goes: send %s or nothing there, or let a rule say callers_key: allow",
			e.Credential, broker.PreviewPlaceholder(e.Credential))
	case rules.PlaceholderLeak:
		return fmt.Sprintf("the placeholder of credential %s stands where it does not belong", e.Credential)
	case rules.CredentialNeedsTLS:
		return fmt.Sprintf("credential %s goes over TLS only", e.Credential)
	default:
		return "with credential " + e.Credential
	}
}

func printExplanation(w io.Writer, e *explanation) {
	word := "allowed"
	if e.Verdict == rules.Deny.String() {
		word = "denied"
	}
	line := func(format string, args ...any) { printWrapped(w, "  ", fmt.Sprintf(format, args...)) }
	if e.Reason != string(rules.Allowed) {
		word += " (" + e.Reason + ")"
	}
	fmt.Fprintf(w, "%s: %s\n", e.Request, word)
	printBeside(w, e)
	if e.WouldDeny != "" {
		fmt.Fprintf(w, "  it is only observed: enforced, it would be denied (%s)\n", e.WouldDeny)
	}
	switch own := e.Scope == rules.PolicyScope.String(); {
	case e.Rule != "" && own:
		line("by rule %s at %s", e.Rule, e.Where)
	case e.Rule != "":
		line("by rule %s at %s, of the scope %s", e.Rule, e.Where, e.Scope)
	case !own:
		fmt.Fprintf(w, "  by the scope %s\n", e.Scope)
	}
	if e.Credential != "" {
		line("%s", credentialText(e))
	}
	for _, name := range slices.Sorted(maps.Keys(e.Limits)) {
		fmt.Fprintf(w, "  at most %s %s\n", name, e.Limits[name])
	}
	for _, n := range e.Near {
		line("near: rule %s at %s: %s", n.Rule, n.Where, n.Text)
	}
}

// printBeside says what decided beside the rules, or what no rule is about.
func printBeside(w io.Writer, e *explanation) {
	line := func(format string, args ...any) { printWrapped(w, "  ", fmt.Sprintf(format, args...)) }
	if e.Reason == string(rules.AuthorityMismatch) {
		fmt.Fprintln(w, "  Host names another place than the address: the gateway refuses that, whatever rules say")
	}
	if e.Fault != "" {
		line("no rule is asked: %s", e.Fault)
	}
	if e.Reason == string(rules.TypeNotAllowed) {
		line("whatever rules say of the name, only A is answered by itself; other types where dns.resolve lists the name with them")
	}
	if e.Verdict == rules.Tunnel.String() && e.Question != rules.Resolve.String() {
		fmt.Fprintln(w, "  the stream is carried unopened: nobody looks at what is in it")
	}
}
