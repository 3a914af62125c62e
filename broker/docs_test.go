package broker_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"sallyport/broker"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// issuer is every token endpoint of the documentation.
type issuer struct{}

const documentedToken = "token-that-an-endpoint-gave-0001"

func (issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := http.StatusOK, fmt.Sprintf(`{"access_token":%q,"token":%q,"token_type":"Bearer","expires_in":3600}`, documentedToken, documentedToken)
	if strings.HasSuffix(r.URL.Path, "/access_tokens") {
		status, body = http.StatusCreated, fmt.Sprintf(`{"token":%q,"expires_at":"2026-09-01T13:00:00Z"}`, documentedToken)
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// documented returns the first example of a type in the documentation.
func documented(t *testing.T, text, typ, file string) policyfile.Credential {
	t.Helper()
	_, section, ok := strings.Cut(text, "\n### "+typ+"\n")
	if typ == "bearer" { // its example stands at the beginning
		section, ok = text, true
	}
	block := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindStringSubmatch(section)
	if !ok || block == nil {
		t.Fatalf("no example of type %s", typ)
	}
	doc := block[1]
	if !strings.HasPrefix(doc, "apiVersion") {
		doc = "apiVersion: sallyport/v1\nkind: Credential\nmetadata: {name: " + typ + "}\n" + doc
	}
	c, err := policyfile.ParseCredential("docs/credentials.md", []byte(doc))
	if err != nil || string(c.Type) != typ {
		t.Fatalf("%s: %v, of type %q", typ, err, c.Type)
	}
	c.Source = policyfile.Source{File: file}
	return *c
}

func pemText(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// signed is a request as it is sent.
type signed struct {
	*http.Request
	body string
}

func has(field, want string) func(*testing.T, signed) {
	return func(t *testing.T, r signed) {
		t.Helper()
		if got := strings.Join(r.Header[http.CanonicalHeaderKey(field)], "|"); !strings.HasPrefix(got, want) {
			t.Errorf("%s is %q, want %q…", field, got, want)
		}
	}
}

// TestDocumentedExamples: the first example of each scheme in docs/credentials.md
// loads, and signs as the text beside it says. Whether signatures are right others say, in
// broker/sign; here it is the examples.
func TestDocumentedExamples(t *testing.T) {
	text, err := os.ReadFile("../docs/credentials.md")
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	gcp, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "a@b.iam.gserviceaccount.com", "private_key_id": "0123456789abcdef0123456789abcdef01234567",
		"private_key": pemText(t, rsaKey), "token_uri": "https://oauth2.googleapis.com/token",
	})
	if err != nil {
		t.Fatal(err)
	}
	const plain = "secret-of-the-example-0123456789"
	minted := has("Authorization", "Bearer "+documentedToken)
	tests := []struct {
		typ, secret, request, body string
		want                       func(*testing.T, signed)
	}{
		{"bearer", plain, "GET https://api.stripe.com/v1/charges", "", has("Authorization", "Bearer "+plain)},
		{"header", plain, "POST https://api.anthropic.com/v1/messages", "", has("X-Api-Key", plain)},
		{"basic", plain, "GET https://github.com/acme/app.git/info/refs", "", has("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("x-access-token:"+plain)))},
		{"query", plain, "GET https://maps.example.com/geocode/json?q=x", "", func(t *testing.T, r signed) {
			t.Helper()
			if r.URL.RawQuery != "q=x&key="+plain {
				t.Errorf("the query is %q", r.URL.RawQuery)
			}
		}},
		{"body", plain, "POST https://slack.example.com/api/chat", `{"token":"PLACEHOLDER","auth":{"client":{"secret":"PLACEHOLDER"}}}`, func(t *testing.T, r signed) {
			t.Helper()
			if want := `{"token":"` + plain + `","auth":{"client":{"secret":"` + plain + `"}}}`; r.body != want {
				t.Errorf("the body is %q", r.body)
			}
		}},
		{"jwt", pemText(t, ecKey), "GET https://api.example.com/v1/apps/1", "", func(t *testing.T, r signed) {
			t.Helper()
			token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			var claims jwt.RegisteredClaims
			got, err := jwt.ParseWithClaims(token, &claims, func(*jwt.Token) (any, error) { return &ecKey.PublicKey, nil },
				jwt.WithValidMethods([]string{"ES256"}), jwt.WithTimeFunc(func() time.Time { return epoch }), jwt.WithAudience("appstoreconnect-v1"), jwt.WithIssuer("issuer-id"))
			if err != nil || got.Header["kid"] != "2HK9XJ" || !claims.ExpiresAt.Equal(epoch.Add(600*time.Second)) {
				t.Errorf("%v, %v, %+v", err, got.Header, claims)
			}
		}},
		{"hmac", plain, "POST https://hooks.example.com/events/1?x=y", "the body", func(t *testing.T, r signed) {
			t.Helper()
			sum := sha256.Sum256([]byte("the body"))
			mac := hmac.New(sha256.New, []byte(plain))
			fmt.Fprintf(mac, "%s\nPOST\n/events/1?x=y\n%x", r.Header.Get("X-Timestamp"), sum)
			if want := "v1=" + hex.EncodeToString(mac.Sum(nil)); r.Header.Get("X-Signature") != want || r.Header.Get("X-Timestamp") != fmt.Sprint(epoch.Unix()) || r.Header.Get("X-Key-Id") != "agent-7" {
				t.Errorf("%v, want signature %s", r.Header, want)
			}
		}},
		{
			"aws-sigv4", "aws_access_key_id = AKIAIOSFODNN7EXAMPLE\naws_secret_access_key = wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY0\n", "POST https://dynamodb.eu-west-1.amazonaws.com/", "",
			has("Authorization", "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20260901/eu-west-1/dynamodb/aws4_request,"),
		},
		{"azure-storage", azureKey(), "GET https://acmereports.blob.core.windows.net/incoming/a", "", has("Authorization", "SharedKey acmereports:")},
		{"azure-sas", azureKey(), "GET https://acmereports.blob.core.windows.net/incoming/a", "", func(t *testing.T, r signed) {
			t.Helper()
			if q := r.URL.Query(); len(q.Get("sig")) < 40 || q.Get("sp") != "r" || q.Get("sr") != "b" || q.Get("spr") != "https" || q.Get("se") != "2026-09-01T12:05:00Z" {
				t.Errorf("the query is %q", r.URL.RawQuery)
			}
		}},
		{
			"tencent-tc3", "SecretId = AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE\nSecretKey = Gu5t9xGARNpq86cd98joQYCN3EXAMPLE\n", "POST https://cvm.tencentcloudapi.com/", "",
			has("Authorization", "TC3-HMAC-SHA256 Credential=AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE/2026-09-01/cvm/tc3_request,"),
		},
		{
			"alibaba-acs3", "AccessKeyId = LTAI5tExampleKeyId\nAccessKeySecret = ExampleSecretOfThirtyCharacters\n", "POST https://ecs.cn-shanghai.aliyuncs.com/", "",
			has("Authorization", "ACS3-HMAC-SHA256 Credential=LTAI5tExampleKeyId,"),
		},
		{
			"volcengine-v4", "AccessKeyId = AKLTExampleOfAKeyId\nSecretAccessKey = ExampleSecretOfThirtyCharacters\n", "POST https://visual.volcengineapi.com/", "",
			has("Authorization", "HMAC-SHA256 Credential=AKLTExampleOfAKeyId/20260901/cn-north-1/cv/request,"),
		},
		{"mtls", "", "", "", nil},        // signs handshakes: test/clients
		{"oauth2-user", "", "", "", nil}, // a person signs in first: broker/signin_test.go
		{"github-app", pemText(t, rsaKey), "GET https://api.github.com/repos/acme/app/issues", "", has("Authorization", "Bearer "+documentedToken)},
		{"oauth2-client", plain, "GET https://api.example.com/orders/1", "", minted},
		{"oauth2-refresh", plain, "GET https://api.example.com/orders/1", "", minted},
		{"oauth2-jwt-bearer", pemText(t, rsaKey), "GET https://api.example.com/records/1", "", minted},
		{"gcp-service-account", string(gcp), "GET https://storage.googleapis.com/storage/v1/b/reports/o", "", minted},
		{"oci-registry", plain, "GET https://registry.example.com/v2/acme/app/tags/list", "", minted},
	}
	for _, tt := range tests {
		t.Run(tt.typ, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "secret")
			if tt.want == nil {
				documented(t, string(text), tt.typ, file)
				return
			}
			writeSecret(t, file, tt.secret)
			tt.want(t, signExample(t, documented(t, string(text), tt.typ, file), tt.request, tt.body))
		})
	}
}

// signExample sends a request with a placeholder in its body, if it has one, for a
// credential, and returns it as it leaves the gateway.
func signExample(t *testing.T, c policyfile.Credential, req, body string) signed {
	t.Helper()
	k := newKit(t)
	k.stop()
	k.creds, k.tweak = []policyfile.Credential{c}, func(cfg *broker.Config) { cfg.Transport = issuer{} }
	k.start()
	f := k.grant("cell1", "run1", c.Name)
	method, url, _ := strings.Cut(req, " ")
	r := request(method, url)
	if body != "" {
		body = strings.ReplaceAll(body, "PLACEHOLDER", f.Grants[0].Placeholder)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		r.Header.Set("Content-Type", "application/json")
	}
	if c.Type == policyfile.AWSSigV4 {
		sandboxSigns(t, r, f.Grants[0], "dynamodb", fmt.Sprintf("%x", sha256.Sum256(nil)))
	}
	if err := k.client.Inject(t.Context(), passFor(t, c.Name, r), r); err != nil {
		t.Fatal(err)
	}
	out := signed{Request: r}
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		out.body = string(b)
	}
	return out
}

