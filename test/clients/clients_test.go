package clients_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/cgi"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"sallyport/launcher"
)

// pemOf writes a private key as PKCS #8.
func pemOf(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

const googleAuth = `
import json, os, sys
import google.auth.jwt
import google.auth.transport.requests
from google.oauth2 import service_account
info = json.loads(os.environ["GCP_KEY"]) # the launcher's tests show the same in a file
if sys.argv[1] == "id":
    creds = service_account.IDTokenCredentials.from_service_account_info(info, target_audience="https://svc.test")
elif sys.argv[1] == "self":
    creds = google.auth.jwt.Credentials.from_service_account_info(info, audience="https://api.test/")
else:
    creds = service_account.Credentials.from_service_account_info(info, scopes=["https://www.googleapis.com/auth/cloud-platform"])
session = google.auth.transport.requests.AuthorizedSession(creds)
r = session.get("https://api.test/v1/things")
print(r.status_code, r.text)
r = session.get("https://other.test/v1/things")
print(r.status_code)
`

// TestGoogleAuth: Google's own library runs with the key file of the cell, asks
// for a token or makes one, and the API gets a token of the true key.
func TestGoogleAuth(t *testing.T) {
	sdk := buildSDK(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for mode, settings := range map[string]string{
		"access": "scopes: [a]", "self": "token: self-signed, audience: \"https://api.test/\"", "id": "token: id, audience: \"https://svc.test\"",
	} {
		t.Run(mode, func(t *testing.T) {
			var asked atomic.Int64
			verify := func(text, audience string) error {
				_, err := jwt.Parse(text, func(*jwt.Token) (any, error) { return key.Public(), nil }, jwt.WithValidMethods([]string{"RS256"}), jwt.WithAudience(audience))
				return err
			}
			tokens := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				w.Header().Set("Content-Type", "application/json")
				if err := verify(r.PostFormValue("assertion"), "https://oauth2.test/token"); err != nil {
					w.WriteHeader(http.StatusBadRequest)
					fmt.Fprint(w, `{"error":"invalid_grant"}`)
					return
				}
				id, err := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{"aud": "https://svc.test", "exp": time.Now().Add(time.Hour).Unix()}).SignedString(key)
				if err != nil {
					t.Error(err)
				}
				fmt.Fprintf(w, `{"access_token":"ya29.the-true-token","token_type":"Bearer","expires_in":3600,"id_token":%q}`, id)
			})
			api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
				ok := token == "ya29.the-true-token"
				switch mode {
				case "self":
					ok = verify(token, "https://api.test/") == nil
				case "id":
					ok = verify(token, "https://svc.test") == nil
				}
				if !ok {
					w.WriteHeader(http.StatusUnauthorized)
				}
				fmt.Fprint(w, "hello "+token)
			})
			file, err := json.Marshal(map[string]string{
				"type": "service_account", "project_id": "acme", "private_key_id": "0123456789abcdef0123456789abcdef01234567", "private_key": pemOf(t, key),
				"client_email": "agent@acme.iam.gserviceaccount.com", "token_uri": "https://oauth2.test/token",
			})
			if err != nil {
				t.Fatal(err)
			}
			var loot atomic.Int64
			g := newGateway(t, []origin{{host: "api.test", handler: api}, {host: "oauth2.test", handler: tokens}, {host: "other.test", handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { loot.Add(1) })}},
				[]credential{{
					name: "gcp", host: "api.test", more: "oauth2.test", secret: string(file),
					doc: "type: gcp-service-account\ngcp-service-account: {token_url: \"https://oauth2.test/token\", " + settings + "}\nplaceholder: {env: GCP_KEY}",
				}})
			out := g.must(googleAuth, "python3", "-", mode)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if len(lines) != 2 || !strings.HasPrefix(lines[0], "200 hello ") || strings.Contains(out, "true-token") {
				t.Errorf("%s\nrefusals: %q", out, g.reasons())
			}
			if mode != "id" {
				googleInGo(t, g, sdk, mode, &loot)
			}
			if want := map[string]int64{"access": 1, "self": 0, "id": 1}[mode]; asked.Load() != want {
				t.Errorf("the token endpoint was asked %d times, want %d: by the broker alone", asked.Load(), want)
			}
			if mode != "id" && (lines[len(lines)-1] != "403" || loot.Load() != 0 || !slices.Contains(g.reasons(), "placeholder_leak")) {
				t.Errorf("the token of the cell at another host: %s, %d requests, refusals %q", lines[len(lines)-1], loot.Load(), g.reasons())
			}
			// Somebody else's statement gets no token here.
			stranger, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"iss": "stranger"}).SignedString([]byte("0123456789abcdef0123456789abcdef"))
			if err != nil {
				t.Fatal(err)
			}
			got := g.must("", "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--data-urlencode", "assertion="+stranger, "https://oauth2.test/token")
			if got != "403" || !slices.Contains(g.reasons(), "foreign_credential") {
				t.Errorf("a stranger's statement: %s, refusals %q", got, g.reasons())
			}
			g.holdsNone("true-token", pemOf(t, key)[100:160])
		})
	}
}

