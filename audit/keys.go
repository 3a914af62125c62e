package audit

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/mod/sumdb/note"

	"sallyport/control/durable"
)

// Beside the signing key stand the key of the keyed hash and the newest
// checkpoint: neither belongs where the log is.
const (
	suffixHash   = ".hmac"
	suffixAnchor = ".anchor"
)

// keys are what signs a log.
type keys struct {
	signer   note.Signer
	verifier note.Verifier
	public   string // the verifier's text
}

// createKeys makes the key files. It never overwrites one.
func createKeys(keyFile, origin string) error {
	if err := os.MkdirAll(filepath.Dir(keyFile), 0o700); err != nil {
		return fmt.Errorf("making the audit key's directory: %w", err)
	}
	if origin == "" {
		var tag [4]byte
		rand.Read(tag[:])
		origin = "sallyport.internal/audit/" + hex.EncodeToString(tag[:])
	}
	secret, _, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		return fmt.Errorf("making the audit key: %w", err)
	}
	if err := createSecret(keyFile+suffixHash, rand.Text()+rand.Text()); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making the key of the keyed hash: %w", err)
	}
	if err := createSecret(keyFile, secret); err != nil {
		return fmt.Errorf("making the audit key: %w", err)
	}
	return nil
}

// createSecret writes a file that only its owner reads, whole or not at all.
func createSecret(path, text string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // the link stays
	_, err = tmp.WriteString(text + "\n")
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	// A link, unlike a rename, refuses to replace what is there.
	if err := os.Link(tmp.Name(), path); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

// readSecret refuses a file that others can read.
func readSecret(path string) (string, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s can be read by others (mode %04o): chmod 600 %s", path, st.Mode().Perm(), path)
	}
	data, err := os.ReadFile(path)
	return strings.TrimSpace(string(data)), err
}

func loadKeys(keyFile string) (*keys, error) {
	secret, err := readSecret(keyFile)
	if err != nil {
		return nil, fmt.Errorf("reading the audit key: %w", err)
	}
	signer, err := note.NewSigner(secret)
	if err != nil {
		return nil, fmt.Errorf("reading the audit key %s: %w", keyFile, err)
	}
	public, err := publicOf(secret)
	if err != nil {
		return nil, fmt.Errorf("reading the audit key %s: %w", keyFile, err)
	}
	verifier, err := note.NewVerifier(public)
	if err != nil {
		return nil, fmt.Errorf("reading the audit key %s: %w", keyFile, err)
	}
	return &keys{signer, verifier, public}, nil
}

// publicOf returns the verifier key that belongs to a signer key.
func publicOf(secret string) (string, error) {
	parts := strings.SplitN(secret, "+", 5) // PRIVATE KEY name hash base64
	if len(parts) != 5 {
		return "", errors.New("malformed key")
	}
	raw, err := base64.StdEncoding.DecodeString(parts[4])
	if err != nil || len(raw) != 1+ed25519.SeedSize {
		return "", errors.New("malformed key")
	}
	public, ok := ed25519.NewKeyFromSeed(raw[1:]).Public().(ed25519.PublicKey)
	if !ok {
		panic("audit: ed25519 key without its public half")
	}
	return note.NewEd25519VerifierKey(parts[2], public)
}

// outside refuses a key that lies in the log's own directory, where whoever can
// rewrite the log could sign it again.
func outside(keyFile, dir string) error {
	key, err := realPath(filepath.Dir(keyFile))
	if err != nil {
		return fmt.Errorf("finding the audit key's directory: %w", err)
	}
	log, err := realPath(dir)
	if err != nil {
		return fmt.Errorf("finding the log's directory: %w", err)
	}
	rel, err := filepath.Rel(log, key)
	if err != nil {
		return fmt.Errorf("comparing the directories of log and key: %w", err)
	}
	if rel == "." || filepath.IsLocal(rel) {
		return fmt.Errorf("audit key %s is inside the log's directory %s: keep it elsewhere", keyFile, dir)
	}
	return nil
}

// realPath resolves the links of as much of path as exists.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return real, err
	}
	parent, err := realPath(filepath.Dir(path))
	return filepath.Join(parent, filepath.Base(path)), err
}

// Hasher makes the keyed hashes that stand for sensitive values in a log. It
// is safe for use by many goroutines.
type Hasher struct {
	pool sync.Pool
}

// LoadHasher returns the hasher of the log that is signed with keyFile.
func LoadHasher(keyFile string) (*Hasher, error) {
	secret, err := readSecret(keyFile + suffixHash)
	if err != nil {
		return nil, fmt.Errorf("reading the key of the keyed hash: %w", err)
	}
	if len(secret) < 32 {
		return nil, fmt.Errorf("reading the key of the keyed hash: %s%s is too short", keyFile, suffixHash)
	}
	h := &Hasher{}
	h.pool.New = func() any { return hmac.New(sha256.New, []byte(secret)) }
	return h, nil
}

// HashPrefix begins every keyed hash.
const HashPrefix = "hmac:"

// Hash returns the keyed hash of value: "hmac:" and 32 hexadecimal digits. The
// same value always has the same one, in one log.
func (h *Hasher) Hash(value string) string {
	mac, ok := h.pool.Get().(hash.Hash)
	if !ok {
		panic("audit: pool holds no hash")
	}
	mac.Reset()
	mac.Write([]byte(value))
	var sum [sha256.Size]byte
	mac.Sum(sum[:0])
	h.pool.Put(mac)
	return HashPrefix + hex.EncodeToString(sum[:16])
}
