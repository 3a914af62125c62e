package sign_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/oauth2"
	oauth2jwt "golang.org/x/oauth2/jwt"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/rules/policyfile"
)

// exchange is a token endpoint that verifies signed statements with the library
// golang-jwt, and refuses what it does not find in order.
type exchange struct {
	*httptest.Server
	key       crypto.PublicKey
	algorithm string
	check     func(form url.Values, claims jwt.MapClaims, header map[string]any) error
	mints     atomic.Int64
	refused   atomic.Pointer[string]
	answer    string // %d is the number of the token
}

func newExchange(t *testing.T, algorithm string, key crypto.PublicKey) *exchange {
	t.Helper()
	e := &exchange{key: key, algorithm: algorithm, answer: `{"access_token":"token-%d","token_type":"Bearer","expires_in":3600}`}
	e.Server = httptest.NewTLSServer(http.HandlerFunc(e.serve))
	t.Cleanup(e.Close)
	return e
}

func (e *exchange) serve(w http.ResponseWriter, r *http.Request) {
	n := e.mints.Add(1)
	w.Header().Set("Content-Type", "application/json")
	if err := e.judge(r); err != nil {
		text := err.Error()
		e.refused.Store(&text)
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":"invalid_grant","error_description":"`+r.PostForm.Get("assertion")+`"}`)
		return
	}
	if strings.Contains(e.answer, "%d") {
		fmt.Fprintf(w, e.answer, n)
		return
	}
	fmt.Fprint(w, e.answer)
}

// judge is what RFC 7523 section 3 has a server do.
func (e *exchange) judge(r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return err
	}
	f := r.PostForm
	text := f.Get("assertion")
	if text == "" {
		text = f.Get("client_assertion")
	}
	claims := jwt.MapClaims{}
	token, err := jwt.ParseWithClaims(text, claims, func(*jwt.Token) (any, error) { return e.key, nil },
		jwt.WithValidMethods([]string{e.algorithm}), jwt.WithAudience(e.URL+"/token"), jwt.WithExpirationRequired(), jwt.WithIssuedAt())
	if err != nil {
		return err
	}
	if exp, _ := claims.GetExpirationTime(); time.Until(exp.Time) > time.Hour {
		return fmt.Errorf("it holds until %v", exp)
	}
	return e.check(f, claims, token.Header)
}