// googleInGo does the same with Google's library for Go.
func googleInGo(t *testing.T, g *gateway, sdk, mode string, loot *atomic.Int64) {
	t.Helper()
	if out := g.must("", sdk, "google", mode, "https://api.test/v1/things"); !strings.HasPrefix(out, "200 hello ") || strings.Contains(out, "true-token") {
		t.Errorf("in Go: %s\nrefusals: %q", out, g.reasons())
	}
	before := len(g.refusals("placeholder_leak"))
	if out := g.must("", sdk, "google", mode, "https://other.test/v1/things"); !strings.HasPrefix(out, "403 ") || loot.Load() != 0 || !slices.Contains(g.refusals("placeholder_leak")[before:], "other.test") {
		t.Errorf("in Go, the token of the cell at another host: %s, %d requests, refusals %q", out, loot.Load(), g.reasons())
	}
}

// TestRefreshTokenInTheCell: a program that refreshes by itself gets a placeholder.
func TestRefreshTokenInTheCell(t *testing.T) {
	const refresh = "1//0the-true-refresh-token"
	tokens := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.PostFormValue("refresh_token") != refresh || r.PostFormValue("client_id") != "cli" {
			w.WriteHeader(http.StatusBadRequest)
		}
		fmt.Fprint(w, `{"access_token":"the-true-access-token","token_type":"Bearer","expires_in":3600}`)
	})
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer the-true-access-token" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		fmt.Fprint(w, r.Header.Get("Authorization"))
	})
	g := newGateway(t, []origin{{host: "api.test", handler: api}, {host: "id.test", handler: tokens}}, []credential{{
		name: "rt", host: "api.test", more: "id.test", secret: refresh,
		doc: "type: oauth2-refresh\noauth2-refresh: {token_url: \"https://id.test/token\", client_id: cli}\nplaceholder: {env: REFRESH_TOKEN}",
	}})
	_, placeholder, _ := strings.Cut(g.env[0], "=")
	got := g.must("", "curl", "-sS", "-d", "grant_type=refresh_token&client_id=cli&refresh_token="+placeholder, "https://id.test/token")
	var ans struct {
		AccessToken string `json:"access_token"`
	}
	if err := json.Unmarshal([]byte(got), &ans); err != nil || ans.AccessToken != placeholder {
		t.Fatalf("the cell is told %s, %v; refusals %q", got, err, g.reasons())
	}
	if got := g.must("", "curl", "-sS", "-w", " %{http_code}", "-H", "Authorization: Bearer "+ans.AccessToken, "https://api.test/x"); !strings.HasSuffix(got, " 200") || strings.Contains(got, "the-true") {
		t.Errorf("the API says %s", got)
	}
	if got := g.must("", "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-d", "refresh_token=1//another", "https://id.test/token"); got != "403" || !slices.Contains(g.reasons(), "foreign_credential") {
		t.Errorf("another refresh token: %s, refusals %q", got, g.reasons())
	}
	g.holdsNone(refresh, "the-true-access-token")
}

// TestClientCertificate: curl in the cell has no certificate; the server demands
// one, and gets that of the broker for each kind of key.
func TestClientCertificate(t *testing.T) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"RSA": rs, "ECDSA": ec, "Ed25519": ed} {
		t.Run(name, func(t *testing.T) {
			spec := &x509.Certificate{
				SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "agent"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
				IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			}
			der, err := x509.CreateCertificate(rand.Reader, spec, spec, key.Public(), key)
			if err != nil {
				t.Fatal(err)
			}
			cert, err := x509.ParseCertificate(der)
			if err != nil {
				t.Fatal(err)
			}
			pool := x509.NewCertPool()
			pool.AddCert(cert)
			who := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprint(w, r.TLS.PeerCertificates[0].Subject.CommonName)
			})
			g := newGateway(t, []origin{{"partner.test", who, pool}, {"bare.test", who, pool}}, []credential{{
				name: "cert", host: "partner.test", doc: "type: mtls",
				secret: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) + pemOf(t, key),
			}})
			for range 2 { // the second goes over the first one's connection
				if got := g.must("", "curl", "-sS", "https://partner.test/api"); got != "agent" {
					t.Errorf("the server saw %q; refusals %q", got, g.reasons())
				}
			}
			if got := g.must("", "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "https://bare.test/"); got != "502" {
				t.Errorf("without the credential: %s", got)
			}
			// Revoked, the next request is refused, whatever connection is open.
			if err := g.admin.Call(t.Context(), "/v1/revoke", map[string]string{"cell": cell}, nil); err != nil {
				t.Fatal(err)
			}
			if got := g.must("", "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "https://partner.test/api"); got == "200" || !slices.Contains(g.reasons(), "credential_revoked") {
				t.Errorf("after revocation: %s, refusals %q", got, g.reasons())
			}
			g.holdsNone(pemOf(t, key)[40:80])
		})
	}
}

