package sign

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"time"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// oauth2Refresh uses a refresh token (RFC 6749 section 6): what goes into
// requests is the access token that the endpoint gives for it.
type oauth2Refresh struct {
	spec  policyfile.OAuth2
	asker tokenEndpoint
	*minter

	rotated rotated
}

func newOAuth2Refresh(s policyfile.Scheme, cfg Config) (Scheme, error) {
	e, err := newTokenEndpoint(s, cfg)
	if err != nil {
		return nil, err
	}
	o := &oauth2Refresh{spec: s.OAuth2, asker: e, rotated: rotated{keep: cfg.Keep, now: cfg.Now}}
	o.minter = newMinter(cfg, o.mint)
	return o, nil
}

func (o *oauth2Refresh) Place() control.Place {
	return control.Place{Type: "oauth2-refresh", Header: "Authorization", Token: o.spec.TokenURL}
}

// refreshSecret is the secret: a bare refresh token, or what tools keep beside
// one (Google's authorized_user files, for example).
type refreshSecret struct {
	RefreshToken string `json:"refresh_token"`
	ClientID     string `json:"client_id"`
	ClientSecret string `json:"client_secret"`
}

func (o *oauth2Refresh) read(v secret.Value) (r refreshSecret, err error) {
	text := bytes.TrimSpace(v.Reveal())
	if !bytes.HasPrefix(text, []byte("{")) {
		r.RefreshToken = string(text)
	} else if json.Unmarshal(text, &r) != nil {
		return refreshSecret{}, errors.New("the secret begins like JSON and is none")
	}
	if r.ClientID == "" {
		r.ClientID = o.spec.ClientID
	}
	switch {
	case r.RefreshToken == "":
		return refreshSecret{}, errors.New("the secret holds no refresh_token")
	case o.spec.ClientID != "" && r.ClientID != o.spec.ClientID:
		return refreshSecret{}, errors.New("the secret is of another client than the credential file's client_id")
	case r.ClientID == "":
		return refreshSecret{}, errors.New("neither the secret nor the credential file has a client_id")
	case checkHeaderSafe(secret.New([]byte(r.RefreshToken+r.ClientSecret))) != nil:
		return refreshSecret{}, errors.New("the refresh token or the client's secret is not plain ASCII text")
	}
	return r, nil
}

func (o *oauth2Refresh) Check(v secret.Value) error {
	_, err := o.read(v)
	return err
}

// Shapes implements [Shaper]: the sandbox sees a refresh token.
func (o *oauth2Refresh) Shapes(v secret.Value) ([]string, error) {
	r, err := o.read(v)
	return []string{r.RefreshToken}, err
}

func (o *oauth2Refresh) Sign(ctx context.Context, v secret.Value, _ Request) (Changes, error) {
	if err := o.Check(v); err != nil {
		return Changes{}, err
	}
	return o.asker.bearer(ctx, o.minter, v)
}

// mint asks the endpoint once. A server may give another refresh token and mean
// that the old one is of no use any more: it takes the secret's place until there is
// another secret.
func (o *oauth2Refresh) mint(ctx context.Context, v secret.Value) (minted, error) {
	r, err := o.read(v)
	if err != nil {
		return minted{}, err
	}
	key := sha256.Sum256(v.Reveal())
	current, err := o.rotated.current(ctx, key, r.RefreshToken)
	if err != nil {
		return minted{}, err
	}
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {current}}
	if len(o.spec.Scopes) > 0 {
		form.Set("scope", strings.Join(o.spec.Scopes, " "))
	}
	a := clientAuth{id: r.ClientID}
	switch {
	case r.ClientSecret == "":
		form.Set("client_id", r.ClientID) // a public client (RFC 6749 section 3.2.1)
	case o.spec.Auth == policyfile.ClientPost:
		form.Set("client_id", r.ClientID)
		form.Set("client_secret", r.ClientSecret)
	default:
		a.password = r.ClientSecret
	}
	ans, err := o.asker.ask(ctx, form, a)
	if err != nil {
		return minted{}, err
	}
	if ans.RefreshToken != "" {
		o.rotated.next(key, ans.RefreshToken)
	}
	return ans.minted()
}

// Due implements [Renewer]: what could not be kept is tried again.
func (o *oauth2Refresh) Due() time.Time {
	due, retry := o.minter.Due(), o.rotated.due()
	if due.IsZero() || !retry.IsZero() && retry.Before(due) {
		return retry
	}
	return due
}

// Renew implements [Renewer].
func (o *oauth2Refresh) Renew(ctx context.Context, v secret.Value) error {
	return errors.Join(o.rotated.again(), o.minter.Renew(ctx, v))
}

// Unsaved implements [Rotator].
func (o *oauth2Refresh) Unsaved() error { return o.rotated.fault() }