func (e *exchange) scheme(t *testing.T, s policyfile.Scheme) sign.Scheme {
	t.Helper()
	s.OAuth2.TokenURL = e.URL + "/token"
	out, err := sign.New(s, sign.Config{Transport: e.Client().Transport, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// wantEqual compares members of a form or claims with what they should be.
func wantEqual(got func(string) any, want map[string]any) error {
	for name, w := range want {
		if g := got(name); g != w {
			return fmt.Errorf("%s is %v, want %v", name, g, w)
		}
	}
	return nil
}

// TestPrivateKeyJWT: the client shows itself with a signed statement, which the
// library golang-jwt verifies; a statement by another key gets no token.
func TestPrivateKeyJWT(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	e := newExchange(t, "ES256", key.Public())
	e.check = func(f url.Values, c jwt.MapClaims, h map[string]any) error {
		err := wantEqual(func(n string) any { return f.Get(n) }, map[string]any{
			"grant_type": "client_credentials", "client_id": "agent", "scope": "read",
			"client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer", "client_secret": "",
		})
		if err != nil {
			return err
		}
		if c["jti"] == "" || h["kid"] != "k1" {
			return fmt.Errorf("jti %v, kid %v", c["jti"], h["kid"])
		}
		return wantEqual(func(n string) any { return c[n] }, map[string]any{"iss": "agent", "sub": "agent"})
	}
	s := e.scheme(t, policyfile.Scheme{Type: policyfile.OAuth2Client, OAuth2: policyfile.OAuth2{
		ClientID: "agent", Scopes: []string{"read"}, Auth: policyfile.PrivateKeyJWT, Algorithm: "ES256", KeyID: "k1",
	}})
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := token(t.Context(), s, pemOf(other)); err == nil || !strings.Contains(err.Error(), "400, invalid_grant") {
		t.Errorf("another key: %q, %v", got, err)
	}
	if refused := e.refused.Load(); refused == nil || !strings.Contains(*refused, "verification error") {
		t.Errorf("the endpoint refused it for %v", refused)
	}
	if err := s.Check(secret.New([]byte(pemOf(rsaKey())))); err == nil {
		t.Error("JW-01 a key of another kind is taken")
	}
	if got, err := token(t.Context(), s, pemOf(key)); err != nil || got != "token-2" {
		t.Errorf("twin: %q, %v", got, err)
	}
}

// TestJWTBearerGrant: the endpoint takes our statement and that of the library
// golang.org/x/oauth2/jwt for the same.
func TestJWTBearerGrant(t *testing.T) {
	key := rsaKey()
	e := newExchange(t, "RS256", key.Public())
	e.check = func(f url.Values, c jwt.MapClaims, h map[string]any) error {
		if h["kid"] != "k1" || f.Get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" {
			return fmt.Errorf("kid %v, grant %s", h["kid"], f.Get("grant_type"))
		}
		return wantEqual(func(n string) any { return c[n] }, map[string]any{"iss": "svc@example.com", "sub": "user@example.com"})
	}
	s := e.scheme(t, policyfile.Scheme{Type: policyfile.OAuth2JWT, OAuth2: policyfile.OAuth2{
		Issuer: "svc@example.com", Subject: "user@example.com", Algorithm: "RS256", KeyID: "k1", Scopes: []string{"a", "b"},
	}})
	if got, err := token(t.Context(), s, pemOf(key)); err != nil || got != "token-1" {
		t.Fatalf("ours: %q, %v", got, err)
	}
	lib := oauth2jwt.Config{Email: "svc@example.com", Subject: "user@example.com", PrivateKey: []byte(pemOf(key)), PrivateKeyID: "k1", TokenURL: e.URL + "/token"}
	if tok, err := lib.TokenSource(context.WithValue(t.Context(), oauth2.HTTPClient, e.Client())).Token(); err != nil || tok.AccessToken != "token-2" {
		t.Errorf("the library: %v, %v", tok, err)
	}
	if got, err := token(t.Context(), s, pemOf(must(generateRSA()))); err == nil {
		t.Errorf("another key: %q", got)
	}
}

// keyFile is a service account's key file.
func keyFile(t *testing.T, key *rsa.PrivateKey, tokenURL string) string {
	t.Helper()
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "acme", "private_key_id": "0123456789abcdef0123456789abcdef01234567",
		"private_key": pemOf(key), "client_email": "agent@acme.iam.gserviceaccount.com", "client_id": "1", "token_uri": tokenURL,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestGCPAccessToken: the library golang.org/x/oauth2/jwt and ours say the same to
// an endpoint that verifies it.
func TestGCPAccessToken(t *testing.T) {
	key := rsaKey()
	e := newExchange(t, "RS256", key.Public())
	e.check = func(f url.Values, c jwt.MapClaims, h map[string]any) error {
		if h["kid"] != "0123456789abcdef0123456789abcdef01234567" || f.Get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" {
			return fmt.Errorf("kid %v, grant %s", h["kid"], f.Get("grant_type"))
		}
		return wantEqual(func(n string) any { return c[n] }, map[string]any{
			"iss": "agent@acme.iam.gserviceaccount.com", "scope": "https://www.googleapis.com/auth/devstorage.read_only",
		})
	}
	scheme := policyfile.Scheme{Type: policyfile.GCPServiceAccount, Google: policyfile.Google{Token: policyfile.GoogleAccess}, OAuth2: policyfile.OAuth2{
		Scopes: []string{"https://www.googleapis.com/auth/devstorage.read_only"},
	}}
	s := e.scheme(t, scheme)
	file := keyFile(t, key, e.URL+"/token")
	if got, err := token(t.Context(), s, file); err != nil || got != "token-1" {
		t.Fatalf("ours: %q, %v, %v", got, err, e.refused.Load())
	}
	lib := oauth2jwt.Config{
		Email: "agent@acme.iam.gserviceaccount.com", PrivateKey: []byte(pemOf(key)), PrivateKeyID: "0123456789abcdef0123456789abcdef01234567",
		Scopes: []string{"https://www.googleapis.com/auth/devstorage.read_only"}, TokenURL: e.URL + "/token",
	}
	if tok, err := lib.TokenSource(context.WithValue(t.Context(), oauth2.HTTPClient, e.Client())).Token(); err != nil || tok.AccessToken != "token-2" {
		t.Errorf("the library: %v, %v", tok, err)
	}
	if got, err := token(t.Context(), s, keyFile(t, must(generateRSA()), e.URL+"/token")); err == nil || strings.Contains(err.Error(), "BEGIN") {
		t.Errorf("another key: %q, %v", got, err)
	}
	for name, bad := range map[string]string{
		"not JSON": "ghp_0123456789abcdef", "a user's": `{"type":"authorized_user"}`,
		"no key": `{"type":"service_account","client_email":"a","private_key_id":"b"}`, "another endpoint": keyFile(t, key, "https://evil.test/token"),
		"an EC key": strings.Replace(file, "private_key\":", "x\":", 1),
	} {
		if err := s.Check(secret.New([]byte(bad))); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// TestGCPSelfSignedAndID: the two other kinds of token.
func TestGCPSelfSignedAndID(t *testing.T) {
	key := rsaKey()
	e := newExchange(t, "RS256", key.Public())
	e.check = func(_ url.Values, c jwt.MapClaims, _ map[string]any) error {
		return wantEqual(func(n string) any { return c[n] }, map[string]any{"target_audience": "https://svc.example.com"})
	}
	file := keyFile(t, key, e.URL+"/token")
	self := e.scheme(t, policyfile.Scheme{
		Type: policyfile.GCPServiceAccount, Google: policyfile.Google{Token: policyfile.GoogleSelfSigned},
		OAuth2: policyfile.OAuth2{Audience: "https://pubsub.example.com/"},
	})
	got, err := token(t.Context(), self, file)
	if err != nil || e.mints.Load() != 0 {
		t.Fatalf("self-signed: %v, and the endpoint was asked %d times", err, e.mints.Load())
	}
	claims := jwt.MapClaims{}
	tok, err := jwt.ParseWithClaims(got, claims, func(*jwt.Token) (any, error) { return key.Public(), nil },
		jwt.WithValidMethods([]string{"RS256"}), jwt.WithAudience("https://pubsub.example.com/"), jwt.WithExpirationRequired())
	if err != nil || claims["iss"] != claims["sub"] || claims["iss"] != "agent@acme.iam.gserviceaccount.com" || tok.Header["kid"] == nil {
		t.Errorf("self-signed: %v, %v, %v", err, claims, tok)
	}
	id := e.scheme(t, policyfile.Scheme{
		Type: policyfile.GCPServiceAccount, Google: policyfile.Google{Token: policyfile.GoogleID},
		OAuth2: policyfile.OAuth2{Audience: "https://svc.example.com"},
	})
	idToken := func(exp time.Time) string {
		out, err := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{"aud": "https://svc.example.com", "exp": exp.Unix()}).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for name, answer := range map[string]string{
		"none": `{"access_token":"x"}`, "ended": `{"id_token":"` + idToken(time.Now().Add(-time.Hour)) + `"}`, "two parts": `{"id_token":"a.b"}`,
	} {
		e.answer = answer
		again := e.scheme(t, policyfile.Scheme{
			Type: policyfile.GCPServiceAccount, Google: policyfile.Google{Token: policyfile.GoogleID},
			OAuth2: policyfile.OAuth2{Audience: "https://svc.example.com"},
		})
		if got, err := token(t.Context(), again, file); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
	whole := idToken(time.Now().Add(time.Hour))
	e.answer = `{"id_token":"` + whole + `"}`
	if got, err := token(t.Context(), id, file); err != nil || got != whole {
		t.Errorf("id token: %q, %v", got, err)
	}
}

// TestGCPDocument: what the sandbox gets is a key file with a key of its own,
// with no part of the true one.
func TestGCPDocument(t *testing.T) {
	key := rsaKey()
	s, err := sign.New(policyfile.Scheme{
		Type: policyfile.GCPServiceAccount, Google: policyfile.Google{Token: policyfile.GoogleAccess},
		OAuth2: policyfile.OAuth2{TokenURL: "https://oauth2.example.com/token", Scopes: []string{"a"}},
	}, sign.Config{Transport: http.DefaultTransport, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	file := keyFile(t, key, "https://oauth2.example.com/token")
	text, id, err := s.(sign.Documenter).Document(secret.New([]byte(file)), "placeholder")
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	k, err := jwt.ParseRSAPrivateKeyFromPEM([]byte(got["private_key"]))
	if err != nil || k.Equal(key) {
		t.Errorf("the key: %v, or it is the true one", err)
	}
	if got["private_key_id"] != id || len(id) != 40 || strings.Contains(file, id) || got["client_email"] != "agent@acme.iam.gserviceaccount.com" ||
		got["type"] != "service_account" || got["token_uri"] != "https://oauth2.example.com/token" {
		t.Errorf("%v, id %s", got, id)
	}
	again, _, err := s.(sign.Documenter).Document(secret.New([]byte(file)), "placeholder")
	if err != nil || again == text {
		t.Errorf("two runs get one key: %v", err)
	}
}

// TestOAuth2Refresh: RFC 6749 section 6, with rotation; the library
// golang.org/x/oauth2 says the same.
func TestOAuth2Refresh(t *testing.T) {
	const first, second = "1//0refresh-token-one", "1//0refresh-token-two"
	valid := first
	var forms []url.Values
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		id, pw, _ := r.BasicAuth()
		if err := r.ParseForm(); err != nil || r.PostForm.Get("grant_type") != "refresh_token" || r.PostForm.Get("refresh_token") != valid || id != "cli" || pw != "shh" {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":"invalid_grant"}`)
			return
		}
		forms = append(forms, r.PostForm)
		fmt.Fprintf(w, `{"access_token":"at-%d","token_type":"bearer","expires_in":60,"refresh_token":"%s"}`, len(forms), second)
		valid = second
	}))
	defer srv.Close()
	c := &clock{}
	c.now.Store(time.Now().UnixNano())
	s, err := sign.New(policyfile.Scheme{Type: policyfile.OAuth2Refresh, OAuth2: policyfile.OAuth2{TokenURL: srv.URL + "/token", Scopes: []string{"a"}}},
		sign.Config{Transport: srv.Client().Transport, Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	text := `{"type":"authorized_user","client_id":"cli","client_secret":"shh","refresh_token":"` + first + `"}`
	if got, err := token(t.Context(), s, text); err != nil || got != "at-1" {
		t.Fatalf("first: %q, %v", got, err)
	}
	c.advance(2 * time.Minute)
	if got, err := token(t.Context(), s, text); err != nil || got != "at-2" {
		t.Errorf("with the refresh token that came with the first answer: %q, %v", got, err)
	}
	lib := oauth2.Config{ClientID: "cli", ClientSecret: "shh", Endpoint: oauth2.Endpoint{TokenURL: srv.URL + "/token", AuthStyle: oauth2.AuthStyleInHeader}}
	if tok, err := lib.TokenSource(context.WithValue(t.Context(), oauth2.HTTPClient, srv.Client()), &oauth2.Token{RefreshToken: second}).Token(); err != nil || tok.AccessToken != "at-3" {
		t.Errorf("the library: %v, %v", tok, err)
	}
	// Another secret begins anew, and what it holds is no longer good.
	if got, err := token(t.Context(), s, strings.Replace(text, "cli", "cli", 1)+" "); err == nil || !strings.Contains(err.Error(), "invalid_grant") {
		t.Errorf("a rotated-away token: %q, %v", got, err)
	}
	for name, bad := range map[string]string{"no token": `{"client_id":"a"}`, "no client": "1//0refresh", "broken": "{", "CR-12": "1//a\r\nb"} {
		if err := s.Check(secret.New([]byte(bad))); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// TestTokenSchemesRefuse: what cannot work does not load.
func TestTokenSchemesRefuse(t *testing.T) {
	way := sign.Config{Transport: http.DefaultTransport, Now: time.Now}
	url := policyfile.OAuth2{TokenURL: "https://id.test/token", ClientID: "x"}
	with := func(change func(*policyfile.OAuth2)) policyfile.OAuth2 { o := url; change(&o); return o }
	tests := []struct {
		name string
		spec policyfile.Scheme
		ok   bool
	}{
		{"JW-01 private_key_jwt with none", policyfile.Scheme{Type: policyfile.OAuth2Client, OAuth2: with(func(o *policyfile.OAuth2) { o.Auth, o.Algorithm = policyfile.PrivateKeyJWT, "none" })}, false},
		{"an unknown way", policyfile.Scheme{Type: policyfile.OAuth2Client, OAuth2: with(func(o *policyfile.OAuth2) { o.Auth = "tls_client_auth" })}, false},
		{"no issuer", policyfile.Scheme{Type: policyfile.OAuth2JWT, OAuth2: with(func(o *policyfile.OAuth2) { o.Algorithm = "RS256" })}, false},
		{"no algorithm", policyfile.Scheme{Type: policyfile.OAuth2JWT, OAuth2: with(func(o *policyfile.OAuth2) { o.Issuer = "a" })}, false},
		{"no scopes", policyfile.Scheme{Type: policyfile.GCPServiceAccount, OAuth2: url, Google: policyfile.Google{Token: policyfile.GoogleAccess}}, false},
		{"plain http", policyfile.Scheme{Type: policyfile.OAuth2Refresh, OAuth2: policyfile.OAuth2{TokenURL: "http://id.test/token"}}, false},
		{"twin, refresh", policyfile.Scheme{Type: policyfile.OAuth2Refresh, OAuth2: url}, true},
		{"twin, statement", policyfile.Scheme{Type: policyfile.OAuth2JWT, OAuth2: with(func(o *policyfile.OAuth2) { o.Issuer, o.Algorithm = "a", "RS256" })}, true},
	}
	for _, tt := range tests {
		if _, err := sign.New(tt.spec, way); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
		if _, err := sign.New(tt.spec, sign.Config{}); err == nil {
			t.Errorf("%s: no way out, and it loads", tt.name)
		}
	}
}
