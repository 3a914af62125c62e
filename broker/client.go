package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/broker/scrub"
	"sallyport/broker/sign"
	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// askTimeout bounds one question to the broker. A broker that is being
// restarted answers late; one that does not answer refuses the request.
const askTimeout = 5 * time.Second

// Client is the broker's half inside the gateway. It is safe for use by many
// goroutines. It keeps no secret but those that are in the headers it wrote: to
// find them in answers, until their cell is detached, and to write them again for
// as long as the broker said, while it says nothing else (ADR-0023).
type Client struct {
	// Used, Minted and Unsaved record what is done with the credential of a request,
	// before the request is sent: (*gate.Gate).Used and its sisters. Their error
	// refuses the request. Set before the first Inject; nil records nothing.
	Used, Minted, Unsaved func(context.Context, gate.Pass) error

	control *control.Client
	line    atomic.Pointer[control.Line]           // nil, or what the answers that are held hang on
	relay   sync.Mutex                             // guards replacing line
	cells   atomic.Pointer[map[string]*clientCell] // replaced whole
	// strangers is made of cells, and replaced with them.
	strangers atomic.Pointer[strangers]
	mu        sync.Mutex // guards replacing cells
}

// clientCell is what the gateway knows of one attached cell.
type clientCell struct {
	run    string
	finder *finder // nil without grants
	held   holder

	mu      sync.Mutex // guards exposed, hosts and hider
	exposed map[string][]scrub.Known
	hider   *scrub.Scrubber      // nil until it is wanted, and when more is exposed
	hosts   map[target.Host]bool // that were sent a secret
	scrub   atomic.Pointer[scrub.Scrubber]
}

// NewClient returns a Client of the broker at a unix socket. It dials nothing yet.
func NewClient(socketPath string) *Client {
	return &Client{control: control.NewClient(socketPath)}
}

// Close drops idle connections, and what is held.
func (c *Client) Close() {
	if l := c.line.Swap(nil); l != nil {
		_ = l.Close()
	}
	c.control.Close()
}

// Attach takes note of a cell's grants, in place of earlier ones. Attaching the
// same again changes nothing: answers that are under way are still scrubbed.
func (c *Client) Attach(f control.CellFile) {
	c.replace(func(next map[string]*clientCell) {
		if old := next[f.Cell]; old != nil && old.run == f.Run && old.finder.has(f.Grants) {
			return
		}
		next[f.Cell] = &clientCell{run: f.Run, finder: newFinder(f.Grants)}
	})
}

// Detach forgets a cell and every secret that was used for it.
func (c *Client) Detach(cell string) {
	c.replace(func(next map[string]*clientCell) { delete(next, cell) })
}

func (c *Client) replace(change func(map[string]*clientCell)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := map[string]*clientCell{}
	if cur := c.cells.Load(); cur != nil {
		next = maps.Clone(*cur)
	}
	change(next)
	c.cells.Store(&next)
	c.strangers.Store(newStrangers(next))
}

func (c *Client) cell(id string) *clientCell {
	cur := c.cells.Load()
	if cur == nil {
		return nil
	}
	return (*cur)[id]
}

// Find tells what a request carries of its cell's credentials, in its head: the
// request line, the authority, header fields, and names of trailers. It
// allocates nothing for a request that carries nothing.
func (c *Client) Find(cell string, r *http.Request) []rules.Carry {
	others := c.strangers.Load().find(cell, r)
	cc := c.cell(cell)
	if cc == nil || cc.finder == nil {
		return others
	}
	if own := cc.finder.find(r); len(own) > 0 {
		return append(own, others...)
	}
	return others
}

// Ready reports whether [Client.Inject] has the credential at hand that p is admitted
// with, so that it would ask the broker nothing. It is for [gate.Gate.AdmitUsing]:
// Inject looks again, and p need not be recorded yet.
func (c *Client) Ready(p gate.Pass) bool {
	cc := c.cell(p.Identity().Cell)
	if cc == nil || cc.run != p.Identity().Run || cc.finder == nil || !p.Valid() || !p.Request().Secure {
		return false
	}
	if _, granted := cc.finder.place(p.Decision().Credential); !granted {
		return false
	}
	return cc.held.ready(c.line.Load(), questionOf(p))
}

