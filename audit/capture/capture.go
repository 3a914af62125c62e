// Package capture keeps what rules say to log of requests and answers:
// bounded, with what must not be seen left out, and encrypted.
//
// What is kept is a message (HTTP head and as much of the body as is kept),
// encrypted to an age recipient whose identity this machine does not have, in
// a file that is named by its SHA-256: the record that refers to it holds that
// name. The package trusts its [Config.Hider] to know the secrets; it never
// keeps a header that authenticates, and never a body that it cannot read.
package capture

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"filippo.io/age"

	"sallyport/control/regular"
)

// Config is what a Store needs.
type Config struct {
	Dir       string // made if missing; no other process writes there
	Recipient string // of age: age1…
	Size      int64  // octets kept of one body; default 64 KiB
	// Headers are names whose values are left out, and Fields those of JSON
	// members and form fields, beside the ones that are always.
	Headers, Fields []string
	// Hider returns what takes the secrets and placeholders of a cell out of a
	// text. It is asked for when a message begins, and used when it has ended.
	Hider func(cell string) func(text string) string
	// Decode takes off the codings that a Content-Encoding header lists.
	Decode func(codings string, body io.ReadCloser) (io.ReadCloser, error)
}

const (
	defaultSize = 64 << 10
	modeFile    = 0o640
	modeDir     = 0o750
)

// ErrNotOurs is wrapped by the error of [Open] for a file that is not what its
// name says.
var ErrNotOurs = errors.New("not the file that was written")

// Store keeps messages. It is safe for use by many goroutines.
type Store struct {
	cfg    Config
	to     age.Recipient
	fields fields
	hidden map[string]bool // headers, in canonical form
}

// New returns a Store. It refuses a recipient that is none.
func New(cfg Config) (*Store, error) {
	if cfg.Dir == "" || cfg.Hider == nil || cfg.Decode == nil {
		return nil, errors.New("capture: directory, hider and decode are all required")
	}
	to, err := ParseRecipient(cfg.Recipient)
	if err != nil {
		return nil, err
	}
	if cfg.Size == 0 {
		cfg.Size = defaultSize
	}
	if cfg.Size < 0 {
		return nil, errors.New("capture: the size must not be negative")
	}
	if err := os.MkdirAll(cfg.Dir, modeDir); err != nil {
		return nil, fmt.Errorf("making the directory of bodies: %w", err)
	}
	if err := clearHalf(cfg.Dir); err != nil {
		return nil, fmt.Errorf("clearing the directory of bodies: %w", err)
	}
	s := &Store{cfg: cfg, to: to, fields: fieldsOf(cfg.Fields), hidden: map[string]bool{}}
	for _, h := range append(slices.Clone(secretHeaders), cfg.Headers...) {
		s.hidden[http.CanonicalHeaderKey(h)] = true
	}
	return s, nil
}

// half begins the name of a file that is not whole.
const half = ".new-"

// clearHalf removes what an earlier process was writing when it was killed.
func clearHalf(dir string) error {
	names, err := os.ReadDir(dir)
	for _, d := range names {
		if strings.HasPrefix(d.Name(), half) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, d.Name())))
		}
	}
	return err
}

// ParseRecipient reads an age recipient: a public key that begins with age1.
func ParseRecipient(text string) (age.Recipient, error) {
	to, err := age.ParseX25519Recipient(text)
	if err != nil {
		return nil, fmt.Errorf("reading the recipient of bodies: %w", err)
	}
	return to, nil
}

// redact takes out what must not be kept.
func (s *Store) redact(hide func(string) string, text string) string {
	return s.fields.redact(hide(text))
}

// Ref is what a record says about a message that is kept.
type Ref struct {
	// SHA256 of the file names it, in hexadecimal digits.
	SHA256 string `json:"sha256,omitempty"`
	// Bytes went through; Kept of them, without their coding, are in the file.
	Bytes int64 `json:"bytes"`
	Kept  int64 `json:"kept"`
	Cut   bool  `json:"cut,omitempty"` // there was more
	// Error says why there is no file.
	Error string `json:"error,omitempty"`
}

// Message is one request or answer on its way. It is safe for use by many
// goroutines.
type Message struct {
	store *Store
	hide  func(string) string
	start string // the first line
	head  http.Header

	mu    sync.Mutex // guards the two below
	body  bytes.Buffer
	bytes int64
}

// Message begins to keep a message. The header is copied.
func (s *Store) Message(cell, start string, head http.Header) *Message {
	return &Message{store: s, hide: s.cfg.Hider(cell), start: start, head: head.Clone()}
}

// Write takes a piece of the body as it is on the wire. It never fails.
func (m *Message) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes += int64(len(p))
	// A coded body may be much smaller than what it holds: the bound is on both.
	if room := m.store.cfg.Size + beyond - int64(m.body.Len()); room > 0 {
		m.body.Write(p[:min(int64(len(p)), room)])
	}
	return len(p), nil
}

