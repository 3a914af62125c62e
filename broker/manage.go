package broker

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"sallyport/broker/sign"
	"sallyport/rules"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// Named asks about one credential.
type Named struct {
	Credential string `json:"credential"`
}

// sweepLocked ends the grants that no longer fit, and returns how many there were.
func (s *Server) sweepLocked() (dropped int) {
	for cell, c := range s.cells {
		next := s.fitting(cell, c)
		dropped += len(c.grants) - len(next.grants)
		s.cells[cell] = next
		maps.DeleteFunc(s.signIns[cell], func(name string, _ *signedIn) bool { return !next.has(name) })
	}
	return dropped
}

// replace puts another state of a credential in force, wipes what the old one
// held of the secret, and leaves its minted tokens behind.
func (s *Server) replace(name string, change func(*bound) (*bound, error)) (*bound, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.creds.Load()
	b := old[name]
	if b == nil {
		return nil, refuse(http.StatusNotFound, rules.BadRequest, "there is no credential %q", name)
	}
	next, err := change(b)
	if err != nil {
		return nil, err
	}
	creds := maps.Clone(old)
	creds[name] = next
	s.creds.Store(&creds)
	s.lines.Break()
	b.forget()
	return next, nil
}

// refresh drops what is held of a credential's secret, tokens included, and looks
// whether it can be used now.
func (s *Server) refresh(ctx context.Context, in Named) (Status, error) {
	b, err := s.replace(in.Credential, func(b *bound) (*bound, error) { return s.bind(b.doc, s.cfg) })
	if err != nil {
		return Status{}, err
	}
	s.mu.Lock()
	s.sweepLocked() // it may have been revoked while nobody could tell this process
	s.mu.Unlock()
	st := Status{Name: b.name, Type: b.kind, Owner: b.owner, Source: b.source.String(), Cells: []string{}}
	st.Status, st.Error = b.state(ctx)
	s.cfg.Log.InfoContext(ctx, "refreshed", "credential", b.name, "status", st.Status)
	return st, nil
}

// revokeCredential acts on the next request: every grant of the credential ends,
// its secret and its tokens are dropped, and no run is granted it again until
// [Config.Revoked] says otherwise and the documents are read anew.
func (s *Server) revokeCredential(ctx context.Context, in Named) (Revoked, error) {
	b, err := s.replace(in.Credential, func(b *bound) (*bound, error) {
		next := *b
		next.revoked = true
		return &next, s.equip(&next, s.cfg) // without what was minted
	})
	if err != nil {
		return Revoked{}, err
	}
	s.mu.Lock()
	dropped := s.sweepLocked()
	s.mu.Unlock()
	if s.cfg.Keep != nil {
		if err := s.cfg.Keep(b.name).Wipe(); err != nil {
			s.cfg.Log.ErrorContext(ctx, "what a server gave in place of a revoked secret is still on disk, encrypted", "credential", b.name, "cause", err)
		}
	}
	s.cfg.Log.WarnContext(ctx, "a credential was revoked", "credential", b.name, "grants", dropped)
	return Revoked{dropped}, nil
}

// equip gives b a scheme that holds nothing yet.
func (s *Server) equip(b *bound, cfg Config) (err error) {
	out := sign.Config{Transport: cfg.Transport, Now: cfg.Now, Made: s.tokensChanged}
	if cfg.Keep != nil {
		b.keeper = &loudKeeper{Keeper: cfg.Keep(b.name), credential: b.name, log: cfg.Log}
		out.Keep = b.keeper
	}
	b.scheme, err = sign.New(b.doc.Scheme, out)
	return err
}

// Tested is what came of a dry signature. It holds names, never values.
type Tested struct {
	Name   string `json:"name"`
	Type   string `json:"type"`
	Source string `json:"source"`
	// Method, Endpoint and Path are what was signed for.
	Method   string   `json:"method"`
	Endpoint string   `json:"endpoint"`
	Path     string   `json:"path"`
	Headers  []string `json:"headers"`          // that would be set
	Params   []string `json:"params"`           // of the query that would be set
	Fields   []string `json:"fields,omitempty"` // of the body that it may stand in
	Micros   int64    `json:"us"`
	Warning  string   `json:"warning,omitempty"`
}

