package sign_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/rules/policyfile"
)

func hashHex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// vendorVector is a request as a vendor's own SDK signed it.
type vendorVector struct {
	Type, Source, Name, Method, URL, Body string
	Header                                map[string]string
	Want                                  string `json:"authorization"`
}

// vendor is what the vectors were signed with, and how to sign as a credential.
var vendors = map[string]struct {
	spec   policyfile.Scheme
	keys   string // %s is a token
	date   string // header that says when
	layout string // of date; "" is seconds since 1970
}{
	"azure-storage": {
		policyfile.Scheme{Azure: policyfile.Azure{Account: "devstoreaccount1"}},
		"Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==", "X-Ms-Date", http.TimeFormat,
	},
	"tencent-tc3": {
		policyfile.Scheme{Cloud: policyfile.Cloud{Services: []string{"cvm"}}},
		`{"SecretId":"AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE","SecretKey":"Gu5t9xGARNpq86cd98joQYCN3EXAMPLE","Token":%q}`, "X-Tc-Timestamp", "",
	},
	"alibaba-acs3": {
		policyfile.Scheme{},
		`{"AccessKeyId":"LTAIEXAMPLEEXAMPLE0000","AccessKeySecret":"YourAccessKeySecretEXAMPLE0000","SecurityToken":%q}`, "X-Acs-Date", time.RFC3339,
	},
	"volcengine-v4": {
		policyfile.Scheme{Cloud: policyfile.Cloud{Services: []string{"iam"}, Regions: []string{"cn-north-1"}}},
		`{"AccessKeyId":"AKLTEXAMPLEEXAMPLE0000","SecretAccessKey":"VolcSecretEXAMPLE0000==","SessionToken":%q}`, "X-Date", "20060102T150405Z",
	},
}

