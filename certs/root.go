package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"sallyport/control/durable"
)

const (
	organization   = "Sallyport"
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"

	// maxFile bounds what is read from a file.
	maxFile = 64 << 10
)

// Open loads the CA in dir, or makes one where there is none: the directory
// 0700, ca.key 0600, ca.crt 0644. It refuses a directory or key that others
// can get at, one file without the other, a certificate that is not ours to
// sign with, and one that is past its time: a client must never be told to
// trust what is not wholly in order.
func Open(dir string, opts Options) (*CA, error) {
	if opts.Now == nil {
		return nil, errors.New("opening the CA: a clock is required")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening the CA: %w", err)
	}
	if err := private(dir); err != nil {
		return nil, fmt.Errorf("opening the CA: %w", err)
	}
	if err := settle(dir); err != nil {
		return nil, fmt.Errorf("opening the CA: %w", err)
	}
	if err := makeFirst(dir, opts.Now()); err != nil {
		return nil, err
	}
	r, err := load(dir, current, opts.Now())
	if err != nil {
		return nil, fmt.Errorf("opening the CA in %q: %w", dir, err)
	}
	c, err := newCA(dir, r, opts)
	if err != nil {
		return nil, err
	}
	if prepared, err := exists(filepath.Join(dir, next.cert)); err != nil || !prepared {
		return c, err
	}
	if c.next, err = load(dir, next, opts.Now()); err != nil {
		return nil, fmt.Errorf("opening the next root in %q: %w", dir, err)
	}
	return c, nil
}

// makeFirst makes a root where there is none.
func makeFirst(dir string, now time.Time) error {
	haveCert, err := exists(filepath.Join(dir, current.cert))
	if err != nil {
		return fmt.Errorf("opening the CA: %w", err)
	}
	haveKey, err := exists(filepath.Join(dir, current.key))
	if err != nil {
		return fmt.Errorf("opening the CA: %w", err)
	}
	switch {
	case haveCert && haveKey:
		return nil
	case haveCert:
		return alone(dir, current.cert, current.key)
	case haveKey:
		return alone(dir, current.key, current.cert)
	}
	if err := create(dir, current, now); err != nil {
		return fmt.Errorf("making a CA in %q: %w", dir, err)
	}
	return nil
}

func alone(dir, have, lacks string) error {
	return fmt.Errorf("opening the CA in %q: %s is there without %s; restore it, or remove both for a new CA", dir, have, lacks)
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// private refuses what others may read or change, or somebody else owns.
func private(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%q is a symbolic link", path)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%q has mode %04o: others can get at it; chmod go= it, and make a new CA if they may have",
			path, info.Mode().Perm())
	case !ok || int64(st.Uid) != int64(os.Geteuid()):
		return fmt.Errorf("%q is not owned by user %d, who runs this", path, os.Geteuid())
	}
	return nil
}

func load(dir string, names pair, now time.Time) (*root, error) {
	key, err := loadKey(filepath.Join(dir, names.key))
	if err != nil {
		return nil, err
	}
	der, err := readPEM(filepath.Join(dir, names.cert), pemCertificate)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", names.cert, err)
	}
	switch {
	case !key.PublicKey.Equal(cert.PublicKey):
		return nil, fmt.Errorf("%s is not the certificate of %s", names.cert, names.key)
	case !cert.BasicConstraintsValid || !cert.IsCA || cert.KeyUsage&x509.KeyUsageCertSign == 0 || len(cert.SubjectKeyId) == 0:
		return nil, fmt.Errorf("%s is not the certificate of a CA", names.cert)
	case now.Before(cert.NotBefore) || !now.Before(cert.NotAfter):
		return nil, fmt.Errorf("%s holds from %s to %s, and it is %s", names.cert,
			cert.NotBefore.Format(time.RFC3339), cert.NotAfter.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return &root{cert, key}, nil
}

func loadKey(path string) (*ecdsa.PrivateKey, error) {
	if err := private(path); err != nil {
		return nil, err
	}
	der, err := readPEM(path, pemKey)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", filepath.Base(path), err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("reading %s: not a P-256 key", filepath.Base(path))
	}
	return key, nil
}

// readPEM returns the content of a file that holds one block of a kind.
func readPEM(path, kind string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("reading %q: too large", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(data)
	if block == nil || block.Type != kind || len(rest) != 0 {
		return nil, fmt.Errorf("reading %q: not one PEM block %q", path, kind)
	}
	return block.Bytes, nil
}

func create(dir string, names pair, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	serial, err := newSerial()
	if err != nil {
		return err
	}
	id, err := keyID(&key.PublicKey)
	if err != nil {
		return err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		// The name tells the roots of two installations apart.
		Subject: pkix.Name{
			Organization: []string{organization},
			CommonName:   "Sallyport CA " + hex.EncodeToString(id[:4]),
		},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(rootLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // signs leaves, not other CAs
		SubjectKeyId:          id,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return err
	}
	return store(dir, names, pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: keyDER}),
		pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}))
}

// store writes both files whole before it gives either its name, so that only
// a crash between two renames leaves one alone, which Open then tells.
func store(dir string, names pair, key, cert []byte) error {
	keyTmp, err := writeTemp(dir, key, 0o600)
	if err != nil {
		return err
	}
	certTmp, err := writeTemp(dir, cert, 0o644)
	if err != nil {
		return errors.Join(err, os.Remove(keyTmp))
	}
	if err := os.Rename(keyTmp, filepath.Join(dir, names.key)); err != nil {
		return errors.Join(err, os.Remove(keyTmp), os.Remove(certTmp))
	}
	if err := os.Rename(certTmp, filepath.Join(dir, names.cert)); err != nil {
		return errors.Join(err, os.Remove(certTmp), os.Remove(filepath.Join(dir, names.key)))
	}
	return durable.SyncDir(dir)
}

func writeTemp(dir string, data []byte, mode fs.FileMode) (string, error) {
	f, err := os.CreateTemp(dir, ".new-*") // mode 0600
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}