// Inject puts the credential that p was admitted with into r, in place of
// whatever the sandbox put there. Without a credential the head of r stays as it
// is. An error is a [*gate.DeniedError] with reason credential_mismatch,
// credential_revoked, credential_unavailable or broker_unavailable; r must then not be sent.
//
// Either way, reading the body of r fails from then on where a placeholder of
// the cell is in it, with a [*gate.DeniedError] with reason placeholder_leak.
func (c *Client) Inject(ctx context.Context, p gate.Pass, r *http.Request) error {
	d := p.Decision()
	if p.Valid() && d.Verdict == rules.Inspect && d.Credential == "" {
		return c.cell(p.Identity().Cell).guard(p, r)
	}
	cc, place, err := c.granted(p, r)
	switch {
	case errors.Is(err, errRunEnded):
		return denied(p, rules.CredentialRevoked, err)
	case err != nil:
		return denied(p, rules.CredentialMismatch, err)
	}
	if here, err := cc.answeredHere(p, place); here {
		return err
	}
	m, err := messageOf(place, r)
	if err != nil {
		return denied(p, rules.CredentialUnavail, err)
	}
	line := c.line.Load() // before anything is asked: see hold
	ans, ok := cc.held.use(line, questionOf(p))
	if !ok {
		var reason rules.Reason
		if ans, reason, err = c.ask(ctx, p, place, m); err != nil {
			return denied(p, reason, err)
		}
	}
	if err := c.tell(ctx, p, ans); err != nil {
		return err
	}
	m.apply(r)
	if err := cc.change(p, r, place, ans); err != nil {
		return err
	}
	if err := cc.guard(p, r); err != nil {
		return err
	}
	if !place.Fields {
		// A range would have upstream cut an answer that repeats the secret into
		// pieces that nobody can recognise. The whole answer is allowed instead
		// (RFC 9110 section 14.2). Who signs sends no secret, and reads large
		// objects in ranges.
		r.Header.Del("Range")
		r.Header.Del("If-Range")
	}
	cc.expose(d.Credential, ans.Expose, p.Request().Endpoint.Host)
	c.hold(ctx, cc, line, questionOf(p), ans) // now that answers are searched for it
	return nil
}

// errRunEnded is a request of a run that has ended, or whose cell has another run by now.
var errRunEnded = errors.New("the run's grant has ended")

// granted returns the cell that p is for, and where its credential goes in r.
func (c *Client) granted(p gate.Pass, r *http.Request) (*clientCell, control.Place, error) {
	if err := sameRequest(p, r); err != nil {
		return nil, control.Place{}, err
	}
	cc := c.cell(p.Identity().Cell)
	switch {
	case cc == nil || cc.run != p.Identity().Run:
		return nil, control.Place{}, errRunEnded
	case cc.finder == nil:
		return nil, control.Place{}, errors.New("the cell has no grant")
	}
	place, ok := cc.finder.place(p.Decision().Credential)
	if !ok {
		return nil, control.Place{}, fmt.Errorf("the run was not granted %q", p.Decision().Credential)
	}
	return cc, place, nil
}

// change makes the changes to r, in its head and in the fields of its body that the
// credential's document declares. The error is a [*gate.DeniedError].
func (cc *clientCell) change(p gate.Pass, r *http.Request, place control.Place, ans injectAnswer) error {
	judge := keyJudge{p}
	err := apply(r, place, ans)
	if err == nil {
		err = watchKeys(r, policyfile.Fields(place.Own), judge)
	}
	if err == nil && place.Type == "body" {
		err = fill(r, place, cc.finder.placeholder(p.Decision().Credential), ans.Body, judge)
	}
	switch _, bad := errors.AsType[bodyError](err); {
	case err == nil || isDenied(err):
		return err
	case bad: // the request's fault, which asking again does not mend
		return denied(p, rules.BadRequest, err)
	default:
		return denied(p, rules.CredentialUnavail, err)
	}
}

