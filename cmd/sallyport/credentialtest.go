package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/broker"
	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/plural"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// credentialTestOut is what came of a test.
type credentialTestOut struct {
	broker.Tested
	Live *tryOut `json:"live,omitempty"`
}

func newCredentialTest() *cobra.Command {
	c := &cobra.Command{
		Use:   "test NAME",
		Short: "Sign a request without sending it and, with --live, send one through the gateway",
		Long: `Test has the broker read the secret and sign a request for the first endpoint, and tells which
headers and parameters it would set, never their values. Nothing is sent, but a token is asked for
where the type needs one.

With --live one real request goes through the gateway, to a host and path that the credential's
endpoints allow, and stands in the log like any other; the command fails unless the answer is 2xx.
A host at a private address is refused as in a policy, unless --cidrs opens its range.`,
		Example: `  sallyport credential test stripe-test
  sallyport credential test stripe-test --live --method GET --path '/v1/charges?limit=1'
  sallyport credential test warehouse --live --cidrs 10.20.0.0/16`,
	}
	c.Flags().Bool("live", false, "send a request")
	c.Flags().String("method", "", "with --live: the method; default: the first of the endpoint, or GET")
	c.Flags().String("host", "", "with --live: which of the endpoints' hosts; default: the first")
	c.Flags().StringSlice("cidrs", nil, "with --live: private ranges in which the host may be, as of a rule")
	c.Flags().String("path", "", "with --live: path and query; default: one that the first endpoint allows")
	return credentialCommand(c, 1, testCredential, printTest)
}

func testCredential(c *cobra.Command, args []string) (out credentialTestOut, err error) {
	inst, err := instanceOf(c)
	if err != nil {
		return out, err
	}
	if err := errors.Join(mustRoot("credential test")); err != nil {
		return out, err
	}
	if err := inst.mustBeUp(); err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
	defer cancel()
	err = callBroker(ctx, inst, "/v1/credentials/test", broker.Named{Credential: args[0]}, &out.Tested)
	if err != nil {
		return out, untested(args[0], err)
	}
	live, _ := c.Flags().GetBool("live")
	in := tryIn{Credential: args[0]}
	in.Method, _ = c.Flags().GetString("method")
	in.Host, _ = c.Flags().GetString("host")
	in.Path, _ = c.Flags().GetString("path")
	in.Private, _ = c.Flags().GetStringSlice("cidrs")
	if !live {
		if in.Method+in.Host+in.Path != "" || len(in.Private) > 0 {
			return out, usage(hint(errors.New("--method, --host, --path and --cidrs are for a request that is sent"), "sallyport credential test %s --live", args[0]))
		}
		return out, nil
	}
	if in.Path == "" {
		in.Path = out.Path
	}
	if in.Method == "" {
		in.Method = out.Method
	}
	out.Live, err = liveTest(ctx, inst, in)
	return out, untested(args[0], err)
}

// untested adds to a refusal what can be done about it.
func untested(name string, err error) error {
	refusal, ok := errors.AsType[*control.Error](err)
	if !ok {
		return err
	}
	switch rules.Reason(refusal.Reason) {
	case rules.PrivateIP:
		return hint(err, "sallyport credential test %s --live --cidrs 10.20.0.0/16, with the range that it is in", name)
	case rules.CredentialRevoked:
		return hint(err, "sallyport credential rotate %s", name)
	case rules.HostNotAllowed, rules.MethodNotAllowed, rules.PathNotAllowed, rules.CredentialMismatch:
		return hint(err, "where it may go: sallyport credential show %s", name)
	default:
		if refusal.Status == http.StatusNotFound {
			return noCredential(name)
		}
		return err
	}
}

// testCells begins the names of the cells that tests of credentials stand for.
const testCells = "test-"

// liveTest grants the credential to a run that lasts one request.
func liveTest(ctx context.Context, inst instance, in tryIn) (*tryOut, error) {
	who := asker()
	in.By, in.UID = who.User, who.UID
	in.Run = ulid.Make().String()
	in.Cell = strings.ToLower(testCells + in.Run)
	var grants broker.Grants
	if err := callBroker(ctx, inst, "/v1/grants", broker.GrantRequest{Cell: in.Cell, Run: in.Run, Credentials: []string{in.Credential}}, &grants); err != nil {
		return nil, err
	}
	in.Grants = grants.Grants
	var out tryOut
	err := callGateway(ctx, inst, "/v1/try", in, &out)
	return &out, errors.Join(err, callBroker(context.WithoutCancel(ctx), inst, "/v1/revoke", broker.RevokeRequest{Cell: in.Cell}, nil))
}

