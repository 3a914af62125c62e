package sign_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/rules/policyfile"
)

var (
	rsaKey = sync.OnceValue(func() *rsa.PrivateKey { return must(generateRSA()) })
	noon   = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
)

func generateRSA() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func pemOf(key any) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))}))
}

// jwtVerifies is a server that knows the key and takes one algorithm.
func jwtVerifies(token, alg string, key any) (jwt.MapClaims, error) {
	claims := jwt.MapClaims{}
	_, err := jwt.ParseWithClaims(token, claims, func(*jwt.Token) (any, error) { return key, nil },
		jwt.WithValidMethods([]string{alg}), jwt.WithTimeFunc(func() time.Time { return noon }),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithIssuer("us"), jwt.WithAudience("them"))
	return claims, err
}

func jwtScheme(t *testing.T, alg string) sign.Scheme {
	t.Helper()
	s, err := sign.New(policyfile.Scheme{Type: policyfile.JSONWebToken, JWT: policyfile.JWT{
		Algorithm: alg, KeyID: "k1", Life: 300, Claims: map[string]string{"iss": "us", "aud": "them"},
	}}, sign.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestJWT: a well-kept library verifies every algorithm, and refuses another key
// and every flipped character.
func TestJWT(t *testing.T) {
	hmacKey := strings.Repeat("0123456789abcdef", 4)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]crypto.Signer{"RS": rsaKey(), "PS": rsaKey(), "Ed": edKey}
	for alg, curve := range map[string]elliptic.Curve{"ES256": elliptic.P256(), "ES384": elliptic.P384(), "ES512": elliptic.P521()} {
		keys[alg] = must(ecdsa.GenerateKey(curve, rand.Reader))
	}
	algs := []string{"HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
	for _, alg := range algs {
		text, public := hmacKey, any([]byte(hmacKey))
		key := keys[alg]
		if key == nil {
			key = keys[alg[:2]]
		}
		if key != nil {
			text, public = pemOf(key), key.Public()
		}
		s := jwtScheme(t, alg)
		v := secret.New([]byte(text))
		if err := s.Check(v); err != nil {
			t.Errorf("%s: %v", alg, err)
			continue
		}
		ch, err := s.Sign(t.Context(), v, sign.Request{Now: noon})
		if err != nil {
			t.Errorf("%s: %v", alg, err)
			continue
		}
		token := strings.TrimPrefix(ch.Set["Authorization"][0], "Bearer ")
		claims, err := jwtVerifies(token, alg, public)
		if err != nil || claims["jti"] == "" || claims["exp"] != float64(noon.Unix()+300) {
			t.Errorf("%s: %v, %v", alg, claims, err)
		}
		if len(ch.Expose) != 1 || ch.Expose[0] != token {
			t.Errorf("%s: exposes %q", alg, ch.Expose)
		}
		for i := range len(token) - 1 { // the last character may hold unused bits
			if i%7 != 0 {
				continue
			}
			flipped := []byte(token)
			flipped[i] ^= 1
			if _, err := jwtVerifies(string(flipped), alg, public); err == nil {
				t.Errorf("%s: a token with character %d flipped verifies", alg, i)
			}
		}
	}
}

// TestJWTRefusesKeys: JW-01.
func TestJWTRefusesKeys(t *testing.T) {
	ec, p384 := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	short := must(x509.MarshalPKCS8PrivateKey(must(rsa.GenerateKey(rand.Reader, 1024))))
	public := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(ec.Public()))}))
	tests := []struct{ name, alg, text, want string }{
		{"short HMAC key", "HS512", strings.Repeat("a", 63), "512 bits"},
		{"no PEM", "RS256", "sk_test_0123456789", "not a private key in PEM"},
		{"a public key", "ES256", public, "no private key"},
		{"broken", "ES256", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "no private key that can sign"},
		{"two keys", "ES256", pemOf(ec) + pemOf(ec), "more than one"},
		{"another kind", "ES256", pemOf(rsaKey()), "RSA, and the algorithm is not"},
		{"another kind", "RS256", pemOf(ec), "curve"},
		{"another kind", "EdDSA", pemOf(ec), "curve"},
		{"another curve", "ES256", pemOf(p384), "curve"},
		{"short RSA key", "PS256", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: short})), "2048"},
	}
	for _, tt := range tests {
		s := jwtScheme(t, tt.alg)
		v := secret.New([]byte(tt.text))
		err := s.Check(v)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, %s: %v, want an error with %q", tt.alg, tt.name, err, tt.want)
		}
		if _, err := s.Sign(t.Context(), v, sign.Request{Now: noon}); err == nil {
			t.Errorf("%s, %s: signed", tt.alg, tt.name)
		}
	}
	for _, alg := range []string{"none", "None", "", "HS1"} {
		if _, err := sign.New(policyfile.Scheme{Type: policyfile.JSONWebToken, JWT: policyfile.JWT{Algorithm: alg, Life: 1}}, sign.Config{}); err == nil {
			t.Errorf("algorithm %q is taken", alg)
		}
	}
	for _, life := range []int{0, -1, 3601} {
		if _, err := sign.New(policyfile.Scheme{Type: policyfile.JSONWebToken, JWT: policyfile.JWT{Algorithm: "ES256", Life: life}}, sign.Config{}); err == nil {
			t.Errorf("a life of %d s is taken", life)
		}
	}
}