// tell has it recorded that the credential of p is used.
func (c *Client) tell(ctx context.Context, p gate.Pass, ans injectAnswer) error {
	for _, event := range []struct {
		happened bool
		record   func(context.Context, gate.Pass) error
	}{{ans.Minted, c.Minted}, {ans.Unsaved, c.Unsaved}, {true, c.Used}} {
		if !event.happened || event.record == nil {
			continue
		}
		if err := event.record(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// Params returns the parameters of the query that Inject may set in a request: the
// dialler lets nothing else of a query differ from what was admitted.
func (c *Client) Params(p gate.Pass) []string {
	cc := c.cell(p.Identity().Cell)
	if cc == nil || cc.run != p.Identity().Run || cc.finder == nil || !p.Request().Secure {
		return nil
	}
	switch place, _ := cc.finder.place(p.Decision().Credential); place.Type {
	case "query":
		return []string{place.Header}
	case "azure-sas":
		return sign.SASParams()
	case "aws-sigv4":
		return sigV4Params(p.Request().Query)
	default:
		return nil
	}
}

// sameRequest holds the request that is about to be sent against the one that
// was admitted (CR-01): method, authority and path.
func sameRequest(p gate.Pass, r *http.Request) error {
	q := p.Request()
	switch {
	case !p.Dialable() || q.Question != rules.Fetch:
		return errors.New("the request was not admitted")
	case !q.Secure:
		return errors.New("a credential goes over TLS only")
	case r.Method != q.Method:
		return fmt.Errorf("method %q was admitted, not %q", q.Method, r.Method)
	}
	for i, authority := range [...]string{r.Host, r.URL.Host} {
		if authority == "" || i > 0 && authority == r.Host {
			continue
		}
		if e, err := target.ParseAuthority(authority, 443); err != nil || e != q.Endpoint {
			return fmt.Errorf("authority %q was admitted, not %q", q.Endpoint, authority)
		}
	}
	text := r.URL.EscapedPath()
	if r.URL.Opaque != "" { // then it is what is sent
		text = r.URL.Opaque
	}
	if path, err := target.ParsePath(text); err != nil || path != q.Path {
		return fmt.Errorf("path %q was admitted, not %q", q.Path, text)
	}
	return nil
}

// ask asks the broker for the changes to a request.
func (c *Client) ask(ctx context.Context, p gate.Pass, place control.Place, m message) (ans injectAnswer, reason rules.Reason, err error) {
	in := c.requestOf(p)
	in.Fields, in.Payload, in.Body = m.fields(place), m.payload, m.raw
	reason, err = c.call(ctx, "/v1/inject", in, &ans)
	return ans, reason, err
}

// requestOf says what was admitted.
func (c *Client) requestOf(p gate.Pass) injectRequest {
	q := p.Request()
	return injectRequest{
		Cell: p.Identity().Cell, Run: p.Identity().Run, Rule: p.Decision().Rule, Credential: p.Decision().Credential,
		Secure: q.Secure, Method: q.Method, Host: q.Endpoint.Host.String(), Port: q.Endpoint.Port,
		Path: q.Path.String(), Query: q.Query,
	}
}

// call calls the broker, twice if the first connection turns out to be dead. The
// reason is there with an error.
func (c *Client) call(ctx context.Context, op string, in, out any) (rules.Reason, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var err error
	for range 2 {
		if err = c.control.Call(ctx, op, in, out); err == nil {
			return "", nil
		}
		if refusal, ok := errors.AsType[*control.Error](err); ok {
			return reasonOf(refusal), refusal
		}
	}
	return rules.BrokerUnavailable, err
}

// denied is the refusal of a request that was admitted.
func denied(p gate.Pass, reason rules.Reason, err error) error {
	return &gate.DeniedError{Reason: reason, ID: p.ID(), Decision: p.Decision(), Err: err}
}

// reasonOf takes over the reasons that are the broker's to give. Any other
// refusal means that the two do not understand each other.
func reasonOf(e *control.Error) rules.Reason {
	switch r := rules.Reason(e.Reason); r {
	case rules.CredentialMismatch, rules.CredentialRevoked, rules.CredentialUnavail, rules.ForeignCredential:
		return r
	default:
		return rules.BrokerUnavailable
	}
}

// maxExposed is how many values of one credential are looked for in answers: the
// one in use, and those before it that slow answers may still hold.
const maxExposed = 4

// expose takes note of secrets that were sent to a host.
func (cc *clientCell) expose(credential string, secrets []string, host target.Host) {
	if len(secrets) == 0 {
		return
	}
	cc.mu.Lock()
	defer cc.mu.Unlock()
	if cc.exposed == nil {
		cc.exposed, cc.hosts = map[string][]scrub.Known{}, map[target.Host]bool{}
	}
	cc.hosts[host] = true
	known, fresh := cc.exposed[credential], false
	for _, s := range secrets {
		if !slices.ContainsFunc(known, func(k scrub.Known) bool { return k.Value == s }) {
			one := scrub.Know(scrub.Secret{Value: s, Instead: cc.finder.placeholder(credential)})
			known, fresh = append([]scrub.Known{one}, known...), true
		}
	}
	if !fresh {
		if i := slices.IndexFunc(known, func(k scrub.Known) bool { return k.Value == secrets[0] }); i >= len(secrets) { // in use again
			cc.exposed[credential] = append([]scrub.Known{known[i]}, slices.Delete(known, i, i+1)...)
		}
		return
	}
	cc.exposed[credential] = known[:min(len(known), maxExposed*len(secrets))]
	var all []scrub.Known
	for _, values := range cc.exposed {
		all = append(all, values...)
	}
	cc.scrub.Store(scrub.Of(all...))
	cc.hider = nil
}

// Scrub keeps secrets out of the answer to an admitted request: out of its
// headers now, out of its body and trailers as they are read. An answer that
// cannot be scrubbed is an error and must not be handed on. It changes nothing
// in an answer from a host that was sent no secret of the cell.
//
// What the sandbox sends over a connection that the answer upgrades is looked at
// from here on: writing to it fails where a placeholder is in a message, with a
// [*gate.DeniedError] with reason placeholder_leak.
func (c *Client) Scrub(p gate.Pass, resp *http.Response) error {
	cc, s, err := c.scrubberFor(p)
	if err != nil || cc == nil {
		return err
	}
	if err := s.Response(resp); err != nil {
		return err
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		cc.watchFrames(p, resp, s)
	}
	return nil
}

// scrubberFor returns the cell that p is for, nil if it was detached, and what keeps its
// secrets out of answers.
func (c *Client) scrubberFor(p gate.Pass) (*clientCell, *scrub.Scrubber, error) {
	cc := c.cell(p.Identity().Cell)
	switch {
	case cc != nil && cc.run == p.Identity().Run:
		return cc, cc.scrubberOf(p), nil
	case p.Decision().Credential != "":
		return nil, nil, errors.New("the cell was detached: its answers can no longer be scrubbed")
	default:
		return nil, nil, nil
	}
}

// scrubberOf returns what keeps secrets out of answers from the host of p; it does
// nothing for a host that was sent none.
func (cc *clientCell) scrubberOf(p gate.Pass) *scrub.Scrubber {
	s := cc.scrub.Load()
	if s == nil {
		return nil
	}
	cc.mu.Lock()
	defer cc.mu.Unlock()
	if !cc.hosts[p.Request().Endpoint.Host] {
		return nil
	}
	return s
}

// Interim keeps secrets out of an informational answer (1xx, RFC 9110 section 15.2)
// to the request of p, which has been through Inject. The error is as of
// [Client.Scrub].
func (c *Client) Interim(p gate.Pass, h http.Header) error {
	_, s, err := c.scrubberFor(p)
	if err == nil {
		s.Header(h)
	}
	return err
}
