package sign

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// Login is the scheme of type oauth2-user: a program in a sandbox has a person sign
// in (RFC 8628, RFC 6749 section 4.1), and what comes of it stays in the broker. The
// secret is the client's; what [Login.Sign] takes is the access token of a run.
type Login struct {
	spec  policyfile.OAuth2
	asker tokenEndpoint
}

func newOAuth2User(s policyfile.Scheme, cfg Config) (Scheme, error) {
	e, err := newTokenEndpoint(s, cfg)
	switch o := s.OAuth2; {
	case err != nil:
		return nil, err
	case o.ClientID == "" || len(o.Scopes) == 0 || len(o.Grants) == 0:
		return nil, errors.New(`type "oauth2-user" needs a client id, scopes and grants`)
	case !slices.Contains([]string{policyfile.PublicClient, policyfile.ClientBasic, policyfile.ClientPost}, o.Auth):
		return nil, fmt.Errorf("auth %q is no way for a client to show who it is", o.Auth)
	case slices.Contains(o.Grants, policyfile.DeviceCode) != strings.HasPrefix(o.DeviceURL, "https://"):
		return nil, errors.New("device_code needs the device authorization endpoint as an https URL")
	}
	return &Login{s.OAuth2, e}, nil
}

// Place implements [Scheme].
func (s *Login) Place() control.Place {
	return control.Place{Type: "oauth2-user", Header: "Authorization", Token: s.spec.TokenURL, Device: s.spec.DeviceURL, Name: s.spec.ClientID}
}

// Check implements [Scheme].
func (s *Login) Check(v secret.Value) error {
	if s.Public() {
		return nil
	}
	return checkHeaderSafe(v)
}

// Public reports whether the client has no secret.
func (s *Login) Public() bool { return s.spec.Auth == policyfile.PublicClient }

// ClientID is the client's name.
func (s *Login) ClientID() string { return s.spec.ClientID }

// Sign puts an access token into a request.
func (s *Login) Sign(_ context.Context, token secret.Value, _ Request) (Changes, error) {
	if err := checkHeaderSafe(token); err != nil {
		return Changes{}, err
	}
	text := string(token.Reveal())
	return Changes{Set: map[string][]string{"Authorization": {"Bearer " + text}}, Expose: []string{text}}, nil
}

const (
	deviceGrant = "urn:ietf:params:oauth:grant-type:device_code" // RFC 8628 section 3.4
	maxParam    = 8 << 10
)

// grants are the values of grant_type, and the parameters that each has of its own.
var grants = map[string]struct {
	name string
	own  []string
}{
	deviceGrant:          {policyfile.DeviceCode, []string{"device_code"}},
	"authorization_code": {policyfile.AuthorizationCode, []string{"code", "redirect_uri", "code_verifier"}},
	"refresh_token":      {policyfile.RefreshToken, []string{"refresh_token", "scope"}},
}

// Form judges what a program sends to one of the endpoints, and returns it as it goes
// there, without what shows who the client is. What is not known is left out, as a
// server would have to (RFC 6749 section 3.2): requests_oauthlib sends arguments of its
// own. What stands twice is an error, since servers differ there. It is for the log.
func (s *Login) Form(device bool, in url.Values) (url.Values, error) {
	own := []string{"scope"}
	if !device {
		g, ok := grants[in.Get("grant_type")]
		if !ok || !slices.Contains(s.spec.Grants, g.name) {
			return nil, errors.New("the grant is none of the credential's grants")
		}
		own = append([]string{"grant_type"}, g.own...)
	}
	out := url.Values{}
	for name, values := range in {
		switch {
		case !slices.Contains(own, name): // the client is judged by whoever knows the run
			continue
		case len(values) != 1 || len(values[0]) > maxParam:
			return nil, fmt.Errorf("parameter %q stands twice, or is too long", name)
		}
		out.Set(name, values[0])
	}
	return out, s.limit(device, out)
}

// limit keeps the scopes within the document's.
func (s *Login) limit(device bool, form url.Values) error {
	for asked := range strings.FieldsSeq(form.Get("scope")) {
		if !slices.Contains(s.spec.Scopes, asked) {
			return fmt.Errorf("scope %.80q is not among the credential's scopes", asked)
		}
	}
	if device && form.Get("scope") == "" {
		form.Set("scope", strings.Join(s.spec.Scopes, " "))
	}
	return nil
}

// Ask sends a form that [Login.Form] let through, with what shows who the client is,
// and reads the answer: at most one of Tokens and Device of it is there.
func (s *Login) Ask(ctx context.Context, device bool, form url.Values, client secret.Value) (LoginAnswer, error) {
	e := s.asker
	if device {
		e.url = s.spec.DeviceURL
	}
	a := clientAuth{id: s.spec.ClientID}
	switch s.spec.Auth {
	case policyfile.PublicClient:
		form.Set("client_id", s.spec.ClientID)
	case policyfile.ClientPost:
		form.Set("client_id", s.spec.ClientID)
		form.Set("client_secret", string(client.Reveal()))
	default:
		a.password = string(client.Reveal())
	}
	got, err := e.tell(ctx, form, a)
	if err != nil {
		return LoginAnswer{}, fmt.Errorf("asking %s: %w", e.url, err)
	}
	ans, err := readSignIn(got, device)
	if err != nil {
		return LoginAnswer{}, fmt.Errorf("asking %s: %w", e.url, err)
	}
	return ans, nil
}

// statuses are those that an answer about a sign-in may have: others are no answer.
var statuses = []int{
	http.StatusOK, http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden,
	http.StatusPreconditionRequired, http.StatusTooManyRequests, // Google's, while nobody has signed in yet
}
