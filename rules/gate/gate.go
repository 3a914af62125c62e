// Package gate decides and records in one call, and hands out the only proof
// of it.
//
// [Gate.Admit] asks the cell's policy and writes the record; only then is
// there a [Pass], and only with a Pass do the dialler dial and the broker
// sign. What cannot be recorded is refused. It trusts the caller for the facts
// of a request; it never dials, never parses, and never admits without a record.
package gate

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"sallyport/audit"
	"sallyport/rules"
	"sallyport/rules/limit"
	"sallyport/rules/limit/ledger"
)

// Recorder appends records. Append returns after the record is as durable as
// the log promises, or an error: then it must be taken as not written. For a
// record of kind done it does not wait, and returns once it is certain to follow.
// It is called by many goroutines at once, and keeps no record: it is used for
// another once Append has returned.
type Recorder interface {
	Append(context.Context, *audit.Record) error
}

// Identity is what a cell stands for while a run has it.
type Identity struct {
	Cell   string
	Run    string
	Policy *rules.Policy
}

// Config is what a Gate needs; every field but Ledger is required. All are called by
// many goroutines at once.
type Config struct {
	// Identity returns the identity of a cell; ok is false for a cell that is
	// not attached, which is refused.
	Identity func(cell string) (id Identity, ok bool)
	Recorder Recorder
	Now      func() time.Time
	// Hash makes the keyed hash that stands for a sensitive value in records.
	Hash func(value string) string
	// Ledger, if not nil, has what is set aside under limits of octets outlive the process.
	Ledger *ledger.Ledger
}

// Gate is safe for use by many goroutines.
type Gate struct {
	cfg     Config
	counts  limit.Counter
	latest  atomic.Int64 // the latest time that was judged at, in seconds since the Unix epoch
	records sync.Pool    // of *audit.Record, for the time of one Append
	rounds  sync.Pool    // of *round
}

// New returns a Gate. It refuses an incomplete Config.
func New(cfg Config) (*Gate, error) {
	if cfg.Identity == nil || cfg.Recorder == nil || cfg.Now == nil || cfg.Hash == nil {
		return nil, errors.New("gate: identity, recorder, clock and hash are all required")
	}
	return &Gate{cfg: cfg}, nil
}

// DeniedError is a refusal. Reason is for the sandbox; Err, if any, is for the
// log alone.
type DeniedError struct {
	Reason rules.Reason
	ID     string // of the record
	// Decision is what the policy said; its verdict is Deny and its reason is
	// Reason, also where something other than the policy refused. Of a leak, its
	// credential is the one whose placeholder was found.
	Decision rules.Decision
	// Wait, if not 0, is after how long the sandbox may try again.
	Wait time.Duration
	Err  error
}

func denied(id string, d rules.Decision, reason rules.Reason, cause error) *DeniedError {
	d.Verdict, d.Explain, d.Reason = rules.Deny, false, reason
	return &DeniedError{Reason: reason, ID: id, Decision: d, Err: cause}
}

// Error implements error, for the log.
func (e *DeniedError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("denied: %s: %v", e.Reason, e.Err)
	}
	return "denied: " + string(e.Reason)
}

// Unwrap returns the cause that only the log sees.
func (e *DeniedError) Unwrap() error { return e.Err }

// Origin tells which way a request came; it is recorded, not judged.
type Origin struct {
	Listener string         // transparent, explicit, dns
	Client   netip.AddrPort // inside the cell
	Proto    string         // h1, h2
	Tells    Teller         // how a refusal is answered; nil: nobody can say
}

// Teller knows how a refusal will be answered: it is recorded before it is said.
// Many goroutines call it at once.
type Teller interface {
	// Tells returns the HTTP status, 0 for none, and else what is answered in a
	// word: the code of a DNS reply, reset.
	Tells(req *rules.Request, reason rules.Reason, cause error) (status int, answer string)
}

// Said is a Teller of what is known already.
type Said struct {
	Status int
	Answer string
}