// TestVendorVectors: testdata/vendors.json holds requests that the vendors' own
// SDKs signed (each says which, and its version). Ours has the same signature.
func TestVendorVectors(t *testing.T) {
	data, err := os.ReadFile("testdata/vendors.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []vendorVector
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, v := range list {
		seen[v.Type]++
		t.Run(v.Type+" "+v.Name, func(t *testing.T) { checkVector(t, v) })
	}
	for name := range vendors {
		if seen[name] < 4 {
			t.Errorf("%s has %d vectors", name, seen[name])
		}
	}
}

func checkVector(t *testing.T, v vendorVector) {
	t.Helper()
	vendor := vendors[v.Type]
	vendor.spec.Type = policyfile.CredentialType(v.Type)
	s, err := sign.New(vendor.spec, sign.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s = sign.WithNonce(s, v.Header["X-Acs-Signature-Nonce"])
	u, err := url.Parse(v.URL)
	if err != nil {
		t.Fatal(err)
	}
	r := signRequest(t, v.Method, u.Host, u.EscapedPath(), u.RawQuery)
	if r.Path.String() == "" {
		r = signRequest(t, v.Method, u.Host, "/", u.RawQuery)
	}
	token := ""
	for name, value := range v.Header {
		if strings.HasSuffix(name, "Token") {
			token = value
		}
		r.Header.Set(name, value)
	}
	if vendor.layout == "" {
		n, err := strconv.ParseInt(v.Header[vendor.date], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		r.Now = time.Unix(n, 0)
	} else if r.Now, err = time.Parse(vendor.layout, v.Header[vendor.date]); err != nil {
		t.Fatal(err)
	}
	r.Payload = hashHex([]byte(v.Body))
	keys := vendor.keys
	if strings.Contains(keys, "%q") {
		keys = fmt.Sprintf(keys, token)
	}
	ch, err := s.Sign(t.Context(), secret.New([]byte(keys)), r)
	if err != nil {
		t.Fatal(err)
	}
	if got := ch.Set["Authorization"][0]; got != v.Want {
		t.Errorf("signature:\n got %s\nwant %s", got, v.Want)
	}
	if token != "" && !slices.Contains(ch.Expose, token) {
		t.Error("the token of temporary keys is not told to be worth hiding")
	}
	// One octet more in the body, and nobody's signature fits.
	r.Payload = hashHex([]byte(v.Body + "x"))
	r.Header.Set("Content-Length", "99")
	if again, err := s.Sign(t.Context(), secret.New([]byte(keys)), r); err != nil || again.Set["Authorization"][0] == v.Want {
		t.Errorf("another body has the same signature, %v", err)
	}
	if wrong := strings.Replace(keys, "EXAMPLE", "EXAMPLF", 1); wrong != keys {
		if again, err := s.Sign(t.Context(), secret.New([]byte(wrong)), r); err != nil || again.Set["Authorization"][0] == v.Want {
			t.Errorf("other keys have the same signature, %v", err)
		}
	}
}

// TestVendorScopes: SG-01 for those who took after AWS.
func TestVendorScopes(t *testing.T) {
	tests := []struct {
		typ, auth, want string
		services        []string
	}{
		{"tencent-tc3", "TC3-HMAC-SHA256 Credential=AKIDplaceholder/2026-09-01/sts/tc3_request, SignedHeaders=host, Signature=00", `service "sts"`, []string{"cvm"}},
		{"tencent-tc3", "", "does not say", []string{"cvm", "cbs"}},
		{"tencent-tc3", "", "", []string{"cvm"}},
		{"tencent-tc3", "TC3-HMAC-SHA256 Credential=AKIDplaceholder/2026-09-01/cbs/tc3_request, SignedHeaders=host, Signature=00", "", []string{"cvm", "cbs"}},
		{"volcengine-v4", "HMAC-SHA256 Credential=AKLTplaceholder/20260901/cn-north-1/iam/request, SignedHeaders=host, Signature=00", `service "iam"`, []string{"cv"}},
		{"volcengine-v4", "HMAC-SHA256 Credential=AKLTplaceholder/20260901/us-east-1/cv/request, SignedHeaders=host, Signature=00", `region "us-east-1"`, []string{"cv"}},
		{"volcengine-v4", "", "does not say", []string{"cv", "iam"}},
		{"volcengine-v4", "HMAC-SHA256 Credential=AKLTplaceholder/20260901/cn-north-1/cv/request, SignedHeaders=host, Signature=00", "", []string{"cv", "iam"}},
	}
	for _, tt := range tests {
		s, err := sign.New(policyfile.Scheme{Type: policyfile.CredentialType(tt.typ), Cloud: policyfile.Cloud{Regions: []string{"cn-north-1"}, Services: tt.services}}, sign.Config{})
		if err != nil {
			t.Fatal(err)
		}
		r := signRequest(t, "POST", "api.test", "/", "")
		r.Payload, r.Now = emptyHash, noon
		if tt.auth != "" {
			r.Header.Set("Authorization", tt.auth)
		}
		_, err = s.Sign(t.Context(), secret.New([]byte(fmt.Sprintf(vendors[tt.typ].keys, ""))), r)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %q: %v, want %q", tt.typ, tt.auth, err, tt.want)
		}
	}
}

// TestVendorSecrets: what is no pair of keys is refused, and not quoted.
func TestVendorSecrets(t *testing.T) {
	for typ, v := range vendors {
		v.spec.Type = policyfile.CredentialType(typ)
		s, err := sign.New(v.spec, sign.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"short", "{", `{"SecretId":"AKIDEXAMPLE0000"}`, "AccessKeyId = AKLTEXAMPLE0000\nother = topsecrettopsecret", "DefaultEndpointsProtocol=https;AccountName=other;AccountKey=QUJDRA=="} {
			if err := s.Check(secret.New([]byte(bad))); err == nil || strings.Contains(err.Error(), "topsecret") || strings.Contains(err.Error(), "EXAMPLE") {
				t.Errorf("%s: %q: %v", typ, bad, err)
			}
		}
		keys := v.keys
		if strings.Contains(keys, "%q") {
			keys = fmt.Sprintf(keys, "")
		}
		if err := s.Check(secret.New([]byte(keys))); err != nil {
			t.Errorf("%s, twin: %v", typ, err)
		}
	}
	s, err := sign.New(policyfile.Scheme{Type: policyfile.VolcengineV4, Cloud: policyfile.Cloud{Regions: []string{"a"}, Services: []string{"b"}}}, sign.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(secret.New([]byte("# mine\nAccessKeyId = AKLTEXAMPLE0000\nSecretAccessKey = VolcSecretEXAMPLE0000==\n"))); err != nil {
		t.Errorf("lines: %v", err)
	}
}

// TestAzureDocuments: connection strings and shared access signatures.
func TestAzureDocuments(t *testing.T) {
	key := vendors["azure-storage"].keys
	whole := "DefaultEndpointsProtocol=https;AccountName=devstoreaccount1;AccountKey=" + key + ";EndpointSuffix=core.windows.net"
	s, err := sign.New(policyfile.Scheme{Type: policyfile.AzureStorage, Azure: policyfile.Azure{Account: "devstoreaccount1"}}, sign.Config{})
	if err != nil {
		t.Fatal(err)
	}
	text, id, err := s.(sign.Documenter).Document(secret.New([]byte(whole)), "PLACEHOLDER")
	if err != nil || id != "PLACEHOLDER" || text != strings.Replace(whole, key, "PLACEHOLDER", 1) {
		t.Errorf("connection string: %q, %q, %v", text, id, err)
	}
	if text, _, err := s.(sign.Documenter).Document(secret.New([]byte(key)), "PLACEHOLDER"); err != nil || text != "" {
		t.Errorf("a bare key has a document: %q, %v", text, err)
	}

	sas, err := sign.New(policyfile.Scheme{Type: policyfile.AzureSAS}, sign.Config{})
	if err != nil {
		t.Fatal(err)
	}
	const given = "?sv=2022-11-02&ss=b&srt=co&sp=rl&se=2027-01-01T00:00:00Z&spr=https&sig=abc%2Bdef%3D"
	ch, err := sas.Sign(t.Context(), secret.New([]byte(given)), sign.Request{})
	if err != nil || ch.Query["sig"] != "abc+def=" || ch.Query["se"] != "2027-01-01T00:00:00Z" || len(ch.Query) != 7 || !slices.Equal(ch.Expose, []string{"abc+def="}) {
		t.Errorf("shared access signature: %+v, %v", ch, err)
	}
	text, _, err = sas.(sign.Documenter).Document(secret.New([]byte(given)), "PLACE")
	if got, perr := url.ParseQuery(text); err != nil || perr != nil || got.Get("sig") != "PLACE" || got.Get("sp") != "rl" || strings.Contains(text, "abc") {
		t.Errorf("document: %q, %v", text, err)
	}
	for _, bad := range []string{"sv=1", "sig=1", given + "&sig=2", given + "&restype=container", given + "\r\nX: y"} {
		if _, err := sas.Sign(t.Context(), secret.New([]byte(bad)), sign.Request{}); err == nil || strings.Contains(err.Error(), "abc") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func template(t *testing.T, s string) policyfile.Template {
	t.Helper()
	out, err := policyfile.ParseTemplate(s, []string{
		"method", "host", "path", "query", "target", "header", "timestamp", "nonce", "key_id", "body", "body_sha256", "body_sha256_base64", "signature",
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestHMAC: published signatures of webhook-style APIs.
func TestHMAC(t *testing.T) {
	tests := []struct {
		name, secret, body, header, want string
		spec                             policyfile.HMAC
		now                              int64
	}{
		{
			// GitHub's documentation, "Validating webhook deliveries", "Testing the webhook payload validation".
			"GitHub webhook", "It's a Secret to Everybody", "Hello, World!", "X-Hub-Signature-256",
			"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
			policyfile.HMAC{Algorithm: "sha256", Encoding: "hex", Template: template(t, "{body}"), Value: template(t, "sha256={signature}")},
			0,
		},
		{
			// Slack's documentation, "Verifying requests from Slack".
			"Slack", "8f742231b10e8888abcd99yyyzzz85a5",
			"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
			"X-Slack-Signature", "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
			policyfile.HMAC{Algorithm: "sha256", Encoding: "hex", Template: template(t, "v0:{timestamp}:{body}"), Value: template(t, "v0={signature}"), Time: "unix"},
			1531420618,
		},
		{
			// RFC 4231 section 4.3, test case 2.
			"RFC 4231 case 2", "Jefe....", "", "X-Sig", "",
			policyfile.HMAC{Algorithm: "sha512", Encoding: "base64", Template: template(t, "{method}\n{target}\n{header:X-A}\n{body_sha256}\n{body_sha256_base64}"), Value: template(t, "{signature}")},
			0,
		},
	}
	for _, tt := range tests {
		tt.spec.Header = tt.header
		s, err := sign.New(policyfile.Scheme{Type: policyfile.HMACSigned, HMAC: tt.spec}, sign.Config{})
		if err != nil {
			t.Fatal(err)
		}
		r := signRequest(t, "POST", "hooks.test", "/a%20b", "x=1&y=%20")
		r.Body, r.Payload, r.Now = []byte(tt.body), hashHex([]byte(tt.body)), time.Unix(tt.now, 0)
		r.Header.Set("X-A", "one  two")
		ch, err := s.Sign(t.Context(), secret.New([]byte(tt.secret)), r)
		if err != nil {
			t.Fatal(err)
		}
		want := tt.want
		if want == "" {
			mac := hmac.New(crypto.SHA512.New, []byte(tt.secret))
			sum := sha256.Sum256(nil)
			fmt.Fprintf(mac, "POST\n/a%%20b?x=1&y=%%20\none two\n%x\n%s", sum, base64.StdEncoding.EncodeToString(sum[:]))
			want = base64.StdEncoding.EncodeToString(mac.Sum(nil))
		}
		if got := ch.Set[http.CanonicalHeaderKey(tt.header)]; len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, want %q", tt.name, got, want)
		}
		if len(ch.Expose) != 0 {
			t.Errorf("%s: something worth stealing leaves: %q", tt.name, ch.Expose)
		}
	}
}

// TestHMACSettings: keys in hexadecimal and base64, and headers beside.
func TestHMACSettings(t *testing.T) {
	key := []byte("0123456789abcdef")
	for form, text := range map[string]string{"raw": string(key), "hex": hex.EncodeToString(key), "base64": base64.StdEncoding.EncodeToString(key)} {
		s, err := sign.New(policyfile.Scheme{Type: policyfile.HMACSigned, HMAC: policyfile.HMAC{
			Algorithm: "sha256", Encoding: "hex", Key: form, Header: "X-Sig", KeyID: "k7", Time: "rfc3339",
			Template: template(t, "{timestamp}{nonce}"), Value: template(t, "{key_id}:{signature}"),
			Set: map[string]policyfile.Template{"x-time": template(t, "{timestamp}"), "X-Nonce": template(t, "{nonce}")},
		}}, sign.Config{})
		if err != nil {
			t.Fatal(err)
		}
		r := signRequest(t, "GET", "a.test", "/", "")
		r.Now = noon
		ch, err := s.Sign(t.Context(), secret.New([]byte(text)), r)
		if err != nil {
			t.Fatal(err)
		}
		mac := hmac.New(sha256.New, key)
		fmt.Fprint(mac, "2026-09-01T12:00:00Z", ch.Set["X-Nonce"][0])
		if got := ch.Set["X-Sig"][0]; got != "k7:"+hex.EncodeToString(mac.Sum(nil)) || ch.Set["X-Time"][0] != "2026-09-01T12:00:00Z" || len(ch.Set["X-Nonce"][0]) < 20 {
			t.Errorf("%s: %v", form, ch.Set)
		}
		if form == "raw" {
			continue
		}
		if err := s.Check(secret.New([]byte("zz top secret"))); err == nil || strings.Contains(err.Error(), "top") {
			t.Errorf("%s: %v", form, err)
		}
	}
}

// distribution is a registry's token endpoint and the registry, which verifies
// tokens with the library golang-jwt.
func distribution(t *testing.T) *httptest.Server {
	t.Helper()
	key := []byte("the token server's own key, 32 octets")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /token", func(w http.ResponseWriter, r *http.Request) {
		user, pw, _ := r.BasicAuth()
		if user != "bot" || pw != "registry-password" || r.URL.Query().Get("service") != "registry.test" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		tok, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"scope": r.URL.Query().Get("scope"), "exp": time.Now().Add(5 * time.Minute).Unix()}).SignedString(key)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, `{"token":%q,"expires_in":300}`, tok)
	})
	mux.HandleFunc("/v2/", func(w http.ResponseWriter, r *http.Request) {
		claims := jwt.MapClaims{}
		_, err := jwt.ParseWithClaims(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), claims, func(*jwt.Token) (any, error) { return key, nil }, jwt.WithValidMethods([]string{"HS256"}))
		want := r.Header.Get("X-Want")
		if err != nil || claims["scope"] != want {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, claims["scope"])
		}
	})
	srv := httptest.NewTLSServer(mux)
	t.Cleanup(srv.Close)
	return srv
}

