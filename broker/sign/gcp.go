package sign

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// gcpServiceAccount signs as a Google Cloud service account ("Using OAuth 2.0 for
// server to server applications", "Self-signed JWTs" and AIP-4111 in Google's
// documentation). The secret is the key file; its key signs here and nowhere else.
type gcpServiceAccount struct {
	spec  policyfile.Google
	oauth policyfile.OAuth2
	asker tokenEndpoint
	*minter
}

// googleLife is the most that Google lets a signed statement hold.
const googleLife = time.Hour

func newGCPServiceAccount(s policyfile.Scheme, cfg Config) (Scheme, error) {
	e, err := newTokenEndpoint(s, cfg)
	if err != nil {
		return nil, err
	}
	scopes, audience := len(s.OAuth2.Scopes) > 0, s.OAuth2.Audience != ""
	switch t := s.Google.Token; {
	case t == policyfile.GoogleAccess && scopes && !audience:
	case t == policyfile.GoogleSelfSigned && scopes != audience:
	case t == policyfile.GoogleID && audience && !scopes:
	default:
		return nil, errors.New(`type "gcp-service-account" needs scopes for access tokens, an audience for id tokens, and one of them for self-signed ones`)
	}
	g := &gcpServiceAccount{spec: s.Google, oauth: s.OAuth2, asker: e}
	g.minter = newMinter(cfg, g.mint)
	return g, nil
}

func (g *gcpServiceAccount) Place() control.Place {
	p := control.Place{Type: "gcp-service-account", Header: "Authorization", Token: g.oauth.TokenURL}
	if g.spec.Token == policyfile.GoogleID {
		p.Name = "id_token"
	}
	return p
}

// googleKey is a service account's key file.
type googleKey struct {
	Type         string `json:"type"`
	ProjectID    string `json:"project_id,omitempty"`
	PrivateKeyID string `json:"private_key_id"`
	PrivateKey   string `json:"private_key"`
	ClientEmail  string `json:"client_email"`
	ClientID     string `json:"client_id,omitempty"`
	TokenURI     string `json:"token_uri,omitempty"`
	Universe     string `json:"universe_domain,omitempty"`
}

func (g *gcpServiceAccount) read(v secret.Value) (googleKey, error) {
	var k googleKey
	switch {
	case json.Unmarshal(v.Reveal(), &k) != nil || k.Type != "service_account":
		return googleKey{}, errors.New("the secret is not the key file of a service account")
	case k.ClientEmail == "" || k.PrivateKeyID == "" || k.PrivateKey == "":
		return googleKey{}, errors.New("the key file lacks client_email, private_key_id or private_key")
	case k.TokenURI != "" && k.TokenURI != g.oauth.TokenURL:
		return googleKey{}, fmt.Errorf("the key file's token_uri is not %s; if it is right, write it as token_url", g.oauth.TokenURL)
	}
	return k, nil
}

// Check implements [Scheme]: the file is whole, and its key signs.
func (g *gcpServiceAccount) Check(v secret.Value) error {
	k, err := g.read(v)
	if err != nil {
		return err
	}
	return checkSigns("RS256", secret.New([]byte(k.PrivateKey)))
}

// Shapes implements [Shaper]: the sandbox sees an access token, or the last part
// of an id token, which has no dots.
func (g *gcpServiceAccount) Shapes(secret.Value) ([]string, error) {
	token := strings.Repeat("a1B2c3D4", 16)
	if g.spec.Token != policyfile.GoogleID {
		token = "ya29." + token
	}
	return []string{token}, nil
}

// Document implements [Documenter]: a key file with a key that is good for
// nothing, so that Google's libraries run as they are.
func (g *gcpServiceAccount) Document(v secret.Value, _ string) (text, id string, err error) {
	k, err := g.read(v)
	if err != nil {
		return "", "", err
	}
	key, err := rsa.GenerateKey(rand.Reader, minRSABits)
	if err != nil {
		return "", "", err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", err
	}
	var random [20]byte
	_, _ = rand.Read(random[:]) // crypto/rand.Read never fails: it ends the program instead
	k.PrivateKeyID, k.TokenURI = hex.EncodeToString(random[:]), g.oauth.TokenURL
	k.PrivateKey = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	out, err := json.Marshal(k) //nolint:gosec // the key is good for nothing
	return string(out), k.PrivateKeyID, err
}

func (g *gcpServiceAccount) Sign(ctx context.Context, v secret.Value, _ Request) (Changes, error) {
	if err := g.Check(v); err != nil {
		return Changes{}, err
	}
	return g.asker.bearer(ctx, g.minter, v)
}

// mint makes a token, or exchanges a statement for one.
func (g *gcpServiceAccount) mint(ctx context.Context, v secret.Value) (minted, error) {
	k, err := g.read(v)
	if err != nil {
		return minted{}, err
	}
	now := g.asker.now()
	claims := map[string]any{"iss": k.ClientEmail, "iat": now.Add(-jwtBackdate).Unix(), "exp": now.Add(googleLife - jwtBackdate).Unix()}
	scope := strings.Join(g.oauth.Scopes, " ")
	switch g.spec.Token {
	case policyfile.GoogleSelfSigned:
		claims["sub"] = k.ClientEmail
		if scope != "" {
			claims["scope"] = scope
		} else {
			claims["aud"] = g.oauth.Audience
		}
	case policyfile.GoogleID:
		claims["aud"], claims["target_audience"] = g.oauth.TokenURL, g.oauth.Audience
	default:
		claims["aud"], claims["scope"] = g.oauth.TokenURL, scope
		if g.oauth.Subject != "" {
			claims["sub"] = g.oauth.Subject // whom it acts for: domain-wide delegation
		}
	}
	header := map[string]any{"alg": "RS256", "typ": "JWT", "kid": k.PrivateKeyID}
	statement, err := jwsAlgorithms["RS256"].jwt(header, claims, secret.New([]byte(k.PrivateKey)))
	if err != nil || g.spec.Token == policyfile.GoogleSelfSigned {
		return minted{statement, googleLife - jwtBackdate}, err
	}
	ans, err := g.asker.ask(ctx, url.Values{"grant_type": {jwtBearerGrant}, "assertion": {statement}}, clientAuth{})
	switch {
	case err != nil:
		return minted{}, err
	case g.spec.Token == policyfile.GoogleID:
		return g.idToken(ans.IDToken, ans.date)
	}
	return ans.minted()
}

// idToken takes an id token for what it says about its end: whether it is true is
// for the service to judge that gets it.
func (g *gcpServiceAccount) idToken(token string, now time.Time) (minted, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 || checkHeaderSafe(secret.New([]byte(token))) != nil {
		return minted{}, errors.New("its answer holds no id token")
	}
	var claims struct {
		Exp int64 `json:"exp"`
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil || claims.Exp <= 0 || claims.Exp > 1<<40 {
		return minted{}, errors.New("its id token has no readable end")
	}
	life := time.Unix(claims.Exp, 0).Sub(now)
	if life <= 0 {
		return minted{}, errors.New("its id token has ended already")
	}
	return minted{token, life}, nil
}