// Tells implements [Teller].
func (s Said) Tells(*rules.Request, rules.Reason, error) (status int, answer string) {
	return s.Status, s.Answer
}

type originKey struct{}

// origin is an Origin with what is recorded of its client, written once.
type origin struct {
	Origin
	client string
}

// WithOrigin returns a context whose requests are recorded with o.
func WithOrigin(ctx context.Context, o Origin) context.Context {
	return context.WithValue(ctx, originKey{}, known(o))
}

func known(o Origin) origin {
	out := origin{Origin: o}
	if o.Client.IsValid() {
		out.client = o.Client.String()
	}
	return out
}

// Pass proves that a request was admitted and recorded. Only Admit makes one;
// the zero Pass proves nothing.
type Pass struct{ p *pass }

type pass struct {
	gate     *Gate
	id       string
	identity Identity
	req      rules.Request
	qtype    string // the word for req.Type
	decision rules.Decision
	origin   origin
	query    string // hash of the request's; "" for none
	values   string // hashes of what its parameters hold
	more     bool   // there are more of them than are hashed
	began    time.Time
	recorded bool // an admit record stands in the log
	closed   atomic.Bool
	used     atomic.Bool   // the use of its credential stands in the log, and is still to come
	hold     *limit.Hold   // counted against the limits of the rule; nil for none
	entry    *ledger.Entry // of what hold sets aside; nil for none

	mu     sync.Mutex   // guards vetted
	vetted []netip.Addr // addresses that Vet let through
}

// Valid reports whether p came from Admit and is not done.
func (p Pass) Valid() bool { return p.p != nil && !p.p.closed.Load() }

// Dialable reports whether an upstream connection may be made for p: it is a
// recorded Fetch, or a stream that the policy tunnels. What the gateway answers
// itself is never dialled, and so never looked up.
func (p Pass) Dialable() bool {
	if !p.Valid() || !p.p.recorded {
		return false
	}
	if n, ok := p.p.req.Endpoint.Host.Name(); ok && rules.IsReserved(n) {
		return false
	}
	return p.p.req.Question == rules.Fetch || p.p.decision.Verdict == rules.Tunnel && p.p.req.Question != rules.Resolve
}

// LooksUp reports whether p is for the look-up of one name and type, and for
// nothing else: it is never dialled with.
func (p Pass) LooksUp() bool {
	return p.Valid() && p.p.recorded && p.p.req.Question == rules.Resolve && p.p.decision.LookUp
}

// ID returns the id of the request, "" for the zero Pass.
func (p Pass) ID() string {
	if p.p == nil {
		return ""
	}
	return p.p.id
}

// Request returns what was admitted.
func (p Pass) Request() rules.Request {
	if p.p == nil {
		return rules.Request{}
	}
	return p.p.req
}

// Decision returns how it was decided; denied for the zero Pass.
func (p Pass) Decision() rules.Decision {
	if p.p == nil {
		return rules.Decision{}
	}
	return p.p.decision
}

// Identity returns for whom it was admitted.
func (p Pass) Identity() Identity {
	if p.p == nil {
		return Identity{}
	}
	return p.p.identity
}

// errClientGone is why nothing was admitted although no policy refused it.
var errClientGone = errors.New("the client gave up before its request was recorded")

// Admit decides a request and records the decision.
//
// A refusal is a [*DeniedError]. An admitted Fetch, and a Connect or Hello
// with verdict Tunnel, is in the log when Admit returns; its Pass must be
// closed with [Pass.Done]. A stream to be inspected does nothing by itself, so
// it is not recorded yet: its requests are, and Done records a refusal if there
// were none. Resolve is recorded once, by [Gate.Answer].
func (g *Gate) Admit(ctx context.Context, req rules.Request) (Pass, error) {
	return g.AdmitUsing(ctx, req, nil)
}