// TestOCIRegistry: each request has a token for what it does, which the registry
// verifies.
func TestOCIRegistry(t *testing.T) {
	srv := distribution(t)
	s, err := sign.New(policyfile.Scheme{Type: policyfile.OCIRegistry, OCI: policyfile.OCI{TokenURL: srv.URL + "/token", Service: "registry.test", Username: "bot"}},
		sign.Config{Transport: srv.Client().Transport, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		method, path, want string
		ok                 bool
	}{
		{"GET", "/v2/", "", true},
		{"GET", "/v2/acme/app/manifests/latest", "repository:acme/app:pull", true},
		{"HEAD", "/v2/acme/blobs/x/blobs/sha256:00", "repository:acme/blobs/x:pull", true},
		{"GET", "/v2/acme/app/tags/list", "repository:acme/app:pull", true},
		{"POST", "/v2/acme/app/blobs/uploads/", "repository:acme/app:pull,push", true},
		{"PUT", "/v2/acme/app/manifests/v1", "repository:acme/app:pull,push", true},
		{"DELETE", "/v2/acme/app/manifests/v1", "repository:acme/app:delete", true},
		{"GET", "/v2/_catalog", "", false},
		{"GET", "/v2/acme/app/manifests/a/b", "", false},
		{"GET", "/v2/Acme:pull,push/manifests/x", "", false},
		{"GET", "/other", "", false},
	}
	for _, tt := range tests {
		r := signRequest(t, tt.method, "registry.test", tt.path, "")
		ch, err := s.Sign(t.Context(), secret.New([]byte("registry-password")), r)
		if (err == nil) != tt.ok {
			t.Errorf("%s %s: %v", tt.method, tt.path, err)
		}
		if err != nil {
			continue
		}
		req, err := http.NewRequestWithContext(t.Context(), tt.method, srv.URL+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Authorization": ch.Set["Authorization"], "X-Want": {tt.want}}
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.Body.Close() != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s %s: %d, the token is for %q", tt.method, tt.path, resp.StatusCode, body)
		}
	}
	if _, err := s.Sign(t.Context(), secret.New([]byte("another-password")), signRequest(t, "GET", "registry.test", "/v2/", "")); err == nil || !strings.Contains(err.Error(), "answered 401") {
		t.Errorf("another password: %v", err)
	}
}

// certificate makes a self-signed client certificate, in PEM with its key.
func certificate(t *testing.T, key crypto.Signer, from, to time.Time) (text string, cert *x509.Certificate) {
	t.Helper()
	spec := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "agent"}, NotBefore: from, NotAfter: to,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true, IsCA: true,
	}
	der := must(x509.CreateCertificate(rand.Reader, spec, spec, key.Public(), key))
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) + pemOf(key), must(x509.ParseCertificate(der))
}

