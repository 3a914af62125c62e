package sign

import (
	"context"
	"crypto/rand"
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
	"sallyport/rules/policyfile"
)

// tokenEndpoint asks an endpoint for tokens (RFC 6749 section 3.2).
type tokenEndpoint struct {
	url       string
	transport http.RoundTripper
	now       func() time.Time
}

func newTokenEndpoint(s policyfile.Scheme, cfg Config) (tokenEndpoint, error) {
	u, err := url.Parse(s.OAuth2.TokenURL)
	switch {
	case err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "":
		return tokenEndpoint{}, fmt.Errorf("type %q needs the token endpoint as an https URL", s.Type)
	case cfg.Transport == nil || cfg.Now == nil:
		return tokenEndpoint{}, fmt.Errorf("type %q needs a way out for the broker, and there is none", s.Type)
	}
	return tokenEndpoint{s.OAuth2.TokenURL, cfg.Transport, cfg.Now}, nil
}

// clientAuth is how a client shows who it is in a header; without a password it
// does so otherwise, or not at all.
type clientAuth struct{ id, password string }

// ask posts a form once, and reads the answer as one with a token.
func (e tokenEndpoint) ask(ctx context.Context, form url.Values, a clientAuth) (answer, error) {
	got, err := e.tell(ctx, form, a)
	if err != nil {
		return answer{}, err
	}
	return readAnswer(got, e.now())
}

// tell posts a form once. A redirect is an answer like any other that is not 200: what
// the form holds goes nowhere else.
func (e tokenEndpoint) tell(ctx context.Context, form url.Values, a clientAuth) (told, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, strings.NewReader(form.Encode()))
	if err != nil {
		return told{}, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	if a.password != "" {
		// Both parts are form-encoded first (RFC 6749 section 2.3.1).
		req.SetBasicAuth(url.QueryEscape(a.id), url.QueryEscape(a.password))
	}
	return roundTrip(ctx, e.transport, req)
}

// told is what somebody answered to the broker.
type told struct {
	status int
	kind   string // Content-Type
	body   []byte
	date   time.Time // by the clock of who answered; zero if it does not say
}

// clock returns the time at which it was answered: by their own clock, which the ends
// of their tokens are of, or else by ours.
func (t told) clock(ours time.Time) time.Time {
	if t.date.IsZero() {
		return ours
	}
	return t.date
}

// maxSkew is how far two clocks differ before it is worth a word.
const maxSkew = time.Minute

// refusal is the error for an answer that gives nothing; code is what it says of the
// cause, "" for nothing. Statements and signatures of a time that is not now are
// refused without saying so.
func (t told) refusal(code string, ours time.Time) error {
	text := fmt.Sprintf("it answered %d", t.status)
	if code != "" {
		text += ", " + code
	}
	switch skew := t.clock(ours).Sub(ours).Round(time.Second); {
	case skew > maxSkew:
		text += fmt.Sprintf("; the clock of this machine is %v behind its clock: set it", skew)
	case skew < -maxSkew:
		text += fmt.Sprintf("; the clock of this machine is %v ahead of its clock: set it", -skew)
	}
	return errors.New(text)
}

// roundTrip sends a request of the broker's own and reads the answer, at most
// maxTokenAnswer octets of it.
func roundTrip(ctx context.Context, t http.RoundTripper, req *http.Request) (told, error) {
	resp, err := t.RoundTrip(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return told{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxTokenAnswer))
	if err != nil {
		return told{}, errors.New("the answer broke off")
	}
	date, _ := http.ParseTime(resp.Header.Get("Date")) // zero if it cannot be read
	return told{resp.StatusCode, resp.Header.Get("Content-Type"), body, date}, nil
}

// bearer puts a token of the endpoint into Authorization.
func (e tokenEndpoint) bearer(ctx context.Context, m *minter, v secret.Value) (Changes, error) {
	token, err := m.get(ctx, v)
	if err != nil {
		return Changes{}, fmt.Errorf("getting a token from %s: %w", e.url, err)
	}
	return Changes{Set: map[string][]string{"Authorization": {"Bearer " + token}}, Expose: []string{token}}, nil
}

// assertion is a signed statement about a client or a user (RFC 7523 section 3).
func assertion(o policyfile.OAuth2, v secret.Value, now time.Time, issuer, subject, audience string) (string, error) {
	header := map[string]any{"alg": o.Algorithm, "typ": "JWT"}
	if o.KeyID != "" {
		header["kid"] = o.KeyID
	}
	return jwsAlgorithms[o.Algorithm].jwt(header, map[string]any{
		"iss": issuer, "sub": subject, "aud": audience, "jti": rand.Text(),
		"iat": now.Add(-jwtBackdate).Unix(), "exp": now.Add(assertionLife).Unix(),
	}, v)
}

// checkSigns reports whether a key is one that the algorithm signs with.
func checkSigns(algorithm string, v secret.Value) error {
	_, err := jwsAlgorithms[algorithm].sign([]byte("a trial"), v)
	return err
}

// someToken is what a sandbox sees where there is nothing to show.
const someToken = "eyJhbGciOiJub25lIn0K.eyJzdWIiOiJub2JvZHkifQo.bm90LWEtc2lnbmF0dXJl" //nolint:gosec // it says itself that it is no signature

const maxTokenAnswer = 64 << 10

var errorCode = regexp.MustCompile(`^[a-z_]{1,40}$`) // RFC 6749 section 5.2 has six of them

// answer is what a token endpoint says (RFC 6749 section 5).
type answer struct {
	AccessToken  string      `json:"access_token"`
	TokenType    string      `json:"token_type"`
	ExpiresIn    json.Number `json:"expires_in"`
	RefreshToken string      `json:"refresh_token"`
	IDToken      string      `json:"id_token"` // OpenID Connect Core section 3.1.3.3
	Error        string      `json:"error"`
	date         time.Time   // of the answer
}

// readAnswer reads a token answer. Nothing of an answer but a well-formed error
// code is put into an error.
func readAnswer(got told, now time.Time) (answer, error) {
	ans := answer{date: got.clock(now)}
	kind, _, err := mime.ParseMediaType(got.kind)
	if err != nil || kind != "application/json" || json.Unmarshal(got.body, &ans) != nil {
		ans = answer{date: got.clock(now)}
	}
	switch {
	case got.status != http.StatusOK && errorCode.MatchString(ans.Error):
		return answer{}, got.refusal(ans.Error, now)
	case got.status != http.StatusOK:
		return answer{}, got.refusal("", now)
	}
	return ans, nil
}

// minted returns the access token of an answer.
func (a answer) minted() (minted, error) {
	switch {
	case a.AccessToken == "":
		return minted{}, errors.New("its answer holds no token")
	case !strings.EqualFold(a.TokenType, "bearer"):
		return minted{}, errors.New("its token is not a bearer token")
	}
	if err := checkHeaderSafe(secret.New([]byte(a.AccessToken))); err != nil {
		return minted{}, errors.New("its token cannot stand in a header")
	}
	life, err := a.life()
	return minted{a.AccessToken, life}, err
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
