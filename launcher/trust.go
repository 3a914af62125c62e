package launcher

import (
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // the format's own checksum, not a defence
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf16"

	"sallyport/certs"
	"sallyport/launcher/guest"
)

// bundles are where systems keep the certificates that their programs trust.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL
	"/etc/pki/tls/certs/ca-bundle.crt",                  // RHEL, by a link
	"/etc/ssl/ca-bundle.pem",                            // SUSE
	"/etc/ssl/cert.pem",                                 // Alpine, BSD
}

// trust is what an image brings along to trust, learnt once for each digest.
type trust struct {
	Files  []string `json:"files"` // bundles that are there, links resolved
	bundle []byte   // image-controlled; PEM of nothing but certificates
}

const maxBundle = 8 * mib

// trustOf returns what an image trusts, from the cache or from the image.
//
// The image is asked by our guest, in a sandbox without a network: links resolve
// inside it, where they cannot lead out, and what comes back is bounded. Nothing
// of an image is unpacked or mounted by the host for it.
func (l *Launcher) trustOf(ctx context.Context, r *run) (*trust, error) {
	dir := filepath.Join(l.imagesDir(), strings.TrimPrefix(r.image.Digest, "sha256:"))
	if t, err := readTrust(dir); err == nil {
		return t, nil
	}
	unlock, err := lockPath(ctx, l.imagesDir())
	if err != nil {
		return nil, err
	}
	defer unlock()
	if t, err := readTrust(dir); err == nil {
		return t, nil // somebody else has just looked
	}
	t, err := l.look(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("looking what image %q trusts: %w", r.image.Name, err)
	}
	return t, t.write(dir)
}

func readTrust(dir string) (*trust, error) {
	data, err := os.ReadFile(filepath.Join(dir, "trust.json"))
	if err != nil {
		return nil, err
	}
	var t trust
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, err
	}
	t.bundle, err = os.ReadFile(filepath.Join(dir, "bundle.pem"))
	return &t, err
}

// write puts the cache in place, the list last: without it there is no cache.
func (t *trust) write(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, "bundle.pem"), t.bundle, 0o600); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, "trust.json"), data, 0o600)
}

// writeFile writes a file whole or not at all. It has one writer at a time.
func writeFile(path string, data []byte, mode fs.FileMode) error {
	if err := os.WriteFile(path+".new", data, mode); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (l *Launcher) look(ctx context.Context, r *run) (*trust, error) {
	c := r.looker()
	var found bytes.Buffer
	out, err := l.converse(ctx, c, guest.Job{
		Spec: guest.Spec{Look: bundles, Having: "-----BEGIN CERTIFICATE-----"},
		Export: func(r io.Reader) error {
			_, err := io.Copy(&found, io.LimitReader(r, maxBundle))
			return err
		},
	})
	if err := errors.Join(err, out.Export, l.removeContainer(ctx, r.id, c.Name, c.CIDFile)); err != nil {
		return nil, err
	}
	t := new(trust)
	for _, f := range out.Done.Found {
		if !plainTarget(f.Real) {
			continue
		}
		t.Files = append(t.Files, f.Real)
	}
	t.bundle = onlyCertificates(found.Bytes())
	return t, nil
}

// plainTarget says whether a path from an image may be mounted on: only a
// certificate file below /etc or /usr, spelled plainly.
func plainTarget(path string) bool {
	if filepath.Clean(path) != path || strings.ContainsAny(path, ":,\\ \t\n") {
		return false
	}
	return strings.HasPrefix(path, "/etc/") || strings.HasPrefix(path, "/usr/")
}

// onlyCertificates drops comments and everything that is not a certificate.
func onlyCertificates(data []byte) []byte {
	var out bytes.Buffer
	for {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil {
			return out.Bytes()
		}
		if block.Type == "CERTIFICATE" {
			_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}) // into memory
		}
	}
}

// certificates returns the DER of every certificate, at least one.
func certificates(data []byte) ([][]byte, error) {
	var out [][]byte
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			out = append(out, block.Bytes)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no certificate in PEM")
	}
	return out, nil
}

// fingerprints names every certificate.
func fingerprints(data []byte) ([]string, error) {
	list, err := certificates(data)
	var out []string
	for _, der := range list {
		out = append(out, certs.Fingerprint(der))
	}
	return out, err
}

// withCA is the image's bundle and the CA after it.
func withCA(bundle, ca []byte) []byte {
	out := append([]byte{}, bundle...)
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	return append(out, onlyCertificates(ca)...)
}

// keystore writes certificates as a Java key store (JKS, version 2): the one
// format of trust that every Java reads. The password guards nothing, it is what
// everybody uses for public certificates.
func keystore(list [][]byte, made time.Time) []byte {
	const (
		magic    = 0xfeedfeed
		version  = 2
		trusted  = 2
		password = "changeit"
	)
	var b []byte
	text := func(s string) {
		b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
		b = append(b, s...)
	}
	b = binary.BigEndian.AppendUint32(b, magic)
	b = binary.BigEndian.AppendUint32(b, version)
	b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
	for i, der := range list {
		b = binary.BigEndian.AppendUint32(b, trusted)
		text(fmt.Sprintf("ca%d", i))
		b = binary.BigEndian.AppendUint64(b, uint64(made.UnixMilli()))
		text("X.509")
		b = binary.BigEndian.AppendUint32(b, uint32(len(der)))
		b = append(b, der...)
	}
	sum := sha1.New() //nolint:gosec // see the import
	for _, c := range utf16.Encode([]rune(password)) {
		sum.Write([]byte{byte(c >> 8), byte(c)})
	}
	sum.Write([]byte("Mighty Aphrodite")) // sun.security.provider.JavaKeyStore's own salt
	sum.Write(b)
	return sum.Sum(b)
}
