package broker_test

import (
	"crypto"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
)

// What judges the examples of the documentation: origins that compute each signature once
// more from what they were sent, as the vendors' references have it, and token endpoints
// that look at what they are asked with. None of it shares code with package sign.

// signed is a request as it is sent.
type signed struct {
	*http.Request
	body string
}

// verifier says why an origin would refuse a request.
type verifier func(*testing.T, signed) error

func has(field, want string) verifier {
	return func(_ *testing.T, r signed) error {
		if got := strings.Join(r.Header[http.CanonicalHeaderKey(field)], "|"); got != want {
			return fmt.Errorf("%s is %q, want %q", field, got, want)
		}
		return nil
	}
}

func mac(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text)) // into memory
	return m.Sum(nil)
}

// byHMAC is an origin for the settings of the example of type hmac.
func byHMAC(secret string) verifier {
	return func(_ *testing.T, r signed) error {
		at := r.Header.Get("X-Timestamp")
		text := strings.Join([]string{at, r.Method, r.URL.RequestURI(), hashOf(r.body)}, "\n")
		if want := "v1=" + hex.EncodeToString(mac([]byte(secret), text)); r.Header.Get("X-Signature") != want || at != fmt.Sprint(epoch.Unix()) || r.Header.Get("X-Key-Id") != "agent-7" {
			return fmt.Errorf("%v, want signature %s", r.Header, want)
		}
		return nil
	}
}

// byAWS has AWS's own signer sign once more.
func byAWS(service string, keys aws.Credentials) verifier {
	return func(t *testing.T, r signed) error {
		again := r.Clone(t.Context())
		again.Body = io.NopCloser(strings.NewReader(r.body))
		if again.Host == "" {
			again.Host = again.URL.Host
		}
		if got := r.Header.Get("X-Amz-Security-Token"); got != keys.SessionToken {
			return fmt.Errorf("the session token is %q", got)
		}
		return awsVerifiesBy(t, again, service, keys)
	}
}

// pair is how the vendors sign who took after AWS.
type pair struct {
	algorithm, id string
	scope         string // behind the id
	fields        []string
	key           []byte
	at            string // field of the time that is signed, "" for none
}

var pairSignature = regexp.MustCompile(`^(\S+) Credential=([^,]+), ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})$`)

func chain(key string, parts ...string) []byte {
	out := []byte(key)
	for _, p := range parts {
		out = mac(out, p)
	}
	return out
}

func (p pair) verify(_ *testing.T, r signed) error {
	m := pairSignature.FindStringSubmatch(r.Header.Get("Authorization"))
	if m == nil || m[1] != p.algorithm || m[2] != strings.Trim(p.id+"/"+p.scope, "/") {
		return fmt.Errorf("authorization %q", r.Header.Get("Authorization"))
	}
	names := strings.Split(m[3], ";")
	text := r.Method + "\n" + r.URL.EscapedPath() + "\n" + r.URL.Query().Encode() + "\n"
	for _, n := range names {
		value := r.Header.Get(n)
		if n == "host" {
			value = r.Host
		}
		text += n + ":" + value + "\n"
	}
	for _, n := range p.fields {
		if !slices.Contains(names, n) {
			return fmt.Errorf("%s is not signed: %s", n, m[3])
		}
	}
	for _, n := range []string{"X-Acs-Content-Sha256", "X-Content-Sha256"} {
		if got := r.Header.Get(n); got != "" && got != hashOf(r.body) {
			return fmt.Errorf("%s is %q", n, got)
		}
	}
	lines := []string{p.algorithm}
	if p.at != "" {
		lines = append(lines, r.Header.Get(p.at), p.scope)
	}
	text += "\n" + m[3] + "\n" + hashOf(r.body)
	if want := hex.EncodeToString(mac(p.key, strings.Join(append(lines, hashOf(text)), "\n"))); m[4] != want {
		return fmt.Errorf("signature %s, want %s", m[4], want)
	}
	return nil
}

// bySharedKey is Azure Storage, for a request without a body and with no parameters.
func bySharedKey(account, key string) verifier {
	raw, err := base64.StdEncoding.DecodeString(key)
	return func(_ *testing.T, r signed) error {
		text := r.Method + strings.Repeat("\n", 12)
		for _, n := range []string{"x-ms-date", "x-ms-version"} {
			text += n + ":" + r.Header.Get(n) + "\n"
		}
		want := "SharedKey " + account + ":" + base64.StdEncoding.EncodeToString(mac(raw, text+"/"+account+r.URL.Path))
		if got := r.Header.Get("Authorization"); err != nil || got != want {
			return fmt.Errorf("authorization %q, want %q", got, want)
		}
		if at, err := http.ParseTime(r.Header.Get("X-Ms-Date")); err != nil || !at.Equal(epoch) {
			return fmt.Errorf("date %v, %w", at, err)
		}
		return nil
	}
}

