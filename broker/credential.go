package broker

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"

	"sallyport/broker/sign"
	"sallyport/broker/source"
	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// bound is a credential that is ready for use, or was revoked. It never changes:
// a change makes another.
type bound struct {
	doc            policyfile.Credential
	revoked        bool
	generation     string // other grants than of this one have ended
	name, owner    string
	env, secretEnv string
	envFile        bool // env holds the path of a file
	scheme         sign.Scheme
	keeper         *loudKeeper // of scheme; nil for none
	kind           string
	source         *source.Kept
	// lock holds the endpoints as allow rules: the one engine that judges
	// requests at the gateway judges them here again.
	lock *rules.Policy
}

var validEnv = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// bind checks a credential and makes it ready. It reports every fault at once.
func (s *Server) bind(c policyfile.Credential, cfg Config) (*bound, error) {
	var errs []error
	fault := func(err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%scredential %q: %w", prefixWhere(c.Where), c.Name, err))
		}
	}
	if !rules.IsID(c.Name) {
		fault(errors.New("a name is of lower-case letters, digits, and - . _ between them, at most 64"))
	}
	for _, env := range []string{c.Env, c.SecretEnv} {
		if env != "" && !validEnv.MatchString(env) {
			fault(fmt.Errorf("placeholder env %q is not the name of a variable", env))
		}
	}
	b := &bound{doc: c, revoked: cfg.Revoked(c.Name), generation: cfg.Generation(c.Name), name: c.Name, owner: c.Owner, env: c.Env, secretEnv: c.SecretEnv, envFile: c.EnvFile, kind: string(c.Type)}
	fault(s.equip(b, cfg))
	var err error
	b.source, err = source.Open(c.Source, source.Config{
		UID: cfg.UID, User: cfg.User, LookupEnv: cfg.LookupEnv, Transport: cfg.Transport, Now: cfg.Now,
	})
	fault(err)
	b.lock, err = lockOf(c)
	fault(err)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return b, nil
}

// forget drops what is held of the secret of a credential that is no longer in force.
func (b *bound) forget() {
	b.keeper.end()
	b.source.Forget()
}

// place says where the credential goes, and where else its API takes keys.
func (b *bound) place() control.Place {
	p := b.scheme.Place()
	p.Own = policyfile.JoinFields(b.doc.KeysIn)
	return p
}

func prefixWhere(where string) string {
	if where == "" {
		return ""
	}
	return where + ": "
}

// lockOf compiles the endpoints into a policy of allow rules.
func lockOf(c policyfile.Credential) (*rules.Policy, error) {
	if len(c.Endpoints) == 0 {
		return nil, errors.New("it has no endpoints: it could go nowhere")
	}
	src := rules.Source{Name: "credential " + c.Name, Digest: "credential:" + c.Name}
	for i, e := range c.Endpoints {
		if e.Host.IsZero() {
			return nil, fmt.Errorf("endpoint %d has no host", i+1)
		}
		r := rules.Rule{
			ID: fmt.Sprintf("endpoint-%d", i+1), Where: c.Where, Action: rules.AllowAction,
			Hosts: []rules.HostPattern{{Host: e.Host}}, Ports: e.Ports, Methods: e.Methods, Paths: e.Paths, Credential: c.Name,
		}
		if a, ok := e.Host.Addr(); ok {
			// Whether a private address may be dialled is the policy's to say.
			r.Private = []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
		}
		src.Rules = append(src.Rules, r)
	}
	p, err := rules.Compile(src)
	if err != nil {
		return nil, fmt.Errorf("endpoints: %w", err)
	}
	return p, nil
}

// admits reports whether the endpoint lock lets the credential go with a
// request. Only requests inside TLS are asked about.
func (b *bound) admits(r sign.Request) bool {
	d := b.lock.Decide(rules.Request{
		Question: rules.Fetch, Endpoint: r.Endpoint, Secure: true, Protocol: rules.HTTP,
		Method: r.Method, Path: r.Path, Query: r.Query, Now: r.Now.Unix(),
	})
	return d.Verdict == rules.Inspect && d.Credential == b.name
}

// parseRequest makes types of what the gateway sent.
func parseRequest(in injectRequest) (sign.Request, error) {
	h, err := target.ParseHost(in.Host)
	if err != nil {
		return sign.Request{}, err
	}
	p, err := target.ParsePath(in.Path)
	if err != nil {
		return sign.Request{}, err
	}
	if in.Port == 0 || in.Method == "" {
		return sign.Request{}, errors.New("a request has a port and a method")
	}
	return sign.Request{
		Method: in.Method, Endpoint: target.Endpoint{Host: h, Port: in.Port}, Path: p, Query: in.Query,
		Header: in.Fields, Payload: in.Payload, Body: in.Body,
	}, nil
}
