// Package broker binds credentials to admitted requests.
//
// [Server] is the broker process: it holds the credentials, gives each run its
// placeholders, and turns "this admitted request" into header changes. [Client]
// is its other half inside the gateway: it finds placeholders in requests, puts
// the real thing into admitted ones, and keeps it out of the answers.
//
// The server trusts the kernel's word on who calls, the machine's owner for the
// credential documents, and cell files. It does not trust the gateway's word
// that a request may be signed: it asks the endpoint lock again. It never sends
// a secret to anybody but the gateway's user, and to that only inside the
// changes for one request.
package broker

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// Config is what a Server needs. Now and Log are required.
type Config struct {
	Credentials []policyfile.Credential
	// Revoked reports whether a credential was revoked before this process began;
	// the default knows of none.
	Revoked func(name string) bool
	// Generation tells, from where it outlives this process, which generation of a
	// credential is in force: another one since each time that a revocation was taken
	// back. The default knows of one only.
	Generation func(name string) string
	// GatewayUID is the only user who gets signatures.
	GatewayUID uint32
	// AdminUID is the only user who grants, revokes and lists: root, 0.
	AdminUID uint32
	// CellsDir holds the cell files; "" reads none. Grants in them are kept
	// over a restart of the broker.
	CellsDir string
	// Hold is how long the gateway may use an answer again that depends on nothing
	// but the secret, unless something changes before that (ADR-0023): a source
	// that was changed behind the broker's back is noticed that much later.
	// The default is 50 ms; less than nothing has it ask for every request.
	Hold time.Duration
	// UID and User are the broker's own user, who may own secret files.
	UID  uint32
	User string
	// LookupEnv reads the broker's environment, for sources that need it. The
	// default finds nothing.
	LookupEnv func(string) (string, bool)
	// Transport is the broker's way out to token endpoints; without one,
	// credentials that need it are refused.
	Transport http.RoundTripper
	// Keep returns where what a server gave in place of a credential's secret is kept
	// over a restart. The default keeps it in memory only.
	Keep func(credential string) Keeper
	// Reread returns a Config with the credentials as they are on disk by now, and
	// a Transport for them. Nil: they are not read again.
	Reread func() (Config, error)
	Now    func() time.Time
	Log    *slog.Logger
}

// Server is safe for use by many goroutines.
type Server struct {
	cfg   Config
	creds atomic.Pointer[map[string]*bound] // replaced whole
	wake  chan struct{}                     // tells Refresh to look again; holds one
	// lines are broken after each change that another answer could come of, and
	// before anybody is told that it was made.
	lines control.Lines

	mu      sync.Mutex // guards cells, uses, told, signIns, and replacing creds
	cells   map[string]*cellGrants
	uses    map[string]*use
	told    map[refusal]told
	signIns map[string]map[string]*signedIn // by cell and credential
}

// cellGrants is what one cell's run was given; it never changes once stored.
type cellGrants struct {
	run    string
	grants []control.Grant
	ended  []string // credentials whose grant ended before the run
}

func (c *cellGrants) has(credential string) bool {
	return slices.ContainsFunc(c.grants, func(g control.Grant) bool { return g.Credential == credential })
}

// holds reports whether the run may use b as it is: what was granted of an earlier
// generation has ended, however it came back (ADR-0057).
func (c *cellGrants) holds(b *bound) bool {
	return b != nil && slices.ContainsFunc(c.grants, func(g control.Grant) bool {
		return g.Credential == b.name && g.Generation == b.generation
	})
}

// use is what is told about a credential.
type use struct {
	last    time.Time
	count   int64
	refused int64
}

const (
	maxCells  = 4096
	maxGrants = 32 // of one run
)

