package sign

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"strings"
	"time"

	"sallyport/broker/secret"
	"sallyport/control"
)

// ClientCert is a [Scheme] that signs in the TLS handshake instead of in the
// request (RFC 8446 section 4.4.2): the gateway's handshake asks for the
// certificate, and for each signature. The key stays in the broker.
type ClientCert struct{}

// Place says that nothing stands in a request.
func (ClientCert) Place() control.Place { return control.Place{Type: "mtls"} }

// Check implements [Scheme]: the certificate is the key's.
func (c ClientCert) Check(v secret.Value) error {
	_, _, err := c.read(v)
	return err
}

// Shapes implements [Shaper]: there is nothing to show.
func (ClientCert) Shapes(secret.Value) ([]string, error) { return []string{someToken}, nil }

// Sign changes nothing: what there is to sign was signed when the connection began.
func (c ClientCert) Sign(_ context.Context, v secret.Value, r Request) (Changes, error) {
	_, leaf, err := c.read(v)
	if err != nil {
		return Changes{}, err
	}
	return Changes{}, leaf.valid(r.Now)
}

// span is when a certificate is valid.
type span struct{ from, to time.Time }

func (s span) valid(now time.Time) error {
	switch {
	case now.After(s.to):
		return errors.New("the certificate has expired")
	case now.Before(s.from):
		return errors.New("the certificate is not valid yet")
	}
	return nil
}

// read reads certificates in PEM, the client's first, and its key, not encrypted.
func (ClientCert) read(v secret.Value) (tls.Certificate, span, error) {
	var certs, key []byte
	for rest := v.Reveal(); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		switch {
		case block.Type == "CERTIFICATE":
			certs = append(certs, pem.EncodeToMemory(block)...)
		case strings.HasSuffix(block.Type, "PRIVATE KEY") && key == nil && !strings.Contains(block.Type, "ENCRYPTED"):
			key = pem.EncodeToMemory(block)
		default:
			return tls.Certificate{}, span{}, errors.New("the secret has a PEM block that is neither a certificate nor its one key, not encrypted")
		}
	}
	defer clear(key)
	if certs == nil || key == nil {
		return tls.Certificate{}, span{}, errors.New("the secret holds no certificate and key in PEM")
	}
	pair, err := tls.X509KeyPair(certs, key)
	if err != nil {
		return tls.Certificate{}, span{}, errors.New("the secret's key is not the one of its first certificate") // the cause may quote it
	}
	if k, ok := pair.PrivateKey.(*rsa.PrivateKey); ok && k.N.BitLen() < minRSABits {
		return tls.Certificate{}, span{}, errors.New("the secret's RSA key is too short")
	}
	return pair, span{pair.Leaf.NotBefore, pair.Leaf.NotAfter}, nil
}

// Chain returns the certificates in DER, the client's first.
func (c ClientCert) Chain(v secret.Value, now time.Time) ([][]byte, error) {
	pair, valid, err := c.read(v)
	if err != nil {
		return nil, err
	}
	return pair.Certificate, valid.valid(now)
}

// HandshakeSignature signs what a handshake is about to send. Hash is 0 for
// Ed25519, which hashes itself; pss asks for RSASSA-PSS with a salt of the hash's
// length (RFC 8446 section 4.2.3).
func (c ClientCert) HandshakeSignature(v secret.Value, digest []byte, hash crypto.Hash, pss bool) ([]byte, error) {
	pair, _, err := c.read(v)
	if err != nil {
		return nil, err
	}
	var opts crypto.SignerOpts = hash
	switch k := pair.PrivateKey.(type) {
	case ed25519.PrivateKey:
		if hash != 0 || len(digest) > maxHandshakeText {
			return nil, errors.New("that is not what a handshake signs with Ed25519")
		}
		return k.Sign(rand.Reader, digest, opts)
	case crypto.Signer:
		if !handshakeHash(hash) || len(digest) != hash.Size() {
			return nil, errors.New("that is not a digest that a handshake signs")
		}
		if pss {
			opts = &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: hash}
		}
		return k.Sign(rand.Reader, digest, opts)
	}
	return nil, errors.New("the secret's key is of a kind that cannot sign here")
}

// maxHandshakeText bounds what Ed25519 signs whole: in TLS 1.2, all messages of the
// handshake so far, with the certificates in them (RFC 5246 section 7.4.8).
const maxHandshakeText = 256 << 10

func handshakeHash(h crypto.Hash) bool {
	return h == crypto.SHA256 || h == crypto.SHA384 || h == crypto.SHA512
}