// AdmitUsing is [Gate.Admit] for a request of which ready can tell whether the
// credential that it was admitted with is at hand, so that nothing lies between
// its admission and the credential's use. Then the record of the admission tells of
// both (ADR-0059), and the first [Gate.Used] of the Pass has nothing left to record. Ready
// is given a Pass that nothing can be done with yet; nil: never.
func (g *Gate) AdmitUsing(ctx context.Context, req rules.Request, ready func(Pass) bool) (Pass, error) {
	p := g.decide(ctx, req)
	switch {
	case req.Question != rules.Connect && req.Question != rules.Hello && req.Question != rules.Fetch:
		return Pass{}, g.refuse(ctx, p, rules.BadRequest, errors.New("not a question for Admit"))
	case p.decision.Verdict == rules.Deny:
		return Pass{}, g.refuse(ctx, p, p.decision.Reason, seen(req))
	case p.decision.Verdict == rules.Inspect && req.Question != rules.Fetch:
		return Pass{p}, nil
	}
	var err error
	if p.hold, err = p.count(); err != nil {
		p.decision = spoke(p.decision, err)
		return Pass{}, g.refuse(ctx, p, rules.Limit, err)
	}
	if err := p.enter(); err != nil {
		p.hold.Undo()
		return Pass{}, g.refuse(ctx, p, rules.AuditUnavailable, err)
	}
	if err := g.writeAdmit(ctx, p, ready); err != nil {
		p.hold.Undo()
		p.leave()
		if gone := ctx.Err(); gone != nil && errors.Is(err, gone) {
			// The log took nothing, since nobody waits; that it was asked is told all the same.
			return Pass{}, g.refuse(ctx, p, rules.ClientGone, errClientGone)
		}
		return Pass{}, denied(p.id, p.decision, rules.AuditUnavailable, err)
	}
	p.recorded = true
	return Pass{p}, nil
}

// seen is the cause of a refusal of a protocol that is not spoken here, nil for
// any other.
func seen(req rules.Request) error {
	if req.Seen == "" {
		return nil
	}
	return errors.New(req.Seen)
}

func (g *Gate) decide(ctx context.Context, req rules.Request) *pass {
	p := &pass{}
	p.origin, _ = ctx.Value(originKey{}).(origin)
	g.decideInto(p, req)
	return p
}

// decideInto decides for a pass that holds nothing but its origin.
func (g *Gate) decideInto(p *pass, req rules.Request) {
	now := g.cfg.Now()
	req.Now = g.judgedAt(now)
	p.gate, p.id, p.req, p.began = g, newID(now), req, now
	if req.Query != "" {
		p.query = g.cfg.Hash(req.Query)
		p.values, p.more = HashValues(req.Query, g.cfg.Hash)
	}
	id, ok := g.cfg.Identity(req.Cell)
	if !ok {
		p.identity = Identity{Cell: req.Cell}
		p.decision = rules.Decision{Reason: rules.UnknownCell}
		return
	}
	p.identity = id
	p.decision = id.Policy.Decide(req)
}

// judgedAt returns the time at which rules are asked: never one before the latest, so
// that a clock which is set back brings nothing to life that has expired.
func (g *Gate) judgedAt(now time.Time) int64 {
	at := now.Unix()
	for {
		seen := g.latest.Load()
		if seen >= at || g.latest.CompareAndSwap(seen, at) {
			return max(seen, at)
		}
	}
}

// newID returns an id that a sandbox, which is shown its own, cannot tell
// others from.
func newID(now time.Time) string {
	id, err := ulid.New(ulid.Timestamp(now), rand.Reader)
	if err != nil {
		panic("gate: " + err.Error()) // a clock beyond the year 10889
	}
	return id.String()
}

