package broker_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"sallyport/broker"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// documented returns the examples of credentials in the documentation, by type.
func documented(t *testing.T) map[string][]policyfile.Credential {
	t.Helper()
	text, err := os.ReadFile("../docs/credentials.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]policyfile.Credential{}
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		doc := block[1]
		if !strings.HasPrefix(doc, "apiVersion") {
			doc = "apiVersion: sallyport/v1\nkind: Credential\nmetadata: {name: example}\n" + doc
		}
		c, err := policyfile.ParseCredential("docs/credentials.md", []byte(doc))
		if err != nil {
			t.Fatalf("%v\n%s", err, block[1])
		}
		out[string(c.Type)] = append(out[string(c.Type)], *c)
	}
	return out
}

func pemText(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// example is how one of the documentation is used.
type example struct {
	typ             string // and which of its examples, "jwt 2"
	secret, request string
	body            string
	endpoint        *issuer // that is asked for a token; nil for none
	want            verifier
	// covers says that the path is signed: a request for another is refused.
	covers bool
	// alone has the example go another way than a request with a secret behind it.
	alone func(*testing.T, policyfile.Credential)
}

const plain = "secret-of-the-example-0123456789"

// TestDocumentedExamples: every example of a credential in docs/credentials.md signs, mints
// or shakes hands as the text beside it says, in the judgement of who would be sent it.
func TestDocumentedExamples(t *testing.T) {
	docs := documented(t)
	for _, e := range append(plainExamples(t), append(signingExamples(t), mintingExamples(t)...)...) {
		typ, at, _ := strings.Cut(e.typ, " ")
		n := max(1, len(at)) // one mark for each
		t.Run(e.typ, func(t *testing.T) {
			if len(docs[typ]) == 0 || n > len(docs[typ]) {
				t.Fatalf("there is no example %d", n)
			}
			c := docs[typ][n-1]
			docs[typ][n-1].Type = "" // used
			if e.alone != nil {
				e.alone(t, c)
				return
			}
			e.try(t, c)
		})
	}
	for typ, list := range docs {
		for i, c := range list {
			if c.Type != "" {
				t.Errorf("example %d of type %s is not tried", i+1, typ)
			}
		}
	}
	if len(docs) != len(policyfile.Types()) {
		t.Errorf("%d types have examples, of %d", len(docs), len(policyfile.Types()))
	}
}

// try sends the example's request, and has it judged.
func (e example) try(t *testing.T, c policyfile.Credential) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	writeSecret(t, file, e.secret)
	c.Source = policyfile.Source{File: file}
	if e.endpoint != nil {
		e.endpoint.t = t
	}
	r := e.sign(t, c)
	if err := e.want(t, r); err != nil {
		t.Error(err)
	}
	if e.endpoint != nil && e.endpoint.asked != 1 {
		t.Errorf("the endpoint was asked %d times", e.endpoint.asked)
	}
	if e.covers {
		r.URL.Path += "x"
		if e.want(t, r) == nil {
			t.Error("the signature is taken for another path")
		}
	}
}