func printTest(w io.Writer, o credentialTestOut) error {
	rows := [][]string{
		{"credential", fmt.Sprintf("%s (%s)", o.Name, o.Type)},
		{"secret in", o.Source},
		{"signed for", fmt.Sprintf("%s https://%s%s", o.Method, o.Endpoint, o.Path)},
		{"would set", strings.Join(slices.Concat(o.Headers, o.Params, o.Fields), ", ")},
		{"took", (time.Duration(o.Micros) * time.Microsecond).String()},
	}
	if o.Warning != "" {
		rows = append(rows, []string{"warning", o.Warning})
	}
	if l := o.Live; l != nil {
		rows = append(rows, []string{"sent", fmt.Sprintf("%s https://%s%s", l.Method, l.Endpoint, l.Path)},
			[]string{"answered", fmt.Sprintf("%d, %s in %v", l.Status, plural.Count(l.Received, "octet"), time.Duration(l.Micros)*time.Microsecond)},
			[]string{"record", l.ID})
	}
	return printFit(w, rows)
}

// fault implements [judged].
func (o credentialTestOut) fault() error {
	if l := o.Live; l != nil && (l.Status < 200 || l.Status > 299) {
		return hint(fmt.Errorf("the answer was %d", l.Status), "sallyport audit show %s", l.ID)
	}
	return nil
}

// tryIn asks the gateway for one request with a credential.
type tryIn struct {
	Cell       string          `json:"cell"`
	Run        string          `json:"run"`
	Credential string          `json:"credential"`
	Grants     []control.Grant `json:"grants"`
	Method     string          `json:"method"`
	Host       string          `json:"host"`
	Path       string          `json:"path"`
	Private    []string        `json:"private,omitempty"` // ranges that are opened
	By         string          `json:"by"`                // who asks
	UID        int             `json:"uid"`
}

// tryOut is what came of it; nothing of the answer but its size.
type tryOut struct {
	ID       string `json:"id"` // of the record
	Method   string `json:"method"`
	Endpoint string `json:"endpoint"`
	Path     string `json:"path"`
	Status   int    `json:"status"`
	Received int64  `json:"received"` // octets
	Micros   int64  `json:"us"`
}

// maxTried bounds what is read of an answer that nobody sees.
const maxTried = 16 << 20

// try sends one request for a person who tests a credential: admitted by a policy
// that allows just what the credential's endpoints do, recorded, signed, dialled
// and scrubbed as a sandbox's would be.
func (g *gateway) try(ctx context.Context, in tryIn) (out tryOut, err error) {
	q, id, err := g.trial(in)
	if err != nil {
		return out, &control.Error{Status: http.StatusBadRequest, Text: err.Error()}
	}
	asked := audit.Record{Kind: audit.CredentialChange, Cell: in.Cell, Run: in.Run, Credential: in.Credential}
	if err := g.recordChange(ctx, asked, change{Event: "tested", By: in.By, UID: in.UID}); err != nil {
		return out, err
	}
	g.trials.Store(in.Cell, id)
	g.broker.Attach(control.CellFile{Cell: in.Cell, Run: in.Run, Grants: in.Grants})
	defer func() {
		g.trials.Delete(in.Cell)
		g.broker.Detach(in.Cell)
		g.dialer.Forget(in.Cell)
		g.gate.Forget(in.Run)
	}()
	began := time.Now()
	pass, err := g.gate.Admit(gate.WithOrigin(ctx, gate.Origin{Proto: "h1"}), q)
	if err != nil {
		return out, refusedTrial(err)
	}
	out = tryOut{ID: pass.ID(), Method: q.Method, Endpoint: q.Endpoint.String(), Path: q.Path.String()}
	done, err := carried(ctx, pass, func() (done gate.Outcome, err error) {
		done.Status, done.Received, err = g.sendTrial(ctx, pass)
		if err != nil { // it may cite what an upstream sent
			done.Err = errors.New(g.broker.Hider(in.Cell)(err.Error()))
		}
		if denied, ok := errors.AsType[*gate.DeniedError](err); ok { // after it was admitted
			done.Reason = denied.Reason
		}
		return done, err
	})
	out.Status, out.Received, out.Micros = done.Status, done.Received, time.Since(began).Microseconds()
	if err != nil {
		return out, refusedTrial(err)
	}
	return out, nil
}

var errPanicked = errors.New("panic in what it was admitted for")