// NewServer checks every credential and reads the cell files. An error lists
// every fault of the credentials. A secret that cannot be read now is a warning
// only: it refuses grants and requests until it can be.
func NewServer(cfg Config) (*Server, error) {
	if cfg.Now == nil || cfg.Log == nil {
		return nil, errors.New("broker: clock and log are required")
	}
	if cfg.Hold == 0 {
		cfg.Hold = 50 * time.Millisecond
	}
	if cfg.Revoked == nil {
		cfg.Revoked = func(string) bool { return false }
	}
	if cfg.Generation == nil {
		cfg.Generation = func(string) string { return "" }
	}
	s := &Server{cfg: cfg, wake: make(chan struct{}, 1), cells: map[string]*cellGrants{}, uses: map[string]*use{}, signIns: map[string]map[string]*signedIn{}}
	creds, err := s.bindAll(cfg, nil)
	if err != nil {
		return nil, err
	}
	s.put(creds)
	s.readCells()
	return s, nil
}

// put takes credentials in place of those before. Nobody else may have the server
// yet, or mu is held.
func (s *Server) put(creds map[string]*bound) {
	for name := range creds {
		if s.uses[name] == nil {
			s.uses[name] = &use{}
		}
	}
	s.creds.Store(&creds)
}

// bindAll makes credentials ready. One whose document did not change stays as it
// was: tokens that were made with it are still good.
func (s *Server) bindAll(cfg Config, old map[string]*bound) (map[string]*bound, error) {
	creds := map[string]*bound{}
	var errs []error
	for _, c := range cfg.Credentials {
		b := old[c.Name]
		if b == nil || c.Digest == "" || b.doc.Digest != c.Digest || b.revoked != cfg.Revoked(c.Name) || b.generation != cfg.Generation(c.Name) {
			var err error
			if b, err = s.bind(c, cfg); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		if creds[c.Name] != nil {
			errs = append(errs, fmt.Errorf("%scredential %q is there twice", prefixWhere(c.Where), c.Name))
			continue
		}
		creds[c.Name] = b
	}
	return creds, errors.Join(errs...)
}

// Reload takes the credentials, and the way out, of cfg in place of those before;
// the rest of cfg is not looked at. What does not fit a credential any more is
// taken from the runs that were granted it, and acts on their next request. On an
// error everything stays as it was.
func (s *Server) Reload(cfg Config) error {
	next := s.cfg
	next.Credentials, next.Transport = cfg.Credentials, cfg.Transport
	s.mu.Lock()
	defer s.mu.Unlock()
	creds, err := s.bindAll(next, *s.creds.Load())
	if err != nil {
		return err
	}
	old := *s.creds.Load()
	s.put(creds)
	for name, b := range old {
		if creds[name] != b {
			b.forget()
		}
	}
	s.sweepLocked()
	s.tokensChanged()
	s.lines.Break()
	s.cfg.Log.Info("credentials read", "count", len(creds))
	return nil
}

func (s *Server) credential(name string) *bound { return (*s.creds.Load())[name] }

// readCells takes over the grants of the cells that are attached. A file that
// cannot be read costs its cell the credentials, not the others theirs.
func (s *Server) readCells() {
	if s.cfg.CellsDir == "" {
		return
	}
	files, err := control.ReadAll(s.cfg.CellsDir)
	if err != nil {
		s.cfg.Log.Error("some cell files cannot be read; their cells get no credential", "cause", err)
	}
	for _, f := range files {
		s.cells[f.Cell] = s.fitting(f.Cell, &cellGrants{run: f.Run, grants: f.Grants})
	}
}

// fitting returns what is left of c: the grants that fit the credentials as they are.
func (s *Server) fitting(cell string, c *cellGrants) *cellGrants {
	next := &cellGrants{run: c.run, ended: slices.Clone(c.ended)}
	for _, g := range c.grants {
		b := s.credential(g.Credential)
		if b == nil || b.revoked || b.generation != g.Generation || b.place() != g.Place || checkPlaceholders(g) != nil {
			s.cfg.Log.Error("a grant no longer fits its credential and is dropped", "cell", cell, "run", c.run, "credential", g.Credential)
			next.ended = append(next.ended, g.Credential)
			continue
		}
		next.grants = append(next.grants, g)
	}
	return next
}

// Handler serves the broker's operations; [control.NewServer] takes it.
func (s *Server) Handler() http.Handler {
	admin, gateway := []uint32{s.cfg.AdminUID}, []uint32{s.cfg.GatewayUID}
	mux := http.NewServeMux()
	mux.Handle("/v1/grants", control.Handle(admin, s.grant))
	mux.Handle("/v1/revoke", control.Handle(admin, s.revoke))
	mux.Handle("/v1/credentials", control.Handle(admin, s.list))
	mux.Handle("POST /v1/reload", control.Handle(admin, s.reload))
	mux.Handle("POST /v1/credentials/test", control.Handle(admin, s.test))
	mux.Handle("POST /v1/credentials/refresh", control.Handle(admin, s.refresh))
	mux.Handle("POST /v1/credentials/revoke", control.Handle(admin, s.revokeCredential))
	mux.Handle("POST /v1/inject", control.Handle(gateway, s.inject))
	mux.Handle("POST /v1/uses", control.Handle(gateway, s.used))
	mux.Handle("POST "+lineOp, s.lines.Handle(gateway))
	mux.Handle("POST /v1/signin", control.Handle(gateway, s.signIn))
	mux.Handle("POST /v1/certificate", control.Handle(gateway, s.certificate))
	mux.Handle("POST /v1/handshake", control.Handle(gateway, s.signature))
	return mux
}

// GrantRequest asks for credentials for a run.
type GrantRequest struct {
	Cell        string   `json:"cell"`
	Run         string   `json:"run"`
	Credentials []string `json:"credentials"`
}

// Grants is the answer.
type Grants struct {
	Grants []control.Grant `json:"grants"`
}

func refuse(status int, reason rules.Reason, format string, args ...any) *control.Error {
	return &control.Error{Status: status, Reason: string(reason), Text: fmt.Sprintf(format, args...)}
}

// grant makes a placeholder for every credential that is asked for, or for
// none. A secret that cannot be read refuses: a run does not start blind.
func (s *Server) grant(ctx context.Context, in GrantRequest) (Grants, error) {
	switch {
	case in.Cell == "" || in.Run == "":
		return Grants{}, refuse(http.StatusBadRequest, rules.BadRequest, "granting: cell and run are required")
	case len(in.Credentials) > maxGrants:
		return Grants{}, refuse(http.StatusBadRequest, rules.BadRequest, "granting: a run may have %d credentials, not %d", maxGrants, len(in.Credentials))
	}
	c := &cellGrants{run: in.Run, grants: make([]control.Grant, 0, len(in.Credentials))}
	var errs []error
	for _, name := range in.Credentials {
		if c.has(name) {
			continue
		}
		g, err := s.grantOne(ctx, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.grants = append(c.grants, g)
	}
	if err := errors.Join(errs...); err != nil {
		return Grants{}, refuse(http.StatusConflict, rules.CredentialUnavail, "%v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cells[in.Cell] != nil {
		return Grants{}, refuse(http.StatusConflict, "", "granting: cell %s has a run already; revoke it first", in.Cell)
	}
	if len(s.cells) >= maxCells {
		return Grants{}, refuse(http.StatusConflict, rules.Limit, "granting: %d cells have grants; revoke those that are gone", maxCells)
	}
	s.cells[in.Cell] = c
	s.cfg.Log.InfoContext(ctx, "granted", "cell", in.Cell, "run", in.Run, "credentials", in.Credentials)
	return Grants{c.grants}, nil
}

func (s *Server) grantOne(ctx context.Context, name string) (control.Grant, error) {
	b := s.credential(name)
	switch {
	case b == nil:
		return control.Grant{}, fmt.Errorf("granting %q: there is no such credential", name)
	case b.revoked:
		return control.Grant{}, fmt.Errorf("granting %q: it was revoked; to put in a new secret: sallyport credential rotate %s", name, name)
	}
	v, err := b.usable(ctx)
	if err != nil {
		return control.Grant{}, fmt.Errorf("granting %q: %w", name, err)
	}
	defer v.Wipe()
	if scheme, ok := b.scheme.(*sign.Login); ok {
		return signInGrant(b, scheme, v)
	}
	g := control.Grant{Credential: name, Place: b.place(), Generation: b.generation}
	shapes := []string{string(v.Reveal())}
	if s, ok := b.scheme.(sign.Shaper); ok {
		if shapes, err = s.Shapes(v); err != nil {
			return control.Grant{}, fmt.Errorf("granting %q: %w", name, err)
		}
	}
	for i, shape := range shapes {
		s, err := newStandIn([]byte(shape))
		switch {
		case err != nil:
			return control.Grant{}, fmt.Errorf("granting %q: %w", name, err)
		case i == 0:
			g.Env, g.Placeholder = b.env, s.text
		default:
			g.More = append(g.More, control.Value{Env: b.secretEnv, Placeholder: s.text})
		}
		for _, part := range s.parts {
			g.More = append(g.More, control.Value{Placeholder: part})
		}
	}
	if d, ok := b.scheme.(sign.Documenter); ok {
		text, id, err := d.Document(v, g.Placeholder)
		switch {
		case err != nil:
			return control.Grant{}, fmt.Errorf("granting %q: %w", name, err)
		case text != "": // the variable holds the document
			g.More, g.Env = append(g.More, control.Value{Env: b.env, Placeholder: text, ID: id, File: b.envFile}), ""
		}
	}
	return g, nil
}

// usable reads the secret and checks that its scheme can use it. The caller
// wipes it.
func (b *bound) usable(ctx context.Context) (secret.Value, error) {
	v, err := b.source.Get(ctx)
	if err != nil {
		return secret.Value{}, err
	}
	if err := b.scheme.Check(v); err != nil {
		v.Wipe()
		return secret.Value{}, fmt.Errorf("secret from %s: %w", b.source, err)
	}
	return v, nil
}

// state tells whether a credential can be used, and what is wrong with it.
func (b *bound) state(ctx context.Context) (status, fault string) {
	if b.revoked {
		return "revoked", "" // nothing is wrong: it is meant
	}
	v, err := b.usable(ctx)
	if err != nil {
		return "error", err.Error()
	}
	v.Wipe()
	if err := b.unsaved(); err != nil {
		return "unsaved", fmt.Sprintf("the refresh token that the server gave last is in memory only, and lost with the broker: %v", err)
	}
	if since, err := b.source.Stale(); err != nil {
		return "stale", fmt.Sprintf("the value of before %s serves on: %v", since.UTC().Format(time.RFC3339), err)
	}
	return "ok", ""
}

// RevokeRequest ends a cell's grants.
type RevokeRequest struct {
	Cell string `json:"cell"`
}

// Revoked tells how many grants there were.
type Revoked struct {
	Grants int `json:"grants"`
}

// revoke acts on the next request: what the gateway holds by these grants is void
// when it returns.
func (s *Server) revoke(ctx context.Context, in RevokeRequest) (Revoked, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cells[in.Cell]
	if c == nil {
		return Revoked{}, nil // it is safe to revoke twice
	}
	delete(s.cells, in.Cell)
	s.lines.Break()
	delete(s.signIns, in.Cell)
	s.cfg.Log.InfoContext(ctx, "revoked", "cell", in.Cell, "run", c.run)
	return Revoked{len(c.grants)}, nil
}

// reload reads the credentials again.
func (s *Server) reload(context.Context, struct{}) (struct{}, error) {
	if s.cfg.Reread == nil {
		return struct{}{}, refuse(http.StatusNotFound, "", "credentials are not read again here")
	}
	cfg, err := s.cfg.Reread()
	if err == nil {
		err = s.Reload(cfg)
	}
	if err != nil {
		return struct{}{}, refuse(http.StatusConflict, "", "%v", err)
	}
	return struct{}{}, nil
}

// Status is what is told about one credential: never the secret.
type Status struct {
	Name    string    `json:"name"`
	Type    string    `json:"type"`
	Owner   string    `json:"owner,omitempty"`
	Source  string    `json:"source"`
	Status  string    `json:"status"` // ok, stale, unsaved, error, revoked
	Error   string    `json:"error,omitempty"`
	LastUse time.Time `json:"last_use,omitzero"`
	Uses    int64     `json:"uses"`
	Refused int64     `json:"refused"`
	Cells   []string  `json:"cells"` // that hold a grant
}

// Statuses is the answer of /v1/credentials.
type Statuses struct {
	Credentials []Status `json:"credentials"`
}

func (s *Server) list(ctx context.Context, _ struct{}) (Statuses, error) {
	out := Statuses{Credentials: []Status{}}
	creds := *s.creds.Load()
	for _, name := range slices.Sorted(maps.Keys(creds)) {
		b := creds[name]
		st := Status{Name: name, Type: b.kind, Owner: b.owner, Source: b.source.String(), Cells: []string{}}
		st.Status, st.Error = b.state(ctx)
		s.mu.Lock()
		u := *s.uses[name]
		for cell, c := range s.cells {
			if c.has(name) {
				st.Cells = append(st.Cells, cell)
			}
		}
		s.mu.Unlock()
		slices.Sort(st.Cells)
		st.LastUse, st.Uses, st.Refused = u.last, u.count, u.refused
		out.Credentials = append(out.Credentials, st)
	}
	return out, nil
}

// injectRequest is what the gateway tells about an admitted request.
type injectRequest struct {
	Cell       string `json:"cell"`
	Run        string `json:"run"`
	Rule       string `json:"rule"`
	Credential string `json:"credential"`
	Secure     bool   `json:"secure"`
	Method     string `json:"method"`
	Host       string `json:"host"`
	Port       uint16 `json:"port"`
	Path       string `json:"path"`
	Query      string `json:"query"`
	// Fields and Payload are there if the credential's place asks for them.
	Fields  http.Header `json:"fields,omitempty"`
	Payload string      `json:"payload,omitempty"`
	Body    []byte      `json:"body,omitempty"`
}

// injectAnswer is what the gateway does to the request: see [sign.Changes].
type injectAnswer struct {
	Set    map[string][]string `json:"set,omitempty"`
	Remove []string            `json:"remove,omitempty"`
	Query  map[string]string   `json:"query,omitempty"`
	Body   string              `json:"body,omitempty"`
	Expose []string            `json:"expose,omitempty"`
	// Minted tells that a token was made for this request, and not used before.
	Minted bool `json:"minted,omitempty"`
	// Unsaved tells, with Minted, that the refresh token that came with it is in memory only.
	Unsaved bool `json:"unsaved,omitempty"`
	// Hold is for how long the same question has the same answer, while the line is
	// silent; 0: it is not to be used again.
	Hold time.Duration `json:"hold,omitempty"`

	lines []fieldLine // what Set says, of an answer that was held
}

// fieldLine is one line of a header.
type fieldLine struct{ name, value string }

// fields returns the lines that are set.
func (a *injectAnswer) fields() iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for name, values := range a.Set {
			for _, v := range values {
				if !yield(name, v) {
					return
				}
			}
		}
		for _, l := range a.lines {
			if !yield(l.name, l.value) {
				return
			}
		}
	}
}

// unsigned is the refusal of what a scheme did not sign: another time it may, unless
// the request is none for this credential.
func unsigned(err error) *control.Error {
	if _, ok := errors.AsType[*sign.UnfitError](err); ok {
		return refuse(http.StatusForbidden, rules.CredentialMismatch, "%v", err)
	}
	return refuse(http.StatusServiceUnavailable, rules.CredentialUnavail, "%v", err)
}

func (s *Server) inject(ctx context.Context, in injectRequest) (injectAnswer, error) {
	b, refusal := s.usableBy(in)
	if refusal != nil {
		return injectAnswer{}, s.refused(in, refusal)
	}
	req, refusal := s.check(in, b)
	if refusal != nil {
		return injectAnswer{}, s.refused(in, refusal)
	}
	ctx, mints := sign.CountMints(ctx)
	ch, err := s.sign(ctx, b, in, req)
	if err != nil {
		return injectAnswer{}, s.refused(in, unsigned(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Asked again: a revocation may have come while the source was read.
	if c := s.cells[in.Cell]; c == nil || c.run != in.Run || !c.holds(s.credential(in.Credential)) {
		return injectAnswer{}, refuse(http.StatusForbidden, rules.CredentialRevoked, "the grant was revoked")
	}
	u := s.uses[in.Credential]
	u.last = s.cfg.Now()
	u.count++
	minted := mints.Load() > 0
	return injectAnswer{
		Set: ch.Set, Remove: ch.Remove, Query: ch.Query, Body: ch.Body, Expose: ch.Expose,
		Minted: minted, Unsaved: minted && b.unsaved() != nil, Hold: s.holdOf(b),
	}, nil
}

// answerTimeout bounds what a request waits for sources and token endpoints: less
// than the gateway waits for the broker, so that it is told what is slow.
const answerTimeout = askTimeout - time.Second

// sign reads the secret and signs a request.
func (s *Server) sign(ctx context.Context, b *bound, in injectRequest, req sign.Request) (sign.Changes, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("no answer within %v", answerTimeout))
	defer cancel()
	v, err := b.usable(ctx)
	if err != nil {
		return sign.Changes{}, err
	}
	defer v.Wipe()
	token, err := s.token(b, in, v)
	if err != nil {
		return sign.Changes{}, err
	}
	defer token.Wipe()
	ch, err := b.scheme.Sign(ctx, token, req)
	if err != nil {
		return sign.Changes{}, fmt.Errorf("signing: %w", err)
	}
	return ch, nil
}

// askedURL is the address that a request goes to, as credential files write it.
func (in *injectRequest) askedURL() string {
	if h, err := target.ParseHost(in.Host); err == nil {
		return "https://" + target.Endpoint{Host: h, Port: in.Port}.Authority(443) + in.Path
	}
	return ""
}

// usableBy returns the credential that a request names, unless it is gone.
func (s *Server) usableBy(in injectRequest) (*bound, *control.Error) {
	b := s.credential(in.Credential)
	switch {
	case b == nil:
		return nil, refuse(http.StatusForbidden, rules.CredentialMismatch, "there is no credential %q", in.Credential)
	case b.revoked:
		return nil, refuse(http.StatusForbidden, rules.CredentialRevoked, "credential %q was revoked; to put in a new secret: sallyport credential rotate %s", in.Credential, in.Credential)
	}
	return b, nil
}

// check holds a request against the grant and the endpoint lock.
func (s *Server) check(in injectRequest, b *bound) (sign.Request, *control.Error) {
	mismatch := func(format string, args ...any) (sign.Request, *control.Error) {
		return sign.Request{}, refuse(http.StatusForbidden, rules.CredentialMismatch, format, args...)
	}
	s.mu.Lock()
	c := s.cells[in.Cell]
	s.mu.Unlock()
	switch {
	case in.Cell == "" || in.Run == "":
		return mismatch("no cell or no run")
	case c == nil || c.run != in.Run: // the gateway asks for runs that were granted something
		return sign.Request{}, refuse(http.StatusForbidden, rules.CredentialRevoked, "the grant of run %q in cell %q has ended", in.Run, in.Cell)
	case c.has(in.Credential) && !c.holds(b), slices.Contains(c.ended, in.Credential):
		return sign.Request{}, refuse(http.StatusForbidden, rules.CredentialRevoked, "the grant of %q to run %q has ended; runs that begin now get another", in.Credential, in.Run)
	case !c.has(in.Credential):
		return mismatch("run %q was not granted %q", in.Run, in.Credential)
	case !in.Secure:
		return mismatch("credential %q goes over TLS only", in.Credential)
	}
	req, err := parseRequest(in)
	if err != nil {
		return mismatch("the request: %v", err)
	}
	req.Now = s.cfg.Now()
	if !b.admits(req) {
		return mismatch("credential %q does not go to %q %v%v", in.Credential, in.Method, req.Endpoint, req.Path)
	}
	return req, nil
}

// refused counts and tells a refusal, and returns it.
func (s *Server) refused(in injectRequest, e *control.Error) error {
	s.mu.Lock()
	if s.credential(in.Credential) != nil {
		s.uses[in.Credential].refused++
	}
	since, tell := s.toldLocked(refusal{in.Cell, in.Credential, e.Reason})
	s.mu.Unlock()
	if tell {
		s.cfg.Log.Warn("refused to sign", "cell", in.Cell, "run", in.Run, "rule", in.Rule, "credential", in.Credential,
			"reason", e.Reason, "cause", e.Text, "more", since)
	}
	return e
}