// Finish writes the file, and returns what its record is to say.
func (m *Message) Finish() Ref {
	m.mu.Lock()
	defer m.mu.Unlock()
	ref := Ref{Bytes: m.bytes}
	body, over, err := m.plain()
	if err == nil {
		ref.Kept, ref.Cut = int64(len(body)-over), over > 0
		ref.SHA256, err = m.store.put(m.text(body, over))
	}
	if err != nil {
		ref = Ref{Bytes: m.bytes, Error: err.Error()}
	}
	return ref
}

// beyond is how much more of a body is searched than is kept of it: of a secret that
// the bound cuts in two no part must be kept. Nearly all are much shorter, however
// they are spelled.
const beyond = 32 << 10

// plain returns, with mu held, the body without its coding, as far as it is searched,
// and how many octets at its end are not to be kept.
func (m *Message) plain() (body []byte, over int, err error) {
	size, held := m.store.cfg.Size, int64(m.body.Len())
	whole := m.bytes == held
	body = m.body.Bytes()
	if codings := m.head.Get("Content-Encoding"); codings != "" {
		r, err := m.store.cfg.Decode(codings, io.NopCloser(&m.body))
		if err != nil {
			return nil, 0, err // what cannot be read cannot be searched for secrets
		}
		defer r.Close()
		body, err = io.ReadAll(io.LimitReader(r, size+beyond))
		if err != nil && whole {
			return nil, 0, fmt.Errorf("reading a body with coding %q: %w", codings, err)
		}
	}
	over = max(0, len(body)-int(size))
	if !whole {
		over = min(max(over, beyond), len(body))
	}
	return body, over, nil
}

// text is the message as it is kept: without what the last octets of the body became.
func (m *Message) text(body []byte, over int) string {
	s := m.store
	var b strings.Builder
	b.WriteString(s.redact(m.hide, m.start) + "\r\n")
	names := make([]string, 0, len(m.head))
	for name := range m.head {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		for _, v := range m.head[name] {
			if s.hidden[http.CanonicalHeaderKey(name)] || secretHeader(name) {
				v = Left
			}
			b.WriteString(s.redact(m.hide, name+": "+v) + "\r\n")
		}
	}
	text := s.redact(m.hide, string(body))
	b.WriteString("\r\n" + text[:max(0, len(text)-over)])
	return b.String()
}

// put encrypts text into a file that is named by its SHA-256.
func (s *Store) put(text string) (string, error) {
	tmp, err := os.CreateTemp(s.cfg.Dir, half+"*")
	if err != nil {
		return "", fmt.Errorf("keeping a body: %w", err)
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // gone already once it is renamed
	sum := sha256.New()
	w, err := age.Encrypt(io.MultiWriter(tmp, sum), s.to)
	if err == nil {
		_, err = io.WriteString(w, text)
		err = errors.Join(err, w.Close())
	}
	if err := errors.Join(err, tmp.Chmod(modeFile), tmp.Close()); err != nil {
		return "", fmt.Errorf("keeping a body: %w", err)
	}
	name := hex.EncodeToString(sum.Sum(nil))
	if err := os.Rename(tmp.Name(), Path(s.cfg.Dir, name)); err != nil {
		return "", fmt.Errorf("keeping a body: %w", err)
	}
	return name, nil
}

// Path returns where the file with a SHA-256 is.
func Path(dir, sha256 string) string {
	return filepath.Join(dir, sha256+".age")
}

var sumPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Open returns the message that is kept under a SHA-256, which a record names.
func Open(dir, sha string, who ...age.Identity) ([]byte, error) {
	if !sumPattern.MatchString(sha) {
		return nil, fmt.Errorf("%q is not the name of a message", sha)
	}
	data, err := read(Path(dir, sha))
	if err != nil {
		return nil, fmt.Errorf("reading a message: %w", err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != sha {
		return nil, fmt.Errorf("%s: %w", Path(dir, sha), ErrNotOurs)
	}
	r, err := age.Decrypt(bytes.NewReader(data), who...)
	if err != nil {
		return nil, fmt.Errorf("decrypting a message: %w", err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("decrypting a message: %w", err)
	}
	return text, nil
}

func read(path string) ([]byte, error) {
	f, _, err := regular.Open(path)
	if errors.Is(err, regular.ErrNot) {
		err = &fs.PathError{Op: "read", Path: path, Err: ErrNotOurs}
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// Prune removes the messages in a directory that were kept before a time, whoever can
// read them.
func Prune(path string, before time.Time) error {
	dir, err := os.OpenRoot(path)
	if err != nil {
		return fmt.Errorf("removing old bodies: %w", err)
	}
	defer dir.Close()
	names, err := fs.ReadDir(dir.FS(), ".")
	errs := []error{err}
	for _, d := range names {
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() && info.ModTime().Before(before) {
			errs = append(errs, dir.Remove(d.Name()))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("removing old bodies: %w", err)
	}
	return nil
}
