package broker

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// (ADR-0017) A client certificate (type mtls) is shown when a connection is opened, before
// there is a request on it. The gateway's handshake asks the broker for the
// certificate, and for each signature; the key stays where it is. Both questions
// name the request that the connection is opened for, and are judged as that
// request is. Every request on the connection is then judged for itself, by Inject.

// handshakeRequest asks for a signature of a handshake.
type handshakeRequest struct {
	injectRequest
	Digest []byte      `json:"digest"`
	Hash   crypto.Hash `json:"hash"` // 0 for Ed25519
	PSS    bool        `json:"pss,omitempty"`
}

// certificateAnswer holds certificates in DER, the client's first.
type certificateAnswer struct {
	Chain [][]byte `json:"chain"`
}

// signatureAnswer holds a signature of a handshake.
type signatureAnswer struct {
	Signature []byte `json:"signature"`
}

func (s *Server) certificate(ctx context.Context, in injectRequest) (out certificateAnswer, err error) {
	err = s.handshake(ctx, in, func(c sign.ClientCert, v secret.Value, r sign.Request) (err error) {
		out.Chain, err = c.Chain(v, r.Now)
		return err
	})
	return out, err
}

func (s *Server) signature(ctx context.Context, in handshakeRequest) (out signatureAnswer, err error) {
	err = s.handshake(ctx, in.injectRequest, func(c sign.ClientCert, v secret.Value, _ sign.Request) (err error) {
		out.Signature, err = c.HandshakeSignature(v, in.Digest, in.Hash, in.PSS)
		return err
	})
	return out, err
}

// handshake judges the request that a connection is opened for, and uses the
// credential's certificate.
func (s *Server) handshake(ctx context.Context, in injectRequest, use func(sign.ClientCert, secret.Value, sign.Request) error) error {
	b, refusal := s.usableBy(in)
	if refusal != nil {
		return s.refused(in, refusal)
	}
	cert, ok := b.scheme.(sign.ClientCert)
	if !ok {
		return s.refused(in, refuse(http.StatusForbidden, rules.CredentialMismatch, "credential %q is no client certificate", in.Credential))
	}
	req, refusal := s.check(in, b)
	if refusal != nil {
		return s.refused(in, refusal)
	}
	v, err := b.usable(ctx)
	if err == nil {
		defer v.Wipe()
		err = use(cert, v, req)
	}
	if err != nil {
		return s.refused(in, refuse(http.StatusServiceUnavailable, rules.CredentialUnavail, "%v", err))
	}
	return nil
}

// Certified reports whether the credential that p was admitted with is a client
// certificate.
func (c *Client) Certified(p gate.Pass) bool {
	cc := c.cell(p.Identity().Cell)
	if cc == nil || cc.run != p.Identity().Run || cc.finder == nil {
		return false
	}
	place, ok := cc.finder.place(p.Decision().Credential)
	return ok && place.Type == "mtls"
}

// Certificate returns the certificate that p's connection shows. Its key signs in
// the broker. An error is a [*gate.DeniedError], as of [Client.Inject].
func (c *Client) Certificate(ctx context.Context, p gate.Pass) (*tls.Certificate, error) {
	var ans certificateAnswer
	if reason, err := c.call(ctx, "/v1/certificate", c.requestOf(p), &ans); err != nil {
		return nil, denied(p, reason, err)
	}
	if len(ans.Chain) == 0 {
		return nil, denied(p, rules.BrokerUnavailable, errors.New("the broker gave no certificate"))
	}
	leaf, err := x509.ParseCertificate(ans.Chain[0])
	if err != nil {
		return nil, denied(p, rules.CredentialUnavail, fmt.Errorf("reading the broker's certificate: %w", err))
	}
	return &tls.Certificate{Certificate: ans.Chain, Leaf: leaf, PrivateKey: brokerKey{leaf.PublicKey, func(in handshakeRequest) ([]byte, error) {
		in.injectRequest = c.requestOf(p)
		var ans signatureAnswer
		if reason, err := c.call(ctx, "/v1/handshake", in, &ans); err != nil {
			return nil, denied(p, reason, err)
		}
		return ans.Signature, nil
	}}}, nil
}

// brokerKey is a private key that is in the broker.
type brokerKey struct {
	public crypto.PublicKey
	sign   func(handshakeRequest) ([]byte, error)
}

// Public implements [crypto.Signer].
func (k brokerKey) Public() crypto.PublicKey { return k.public }

// Sign implements [crypto.Signer].
func (k brokerKey) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	_, pss := opts.(*rsa.PSSOptions)
	return k.sign(handshakeRequest{Digest: digest, Hash: opts.HashFunc(), PSS: pss})
}