// refuse writes the one record of a refusal and returns its error. If the
// record cannot be written the answer is a refusal all the same.
func (g *Gate) refuse(ctx context.Context, p *pass, reason rules.Reason, cause error) error {
	if reason == "" || reason == rules.Allowed {
		reason = rules.BadRequest // a refusal never reads like an admission
	}
	rec := g.lend()
	defer g.giveBack(rec)
	p.record(rec, audit.Refuse)
	if rec.Verdict != rules.Deny.String() {
		rec.Credential = "" // what the policy would have granted was not used
	}
	rec.Reason, rec.Verdict, rec.WouldDeny = string(reason), rules.Deny.String(), ""
	if cause != nil {
		rec.Error = cause.Error()
	}
	if t := p.origin.Tells; t != nil {
		rec.Status, rec.Answer = t.Tells(&p.req, reason, cause)
	}
	g.hideLeak(rec, &p.req)
	ctx, cancel := closing(ctx)
	defer cancel()
	if err := g.cfg.Recorder.Append(ctx, rec); err != nil {
		return denied(p.id, p.decision, rules.AuditUnavailable, errors.Join(cause, err))
	}
	_ = g.tellCredential(ctx, rec, p.id) // it is a refusal either way
	e := denied(p.id, p.decision, reason, cause)
	e.Wait = waitOf(cause)
	return e
}

// hideLeak keeps a leaked placeholder out of the record of a refusal, whatever its
// reason: it may stand in the path, in the name of the host, which an error may
// cite, or even be the method.
func (g *Gate) hideLeak(rec *audit.Record, req *rules.Request) {
	inHost, leaked := false, rec.Reason == string(rules.PlaceholderLeak)
	for _, c := range req.Carries {
		inHost = inHost || c.State == rules.LeakedInHost
		leaked = leaked || c.State == rules.Leaked
	}
	if !leaked && !inHost {
		return
	}
	if inHost && rec.Host != "" {
		rec.Host = hashHost(rec.Host, g.cfg.Hash)
	}
	if inHost && rec.Error != "" {
		rec.Error = g.cfg.Hash(rec.Error)
	}
	if rec.Path != "" && rec.Path != "/" {
		rec.Path = HashPath(rec.Path, g.cfg.Hash)
	}
	if len(rec.Method) > len("PROPPATCH") {
		rec.Method = g.cfg.Hash(rec.Method)
	}
}

// maxHashed is how many segments of a path get a hash of their own.
const maxHashed = 32

// HashPath returns a path that begins with a slash with each segment as its
// keyed hash, so that whoever knows one can find it; what follows the last of
// them is hashed as one.
func HashPath(path string, hash func(string) string) string {
	segments := strings.SplitN(path[1:], "/", maxHashed)
	for i, s := range segments {
		if s != "" {
			segments[i] = hash(s)
		}
	}
	return "/" + strings.Join(segments, "/")
}

// hashHost returns a name whose labels but the last two are one keyed hash: whose it
// is stays to be read. A label that could be a placeholder does not stay.
func hashHost(host string, hash func(string) string) string {
	const kept, longest = 2, 19
	from := len(host)
	for range kept {
		dot := strings.LastIndexByte(host[:from], '.')
		if dot < 0 || from-dot-1 > longest {
			break
		}
		from = dot
	}
	return hash(host[:from]) + host[from:]
}

// Hashed reports whether the record of a leak holds the path, the method or the host
// that was judged as keyed hashes.
func Hashed(rec *audit.Record) bool {
	return strings.Contains(rec.Path, audit.HashPrefix) || strings.HasPrefix(rec.Host, audit.HashPrefix) ||
		strings.HasPrefix(rec.Method, audit.HashPrefix)
}

// Refuse records that a request was refused before a policy could be asked,
// because it could not be understood or contradicts itself (bad_request,
// authority_mismatch), or found out to be something else (client_rejected_ca).
// It returns the [*DeniedError].
func (g *Gate) Refuse(ctx context.Context, req rules.Request, reason rules.Reason, cause error) error {
	p := g.decide(ctx, req)
	return g.refuse(ctx, p, reason, cause)
}

