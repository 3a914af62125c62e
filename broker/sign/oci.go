package sign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"sync"
	"time"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// ociRegistry gets the tokens of a container registry ("Token authentication" in
// the specification of the Distribution project). A token is asked for what the
// request needs, which its path and method tell: one repository, to read, to write
// or to delete.
type ociRegistry struct {
	spec      policyfile.OCI
	transport http.RoundTripper
	cfg       Config

	mu      sync.Mutex // guards minters
	minters map[string]*minter
}

const (
	// ociLife is how long a token holds whose answer does not say.
	ociLife = time.Minute
	// maxOCIScopes bounds the tokens that are kept.
	maxOCIScopes = 256
)

func newOCIRegistry(s policyfile.Scheme, cfg Config) (Scheme, error) {
	u, err := url.Parse(s.OCI.TokenURL)
	switch {
	case err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New(`type "oci-registry" needs the token endpoint as an https URL`)
	case s.OCI.Service == "" || s.OCI.Username == "":
		return nil, errors.New(`type "oci-registry" needs a service and a user name`)
	case cfg.Transport == nil || cfg.Now == nil:
		return nil, errors.New(`type "oci-registry" needs a way out for the broker, and there is none`)
	}
	return &ociRegistry{spec: s.OCI, transport: cfg.Transport, cfg: cfg, minters: map[string]*minter{}}, nil
}

func (*ociRegistry) Place() control.Place {
	return control.Place{Type: "oci-registry", Header: "Authorization"}
}

func (*ociRegistry) Check(v secret.Value) error { return checkHeaderSafe(v) }

func (o *ociRegistry) Sign(ctx context.Context, v secret.Value, r Request) (Changes, error) {
	if err := o.Check(v); err != nil {
		return Changes{}, err
	}
	scope, err := ociScope(r)
	if err != nil {
		return Changes{}, err
	}
	token, err := o.minter(scope).get(ctx, v)
	if err != nil {
		return Changes{}, fmt.Errorf("getting a token from %s: %w", o.spec.TokenURL, err)
	}
	return Changes{Set: map[string][]string{"Authorization": {"Bearer " + token}}, Expose: []string{token}}, nil
}

// ociPath is a path of the distribution specification ("Endpoints").
var ociPath = regexp.MustCompile(`^/v2/([a-z0-9]+(?:[._/-]+[a-z0-9]+)*)/(?:manifests/[^/]+|blobs/[^/]+|blobs/uploads/[^/]*|tags/list|referrers/[^/]+)$`)

// ociScope returns what a request needs, "" for the question whether somebody is
// there. A blob that is to be mounted from another repository is not asked for:
// the registry then wants it sent.
func ociScope(r Request) (string, error) {
	path := r.Path.String()
	if path == "/v2/" || path == "/v2" {
		return "", nil
	}
	m := ociPath.FindStringSubmatch(path)
	if m == nil || len(m[1]) > 255 {
		return "", unfit("the path is none of a registry's")
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return "repository:" + m[1] + ":pull", nil
	case http.MethodDelete:
		return "repository:" + m[1] + ":delete", nil
	default:
		return "repository:" + m[1] + ":pull,push", nil
	}
}

// minter returns the minter of a scope. Where there are too many, another one
// goes: its token is asked for again.
func (o *ociRegistry) minter(scope string) *minter {
	o.mu.Lock()
	defer o.mu.Unlock()
	if m := o.minters[scope]; m != nil {
		return m
	}
	if len(o.minters) >= maxOCIScopes {
		for other := range o.minters {
			delete(o.minters, other)
			break
		}
	}
	m := newMinter(o.cfg, func(ctx context.Context, v secret.Value) (minted, error) { return o.mint(ctx, scope, v) })
	o.minters[scope] = m
	return m
}

// Due implements [Renewer].
func (o *ociRegistry) Due() (first time.Time) {
	for _, m := range o.all() {
		if due := m.Due(); first.IsZero() || !due.IsZero() && due.Before(first) {
			first = due
		}
	}
	return first
}

// Renew implements [Renewer].
func (o *ociRegistry) Renew(ctx context.Context, v secret.Value) error {
	var errs []error
	for _, m := range o.all() {
		errs = append(errs, m.Renew(ctx, v))
	}
	return errors.Join(errs...)
}

func (o *ociRegistry) all() []*minter {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Values(o.minters))
}

func (o *ociRegistry) mint(ctx context.Context, scope string, v secret.Value) (minted, error) {
	q := url.Values{"service": {o.spec.Service}}
	if scope != "" {
		q.Set("scope", scope)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.spec.TokenURL+"?"+q.Encode(), nil)
	if err != nil {
		return minted{}, err
	}
	req.SetBasicAuth(o.spec.Username, string(v.Reveal()))
	got, err := roundTrip(ctx, o.transport, req)
	if err != nil {
		return minted{}, err
	}
	var ans struct {
		answer
		Token string `json:"token"` // the same as access_token
	}
	switch {
	case got.status != http.StatusOK:
		return minted{}, got.refusal("", o.cfg.Now())
	case json.Unmarshal(got.body, &ans) != nil:
		return minted{}, errors.New("its answer is not JSON")
	case ans.Token != "":
		ans.AccessToken = ans.Token
	}
	ans.TokenType = "Bearer" // there is no other, and no answer says so
	token, err := ans.minted()
	if err == nil && token.life == 0 {
		token.life = ociLife
	}
	return token, err
}
