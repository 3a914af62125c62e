package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// Bundle returns the trust bundle of an image with our root added, both in
// PEM. Text between certificates is kept. An image without a bundle has an
// empty one; a bundle that holds the root already comes back as it is; a bundle
// that ends inside a certificate is refused, since a client would give up on
// the whole of it.
func Bundle(existing, ca []byte) ([]byte, error) {
	block, rest := pem.Decode(ca)
	if block == nil || block.Type != pemCertificate || len(bytes.TrimSpace(rest)) != 0 {
		return nil, errors.New("joining bundles: the CA is not one certificate in PEM")
	}
	if _, err := x509.ParseCertificate(block.Bytes); err != nil {
		return nil, fmt.Errorf("joining bundles: the CA: %w", err)
	}
	blocks := 0
	for rest = existing; ; blocks++ {
		b, tail := pem.Decode(rest)
		if b == nil {
			break
		}
		if bytes.Equal(b.Bytes, block.Bytes) {
			return existing, nil
		}
		rest = tail
	}
	if n := bytes.Count(existing, []byte("-----BEGIN ")); n != blocks {
		return nil, fmt.Errorf("joining bundles: %d of %d blocks of the existing bundle can be read", blocks, n)
	}
	out := bytes.Clone(existing)
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	return append(out, pem.EncodeToMemory(block)...), nil
}