// passFor admits a request of cell1 by a rule for its host, with a credential.
func passFor(t *testing.T, credential string, r *http.Request) gate.Pass {
	t.Helper()
	p, err := rules.Compile(rules.Source{Name: "docs", Digest: "sha256:00", Rules: []rules.Rule{{
		ID: "r", Action: rules.AllowAction, Hosts: []rules.HostPattern{{Host: host(r.URL.Hostname())}}, Ports: []uint16{443}, Credential: credential,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gate.New(gate.Config{
		Identity: func(c string) (gate.Identity, bool) { return gate.Identity{Cell: c, Run: "run1", Policy: p}, true },
		Recorder: &recorder{}, Now: func() time.Time { return epoch }, Hash: func(string) string { return "" },
	})
	if err != nil {
		t.Fatal(err)
	}
	path, err := target.ParsePath(r.URL.EscapedPath())
	if err != nil {
		t.Fatal(err)
	}
	pass, err := g.Admit(t.Context(), rules.Request{
		Question: rules.Fetch, Cell: "cell1", Endpoint: target.Endpoint{Host: host(r.URL.Hostname()), Port: 443}, Secure: true, Protocol: rules.HTTP,
		Method: r.Method, Path: path, Query: r.URL.RawQuery,
	})
	if err != nil {
		t.Fatal(err)
	}
	return pass
}
