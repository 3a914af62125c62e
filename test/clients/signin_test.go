package clients_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// signInServer is an authorization server (RFC 8628, RFC 7636) with an API beside it.
// Each code and each refresh token is good for one use, and everything that it gets
// from anybody else is noted.
type signInServer struct {
	mu       sync.Mutex
	n, polls int
	device   string
	refresh  string
	access   []string // that are good
	issued   []string
	refused  []string
	grants   []string
}

const (
	signInClient   = "agent-cli"
	signInSecret   = "GOCSPX-the-true-client-secret"
	signInCode     = "code-from-a-browser"
	signInVerifier = "a-verifier-of-the-program-that-is-long-enough-for-pkce"
)

func (s *signInServer) issue(kind string) string {
	s.n++
	text := fmt.Sprintf("ya29.the-true-%s-%04d-%s", kind, s.n, strings.Repeat("z", 40))
	s.issued = append(s.issued, text)
	return text
}

func (s *signInServer) tokens(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	refuse := func(code string) {
		s.refused = append(s.refused, fmt.Sprintf("%s: %v", code, r.PostForm))
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"error":%q,"error_description":%q}`, code, strings.Join(s.issued, " "))
	}
	if r.PostFormValue("client_id") != signInClient || r.PostFormValue("client_secret") != signInSecret {
		refuse("invalid_client")
		return
	}
	if r.URL.Path == "/device" {
		s.device = s.issue("device-code")
		fmt.Fprintf(w, `{"device_code":%q,"user_code":"ABCD-EFGH","verification_uri":"https://id.test/activate","expires_in":600,"interval":1}`, s.device)
		return
	}
	grant := r.PostForm.Get("grant_type")
	s.grants = append(s.grants, grant)
	sum := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
	want := sha256.Sum256([]byte(signInVerifier))
	switch {
	case grant == "urn:ietf:params:oauth:grant-type:device_code" && r.PostForm.Get("device_code") == s.device && s.device != "":
		if s.polls++; s.polls < 3 {
			refuse("authorization_pending")
			s.refused = s.refused[:len(s.refused)-1]
			return
		}
		s.device = ""
	case grant == "authorization_code" && r.PostForm.Get("code") == signInCode && sum == want:
	case grant == "refresh_token" && r.PostForm.Get("refresh_token") == s.refresh:
	default:
		refuse("invalid_grant")
		return
	}
	access := s.issue("access-token")
	s.access, s.refresh = append(s.access, access), s.issue("refresh-token")
	fmt.Fprintf(w, `{"access_token":%q,"refresh_token":%q,"token_type":"Bearer","expires_in":3600,"scope":"read"}`, access, s.refresh)
}

func (s *signInServer) api(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !slices.Contains(s.access, token) {
		s.refused = append(s.refused, "the API got "+token)
		w.WriteHeader(http.StatusUnauthorized)
	}
	fmt.Fprint(w, "it is ", token)
}

// signInPython signs in by device code with requests, goes on with requests_oauthlib,
// which refreshes by itself, exchanges a code with PKCE, and lets google-auth refresh.
const signInPython = `
import os, requests
from requests_oauthlib import OAuth2Session
import google.auth.transport.requests
from google.oauth2.credentials import Credentials
TOKEN, API, ID = "https://id.test/token", "https://api.test/things", "agent-cli"
secret = os.environ["CLIENT_SECRET"]
begun = requests.post("https://id.test/device", data={"client_id": ID, "client_secret": secret, "scope": "read"}).json()
print("code", begun["user_code"])
while True:
    r = requests.post(TOKEN, data={"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "device_code": begun["device_code"], "client_id": ID, "client_secret": secret})
    if r.status_code == 200:
        break
    print("poll", r.status_code, r.json()["error"])
token = r.json()
print("api", OAuth2Session(ID, token=token).get(API).text)
token["expires_in"] = -30
kept = []
session = OAuth2Session(ID, token=token, auto_refresh_url=TOKEN, auto_refresh_kwargs={"client_id": ID, "client_secret": secret}, token_updater=kept.append)
print("refreshed", session.get(API).text, len(kept))
session = OAuth2Session(ID, redirect_uri="http://127.0.0.1:8400/", scope=["read"])
token = session.fetch_token(TOKEN, code="code-from-a-browser", code_verifier="` + signInVerifier + `", include_client_id=True, client_secret=secret)
print("exchanged", session.get(API).text)
creds = Credentials(None, refresh_token=token["refresh_token"], token_uri=TOKEN, client_id=ID, client_secret=secret)
print("google", google.auth.transport.requests.AuthorizedSession(creds).get(API).text)
print(token, kept)
r = requests.post(TOKEN, data={"grant_type": "refresh_token", "refresh_token": "ya29.somebody-elses-refresh-token", "client_id": ID, "client_secret": secret})
print("stranger", r.status_code)
`

// TestPeopleSignIn: programs of the cell sign people in by device code and by code, and
// refresh, with the libraries that they have; true tokens stay outside.
func TestPeopleSignIn(t *testing.T) {
	s := &signInServer{}
	g := newGateway(t, []origin{{host: "api.test", handler: http.HandlerFunc(s.api)}, {host: "id.test", handler: http.HandlerFunc(s.tokens)}}, []credential{{
		name: "person", host: "api.test", more: "id.test", morePaths: ", methods: [POST], paths: [/token, /device]", secret: signInSecret,
		doc: "type: oauth2-user\noauth2-user: {token_url: \"https://id.test/token\", device_url: \"https://id.test/device\", client_id: agent-cli, " +
			"auth: client_secret_post, grants: [device_code, authorization_code, refresh_token], scopes: [read]}\nplaceholder: {env: CLIENT_SECRET}",
	}})
	out := g.must(signInPython, "python3", "-")
	for _, want := range []string{
		"code ABCD-EFGH", "poll 400 authorization_pending\npoll 400 authorization_pending\napi it is ", "refreshed it is ", "exchanged it is ",
		"google it is ", "stranger 403",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the programs say %s, want %q", out, want)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.refused) > 0 || len(s.access) != 4 {
		t.Errorf("the server refused %q, and gave %d tokens", s.refused, len(s.access))
	}
	for _, truth := range append(s.issued, signInSecret) {
		for _, spelled := range []string{truth, base64.StdEncoding.EncodeToString([]byte(truth))} {
			if strings.Contains(out, spelled) {
				t.Errorf("a program was told %.30s…", spelled)
			}
		}
	}
	if !slices.Contains(g.reasons(), "foreign_credential") {
		t.Errorf("refusals: %q", g.reasons())
	}
	g.holdsNone(append(s.issued, signInSecret)...)
}