// Vet asks the policy that admitted p about a resolved address. The name was
// admitted, the address was not. A refusal is a [*DeniedError]; it is not
// recorded by itself: [Pass.Done] of p tells it.
func (g *Gate) Vet(_ context.Context, p Pass, addr netip.Addr) error {
	if !p.Dialable() && !p.LooksUp() || p.p.gate != g {
		return denied(p.ID(), rules.Decision{}, rules.NoPolicy, errors.New("no pass to dial or look up with"))
	}
	addr = addr.Unmap()
	d := p.p.reach(p.p.identity.Policy, p.p.req.Now, addr)
	if d.Verdict == rules.Deny {
		return denied(p.p.id, d, d.Reason, fmt.Errorf("address %v", addr))
	}
	p.p.mu.Lock()
	defer p.p.mu.Unlock()
	if !slices.Contains(p.p.vetted, addr) {
		p.p.vetted = append(p.p.vetted, addr)
	}
	return nil
}

func (p *pass) reach(policy *rules.Policy, now int64, addr netip.Addr) rules.Decision {
	req := p.req
	req.Question, req.Addr, req.Now = rules.Reach, addr, now
	return policy.Decide(req)
}

// Recheck asks the cell's present policy about p again, and about the
// addresses that were vetted for it, without a record. It is for streams that
// are still open when the policy, or the time, has changed; false means: cut. What
// goes on does so under the limits that hold now.
func (g *Gate) Recheck(p Pass) bool {
	if !p.Valid() || p.p.gate != g {
		return false
	}
	id, ok := g.cfg.Identity(p.p.req.Cell)
	if !ok || id.Run != p.p.identity.Run {
		return false
	}
	req := p.p.req
	req.Now = g.judgedAt(g.cfg.Now())
	d, was := id.Policy.Decide(req), p.p.decision
	if d.Verdict != was.Verdict || d.Explain != was.Explain || d.Credential != was.Credential {
		return false
	}
	if p.p.recorded && !p.p.hold.Relimit(claims(d.Rule, d.Limits, d.Totals)...) {
		return false
	}
	p.p.mu.Lock()
	defer p.p.mu.Unlock()
	for _, addr := range p.p.vetted {
		if p.p.reach(id.Policy, req.Now, addr).Verdict == rules.Deny {
			return false
		}
	}
	return true
}

// Outcome is what became of an admitted request or stream.
type Outcome struct {
	Addr     netip.AddrPort // dialled, invalid if none
	Status   int            // HTTP status sent to the sandbox, 0 for a tunnel
	Answer   string         // of a look-up, or a stream that was refused: what was answered
	Sent     int64          // octets, sandbox to upstream
	Received int64          // octets, upstream to sandbox
	// Reason, if not empty, says that the request was refused after it was
	// admitted (private_ip, credential_unavailable …).
	Reason rules.Reason
	Err    error // for the log
	// Requests counts the requests judged on an inspected stream.
	Requests int
	// Data goes into the record as it is: what was kept of the bodies.
	Data json.RawMessage
}

// Done closes p and records its outcome. The record is written even if ctx is
// already cancelled, since a client may have gone. Closing twice panics: one
// admit has exactly one done.
func (p Pass) Done(ctx context.Context, o Outcome) error {
	if p.p == nil {
		panic("gate: done on no pass")
	}
	if p.p.closed.Swap(true) {
		panic("gate: pass closed twice")
	}
	if !p.p.recorded {
		return p.p.endStream(ctx, o)
	}
	p.p.hold.End(p.p.gate.cfg.Now(), o.Sent, o.Received)
	rec := p.p.gate.lend()
	defer p.p.gate.giveBack(rec)
	p.p.record(rec, audit.Done)
	rec.ID, rec.Ref = "", p.p.id
	rec.Status, rec.Sent, rec.Received, rec.Data = o.Status, o.Sent, o.Received, o.Data
	rec.Answer = o.Answer
	rec.Micros = p.p.gate.cfg.Now().Sub(p.p.began).Microseconds()
	if o.Addr.IsValid() {
		rec.Addr = o.Addr.String()
	}
	if o.Reason != "" {
		rec.Verdict, rec.Reason, rec.WouldDeny = rules.Deny.String(), string(o.Reason), ""
	}
	if o.Err != nil {
		rec.Error = o.Err.Error()
		if e, ok := errors.AsType[*DeniedError](o.Err); ok && o.Reason == rules.PlaceholderLeak && e.Reason == o.Reason {
			rec.Credential = e.Decision.Credential // whose placeholder it was
		}
	}
	// No limit in time: nobody waits for a record of what is over.
	if err := p.p.gate.cfg.Recorder.Append(context.WithoutCancel(ctx), rec); err != nil {
		return err // what was set aside is still known
	}
	p.p.leave()
	if eventOf(o.Reason) == "" {
		return nil
	}
	ctx, cancel := closing(ctx)
	defer cancel()
	return p.p.gate.tellCredential(ctx, rec, p.p.id)
}