func plainExamples(*testing.T) []example {
	bearer := example{typ: "bearer", secret: plain, request: "GET https://api.stripe.com/v1/charges", want: has("Authorization", "Bearer "+plain)}
	vault, kubernetes, mounted := bearer, bearer, bearer // they differ in where the secret is
	vault.typ, mounted.typ, kubernetes.typ = "bearer ..", "bearer ...", "bearer ...."
	return []example{
		bearer, vault, mounted, kubernetes,
		{typ: "header", secret: plain, request: "POST https://api.anthropic.com/v1/messages", want: has("X-Api-Key", plain)},
		{
			typ: "basic", secret: plain, request: "GET https://github.com/acme/app.git/info/refs",
			want: has("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("x-access-token:"+plain))),
		},
		{typ: "query", secret: plain, request: "GET https://maps.example.com/geocode/json?q=x", want: func(_ *testing.T, r signed) error {
			if r.URL.RawQuery != "q=x&key="+plain {
				return fmt.Errorf("the query is %q", r.URL.RawQuery)
			}
			return nil
		}},
		{
			typ: "body", secret: plain, request: "POST https://slack.example.com/api/chat", body: `{"token":"PLACEHOLDER","auth":{"client":{"secret":"PLACEHOLDER"}}}`,
			want: func(_ *testing.T, r signed) error {
				return wantJSON(r.body, `{"token":"`+plain+`","auth":{"client":{"secret":"`+plain+`"}}}`)
			},
		},
		{typ: "body ..", alone: firstMessageExample},
	}
}

func signingExamples(t *testing.T) []example {
	t.Helper()
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	awsKeys := fmt.Sprintf("aws_access_key_id = %s\naws_secret_access_key = %s\n", awsID, awsSecret)
	sas := example{typ: "azure-sas", secret: azureKey(), request: "GET https://acmereports.blob.core.windows.net/incoming/a", want: bySAS("acmereports", azureKey()), covers: true}
	account := sas
	account.typ, account.covers = "azure-sas ..", false
	return []example{
		{
			typ: "jwt", secret: pemText(t, ecKey), request: "GET https://api.example.com/v1/apps/1",
			want: bearerJWT("ES256", ecKey.Public(), map[string]any{"kid": "2HK9XJ"}, map[string]any{
				"iss": "issuer-id", "aud": "appstoreconnect-v1", "exp": float64(epoch.Add(600 * time.Second).Unix()), "iat": nil, "jti": nil,
			}),
		},
		{typ: "hmac", secret: plain, request: "POST https://hooks.example.com/events/1?x=y", body: "the body", want: byHMAC(plain), covers: true},
		{
			typ: "aws-sigv4", secret: awsKeys, request: "POST https://dynamodb.eu-west-1.amazonaws.com/", body: "{}",
			want: byAWS("dynamodb", aws.Credentials{AccessKeyID: awsID, SecretAccessKey: awsSecret}), covers: true,
		},
		{typ: "azure-storage", secret: azureKey(), request: "GET https://acmereports.blob.core.windows.net/incoming/a", want: bySharedKey("acmereports", azureKey()), covers: true},
		sas, account,
		{
			typ: "azure-sas ...", secret: "?sv=2020-12-06&sp=r&se=2027-01-01T00%3A00%3A00Z&sr=c&sig=c2lnbmF0dXJlIG9mIHNvbWVib2R5IGVsc2UhIQ%3D%3D", request: "GET https://acmereports.blob.core.windows.net/incoming/a",
			want: func(_ *testing.T, r signed) error {
				return wantForm(r.URL.Query(), map[string]string{"sv": "2020-12-06", "sp": "r", "se": "2027-01-01T00:00:00Z", "sr": "c", "sig": "c2lnbmF0dXJlIG9mIHNvbWVib2R5IGVsc2UhIQ=="})
			},
		},
		{
			typ: "tencent-tc3", secret: "SecretId = AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE\nSecretKey = Gu5t9xGARNpq86cd98joQYCN3EXAMPLE\n", request: "POST https://cvm.tencentcloudapi.com/", body: "{}",
			want: pair{
				"TC3-HMAC-SHA256", "AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE", "2026-09-01/cvm/tc3_request",
				[]string{"host", "content-type"},
				chain("TC3Gu5t9xGARNpq86cd98joQYCN3EXAMPLE", "2026-09-01", "cvm", "tc3_request"), "X-TC-Timestamp",
			}.verify, covers: true,
		},
		{
			typ: "alibaba-acs3", secret: "AccessKeyId = LTAI5tExampleKeyId\nAccessKeySecret = ExampleSecretOfThirtyCharacters\n", request: "POST https://ecs.cn-shanghai.aliyuncs.com/", body: "{}",
			want:   pair{"ACS3-HMAC-SHA256", "LTAI5tExampleKeyId", "", []string{"host", "x-acs-date", "x-acs-content-sha256", "x-acs-signature-nonce"}, []byte("ExampleSecretOfThirtyCharacters"), ""}.verify,
			covers: true,
		},
		{
			typ: "volcengine-v4", secret: "AccessKeyId = AKLTExampleOfAKeyId\nSecretAccessKey = ExampleSecretOfThirtyCharacters\n", request: "POST https://visual.volcengineapi.com/", body: "{}",
			want: pair{
				"HMAC-SHA256", "AKLTExampleOfAKeyId", "20260901/cn-north-1/cv/request",
				[]string{"host", "x-date", "x-content-sha256"},
				chain("ExampleSecretOfThirtyCharacters", "20260901", "cn-north-1", "cv", "request"), "X-Date",
			}.verify, covers: true,
		},
		{typ: "mtls", alone: handshakeExample},
	}
}

func mintingExamples(t *testing.T) []example {
	t.Helper()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
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
	minted := has("Authorization", "Bearer "+documentedToken)
	// statement is an endpoint that is shown one.
	statement := func(at, grant, field, algorithm string, key crypto.PublicKey, header, claims map[string]any) *issuer {
		claims["aud"], claims["exp"] = at, nil
		return &issuer{url: at, judge: func(_ *http.Request, form url.Values, _ string) error {
			if err := wantForm(form, map[string]string{"grant_type": grant}); err != nil {
				return err
			}
			return byJWT(form.Get(field), algorithm, key, header, claims)
		}}
	}
	const id, bearerGrant = "https://id.example.com/oauth2/token", "urn:ietf:params:oauth:grant-type:jwt-bearer"
	return []example{
		{typ: "github-app", secret: pemText(t, rsaKey), request: "GET https://api.github.com/repos/acme/app/issues", want: minted, endpoint: &issuer{
			url: "https://api.github.com/app/installations/7654321/access_tokens",
			judge: func(r *http.Request, _ url.Values, body string) error {
				if err := bearerJWT("RS256", rsaKey.Public(), nil, map[string]any{"iss": "123456", "iat": nil})(t, signed{Request: r}); err != nil {
					return err
				}
				return wantJSON(body, `{"repositories":["app"],"permissions":{"contents":"read","issues":"write"}}`)
			},
		}},
		{typ: "oauth2-client", secret: plain, request: "GET https://api.example.com/orders/1", want: minted, endpoint: &issuer{url: id, judge: func(r *http.Request, form url.Values, _ string) error {
			if err := wantClient(r, "agent", plain); err != nil {
				return err
			}
			return wantForm(form, map[string]string{"grant_type": "client_credentials", "scope": "orders.read", "audience": "https://api.example.com"})
		}}},
		{
			typ: "oauth2-client ..", secret: pemText(t, ecKey), request: "GET https://api.example.com/orders/1", want: minted,
			endpoint: statement(id, "client_credentials", "client_assertion", "ES256", ecKey.Public(), map[string]any{"kid": "k1"}, map[string]any{"iss": "agent", "sub": "agent", "jti": nil}),
		},
		{typ: "oauth2-refresh", secret: plain, request: "GET https://api.example.com/orders/1", want: minted, endpoint: &issuer{url: id, judge: func(_ *http.Request, form url.Values, _ string) error {
			return wantForm(form, map[string]string{"grant_type": "refresh_token", "refresh_token": plain, "client_id": "cli"})
		}}},
		{
			typ: "oauth2-jwt-bearer", secret: pemText(t, rsaKey), request: "GET https://api.example.com/records/1", want: minted,
			endpoint: statement("https://login.example.com/oauth2/token", bearerGrant, "assertion", "RS256", rsaKey.Public(), nil, map[string]any{"iss": "client-id", "sub": "bot@example.com"}),
		},
		{
			typ: "gcp-service-account", secret: string(gcp), request: "GET https://storage.googleapis.com/storage/v1/b/reports/o", want: minted,
			endpoint: statement("https://oauth2.googleapis.com/token", bearerGrant, "assertion", "RS256", rsaKey.Public(), map[string]any{"kid": "0123456789abcdef0123456789abcdef01234567"},
				map[string]any{"iss": "a@b.iam.gserviceaccount.com", "scope": "https://www.googleapis.com/auth/devstorage.read_only"}),
		},
		{typ: "oci-registry", secret: plain, request: "GET https://registry.example.com/v2/acme/app/tags/list", want: minted, endpoint: &issuer{url: "https://auth.example.com/token", judge: func(r *http.Request, form url.Values, _ string) error {
			if err := wantClient(r, "robot", plain); err != nil {
				return err
			}
			return wantForm(form, map[string]string{"service": "registry.example.com", "scope": "repository:acme/app:pull"})
		}}},
		roleExample(t),
		{typ: "oauth2-user", alone: signInExample},
	}
}

// roleExample signs with keys that the token service gave.
func roleExample(t *testing.T) example {
	t.Helper()
	own := aws.Credentials{AccessKeyID: awsID, SecretAccessKey: awsSecret}
	role := aws.Credentials{AccessKeyID: "ASIAIOSFODNN7EXAMPLE", SecretAccessKey: "roleSecretKey/roleSecretKey+EXAMPLE00000", SessionToken: awsToken}
	return example{
		typ: "aws-sigv4 ..", secret: fmt.Sprintf(`{"AccessKeyId":%q,"SecretAccessKey":%q}`, awsID, awsSecret), request: "GET https://reports.s3.eu-west-1.amazonaws.com/incoming/a",
		want: byAWS("s3", role), covers: true,
		endpoint: &issuer{
			url: "https://sts.eu-west-1.amazonaws.com/",
			ans: fmt.Sprintf(`<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken>%s</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`,
				role.AccessKeyID, role.SecretAccessKey, role.SessionToken, epoch.Add(time.Hour).Format(time.RFC3339)),
			judge: func(r *http.Request, form url.Values, body string) error {
				want := map[string]string{"Action": "AssumeRole", "RoleArn": "arn:aws:iam::123456789012:role/agent", "RoleSessionName": "payments-agent", "DurationSeconds": "900"}
				if err := wantForm(form, want); err != nil {
					return err
				}
				return byAWS("sts", own)(t, signed{Request: r, body: body})
			},
		},
	}
}

// kitFor serves one credential, and grants it to run1 in cell1.
func kitFor(t *testing.T, c policyfile.Credential, way http.RoundTripper) *kit {
	t.Helper()
	k := newKit(t)
	k.stop()
	k.creds, k.tweak = []policyfile.Credential{c}, func(cfg *broker.Config) { cfg.Transport = way }
	k.start()
	return k
}

// sign sends the request of an example, with a placeholder in its body if it has one, and
// returns it as it leaves the gateway.
func (e example) sign(t *testing.T, c policyfile.Credential) signed {
	t.Helper()
	var way http.RoundTripper
	if e.endpoint != nil {
		way = e.endpoint
	}
	k := kitFor(t, c, way)
	f := k.grant("cell1", "run1", c.Name)
	method, url, _ := strings.Cut(e.request, " ")
	r := request(method, url)
	if e.body != "" {
		body := strings.ReplaceAll(e.body, "PLACEHOLDER", f.Grants[0].Placeholder)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		r.Header.Set("Content-Type", "application/json")
	}
	if c.Type == policyfile.AWSSigV4 {
		service := "dynamodb"
		if strings.Contains(url, ".s3.") {
			service = "s3"
		}
		sandboxSigns(t, r, f.Grants[0], service, hashOf(e.body))
		if service == "s3" {
			r.Header.Set("X-Amz-Content-Sha256", hashOf(e.body))
		}
	}
	if err := k.client.Inject(t.Context(), passFor(t, c.Name, r), r); err != nil {
		t.Fatal(err)
	}
	if c.Type != policyfile.OCIRegistry { // which is asked for another token, for none of its repositories
		if err := k.admin.Call(t.Context(), "/v1/credentials/test", broker.Named{Credential: c.Name}, &broker.Tested{}); err != nil {
			t.Errorf("credential test: %v", err)
		}
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
