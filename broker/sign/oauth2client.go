package sign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// oauth2Client is the client credentials grant of OAuth 2.0 (RFC 6749 section
// 4.4): the secret is the client's; what goes into requests is a token that an
// endpoint gives for it (RFC 6750).
type oauth2Client struct {
	spec      policyfile.OAuth2
	transport http.RoundTripper
	minter    *minter
}

func newOAuth2Client(s policyfile.Scheme, cfg Config) (Scheme, error) {
	o := s.OAuth2
	u, err := url.Parse(o.TokenURL)
	switch {
	case err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "":
		return nil, errors.New(`type "oauth2-client" needs the token endpoint as an https URL`)
	case o.ClientID == "":
		return nil, errors.New(`type "oauth2-client" needs a client id`)
	case cfg.Transport == nil || cfg.Now == nil:
		return nil, errors.New(`type "oauth2-client" needs a way out for the broker, and there is none`)
	}
	c := &oauth2Client{spec: o, transport: cfg.Transport}
	c.minter = &minter{mint: c.mint, now: cfg.Now}
	return c, nil
}

func (*oauth2Client) Place() control.Place {
	return control.Place{Type: "oauth2-client", Header: "Authorization"}
}

func (*oauth2Client) Check(v secret.Value) error { return checkHeaderSafe(v) }

func (c *oauth2Client) Sign(ctx context.Context, v secret.Value, _ Request) (Changes, error) {
	if err := c.Check(v); err != nil {
		return Changes{}, err
	}
	token, err := c.minter.get(ctx, v)
	if err != nil {
		return Changes{}, fmt.Errorf("getting a token from %s: %w", c.spec.TokenURL, err)
	}
	return Changes{Set: map[string][]string{"Authorization": {"Bearer " + token}}, Expose: []string{token}}, nil
}

// mint asks the endpoint once. A redirect is an error like any other answer that
// is not 200: the secret goes nowhere else.
func (c *oauth2Client) mint(ctx context.Context, v secret.Value) (minted, error) {
	form := url.Values{"grant_type": {"client_credentials"}}
	if len(c.spec.Scopes) > 0 {
		form.Set("scope", strings.Join(c.spec.Scopes, " "))
	}
	if c.spec.Audience != "" {
		form.Set("audience", c.spec.Audience)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.spec.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return minted{}, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	// Both parts are form-encoded first (RFC 6749 section 2.3.1).
	req.SetBasicAuth(url.QueryEscape(c.spec.ClientID), url.QueryEscape(string(v.Reveal())))
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return minted{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxTokenAnswer))
	if err != nil {
		return minted{}, errors.New("the answer broke off")
	}
	return readToken(resp, body)
}

const maxTokenAnswer = 64 << 10

var errorCode = regexp.MustCompile(`^[a-z_]{1,40}$`) // RFC 6749 section 5.2 has six of them

// answer is what a token endpoint says (RFC 6749 section 5).
type answer struct {
	AccessToken string      `json:"access_token"`
	TokenType   string      `json:"token_type"`
	ExpiresIn   json.Number `json:"expires_in"`
	Error       string      `json:"error"`
}

// readToken reads a token answer. Nothing of an answer but a well-formed error
// code is put into an error.
func readToken(resp *http.Response, body []byte) (minted, error) {
	var ans answer
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" || json.Unmarshal(body, &ans) != nil {
		ans = answer{}
	}
	switch {
	case resp.StatusCode != http.StatusOK && errorCode.MatchString(ans.Error):
		return minted{}, fmt.Errorf("it answered %d, %s", resp.StatusCode, ans.Error)
	case resp.StatusCode != http.StatusOK:
		return minted{}, fmt.Errorf("it answered %d", resp.StatusCode)
	case ans.AccessToken == "":
		return minted{}, errors.New("its answer holds no token")
	case !strings.EqualFold(ans.TokenType, "bearer"):
		return minted{}, errors.New("its token is not a bearer token")
	}
	if err := checkHeaderSafe(secret.New([]byte(ans.AccessToken))); err != nil {
		return minted{}, errors.New("its token cannot stand in a header")
	}
	life, err := ans.life()
	return minted{ans.AccessToken, life}, err
}

// life returns how long the token holds, 0 if the answer does not say.
func (a answer) life() (time.Duration, error) {
	if a.ExpiresIn == "" {
		return 0, nil
	}
	n, err := a.ExpiresIn.Int64()
	switch {
	case err != nil || n < 0 || n > maxTokenLife:
		return 0, errors.New("its token has no readable end")
	case n == 0:
		return 0, errors.New("its token has ended already")
	}
	return time.Duration(n) * time.Second, nil
}

const maxTokenLife = 366 * 24 * 3600