// bySAS is Azure Storage for a shared access signature of a blob, or of the account.
func bySAS(account, key string) verifier {
	raw, err := base64.StdEncoding.DecodeString(key)
	return func(_ *testing.T, r signed) error {
		q := r.URL.Query()
		text := []string{q.Get("sp"), q.Get("st"), q.Get("se"), "/blob/" + account + r.URL.Path, q.Get("si"), q.Get("sip"), q.Get("spr"), q.Get("sv"), q.Get("sr"), "", "", "", "", "", "", ""}
		if q.Get("sr") == "" {
			text = []string{account, q.Get("sp"), q.Get("ss"), q.Get("srt"), q.Get("st"), q.Get("se"), q.Get("sip"), q.Get("spr"), q.Get("sv"), "", ""}
		}
		want := base64.StdEncoding.EncodeToString(mac(raw, strings.Join(text, "\n")))
		if end, bad := time.Parse(time.RFC3339, q.Get("se")); errors.Join(err, bad) != nil || q.Get("sig") != want || q.Get("spr") != "https" || !end.Equal(epoch.Add(300*time.Second)) {
			return fmt.Errorf("query %v, want signature %s", q, want)
		}
		return nil
	}
}

// byJWT reads a statement with golang-jwt and compares its claims; those that are nil have
// to be there.
func byJWT(text, algorithm string, key crypto.PublicKey, header, claims map[string]any) error {
	got := jwt.MapClaims{}
	token, err := jwt.ParseWithClaims(text, got, func(*jwt.Token) (any, error) { return key, nil },
		jwt.WithValidMethods([]string{algorithm}), jwt.WithTimeFunc(func() time.Time { return epoch }), jwt.WithExpirationRequired())
	if err != nil {
		return err
	}
	for name, want := range header {
		if token.Header[name] != want {
			return fmt.Errorf("header %v, want %s %v", token.Header, name, want)
		}
	}
	for name, want := range claims {
		if have, ok := got[name]; !ok || want != nil && !cmp.Equal(have, want) {
			return fmt.Errorf("claim %s is %v, want %v", name, have, want)
		}
	}
	return nil
}

// bearerJWT is an API that takes statements themselves.
func bearerJWT(algorithm string, key crypto.PublicKey, header, claims map[string]any) verifier {
	return func(_ *testing.T, r signed) error {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		return byJWT(token, algorithm, key, header, claims)
	}
}

// issuer is a token endpoint that gives a token to who shows itself as it should.
type issuer struct {
	t     *testing.T
	url   string
	judge func(r *http.Request, form url.Values, body string) error
	ans   string // of it; "" is the usual one
	asked int
}

const documentedToken = "token-that-an-endpoint-gave-0001"

// RoundTrip implements [http.RoundTripper].
func (i *issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	i.asked++
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	u := *r.URL
	u.RawQuery = ""
	form, err := url.ParseQuery(string(body))
	if r.Method == http.MethodGet {
		form, err = r.URL.Query(), nil
	}
	if strings.Contains(r.Header.Get("Content-Type"), "json") {
		err = nil
	}
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	if err = errors.Join(err, i.judge(r, form, string(body))); err != nil || u.String() != i.url {
		i.t.Errorf("%s %s was asked with %v: %v", r.Method, u.String(), form, err)
		return answeredWith(r, http.StatusUnauthorized, `{"error":"invalid_client"}`), nil
	}
	status := http.StatusOK
	if strings.HasSuffix(u.Path, "/access_tokens") {
		status = http.StatusCreated
	}
	if i.ans != "" {
		return answeredWith(r, status, i.ans), nil
	}
	return answeredWith(r, status, fmt.Sprintf(`{"access_token":%q,"token":%[1]q,"token_type":"Bearer","expires_in":3600,"expires_at":"2026-09-01T13:00:00Z"}`, documentedToken)), nil
}

func answeredWith(r *http.Request, status int, body string) *http.Response {
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Date", epoch.Format(http.TimeFormat))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body) // into memory
	resp := w.Result()
	resp.Request = r
	return resp
}

// wantForm compares what an endpoint is asked with, but for what is not given.
func wantForm(form url.Values, want map[string]string) error {
	for name, value := range want {
		if got := form[name]; len(got) != 1 || got[0] != value {
			return fmt.Errorf("%s is %q, want %q", name, got, value)
		}
	}
	return nil
}

// wantClient compares HTTP basic authentication.
func wantClient(r *http.Request, id, secret string) error {
	if gotID, gotSecret, ok := r.BasicAuth(); !ok || gotID != id || gotSecret != secret {
		return fmt.Errorf("client %q with %q", gotID, gotSecret)
	}
	return nil
}

// wantJSON compares a document.
func wantJSON(body, want string) error {
	var a, b any
	if err := errors.Join(json.Unmarshal([]byte(body), &a), json.Unmarshal([]byte(want), &b)); err != nil {
		return err
	}
	if d := cmp.Diff(b, a); d != "" {
		return errors.New(d)
	}
	return nil
}