// carried does what a pass is for, and has it done whatever comes: an admission has an
// outcome in the log after a panic, too.
func carried(ctx context.Context, pass gate.Pass, do func() (gate.Outcome, error)) (out gate.Outcome, err error) {
	out.Err = errPanicked
	defer func() { err = errors.Join(err, pass.Done(ctx, out)) }()
	return do()
}

// refusedTrial tells root why, which a sandbox is not told.
func refusedTrial(err error) error {
	denied, ok := errors.AsType[*gate.DeniedError](err)
	if !ok {
		return &control.Error{Status: http.StatusBadGateway, Text: err.Error()}
	}
	return &control.Error{Status: http.StatusForbidden, Reason: string(denied.Reason), Text: denied.Error()}
}

// trial makes the request, and whose it is.
func (g *gateway) trial(in tryIn) (q rules.Request, id gate.Identity, err error) {
	g.mu.Lock()
	c, err := credentialNamed(g.creds, in.Credential)
	g.mu.Unlock()
	switch {
	case err != nil:
		return q, id, err
	case in.Cell == "" || in.Run == "":
		return q, id, errors.New("cell and run are required")
	}
	e := c.Endpoints[0]
	if in.Host != "" {
		i := slices.IndexFunc(c.Endpoints, func(e policyfile.Endpoint) bool { return e.Host.String() == in.Host })
		if i < 0 {
			return q, id, fmt.Errorf("credential %q has no endpoint on %q", c.Name, in.Host)
		}
		e = c.Endpoints[i]
	}
	text, query, _ := strings.Cut(in.Path, "?")
	path, err := target.ParsePath(text)
	if err != nil {
		return q, id, err
	}
	private, err := prefixes(in.Private)
	if err != nil {
		return q, id, err
	}
	policy, err := rules.Compile(trialPolicy(c, private))
	q = rules.Request{
		Question: rules.Fetch, Cell: in.Cell, Endpoint: target.Endpoint{Host: e.Host, Port: e.Ports[0]}, Secure: true,
		Method: in.Method, Path: path, Query: query,
	}
	return q, gate.Identity{Cell: in.Cell, Run: in.Run, Policy: policy}, err
}

func prefixes(list []string) (out []netip.Prefix, err error) {
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return nil, fmt.Errorf("--cidrs: %q is no range; write it as 10.20.0.0/16", text)
		}
		out = append(out, p)
	}
	return out, nil
}

// trialPolicy allows what a credential's endpoints do, also at private addresses in
// some ranges. It has no digest: it is made of the credential file, which rules name,
// and is kept nowhere.
func trialPolicy(c policyfile.Credential, private []netip.Prefix) rules.Source {
	src := rules.Source{Name: "test of credential " + c.Name}
	for i, e := range c.Endpoints {
		r := rules.Rule{
			ID: fmt.Sprintf("endpoint-%d", i+1), Where: c.Where, Action: rules.AllowAction,
			Hosts: []rules.HostPattern{{Host: e.Host}}, Ports: e.Ports, Methods: e.Methods, Paths: e.Paths, Credential: c.Name,
			Private: slices.Clone(private),
		}
		if a, ok := e.Host.Addr(); ok { // spelled out by the operator
			r.Private = append(r.Private, netip.PrefixFrom(a, a.BitLen()))
		}
		src.Rules = append(src.Rules, r)
	}
	return src
}

// sendTrial signs and sends what was admitted, and reads the answer to its end.
func (g *gateway) sendTrial(ctx context.Context, pass gate.Pass) (status int, received int64, err error) {
	q := pass.Request()
	req, err := http.NewRequestWithContext(ctx, q.Method, "https://"+q.Endpoint.Authority(443)+q.Path.String(), http.NoBody)
	if err != nil {
		return 0, 0, err
	}
	req.URL.RawQuery = q.Query
	req.Header.Set("User-Agent", "sallyport-credential-test")
	req.Header.Set("Accept", "*/*")
	// Where it may not go at all, no credential is used for it.
	if err := g.dialer.Vet(ctx, pass); err != nil {
		return 0, 0, err
	}
	if err := g.broker.Inject(ctx, pass, req); err != nil {
		return 0, 0, err
	}
	resp, err := g.forward(ctx, pass, req)
	if err != nil {
		return 0, 0, err
	}
	received, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxTried))
	return resp.StatusCode, received, errors.Join(err, resp.Body.Close())
}

// identity tells for whom a cell stands: a sandbox's run, or a test of a
// credential.
func (g *gateway) identity(cell string) (gate.Identity, bool) {
	if v, ok := g.trials.Load(cell); ok {
		id, ok := v.(gate.Identity)
		return id, ok
	}
	return g.table.Identity(cell)
}
