package sign

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// oauth2Client is the client credentials grant of OAuth 2.0 (RFC 6749 section
// 4.4): the secret is the client's, its password or its private key; what goes
// into requests is a token that an endpoint gives for it (RFC 6750).
type oauth2Client struct {
	spec  policyfile.OAuth2
	asker tokenEndpoint
	*minter
}

func newOAuth2Client(s policyfile.Scheme, cfg Config) (Scheme, error) {
	e, err := newTokenEndpoint(s, cfg)
	if err != nil {
		return nil, err
	}
	switch a := s.OAuth2.Auth; {
	case s.OAuth2.ClientID == "":
		return nil, errors.New(`type "oauth2-client" needs a client id`)
	case a == policyfile.PrivateKeyJWT && jwsAlgorithms[s.OAuth2.Algorithm].kind == "":
		return nil, fmt.Errorf("algorithm %q is not one that an assertion is signed with", s.OAuth2.Algorithm)
	case a != "" && a != policyfile.ClientBasic && a != policyfile.ClientPost && a != policyfile.PrivateKeyJWT:
		return nil, fmt.Errorf("auth %q is no way for a client to show who it is", a)
	}
	c := &oauth2Client{spec: s.OAuth2, asker: e}
	c.minter = newMinter(cfg, c.mint)
	return c, nil
}

func (c *oauth2Client) Place() control.Place {
	return control.Place{Type: "oauth2-client", Header: "Authorization", Token: c.spec.TokenURL}
}

// Check implements [Scheme]: a password can be sent, a key has to sign.
func (c *oauth2Client) Check(v secret.Value) error {
	if c.spec.Auth == policyfile.PrivateKeyJWT {
		return checkSigns(c.spec.Algorithm, v)
	}
	return checkHeaderSafe(v)
}

// Shapes implements [Shaper]: of a key the sandbox sees nothing.
func (c *oauth2Client) Shapes(v secret.Value) ([]string, error) {
	if c.spec.Auth == policyfile.PrivateKeyJWT {
		return []string{someToken}, nil
	}
	return []string{string(v.Reveal())}, nil
}

func (c *oauth2Client) Sign(ctx context.Context, v secret.Value, _ Request) (Changes, error) {
	if err := c.Check(v); err != nil {
		return Changes{}, err
	}
	return c.asker.bearer(ctx, c.minter, v)
}

// mint asks the endpoint once.
func (c *oauth2Client) mint(ctx context.Context, v secret.Value) (minted, error) {
	form := url.Values{"grant_type": {"client_credentials"}}
	if len(c.spec.Scopes) > 0 {
		form.Set("scope", strings.Join(c.spec.Scopes, " "))
	}
	if c.spec.Audience != "" {
		form.Set("audience", c.spec.Audience)
	}
	a := clientAuth{id: c.spec.ClientID}
	switch c.spec.Auth {
	case policyfile.PrivateKeyJWT:
		assertion, err := clientAssertion(c.spec, v, c.asker.now())
		if err != nil {
			return minted{}, err
		}
		form.Set("client_id", c.spec.ClientID)
		form.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		form.Set("client_assertion", assertion)
	case policyfile.ClientPost:
		form.Set("client_id", c.spec.ClientID)
		form.Set("client_secret", string(v.Reveal()))
	default:
		a.password = string(v.Reveal())
	}
	ans, err := c.asker.ask(ctx, form, a)
	if err != nil {
		return minted{}, err
	}
	return ans.minted()
}

// assertionLife keeps an assertion good for one question, with clocks that differ.
const assertionLife = 2 * time.Minute

// clientAssertion says who the client is (RFC 7523 section 2.2 and 3; OpenID
// Connect Core section 9, private_key_jwt).
func clientAssertion(o policyfile.OAuth2, v secret.Value, now time.Time) (string, error) {
	return assertion(o, v, now, o.ClientID, o.ClientID, o.TokenURL)
}
