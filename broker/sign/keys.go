package sign

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"

	"sallyport/broker/secret"
)

// jwsAlgorithm is one algorithm of JSON Web Signature (RFC 7518 section 3.1,
// RFC 8037 section 3.1).
type jwsAlgorithm struct {
	hash crypto.Hash
	kind string // of key: oct, rsa, ec, ed25519
	pss  bool
	bits int // ec: of the curve; oct: the least of the key
}

var jwsAlgorithms = map[string]jwsAlgorithm{
	"HS256": {hash: crypto.SHA256, kind: "oct", bits: 256},
	"HS384": {hash: crypto.SHA384, kind: "oct", bits: 384},
	"HS512": {hash: crypto.SHA512, kind: "oct", bits: 512},
	"RS256": {hash: crypto.SHA256, kind: "rsa"},
	"RS384": {hash: crypto.SHA384, kind: "rsa"},
	"RS512": {hash: crypto.SHA512, kind: "rsa"},
	"PS256": {hash: crypto.SHA256, kind: "rsa", pss: true},
	"PS384": {hash: crypto.SHA384, kind: "rsa", pss: true},
	"PS512": {hash: crypto.SHA512, kind: "rsa", pss: true},
	"ES256": {hash: crypto.SHA256, kind: "ec", bits: 256},
	"ES384": {hash: crypto.SHA384, kind: "ec", bits: 384},
	"ES512": {hash: crypto.SHA512, kind: "ec", bits: 521},
	"EdDSA": {kind: "ed25519"},
}

// minRSABits is the least that RFC 7518 section 3.3 allows.
const minRSABits = 2048

// readPrivateKey reads a private key in PEM: PKCS #8, PKCS #1 or SEC 1.
func readPrivateKey(v secret.Value) (crypto.Signer, error) {
	block, rest := pem.Decode(v.Reveal())
	if block == nil {
		return nil, errors.New("the secret is not a private key in PEM")
	}
	defer clear(block.Bytes)
	if more, _ := pem.Decode(rest); more != nil {
		return nil, errors.New("the secret holds more than one PEM block")
	}
	var key any
	var err error
	switch block.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	default:
		return nil, errors.New("the secret's PEM block is no private key, or an encrypted one")
	}
	s, ok := key.(crypto.Signer)
	if err != nil || !ok {
		return nil, errors.New("the secret's PEM block is no private key that can sign") // the parser may quote it
	}
	return s, nil
}

// jwt makes a signed token (RFC 7519) of claims with the secret.
func (a jwsAlgorithm) jwt(header, claims map[string]any, v secret.Value) (string, error) {
	h, err := json.Marshal(header)
	if err != nil {
		return "", err
	}
	c, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	b64 := base64.RawURLEncoding
	input := b64.EncodeToString(h) + "." + b64.EncodeToString(c)
	sig, err := a.sign([]byte(input), v)
	if err != nil {
		return "", err
	}
	return input + "." + b64.EncodeToString(sig), nil
}

func (a jwsAlgorithm) sign(input []byte, v secret.Value) ([]byte, error) {
	if a.kind == "oct" {
		if v.Len()*8 < a.bits {
			return nil, fmt.Errorf("the secret is shorter than the %d bits that the algorithm needs (RFC 7518 section 3.2)", a.bits)
		}
		h := hmac.New(a.hash.New, v.Reveal())
		h.Write(input)
		return h.Sum(nil), nil
	}
	key, err := readPrivateKey(v)
	if err != nil {
		return nil, err
	}
	digest := input
	if a.hash != 0 {
		h := a.hash.New()
		h.Write(input)
		digest = h.Sum(nil)
	}
	switch k := key.(type) {
	case *rsa.PrivateKey:
		return a.signRSA(k, digest)
	case *ecdsa.PrivateKey:
		return a.signEC(k, digest)
	case ed25519.PrivateKey:
		if a.kind == "ed25519" {
			return ed25519.Sign(k, input), nil
		}
	}
	return nil, errors.New("the secret's key is not of the kind that the algorithm needs")
}

func (a jwsAlgorithm) signRSA(k *rsa.PrivateKey, digest []byte) ([]byte, error) {
	switch {
	case a.kind != "rsa":
		return nil, errors.New("the secret's key is RSA, and the algorithm is not")
	case k.N.BitLen() < minRSABits:
		return nil, fmt.Errorf("the secret's RSA key is shorter than %d bits", minRSABits)
	case a.pss:
		return rsa.SignPSS(rand.Reader, k, a.hash, digest, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
	default:
		return rsa.SignPKCS1v15(nil, k, a.hash, digest)
	}
}

func (a jwsAlgorithm) signEC(k *ecdsa.PrivateKey, digest []byte) ([]byte, error) {
	if a.kind != "ec" || k.Curve.Params().BitSize != a.bits {
		return nil, errors.New("the secret's key is not on the curve that the algorithm needs")
	}
	r, s, err := ecdsa.Sign(rand.Reader, k, digest)
	if err != nil {
		return nil, err
	}
	size := (a.bits + 7) / 8 // both numbers side by side (RFC 7518 section 3.4)
	out := make([]byte, 2*size)
	r.FillBytes(out[:size])
	s.FillBytes(out[size:])
	return out, nil
}