// test reads the secret and signs a request of the broker's own making for the
// first endpoint. Nothing is sent but what the scheme itself asks for (a token).
func (s *Server) test(ctx context.Context, in Named) (Tested, error) {
	b := s.credential(in.Credential)
	switch {
	case b == nil:
		return Tested{}, refuse(http.StatusNotFound, rules.BadRequest, "there is no credential %q", in.Credential)
	case b.revoked:
		return Tested{}, refuse(http.StatusConflict, rules.CredentialRevoked, "credential %q was revoked", in.Credential)
	}
	began := s.cfg.Now()
	v, err := b.usable(ctx)
	if err != nil {
		return Tested{}, refuse(http.StatusConflict, rules.CredentialUnavail, "%v", err)
	}
	defer v.Wipe()
	req, err := trial(b.doc, began)
	if err != nil {
		return Tested{}, refuse(http.StatusConflict, rules.BadRequest, "%v", err)
	}
	if _, ok := b.scheme.(*sign.Login); ok {
		return Tested{}, refuse(http.StatusConflict, rules.BadRequest, "credential %q signs with what a person grants inside a run; there is nothing to try outside of one", b.name)
	}
	ch, err := b.scheme.Sign(ctx, v, req)
	if err != nil {
		e := unsigned(err)
		return Tested{}, refuse(http.StatusConflict, rules.Reason(e.Reason), "%s https://%s%s cannot be signed: %v", req.Method, req.Endpoint, req.Path, err)
	}
	out := Tested{
		Name: b.name, Type: b.kind, Source: b.source.String(), Method: req.Method, Endpoint: req.Endpoint.String(), Path: req.Path.String(),
		Headers: slices.AppendSeq([]string{}, maps.Keys(ch.Set)), Params: slices.AppendSeq([]string{}, maps.Keys(ch.Query)),
		Micros: s.cfg.Now().Sub(began).Microseconds(),
	}
	slices.Sort(out.Headers)
	slices.Sort(out.Params)
	for _, f := range b.doc.Body {
		out.Fields = append(out.Fields, f.Kind+" "+f.Name)
	}
	if _, err := b.source.Stale(); err != nil {
		out.Warning = "the value that was good last is used: " + err.Error()
	}
	return out, nil
}

// emptyHash is the SHA-256 of nothing, in hexadecimal.
const emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// trial makes the request that a test signs: the first endpoint, with its first
// method and a path that its first pattern matches.
func trial(c policyfile.Credential, now time.Time) (sign.Request, error) {
	e := c.Endpoints[0]
	r := sign.Request{Method: http.MethodGet, Header: http.Header{}, Payload: emptyHash, Now: now}
	r.Endpoint = target.Endpoint{Host: e.Host, Port: e.Ports[0]}
	if len(e.Methods) > 0 {
		r.Method = e.Methods[0]
	}
	path := "/"
	if len(e.Paths) > 0 {
		path = strings.ReplaceAll(strings.ReplaceAll(e.Paths[0].String(), "**", "x"), "*", "x")
	}
	var err error
	if r.Path, err = target.ParsePath(path); err != nil {
		return sign.Request{}, err
	}
	return asSandbox(c, r)
}

// asSandbox makes r what an SDK in a sandbox would send: schemes that list what
// they sign for take it from there.
func asSandbox(c policyfile.Credential, r sign.Request) (sign.Request, error) {
	day := r.Now.UTC().Format(time.DateOnly)
	switch c.Type {
	case policyfile.AWSSigV4:
		r.Header.Set("Authorization", signatures["aws-sigv4"]+" Credential=x/"+strings.ReplaceAll(day, "-", "")+"/"+c.AWS.Regions[0]+"/"+c.AWS.Services[0]+"/aws4_request, ")
	case policyfile.VolcengineV4:
		r.Header.Set("Authorization", signatures["volcengine-v4"]+" Credential=x/"+strings.ReplaceAll(day, "-", "")+"/"+c.Cloud.Regions[0]+"/"+c.Cloud.Services[0]+"/request, ")
	case policyfile.TencentTC3:
		r.Header.Set("Authorization", signatures["tencent-tc3"]+" Credential=x/"+day+"/"+c.Cloud.Services[0]+"/tc3_request, ")
	case policyfile.AzureSAS: // a signature for one blob needs the name of one
		if len(c.Endpoints[0].Paths) == 0 && c.SAS.Container != "" {
			var err error
			r.Path, err = target.ParsePath("/" + c.SAS.Container + "/x")
			return r, err
		}
	case policyfile.OCIRegistry: // its paths are a registry's or nothing
		var err error
		r.Path, err = target.ParsePath("/v2/")
		return r, err
	default: // the others take nothing from it
	}
	return r, nil
}
