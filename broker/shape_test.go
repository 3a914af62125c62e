package broker_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"hash/crc32"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"sallyport/broker"
)

// shaped returns what a sandbox gets for a secret, and the parts of it that are
// leaks by themselves.
func shaped(t *testing.T, secret string) (text string, parts []string) {
	t.Helper()
	text, parts, err := broker.StandIn(secret)
	if err != nil {
		t.Fatal(err)
	}
	return text, parts
}

func pemOf(t *testing.T, kind string, key any) string {
	t.Helper()
	var der []byte
	var err error
	switch key := key.(type) {
	case *rsa.PrivateKey:
		der = x509.MarshalPKCS1PrivateKey(key)
	case *ecdsa.PrivateKey:
		der, err = x509.MarshalECPrivateKey(key)
	}
	if kind == "PRIVATE KEY" {
		der, err = x509.MarshalPKCS8PrivateKey(key)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// TestKeysInPEMParse: clients parse a private key before they send anything.
func TestKeysInPEMParse(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, secret string }{
		{"PKCS #1", pemOf(t, "RSA PRIVATE KEY", rsaKey)},
		{"SEC 1", pemOf(t, "EC PRIVATE KEY", ecKey)},
		{"PKCS #8 RSA", pemOf(t, "PRIVATE KEY", rsaKey)},
		{"PKCS #8 EC", pemOf(t, "PRIVATE KEY", ecKey)},
		{"PKCS #8 Ed25519", pemOf(t, "PRIVATE KEY", edKey)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ph, _ := shaped(t, tt.secret)
			block, rest := pem.Decode([]byte(ph))
			want, _ := pem.Decode([]byte(tt.secret))
			if block == nil || len(bytes.TrimSpace(rest)) > 0 || block.Type != want.Type || bytes.Equal(block.Bytes, want.Bytes) {
				t.Fatalf("%q", ph)
			}
			var err error
			switch block.Type {
			case "RSA PRIVATE KEY":
				_, err = x509.ParsePKCS1PrivateKey(block.Bytes)
			case "EC PRIVATE KEY":
				var key *ecdsa.PrivateKey
				if key, err = x509.ParseECPrivateKey(block.Bytes); err == nil && key.Curve != elliptic.P384() {
					t.Errorf("curve %v", key.Curve.Params().Name)
				}
			default:
				_, err = x509.ParsePKCS8PrivateKey(block.Bytes)
			}
			if err != nil {
				t.Error(err)
			}
			for line := range strings.Lines(tt.secret) {
				if line = strings.TrimSpace(line); len(line) == 64 && !strings.HasPrefix(line, "MI") && strings.Contains(ph, line) {
					t.Errorf("a line of the secret is in its stand-in: %q", line)
				}
			}
		})
	}
	if ph, _ := shaped(t, "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU=\n-----END OPENSSH PRIVATE KEY-----"); !strings.HasPrefix(ph, "-----BEGIN OPENSSH PRIVATE KEY-----\n") {
		t.Errorf("a kind that is not known: %q", ph)
	}
}

// TestGoogleKeyFileParses: what a client reads of a key file is there, and of its
// kind.
func TestGoogleKeyFileParses(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := json.Marshal(map[string]any{
		"type": "service_account", "project_id": "proj-1", "private_key_id": "0123456789abcdef0123456789abcdef01234567",
		"private_key": pemOf(t, "PRIVATE KEY", key), "client_email": "bot@proj-1.iam.gserviceaccount.com", "client_id": "1234567890",
		"token_uri": "https://oauth2.googleapis.com/token", "nested": map[string]any{"api_token": "abcdefghijklmnopqrstuvwxyz012345", "n": 12345678, "ok": true},
	})
	if err != nil {
		t.Fatal(err)
	}
	ph, parts := shaped(t, string(secret))
	var file struct {
		Type, ProjectID, PrivateKeyID, PrivateKey, ClientEmail, TokenURI string
	}
	if err := json.Unmarshal([]byte(strings.NewReplacer("project_id", "ProjectID", "private_key_id", "PrivateKeyID", "private_key", "PrivateKey",
		"client_email", "ClientEmail", "token_uri", "TokenURI").Replace(ph)), &file); err != nil {
		t.Fatal(err)
	}
	if file.Type != "service_account" || file.ProjectID != "proj-1" || file.ClientEmail != "bot@proj-1.iam.gserviceaccount.com" ||
		file.TokenURI != "https://oauth2.googleapis.com/token" || !regexp.MustCompile("^[0-9a-f]{40}$").MatchString(file.PrivateKeyID) {
		t.Errorf("%+v", file)
	}
	if block, _ := pem.Decode([]byte(file.PrivateKey)); block == nil {
		t.Error("its key is not PEM")
	} else if parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes); err != nil || key.Equal(parsed) {
		t.Errorf("its key: %v", err)
	}
	for _, part := range []string{"0123456789abcdef0123456789abcdef01234567", "abcdefghijklmnopqrstuvwxyz012345", "12345678}"} {
		if strings.Contains(ph, part) {
			t.Errorf("%q of the secret is in its stand-in", part)
		}
	}
	// A part of the document is a leak by itself.
	if len(parts) < 3 {
		t.Errorf("only %d parts of the document are recognised", len(parts))
	}
	for _, part := range parts {
		if !strings.Contains(ph, part) {
			t.Errorf("part %q is not of the stand-in", part)
		}
	}
}

