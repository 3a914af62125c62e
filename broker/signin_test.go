package broker_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"sallyport/broker"
	"sallyport/rules"
	"sallyport/rules/policyfile"
)

// identity is an authorization server that checks all it gets: the client, PKCE (RFC
// 7636), and that device codes, codes and refresh tokens are good for one use.
type identity struct {
	mu       sync.Mutex
	secret   string // of the client; "" is a public one
	pending  int    // how often a poll finds nobody signed in yet
	opaque   bool   // access tokens are no JSON Web Tokens
	n        int
	device   string // device code that is good
	refresh  string // refresh token that is good
	codes    map[string]string
	answer   http.HandlerFunc // in place of its own
	asked    []url.Values
	issued   []string // every true thing
	rejected []string
}

const (
	signInClient = "agent-cli"
	signInSecret = "GOCSPX-true-client-secret-0123"
)

func (i *identity) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	_ = r.ParseForm()
	i.asked = append(i.asked, r.PostForm)
	fail := func(status int, code, why string) {
		i.rejected = append(i.rejected, why)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":%q,"error_description":%q}`, code, "a description with "+strings.Join(i.issued, " "))
	}
	id, pw, basic := r.BasicAuth()
	if !basic {
		id, pw = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret")
	}
	switch f := r.PostForm; {
	case i.answer != nil:
		i.answer(w, r)
	case r.Method != http.MethodPost || id != signInClient || pw != i.secret:
		fail(http.StatusUnauthorized, "invalid_client", "client "+id+":"+pw)
	case r.URL.Path == "/device", r.URL.Path == "/oauth2/device_authorization":
		i.device = i.issue("device-code")
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"device_code":%q,"user_code":"WDJB-MJHT","verification_uri":"https://idp.test/activate","expires_in":900,"interval":5,"x":%q}`, i.device, i.device)
	case f.Get("grant_type") == "urn:ietf:params:oauth:grant-type:device_code":
		switch i.pending--; {
		case f.Get("device_code") != i.device || i.device == "":
			fail(http.StatusBadRequest, "invalid_grant", "device code "+f.Get("device_code"))
		case i.pending == 1:
			fail(http.StatusBadRequest, "slow_down", "")
		case i.pending >= 0:
			fail(http.StatusBadRequest, "authorization_pending", "")
		default:
			i.device = ""
			i.tokens(w)
		}
	case f.Get("grant_type") == "authorization_code":
		sum := sha256.Sum256([]byte(f.Get("code_verifier")))
		if challenge := i.codes[f.Get("code")]; challenge == "" || challenge != base64.RawURLEncoding.EncodeToString(sum[:]) {
			fail(http.StatusBadRequest, "invalid_grant", "code or verifier")
			return
		}
		delete(i.codes, f.Get("code"))
		i.tokens(w)
	case f.Get("grant_type") == "refresh_token":
		if f.Get("refresh_token") != i.refresh {
			fail(http.StatusBadRequest, "invalid_grant", "refresh token "+f.Get("refresh_token"))
			return
		}
		i.tokens(w)
	default:
		fail(http.StatusBadRequest, "unsupported_grant_type", f.Get("grant_type"))
	}
}

func (i *identity) issue(kind string) string {
	i.n++
	text := fmt.Sprintf("ya29.true-%s-%d-%s", kind, i.n, strings.Repeat("x", 60))
	i.issued = append(i.issued, text)
	return text
}

func (i *identity) jwt(claims jwt.MapClaims) string {
	i.n++
	claims["jti"], claims["exp"], claims["email"] = i.n, time.Now().Add(time.Hour).Unix(), "person@example.com"
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte("the identity provider's key"))
	if err != nil {
		panic(err)
	}
	i.issued = append(i.issued, text)
	return text
}

func (i *identity) tokens(w http.ResponseWriter) {
	access := i.jwt(jwt.MapClaims{"sub": "person"})
	if i.opaque {
		access = i.issue("access")
	}
	i.refresh = i.issue("refresh")
	id := i.jwt(jwt.MapClaims{"iss": "https://idp.test", "aud": signInClient, "nonce": "n-1", "sub": "person"})
	w.Header().Set("Content-Type", "application/json;charset=UTF-8")
	fmt.Fprintf(w, "{\n  \"access_token\": %q,\n  \"refresh_token\": %q,\n  \"id_token\": %q,\n  \"token_type\": \"bearer\",\n  \"expires_in\": 3600,\n  \"scope\": \"orders.read\",\n  \"extra\": {\"copy\": %q}\n}\n",
		access, i.refresh, id, access)
}

// last is the newest true token of a kind, that of the API.
func (i *identity) access() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.issued[len(i.issued)-3]
}

// RoundTrip implements [http.RoundTripper]: the broker's way to it.
func (i *identity) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	i.ServeHTTP(w, r)
	return w.Result(), nil
}

// person is a sandbox whose program has a person sign in.
type person struct {
	*kit
	idp       *identity
	cell, run string
	said      strings.Builder // everything that the sandbox was told
}

// newPerson starts a broker with the credential idp, of a public client if secret is "".
func newPerson(t *testing.T, secret string) *person {
	t.Helper()
	p := &person{kit: newKit(t), idp: &identity{secret: secret, codes: map[string]string{}}, cell: "cell1", run: "run1"}
	p.stop()
	spec := policyfile.OAuth2{
		TokenURL: "https://idp.test/token", DeviceURL: "https://idp.test/device", ClientID: signInClient, Auth: policyfile.ClientPost,
		Scopes: []string{"orders.read", "offline"}, Grants: []string{policyfile.DeviceCode, policyfile.AuthorizationCode, policyfile.RefreshToken},
	}
	source := policyfile.Source{File: p.secret("idp")}
	if secret == "" {
		spec.Auth, source = policyfile.PublicClient, policyfile.Source{None: true}
	} else {
		writeSecret(t, p.secret("idp"), secret)
	}
	p.creds = append(p.creds, policyfile.Credential{
		Name: "idp", Scheme: policyfile.Scheme{Type: policyfile.OAuth2User, OAuth2: spec}, Source: source, Env: "CLIENT_SECRET",
		Endpoints: []policyfile.Endpoint{{Host: host("idp.test"), Ports: []uint16{443}}},
	})
	p.tweak = func(c *broker.Config) { c.Transport = p.idp }
	p.start()
	p.grant(p.cell, p.run, "idp")
	return p
}

// post sends a form as the gateway would carry it.
func (p *person) post(target, form string, header ...string) (int, map[string]any, error) {
	p.t.Helper()
	r := request("POST", target, append([]string{"Content-Type", "application/x-www-form-urlencoded"}, header...)...)
	r.Body = io.NopCloser(strings.NewReader(form))
	pass, err := admit(p.t, p.cell, p.run, r, p.client.Find(p.cell, r))
	if err != nil {
		return 0, nil, err
	}
	if err := p.client.Inject(p.t.Context(), pass, r); err != nil {
		return 0, nil, err
	}
	resp, err := p.client.Answer(p.t.Context(), pass, r)
	if err != nil {
		return 0, nil, err
	}
	if resp == nil {
		return 0, nil, fmt.Errorf("POST %s would be sent as it is", target)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil, err
	}
	p.said.Write(body)
	out := map[string]any{}
	if resp.Header.Get("Content-Type") == "application/json" {
		return resp.StatusCode, out, json.Unmarshal(body, &out)
	}
	values, err := url.ParseQuery(string(body))
	for name := range values {
		out[name] = values.Get(name)
	}
	return resp.StatusCode, out, err
}

// token posts to the token endpoint, and fails the test if that is refused.
func (p *person) token(form url.Values) (int, map[string]any) {
	p.t.Helper()
	status, out, err := p.post("https://idp.test/token", form.Encode())
	if err != nil {
		p.t.Fatal(err)
	}
	return status, out
}

// call sends what a program puts into a request to the API, and returns what leaves.
func (p *person) call(token any) (string, error) {
	p.t.Helper()
	r := request("GET", "https://idp.test/orders", "Authorization", fmt.Sprintf("Bearer %v", token))
	pass, err := admit(p.t, p.cell, p.run, r, p.client.Find(p.cell, r))
	if err != nil {
		return "", err
	}
	err = p.client.Inject(p.t.Context(), pass, r)
	return r.Header.Get("Authorization"), err
}

// signIn goes through a sign-in by device code.
func (p *person) signIn() map[string]any {
	p.t.Helper()
	status, begun, err := p.post("https://idp.test/device", "client_id="+signInClient)
	if err != nil || status != http.StatusOK {
		p.t.Fatal(status, begun, err)
	}
	status, got := p.token(p.poll(begun["device_code"]))
	if status != http.StatusOK {
		p.t.Fatal(status, got)
	}
	return got
}

func (*person) poll(deviceCode any) url.Values {
	return url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:device_code"}, "device_code": {fmt.Sprint(deviceCode)}, "client_id": {signInClient}}
}

func refreshForm(token any) url.Values {
	return url.Values{"grant_type": {"refresh_token"}, "refresh_token": {fmt.Sprint(token)}, "client_id": {signInClient}}
}

// toldNothingTrue fails if anything true reached the sandbox, in any spelling.
func (p *person) toldNothingTrue() {
	p.t.Helper()
	p.idp.mu.Lock()
	defer p.idp.mu.Unlock()
	said := p.said.String()
	for _, truth := range p.idp.issued {
		for _, spelled := range []string{truth, base64.StdEncoding.EncodeToString([]byte(truth)), url.QueryEscape(truth), truth[len(truth)-20:]} {
			if strings.Contains(said, spelled) {
				p.t.Errorf("the sandbox was told %.40s…", spelled)
			}
		}
	}
	if strings.Contains(said, "person@example.com") || p.idp.secret != "" && strings.Contains(said, p.idp.secret) {
		p.t.Error("the sandbox was told about the person, or the client's secret")
	}
	if strings.Contains(p.log.String(), "true-") {
		p.t.Error("the broker's log shows a token")
	}
}

// TestSignInByDeviceCode: RFC 8628 from its beginning to a refresh, in the words of
// its section 3. What the sandbox holds has the shape of what is true.
func TestSignInByDeviceCode(t *testing.T) {
	for _, opaque := range []bool{false, true} {
		p := newPerson(t, "")
		p.idp.opaque, p.idp.pending = opaque, 3
		status, begun, err := p.post("https://idp.test/device", "client_id="+signInClient)
		if err != nil || status != 200 || begun["user_code"] != "WDJB-MJHT" || begun["verification_uri"] != "https://idp.test/activate" ||
			begun["interval"] != 5.0 || begun["expires_in"] != 900.0 || begun["x"] != nil {
			t.Fatalf("%d %v, %v", status, begun, err)
		}
		if scope := p.idp.asked[0].Get("scope"); scope != "orders.read offline" {
			t.Errorf("it asked for %q", scope)
		}
		for _, want := range []string{"authorization_pending", "slow_down", "authorization_pending"} {
			if status, got := p.token(p.poll(begun["device_code"])); status != 400 || got["error"] != want || len(got) != 1 {
				t.Errorf("%d %v, want %s", status, got, want)
			}
		}
		status, got := p.token(p.poll(begun["device_code"]))
		if status != 200 || got["token_type"] != "Bearer" || got["expires_in"] != 3600.0 || got["scope"] != "orders.read" || got["extra"] != nil {
			t.Fatalf("%d %v", status, got)
		}
		wantShape(t, p.idp.access(), got["access_token"], opaque)
		wantShape(t, p.idp.refresh, got["refresh_token"], true)
		claims := jwt.MapClaims{}
		if _, _, err := jwt.NewParser().ParseUnverified(got["id_token"].(string), claims); err != nil ||
			claims["iss"] != "https://idp.test" || claims["aud"] != signInClient || claims["nonce"] != "n-1" || claims["sub"] != "placeholder" {
			t.Errorf("id token: %v, %v", claims, err)
		}
		if sent, err := p.call(got["access_token"]); err != nil || sent != "Bearer "+p.idp.access() {
			t.Errorf("the API gets %q, %v", sent, err)
		}
		first := p.idp.refresh
		status, next := p.token(refreshForm(got["refresh_token"]))
		if status != 200 || p.idp.refresh == first {
			t.Errorf("refresh: %d %v", status, next)
		}
		if sent, err := p.call(next["access_token"]); err != nil || sent != "Bearer "+p.idp.access() {
			t.Errorf("after a refresh the API gets %q, %v", sent, err)
		}
		// A program that kept the first stand-in is served as well: the true one rotated.
		if status, got := p.token(refreshForm(got["refresh_token"])); status != 200 {
			t.Errorf("refresh with the first stand-in: %d %v", status, got)
		}
		p.toldNothingTrue()
	}
}

// wantShape compares a stand-in with what it stands for.
func wantShape(t *testing.T, truth string, got any, opaque bool) {
	t.Helper()
	text, _ := got.(string)
	switch {
	case len(text) < 20 || text == truth:
		t.Errorf("%q stands for a token", text)
	case opaque && (len(text) != len(truth) || !strings.HasPrefix(text, "ya29.")):
		t.Errorf("%q does not look like %q", text, truth)
	case !opaque && strings.Count(text, ".") != 2:
		t.Errorf("%q is no JSON Web Token", text)
	}
	if !opaque {
		claims := jwt.MapClaims{}
		if _, _, err := jwt.NewParser().ParseUnverified(text, claims); err != nil || claims["email"] != nil || claims["exp"] == nil {
			t.Errorf("%q: %v, %v", text, claims, err)
		}
	}
}

// TestSignInByCode: with PKCE, as a program does with a browser; and with a client's
// secret, in a header and in the form.
func TestSignInByCode(t *testing.T) {
	for _, secret := range []string{"", signInSecret} {
		p := newPerson(t, secret)
		verifier := strings.Repeat("v", 43)
		sum := sha256.Sum256([]byte(verifier))
		p.idp.codes["code-from-the-browser"] = base64.RawURLEncoding.EncodeToString(sum[:])
		form := url.Values{
			"grant_type": {"authorization_code"}, "code": {"code-from-the-browser"}, "redirect_uri": {"http://127.0.0.1:8400/"},
			"client_id": {signInClient}, "code_verifier": {"another verifier"},
		}
		var header []string
		ph := ""
		if secret != "" {
			ph = p.secretPlaceholder()
			header = []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(signInClient+":"+ph))}
		}
		if status, got, err := p.post("https://idp.test/token", form.Encode(), header...); err != nil || status != 400 || got["error"] != "invalid_grant" {
			t.Errorf("another verifier: %d %v, %v", status, got, err)
		}
		form.Set("code_verifier", verifier)
		status, got, err := p.post("https://idp.test/token", form.Encode(), header...)
		if err != nil || status != 200 {
			t.Fatalf("%d %v, %v, the server says %q", status, got, err, p.idp.rejected)
		}
		if sent, err := p.call(got["access_token"]); err != nil || sent != "Bearer "+p.idp.access() {
			t.Errorf("the API gets %q, %v", sent, err)
		}
		if secret != "" {
			again := refreshForm(got["refresh_token"])
			again.Set("client_secret", ph)
			if status, got := p.token(again); status != 200 {
				t.Errorf("refresh: %d %v", status, got)
			}
		}
		p.toldNothingTrue()
	}
}

// secretPlaceholder is what the sandbox has for the client's secret.
func (p *person) secretPlaceholder() string {
	p.t.Helper()
	p.revoke(p.cell)
	for _, v := range p.grant(p.cell, p.run, "idp").Grants[0].More {
		if v.Env == "CLIENT_SECRET" {
			return v.Placeholder
		}
	}
	p.t.Fatal("the sandbox has no client secret")
	return ""
}

// TestSignInRefuses: what shows itself with anything of its own, asks for more than
// the document lets it, or cannot be read in one way, never reaches the server.
func TestSignInRefuses(t *testing.T) {
	p := newPerson(t, "")
	p.signIn()
	refresh, access := "", ""
	_, got := p.token(refreshForm(p.signIn()["refresh_token"]))
	refresh, access = got["refresh_token"].(string), got["access_token"].(string)
	other := newPerson(t, "").signIn()
	asked := len(p.idp.asked)
	good := refreshForm(refresh).Encode()
	const token, device = "https://idp.test/token", "https://idp.test/device"
	foreign, bad := rules.ForeignCredential, rules.BadRequest
	tests := []struct {
		name, target, form string
		header             []string
		want               rules.Reason
	}{
		{"another client", token, strings.Replace(good, signInClient, "evil", 1), nil, foreign},
		{"another client, in a header", token, good, []string{"Authorization", "Basic ZXZpbDp4"}, foreign},
		{"a secret of its own", token, good + "&client_secret=mine", nil, foreign},
		{"a bearer token of its own", token, good, []string{"Authorization", "Bearer mine"}, foreign},
		{"somebody else's refresh token", token, refreshForm("ya29.somebody-elses").Encode(), nil, foreign},
		{"another run's refresh token", token, refreshForm(other["refresh_token"]).Encode(), nil, foreign},
		{"the access token to refresh with", token, refreshForm(access).Encode(), nil, foreign},
		{"a device code of its own", token, p.poll("somebody-elses-device-code").Encode(), nil, foreign},
		{"a device code that was used", token, p.poll("0123456789").Encode(), nil, foreign},
		{"a refresh token as code", token, url.Values{"grant_type": {"authorization_code"}, "code": {refresh}}.Encode(), nil, foreign},
		{"an unknown grant", token, "grant_type=password&username=a&password=b", nil, foreign},
		{"client credentials", token, "grant_type=client_credentials", nil, foreign},
		{"no grant", token, "client_id=" + signInClient, nil, foreign},
		{"two grants", token, good + "&grant_type=authorization_code", nil, foreign},
		{"two refresh tokens", token, good + "&refresh_token=" + refresh, nil, foreign},
		{"more scopes", token, good + "&scope=admin", nil, foreign},
		{"more scopes, to begin with", device, "client_id=" + signInClient + "&scope=orders.read+admin", nil, foreign},
		{"a broken escape", token, good + "&x=%zz", nil, foreign},
		{"a query", token + "?a=b", good, nil, foreign},
		{"JSON", token, `{"grant_type":"refresh_token"}`, []string{"Content-Type", "application/json"}, bad},
		{"compressed", token, good, []string{"Content-Encoding", "gzip"}, bad},
		{"too long", token, good + "&x=" + strings.Repeat("y", 65<<10), nil, bad},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := tt.header
			if len(r) > 0 && r[0] == "Content-Type" {
				rr := request("POST", tt.target, r...)
				rr.Body = io.NopCloser(strings.NewReader(tt.form))
				_, err := p.client.Answer(t.Context(), pass(t, p.cell, p.run, rr), rr)
				wantDenied(t, err, tt.want)
				return
			}
			_, _, err := p.post(tt.target, tt.form, r...)
			wantDenied(t, err, tt.want)
		})
	}
	// Nor in another spelling, nor by another method: it would be sent as it is.
	for _, r := range []*http.Request{request("GET", token), request("PUT", token), request("GET", device)} {
		err := p.client.Inject(t.Context(), pass(t, p.cell, p.run, r), r)
		wantDenied(t, err, rules.CredentialMismatch)
	}
	if n := len(p.idp.asked) - asked; n != 0 {
		t.Errorf("the server was asked %d times", n)
	}
	if status, got, err := p.post(token, good+"&audience=https://evil.test&allow_redirects=True"); err != nil || status != 200 {
		t.Errorf("twin: %d %v, %v", status, got, err)
	}
	if sent := p.idp.asked[len(p.idp.asked)-1]; len(sent) != 3 {
		t.Errorf("what is not known was sent: %v", sent)
	}
	p.toldNothingTrue()
}

// TestSignInLeaks: what the sandbox was given belongs into its own place only.
func TestSignInLeaks(t *testing.T) {
	p := newPerson(t, "")
	got := p.signIn()
	for name, r := range map[string]*http.Request{
		"refresh token as a key":    request("GET", "https://idp.test/orders", "Authorization", "Bearer "+got["refresh_token"].(string)),
		"access token in a header":  request("GET", "https://idp.test/orders", "X-Note", got["access_token"].(string)),
		"access token in a query":   request("GET", "https://idp.test/orders?t="+got["access_token"].(string)),
		"id token to another host":  request("GET", "https://ok.test/", "X-Note", got["id_token"].(string)),
		"refresh token, in base64":  request("GET", "https://ok.test/", "X-Note", base64.StdEncoding.EncodeToString([]byte(got["refresh_token"].(string)))),
		"access token, other place": request("GET", "https://ok.test/", "Authorization", "Bearer "+got["access_token"].(string)),
	} {
		_, err := admit(t, p.cell, p.run, r, p.client.Find(p.cell, r))
		t.Run(name, func(t *testing.T) { wantDenied(t, err, rules.PlaceholderLeak) })
	}
	if sent, err := p.call(got["access_token"]); err != nil || sent != "Bearer "+p.idp.access() {
		t.Errorf("twin: %q, %v", sent, err)
	}
}

// TestSignInAnswers: an answer that is not known word for word is refused, and shows
// nothing; one that is known shows what is harmless.
func TestSignInAnswers(t *testing.T) {
	const access = "true-access-token-0123456789"
	long := strings.Repeat("x", 70<<10)
	tests := []struct {
		name, kind string
		status     int
		body, want string
	}{
		{"a page", "text/html", 200, "<html>" + access, "neither JSON nor a form"},
		{"a page that is called JSON", "application/json", 200, "<html>" + access, "not an object"},
		{"a list", "application/json", 200, `["` + access + `"]`, "not an object"},
		{"more than one", "application/json", 200, `{"access_token":"` + access + `","token_type":"bearer"}{"a":1}`, "goes on"},
		{"too long", "application/json", 200, `{"access_token":"` + access + `","x":"` + long + `"}`, "too long"},
		{"a redirect", "application/json", 302, `{"access_token":"` + access + `"}`, "answered 302"},
		{"the server fails", "application/json", 500, access, "answered 500"},
		{"an error without a code", "application/json", 400, `{"message":"` + access + `"}`, "without an error code"},
		{"an error that is a token", "application/json", 400, `{"error":"` + access + `"}`, "no code"},
		{"another kind of token", "application/json", 200, `{"access_token":"` + access + `","token_type":"mac"}`, "not a bearer"},
		{"nested", "application/json", 200, `{"data":{"access_token":"` + access + `","token_type":"bearer"}}`, "no token"},
		{"another name", "application/json", 200, `{"accessToken":"` + access + `","token_type":"bearer"}`, "no token"},
		{"an object for a token", "application/json", 200, `{"access_token":{"value":"` + access + `"},"token_type":"bearer"}`, "not an object"},
		{"a token in the scope", "application/json", 200, `{"access_token":"` + access + `","token_type":"bearer","scope":"a ` + access + `"}`, "repeats"},
		{"a line break", "application/json", 200, `{"access_token":"` + access + `\r\nX: y","token_type":"bearer"}`, "not plain"},
		{"too short", "application/json", 200, `{"access_token":"abc","token_type":"bearer"}`, "too short"},
		{"ends in words", "application/json", 200, `{"access_token":"` + access + `","token_type":"bearer","expires_in":"soon"}`, "not an object"},
		{"ends before it began", "application/json", 200, `{"access_token":"` + access + `","token_type":"bearer","expires_in":-1}`, "number of seconds"},
		{"never ends", "application/json", 200, `{"access_token":"` + access + `","token_type":"bearer","expires_in":1e99}`, "number of seconds"},
		{"twin, JSON", "application/json", 200, `{"access_token":"` + access + `","token_type":"bearer","expires_in":"60"}`, ""},
		{"twin, a form", "application/x-www-form-urlencoded; charset=utf-8", 200, "access_token=" + access + "&token_type=bearer&expires_in=60", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPerson(t, "")
			begun := p.signIn()
			p.idp.answer = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tt.kind)
				w.Header().Set("Location", "https://evil.test/")
				w.WriteHeader(tt.status)
				fmt.Fprint(w, tt.body)
			}
			status, got, err := p.post("https://idp.test/token", refreshForm(begun["refresh_token"]).Encode())
			if tt.want != "" {
				wantDenied(t, err, rules.CredentialUnavail)
				if !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), access) {
					t.Errorf("refused for %v, want %q", err, tt.want)
				}
			} else if sent, callErr := p.call(got["access_token"]); err != nil || callErr != nil || status != 200 || fmt.Sprint(got["expires_in"]) != "60" || sent != "Bearer "+access {
				t.Errorf("%d %v, %v; the API gets %q, %v", status, got, err, sent, callErr)
			}
			if strings.Contains(p.said.String(), access) || strings.Contains(p.log.String(), access) {
				t.Error("the token reached the sandbox or the log")
			}
		})
	}
}

// TestSignInEndsWithItsRun: with the run, a revocation, and the broker; and it is
// nobody else's.
func TestSignInEndsWithItsRun(t *testing.T) {
	p := newPerson(t, "")
	got := p.signIn()
	p.grant("cell2", "run2", "idp")
	r := request("GET", "https://idp.test/orders", "Authorization", "Bearer "+got["access_token"].(string))
	_, err := admit(t, "cell2", "run2", r, p.client.Find("cell2", r))
	wantDenied(t, err, rules.PlaceholderLeak)
	if sent, err := p.call(got["access_token"]); err != nil || sent != "Bearer "+p.idp.access() {
		t.Fatalf("twin: %q, %v", sent, err)
	}
	p.revoke(p.cell)
	if _, err := p.call(got["access_token"]); err == nil {
		t.Error("a revoked grant signs")
	} else {
		wantDenied(t, err, rules.CredentialRevoked)
	}
	f := p.grant(p.cell, p.run, "idp")
	if _, err := p.call(f.Grants[0].Placeholder); err == nil || !strings.Contains(err.Error(), "nobody has signed in") {
		t.Errorf("before a sign-in: %v", err)
	} else {
		wantDenied(t, err, rules.CredentialUnavail)
	}
	// A broker that comes back knows the grant, and says what to do.
	if err := f.Write(p.cells, 0); err != nil {
		t.Fatal(err)
	}
	got = p.signIn()
	p.stop()
	p.start()
	p.client.Attach(f)
	_, err = p.call(got["access_token"])
	wantDenied(t, err, rules.CredentialUnavail)
	_, _, err = p.post("https://idp.test/token", refreshForm(got["refresh_token"]).Encode())
	wantDenied(t, err, rules.ForeignCredential)
	if got := p.signIn(); got["access_token"] == nil {
		t.Error("twin: nobody can sign in after a restart")
	}
	p.toldNothingTrue()
}

// TestOneRefreshAtATime: refresh tokens are good for one use, and programs have threads.
func TestOneRefreshAtATime(t *testing.T) {
	p := newPerson(t, "")
	got := p.signIn()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range 20 {
		wg.Go(func() {
			r := request("POST", "https://idp.test/token", "Content-Type", "application/x-www-form-urlencoded")
			r.Body = io.NopCloser(strings.NewReader(refreshForm(got["refresh_token"]).Encode()))
			pass := pass(t, p.cell, p.run, r)
			resp, err := p.client.Answer(t.Context(), pass, r)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || resp.StatusCode != 200 {
				t.Errorf("%v, %v", resp, err)
			}
		})
	}
	wg.Wait()
	if len(p.idp.rejected) > 0 {
		t.Errorf("the server rejected %q", p.idp.rejected)
	}
}

// TestRevokedDuringAnExchange: what the endpoint gives is dropped, and the program is
// told why.
func TestRevokedDuringAnExchange(t *testing.T) {
	ends := map[string]func(*person) error{
		"the run's grant": func(p *person) error { return p.op("/v1/revoke", broker.RevokeRequest{Cell: p.cell}, nil) },
		"the credential": func(p *person) error {
			return p.op("/v1/credentials/revoke", broker.Named{Credential: "idp"}, nil)
		},
		"twin": func(*person) error { return nil },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			p := newPerson(t, "")
			got := p.signIn()
			p.idp.answer = func(w http.ResponseWriter, _ *http.Request) {
				if err := end(p); err != nil {
					t.Error(err)
				}
				p.idp.tokens(w)
			}
			status, _, err := p.post("https://idp.test/token", refreshForm(got["refresh_token"]).Encode())
			if name == "twin" {
				if err != nil || status != http.StatusOK {
					t.Errorf("%d, %v", status, err)
				}
				return
			}
			wantDenied(t, err, rules.CredentialRevoked)
			if n := len(p.idp.rejected); n > 0 {
				t.Errorf("the endpoint rejected %d requests", n)
			}
		})
	}
}