// remote signs as the gateway's handshake does: through calls.
type remote struct {
	v   secret.Value
	pub crypto.PublicKey
}

func (r remote) Public() crypto.PublicKey { return r.pub }

func (r remote) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	_, pss := opts.(*rsa.PSSOptions)
	return sign.ClientCert{}.HandshakeSignature(r.v, digest, opts.HashFunc(), pss)
}

// TestClientCert: a server of crypto/tls that demands the certificate takes each
// kind of key in TLS 1.2 and 1.3.
func TestClientCert(t *testing.T) {
	p256 := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	p384 := must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"RSA": rsaKey(), "P-256": p256, "P-384": p384, "Ed25519": ed} {
		text, cert := certificate(t, key, noon, noon.Add(time.Hour))
		v := secret.New([]byte(text))
		chain, err := sign.ClientCert{}.Chain(v, noon)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AddCert(cert)
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.TLS.PeerCertificates[0].Subject.CommonName)
		}))
		srv.Config.ErrorLog = sign.Quiet()
		srv.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, Time: func() time.Time { return noon }}
		srv.StartTLS()
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			get := func(c tls.Certificate) (string, error) {
				tr := srv.Client().Transport.(*http.Transport).Clone()
				tr.TLSClientConfig.Certificates, tr.TLSClientConfig.MaxVersion = []tls.Certificate{c}, version
				defer tr.CloseIdleConnections()
				resp, err := (&http.Client{Transport: tr}).Get(srv.URL)
				if err != nil {
					return "", err
				}
				defer resp.Body.Close()
				b, err := io.ReadAll(resp.Body)
				return string(b), err
			}
			if got, err := get(tls.Certificate{Certificate: chain, PrivateKey: remote{v, cert.PublicKey}}); err != nil || got != "agent" {
				t.Errorf("%s %x: %q, %v", name, version, got, err)
			}
			if got, err := get(tls.Certificate{}); err == nil {
				t.Errorf("%s %x, without one: %q", name, version, got)
			}
			other := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
			if got, err := get(tls.Certificate{Certificate: [][]byte{chain[0]}, PrivateKey: other}); err == nil {
				t.Errorf("%s %x, another's key: %q", name, version, got)
			}
		}
		srv.Close()
	}
}

// TestClientCertRefuses: what cannot work, and what no handshake signs.
func TestClientCertRefuses(t *testing.T) {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	text, _ := certificate(t, key, noon, noon.Add(time.Hour))
	only, _, _ := strings.Cut(text, "-----BEGIN PRIVATE")
	c := sign.ClientCert{}
	for name, bad := range map[string]string{
		"no key": only, "no certificate": pemOf(key), "another's key": only + pemOf(must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))),
		"two keys": text + pemOf(key), "none at all": "sk_test_0123456789", "encrypted": only + "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
	} {
		if err := c.Check(secret.New([]byte(bad))); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	v := secret.New([]byte(text))
	for name, now := range map[string]time.Time{"SG-09 expired": noon.Add(2 * time.Hour), "SG-09 not yet": noon.Add(-time.Minute)} {
		if _, err := c.Chain(v, now); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	for name, hash := range map[string]crypto.Hash{"no hash": 0, "MD5": crypto.MD5, "SHA-1": crypto.SHA1} {
		if _, err := c.HandshakeSignature(v, make([]byte, 16), hash, false); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
	if _, err := c.HandshakeSignature(v, make([]byte, 32), crypto.SHA256, false); err != nil {
		t.Errorf("twin: %v", err)
	}
}