// counting counts what is read.
type counting struct {
	io.ReadCloser
	n int64
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.n += int64(n)
	return n, err
}

// gitVariables are those that the launcher sets for git.
func gitVariables() []string {
	return slices.DeleteFunc(launcher.Environment(netip.MustParseAddrPort("127.0.0.1:3128")), func(kv string) bool {
		return !strings.HasPrefix(kv, "GIT_CONFIG_")
	})
}

// TestGitOverHTTPS: clone and push, with a placeholder for a token.
func TestGitOverHTTPS(t *testing.T) {
	const token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
	dir := t.TempDir()
	env := []string{
		"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1",
		"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*", "GIT_CONFIG_KEY_1=http.receivepack", "GIT_CONFIG_VALUE_1=true",
	}
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	initBare := exec.Command(git, "init", "-q", "--bare", "-b", "main", filepath.Join(dir, "app.git"))
	initBare.Env = env
	if out, err := initBare.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	backend := &cgi.Handler{Path: git, Args: []string{"http-backend"}, Root: "/acme", Dir: dir, Env: env, Stderr: io.Discard}
	var refused atomic.Int64
	var chunked atomic.Int64 // octets of the largest upload in chunks
	server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TransferEncoding) > 0 {
			r.TransferEncoding = nil // package cgi refuses chunks, which the backend reads to the end
			counted := &counting{ReadCloser: r.Body}
			r.Body = counted
			defer func() { chunked.Store(max(chunked.Load(), counted.n)) }()
		}
		if user, pw, _ := r.BasicAuth(); user != "x-access-token" || pw != token {
			refused.Add(1)
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	})
	g := newGateway(t, []origin{{host: "git.test", handler: server}, {host: "other.test", handler: server}}, []credential{{
		name: "git", host: "git.test", secret: token, doc: "type: basic\nbasic: {username: x-access-token}\nplaceholder: {env: GIT_TOKEN}",
	}})
	g.env = append(g.env, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b.test", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b.test")
	g.must("", "sh", "-ec", `git clone -q "https://x-access-token:$GIT_TOKEN@git.test/acme/app.git" one
		cd one; echo text > file; git add file; git commit -qm first; git push -q origin HEAD:main; cd ..
		git clone -q "https://git.test/acme/app.git" two; test "$(cat two/file)" = text`)
	// A pack of more than git's 1 MiB goes in chunks, over HTTP/1.1 as a sandbox has it.
	g.env = append(g.env, gitVariables()...)
	g.must("", "sh", "-ec", `cd two; head -c 5000000 /dev/urandom > large; git add large; git commit -qm large
		git push -q "https://x-access-token:$GIT_TOKEN@git.test/acme/app.git" HEAD:main; cd ..
		git clone -q "https://git.test/acme/app.git" five; cmp two/large five/large`)
	if n := chunked.Load(); n < 5_000_000 {
		t.Errorf("the largest upload in chunks has %d octets", n)
	}
	if refused.Load() != 0 {
		t.Errorf("the server refused %d requests", refused.Load())
	}
	if out, err := g.command("", "sh", "-ec", `git clone -q "https://x-access-token:$GIT_TOKEN@other.test/acme/app.git" three`); err == nil || !slices.Contains(g.reasons(), "placeholder_leak") {
		t.Errorf("the placeholder at another host: %v, refusals %q, %s", err, g.reasons(), out)
	}
	if out, err := g.command("", "git", "-c", "http.extraHeader=Authorization: Bearer ghp_0000000000000000000000000000000000AA", "clone", "-q", "https://git.test/acme/app.git", "four"); err == nil || !slices.Contains(g.reasons(), "foreign_credential") {
		t.Errorf("CR-14 another's token: %v, refusals %q, %s", err, g.reasons(), out)
	}
	g.holdsNone(token)
}