// endStream closes an inspected stream. Its requests have their own records;
// one that asked for nothing is recorded as a refusal here. Where the place was
// denied, that is the reason, whatever else ended the stream.
func (p *pass) endStream(ctx context.Context, o Outcome) error {
	if o.Requests > 0 {
		return nil
	}
	reason, cause := o.Reason, o.Err
	switch {
	case p.decision.Explain:
		if reason != "" && reason != p.decision.Reason {
			cause = errors.Join(errors.New(string(reason)), cause)
		}
		reason = p.decision.Reason
	case reason == "":
		reason = rules.NoRequest
	}
	p.origin.Tells = Said{o.Status, o.Answer} // it is over: whatever was said was said
	err := p.gate.refuse(ctx, p, reason, cause)
	var d *DeniedError
	if errors.As(err, &d) && d.Reason == rules.AuditUnavailable {
		return err
	}
	return nil // recorded
}

// closingTimeout bounds the write of a closing record.
const closingTimeout = 5 * time.Second

// closing cuts a context loose from the client's: a record of what was done
// must be written even if nobody waits for the answer any more.
func closing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), closingTimeout)
}

// record makes rec the record of p.
func (p *pass) record(rec *audit.Record, kind audit.Kind) {
	d, r := &p.decision, &p.req
	*rec = audit.Record{
		Kind: kind, ID: p.id, Cell: p.identity.Cell, Run: p.identity.Run,
		Policy: d.Policy, Verdict: d.Verdict.String(), Reason: string(d.Reason), Rule: d.Rule, Where: d.Where, WouldDeny: string(d.Observed),
		Scope: d.Scope, Credential: d.Credential,
		Listener: p.origin.Listener, Proto: p.origin.Proto, Question: r.Question.String(),
		Host: r.Endpoint.Host.String(), Port: r.Endpoint.Port, Method: r.Method, Path: r.Path.String(),
		QType: p.qtype, Client: p.origin.client, Query: p.query,
	}
	if rec.Proto == "" && r.Protocol != 0 {
		rec.Proto = r.Protocol.String()
	}
	switch {
	case d.Log == rules.LogNone && kind != audit.Refuse:
		rec.Path, rec.Query = "", ""
	case p.values != "" && (kind == audit.Admit || kind == audit.Refuse): // others refer to it
		rec.Values = p.values
		if p.more {
			rec.Cut = []string{"query_values"}
		}
	}
}

// writeAdmit appends the record of p's admission, which tells that its credential is
// used if ready says so.
func (g *Gate) writeAdmit(ctx context.Context, p *pass, ready func(Pass) bool) error {
	rec := g.lend()
	defer g.giveBack(rec)
	p.record(rec, audit.Admit)
	use := ready != nil && p.decision.Credential != "" && ready(Pass{p})
	if use {
		rec.Event = eventUse
	}
	if err := g.cfg.Recorder.Append(ctx, rec); err != nil {
		return err
	}
	p.used.Store(use)
	return nil
}

// lend returns a record to be given back once it is appended. Each is half a
// kilobyte, and a request has three.
func (g *Gate) lend() *audit.Record {
	if rec, ok := g.records.Get().(*audit.Record); ok {
		return rec
	}
	return new(audit.Record)
}

func (g *Gate) giveBack(rec *audit.Record) {
	*rec = audit.Record{}
	g.records.Put(rec)
}
