package sign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// oauth2JWT exchanges a signed statement for a token: the JWT bearer grant
// (RFC 7523 section 2.1). The secret is the private key.
type oauth2JWT struct {
	spec  policyfile.OAuth2
	asker tokenEndpoint
	*minter
}

func newOAuth2JWT(s policyfile.Scheme, cfg Config) (Scheme, error) {
	e, err := newTokenEndpoint(s, cfg)
	if err != nil {
		return nil, err
	}
	switch {
	case s.OAuth2.Issuer == "":
		return nil, errors.New(`type "oauth2-jwt-bearer" needs an issuer`)
	case jwsAlgorithms[s.OAuth2.Algorithm].kind == "":
		return nil, fmt.Errorf("algorithm %q is not one that an assertion is signed with", s.OAuth2.Algorithm)
	}
	o := &oauth2JWT{spec: s.OAuth2, asker: e}
	o.minter = newMinter(cfg, o.mint)
	return o, nil
}

func (o *oauth2JWT) Place() control.Place {
	return control.Place{Type: "oauth2-jwt-bearer", Header: "Authorization", Token: o.spec.TokenURL}
}

// Check implements [Scheme]: the key has to sign.
func (o *oauth2JWT) Check(v secret.Value) error { return checkSigns(o.spec.Algorithm, v) }

// Shapes implements [Shaper]: the sandbox sees something like a token, not a key.
func (*oauth2JWT) Shapes(secret.Value) ([]string, error) { return []string{someToken}, nil }

func (o *oauth2JWT) Sign(ctx context.Context, v secret.Value, _ Request) (Changes, error) {
	return o.asker.bearer(ctx, o.minter, v)
}

func (o *oauth2JWT) mint(ctx context.Context, v secret.Value) (minted, error) {
	subject := cmp.Or(o.spec.Subject, o.spec.Issuer)
	token, err := assertion(o.spec, v, o.asker.now(), o.spec.Issuer, subject, cmp.Or(o.spec.Audience, o.spec.TokenURL))
	if err != nil {
		return minted{}, err
	}
	form := url.Values{"grant_type": {jwtBearerGrant}, "assertion": {token}}
	if len(o.spec.Scopes) > 0 {
		form.Set("scope", strings.Join(o.spec.Scopes, " "))
	}
	ans, err := o.asker.ask(ctx, form, clientAuth{})
	if err != nil {
		return minted{}, err
	}
	return ans.minted()
}

const jwtBearerGrant = "urn:ietf:params:oauth:grant-type:jwt-bearer" //nolint:gosec // a name