func TestConnectionStrings(t *testing.T) {
	const pw = "s3cr3t-pa55word-0123456789"
	tests := []string{
		"postgres://app:" + pw + "@db.corp.example:5432/orders?sslmode=require",
		"redis://:" + pw + "@cache.corp.example:6379/0",
		"amqps://bot:" + pw + "@mq.corp.example/vhost?heartbeat=30",
		"host=db.corp.example user=app password=" + pw + " dbname=orders",
		"Server=tcp:db.corp.example,1433;User ID=app;Password=" + pw + ";Encrypt=true",
		"DefaultEndpointsProtocol=https;AccountName=store;AccountKey=" + pw + "abcdefghijklmnopqrstuvwxyz==;EndpointSuffix=core.windows.net",
	}
	for _, secret := range tests {
		ph, parts := shaped(t, secret)
		if strings.Contains(ph, pw[:8]) || len(parts) != 1 || !strings.Contains(ph, parts[0]) {
			t.Errorf("%q became %q with parts %v", secret, ph, parts)
			continue
		}
		if rest := strings.ReplaceAll(ph, parts[0], ""); !strings.HasPrefix(secret, rest[:len("redis://:")]) {
			t.Errorf("%q became %q", secret, ph)
		}
		was, err1 := url.Parse(secret)
		is, err2 := url.Parse(ph)
		if strings.Contains(secret, "://") && (err1 != nil || err2 != nil || was.Host != is.Host || was.Path != is.Path || was.User.Username() != is.User.Username() || was.RawQuery != is.RawQuery) {
			t.Errorf("%q became %q", secret, ph)
		}
	}
}

// TestTokensWithChecksums: the checksum of the first is GitHub's own making: the
// rule is held against it before it judges ours.
func TestTokensWithChecksums(t *testing.T) {
	check := func(token string) bool {
		body := token[strings.IndexByte(token, '_')+1:]
		sum, want := crc32.ChecksumIEEE([]byte(body[:30])), uint32(0)
		for _, c := range []byte(body[30:]) {
			want = want*62 + uint32(strings.IndexByte("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", c))
		}
		return sum == want
	}
	const published = "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"
	if !check(published) || check(published[:39]+"8") {
		t.Fatal("the rule does not hold for a published token")
	}
	for _, prefix := range []string{"ghp_", "ghs_", "gho_", "npm_"} {
		for range 10 {
			ph, _ := shaped(t, prefix+"zQWBuTSOoRi4A9spHcVY5ncnsDkxkJ0mLq17")
			if !strings.HasPrefix(ph, prefix) || len(ph) != 40 || !check(ph) {
				t.Errorf("%q has no right checksum", ph)
			}
		}
	}
	shapes := []struct{ secret, want string }{
		{"github_pat_11ABCDEFG0abcdefghijklm_" + strings.Repeat("aB3", 19) + "zz", `^github_pat_[0-9A-Za-z]{22,23}_[0-9A-Za-z]{59}$`},
		{"AKIAIOSFODNN7EXAMPLE", `^AKIA[0-9A-Z]{16}$`},
		{"c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmU=", `^[0-9A-Za-z]{39}=$`},
	}
	for _, tt := range shapes {
		if ph, _ := shaped(t, tt.secret); !regexp.MustCompile(tt.want).MatchString(ph) {
			t.Errorf("%q became %q", tt.secret, ph)
		}
	}
}

// TestWebTokensParse: a library reads the stand-in, and finds it in force.
func TestWebTokensParse(t *testing.T) {
	secret, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": "customer-4711", "exp": 1}).SignedString([]byte("k"))
	if err != nil {
		t.Fatal(err)
	}
	ph, _ := shaped(t, secret)
	tok, _, err := jwt.NewParser().ParseUnverified(ph, jwt.MapClaims{})
	if err != nil || tok.Method.Alg() != "HS256" {
		t.Fatalf("%v", err)
	}
	if err := jwt.NewValidator().Validate(tok.Claims); err != nil {
		t.Error(err)
	}
	if sub, _ := tok.Claims.GetSubject(); sub == "customer-4711" {
		t.Error("a claim of the secret is taken over")
	}
}
