package capture_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"

	"sallyport/audit/capture"
	"sallyport/broker/scrub"
)

const (
	secret      = "rk_live_0123456789abcdef"
	placeholder = "rk_live_placeholder00000"
)

type kit struct {
	*capture.Store
	dir string
	who *age.X25519Identity
}

func newKit(t testing.TB, change func(*capture.Config)) *kit {
	t.Helper()
	who, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	cfg := capture.Config{
		Dir: filepath.Join(t.TempDir(), "bodies"), Recipient: who.Recipient().String(), Decode: scrub.Decode,
		Hider: func(string) func(string) string {
			s := scrub.New(scrub.Secret{Value: secret, Instead: strings.Repeat("*", 24)}, scrub.Secret{Value: placeholder, Instead: strings.Repeat("*", 24)})
			return s.Text
		},
	}
	if change != nil {
		change(&cfg)
	}
	s, err := capture.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &kit{s, cfg.Dir, who}
}

func (k *kit) read(t testing.TB, ref capture.Ref) string {
	t.Helper()
	if ref.Error != "" {
		t.Fatalf("not kept: %s", ref.Error)
	}
	text, err := capture.Open(k.dir, ref.SHA256, k.who)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestNewRefuses(t *testing.T) {
	hider := func(string) func(string) string { return func(s string) string { return s } }
	good := capture.Config{Dir: t.TempDir(), Recipient: newKit(t, nil).who.Recipient().String(), Hider: hider, Decode: scrub.Decode}
	for name, change := range map[string]func(*capture.Config){
		"directory": func(c *capture.Config) { c.Dir = "" }, "hider": func(c *capture.Config) { c.Hider = nil },
		"decode": func(c *capture.Config) { c.Decode = nil }, "recipient": func(c *capture.Config) { c.Recipient = "age1x" },
		"no recipient": func(c *capture.Config) { c.Recipient = "" }, "size": func(c *capture.Config) { c.Size = -1 },
	} {
		cfg := good
		change(&cfg)
		if s, err := capture.New(cfg); err == nil || s != nil {
			t.Errorf("%s: New = %v, %v", name, s, err)
		}
	}
}

// TestWhatIsLeftOut: LG-04 for what is kept of messages.
func TestWhatIsLeftOut(t *testing.T) {
	k := newKit(t, func(c *capture.Config) {
		c.Headers, c.Fields = []string{"x-session"}, []string{"ssn"}
	})
	head := http.Header{
		"Authorization": {"Bearer canary-1"}, "Cookie": {"sid=canary-2"}, "X-Session": {"canary-3"}, "Set-Cookie": {"sid=canary-4"},
		"Proxy-Authorization": {"Basic canary-5"}, "X-Api-Key": {"canary-6"}, "X-Other": {"kept " + placeholder}, "Content-Type": {"application/json"},
		"X-Shop-Access-Token": {"canary-31"}, "Location": {"https://a.example/#access_token=canary-32&x=1"}, "X-Url": {"/a?sig=canary-33"},
	}
	tests := []struct{ name, body, want string }{
		{
			"JSON",
			`{"user": "bob", "password": "canary-7", "nested": {"Access_Token" : "can\"ary-8", "n": 1}, "ssn": 12345678901}`,
			`{"user": "bob", "password": "[left out]", "nested": {"Access_Token" : "[left out]", "n": 1}, "ssn": "[left out]"}`,
		},
		{"an object and a list", `{"secret": {"a": "canary-9"}, "token": ["canary-10", 1], "b": 2}`, `{"secret": "[left out]", "token": "[left out]", "b": 2}`},
		{"a form", "user=bob&password=canary-11&x=1&client_secret=canary-12", "user=bob&password=[left out]&x=1&client_secret=[left out]"},
		{"cut in a value", `{"password": "canary-13`, `{"password": "[left out]"`},
		{"an object in an object", `{"secret": {"data": {"x": "}canary-15"}, "value": "canary-16"}, "b": [{"token": ["]", "canary-17"]}]}`, `{"secret": "[left out]", "b": [{"token": "[left out]"}]}`},
		{"names as others spell them", `{"accessToken": "canary-18", "pass\u0077ord": "canary-19", "Secret-Access-Key": "canary-20"}`, `{"accessToken": "[left out]", "pass\u0077ord": "[left out]", "Secret-Access-Key": "[left out]"}`},
		{
			"JSON in JSON", `{"arguments": "{\n \"password\": \"cana\\\"ry-21 canary-21\", \"token\": {\n \"a\": \"}canary-22\"}, \"n\": 1}", "m": 2}`,
			`{"arguments": "{\n \"password\": \"[left out]\", \"token\": \"[left out]\", \"n\": 1}", "m": 2}`,
		},
		{"names of parts", "user[password]=canary-23&user%5Btoken%5D=canary-24&a.secret=canary-25&x=1", "user[password]=[left out]&user%5Btoken%5D=[left out]&a.secret=[left out]&x=1"},
		{"a form and a URL in JSON", `{"form": "password=canary-27", "x": 1, "next": "https://a.example/?token=canary-26"}`, `{"form": "password=[left out]", "x": 1, "next": "https://a.example/?token=[left out]`},
		{
			"parts", "--b\r\nContent-Disposition: form-data; name=\"password\"\r\nContent-Type: text/plain\r\n\r\ncanary-28\r\n--c\r\ncanary-29\r\n--b\r\n" +
				"Content-Disposition: form-data; filename=\"token\"; name=x\r\n\r\nkept\r\n--b\r\nContent-Disposition: form-data; name=\"token\"\r\n\r\ncanary-30",
			"--b\r\nContent-Disposition: form-data; name=\"password\"\r\nContent-Type: text/plain\r\n\r\n[left out]\r\n--b\r\n" +
				"Content-Disposition: form-data; filename=\"token\"; name=x\r\n\r\nkept\r\n--b\r\nContent-Disposition: form-data; name=\"token\"\r\n\r\n[left out]",
		},
		{"a secret and a placeholder", "a " + secret + " b " + placeholder, "a ************************ b ************************"},
		{"neither", `{"passwords_changed": "yes", "tokens": 5}`, `{"passwords_changed": "yes", "tokens": 5}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := k.Message("cell", "POST /v1/x?token=canary-14&a="+placeholder+" HTTP/1.1", head)
			for _, b := range []byte(tt.body) { // however it is cut
				_, _ = m.Write([]byte{b})
			}
			text := k.read(t, m.Finish())
			if strings.Contains(text, "canary") || strings.Contains(text, secret) || strings.Contains(text, placeholder) {
				t.Errorf("it is kept:\n%s", text)
			}
			_, body, _ := strings.Cut(text, "\r\n\r\n")
			if body != tt.want {
				t.Errorf("body %q, want %q", body, tt.want)
			}
			if !strings.HasPrefix(text, "POST /v1/x?token=[left out]&a=****") || !strings.Contains(text, "Authorization: [left out]\r\n") || !strings.Contains(text, "X-Other: kept ****") {
				t.Errorf("head:\n%s", text)
			}
		})
	}
}

func TestFilesAreEncryptedAndNamedByTheirDigest(t *testing.T) {
	k := newKit(t, nil)
	m := k.Message("cell", "GET / HTTP/1.1", nil)
	_, _ = m.Write([]byte("a text that nobody else should see"))
	ref := m.Finish()
	path := capture.Path(k.dir, ref.SHA256)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("%s: %v, %v", path, st.Mode(), err)
	}
	if bytes.Contains(data, []byte("nobody else")) || !bytes.HasPrefix(data, []byte("age-encryption.org/v1\n")) {
		t.Errorf("the file is not encrypted: %q", data)
	}
	if text := k.read(t, ref); !strings.HasSuffix(text, "should see") || ref.Kept != ref.Bytes || ref.Cut {
		t.Errorf("%q, %+v", text, ref)
	}
	if _, err := capture.Open(k.dir, ref.SHA256, newKit(t, nil).who); err == nil {
		t.Error("another identity reads it")
	}
	for i := range data {
		bad := bytes.Clone(data)
		bad[i] ^= 1
		if err := os.WriteFile(path, bad, 0o640); err != nil {
			t.Fatal(err)
		}
		if _, err := capture.Open(k.dir, ref.SHA256, k.who); !errors.Is(err, capture.ErrNotOurs) {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
	}
	for _, name := range []string{"", "../../../etc/passwd", strings.Repeat("g", 64), strings.Repeat("a", 63)} {
		if _, err := capture.Open(k.dir, name, k.who); err == nil {
			t.Errorf("Open(%q) = nil", name)
		}
	}
}

func TestBoundsAndCodings(t *testing.T) {
	k := newKit(t, func(c *capture.Config) { c.Size = 1000 })
	zip := func(s string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = io.WriteString(w, s)
		_ = w.Close()
		return b.String()
	}
	long := strings.Repeat("0123456789", 500)
	for _, tt := range []struct {
		name, coding, body, want string
		cut                      bool
		err                      string
	}{
		{"short", "", "abc", "abc", false, ""},
		{"empty", "", "", "", false, ""},
		{"long", "", long, long[:1000], true, ""},
		{"gzip", "gzip", zip("abc " + placeholder), "abc ************************", false, ""},
		{"a bomb", "gzip", zip(strings.Repeat("a", 1<<20)), strings.Repeat("a", 1000), true, ""},
		{"not what it says", "gzip", "abc", "", false, "reading a body"},
		{"unknown", "x-secret", "abc", "", false, "not known"},
	} {
		head := http.Header{}
		if tt.coding != "" {
			head.Set("Content-Encoding", tt.coding)
		}
		m := k.Message("cell", "HTTP 200 OK", head)
		_, _ = io.WriteString(m, tt.body)
		ref := m.Finish()
		if tt.err != "" {
			if !strings.Contains(ref.Error, tt.err) || ref.SHA256 != "" || ref.Bytes != int64(len(tt.body)) {
				t.Errorf("%s: %+v, want an error with %q", tt.name, ref, tt.err)
			}
			continue
		}
		_, body, _ := strings.Cut(k.read(t, ref), "\r\n\r\n")
		if body != tt.want || ref.Cut != tt.cut || ref.Kept != int64(len(tt.want)) || ref.Bytes != int64(len(tt.body)) {
			t.Errorf("%s: %q, %+v", tt.name, body, ref)
		}
	}
}

func TestWhatCannotBeKeptIsTold(t *testing.T) {
	k := newKit(t, nil)
	if err := os.RemoveAll(k.dir); err != nil {
		t.Fatal(err)
	}
	if ref := k.Message("cell", "GET / HTTP/1.1", nil).Finish(); ref.SHA256 != "" || !strings.Contains(ref.Error, "keeping a body") {
		t.Errorf("with no directory: %+v", ref)
	}
}

func TestPrune(t *testing.T) {
	k := newKit(t, nil)
	old, young := k.Message("cell", "GET /1 HTTP/1.1", nil).Finish(), k.Message("cell", "GET /2 HTTP/1.1", nil).Finish()
	then := time.Now().Add(-100 * time.Hour)
	if err := os.Chtimes(capture.Path(k.dir, old.SHA256), then, then); err != nil {
		t.Fatal(err)
	}
	if err := capture.Prune(k.dir, time.Now().Add(-50*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(capture.Path(k.dir, old.SHA256)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old one: %v", err)
	}
	k.read(t, young)
}

// A secret that the bound cuts in two leaves no half.
func TestBoundCutsNoSecretLG04(t *testing.T) {
	k := newKit(t, func(c *capture.Config) { c.Size = 1000 })
	for at := 960; at < 1010; at++ {
		for _, coding := range []string{"", "gzip"} {
			body := []byte(strings.Repeat("x", at) + secret + strings.Repeat("y", 100<<10))
			head := http.Header{}
			if coding != "" {
				head.Set("Content-Encoding", coding)
				var b bytes.Buffer
				z := gzip.NewWriter(&b)
				_, _ = z.Write(body)
				_ = z.Close()
				body = b.Bytes()
			}
			m := k.Message("cell", "POST / HTTP/1.1", head)
			_, _ = m.Write(body)
			ref := m.Finish()
			text := k.read(t, ref)
			if strings.Contains(text, secret[:3]) || ref.Kept != 1000 || !ref.Cut {
				t.Errorf("at %d, coding %q: %+v, ends in %q", at, coding, ref, text[len(text)-40:])
			}
		}
	}
	// Neither if the text becomes shorter, and what is beyond the bound comes within it.
	m := k.Message("cell", "POST / HTTP/1.1", nil)
	head := `{"token": "` + strings.Repeat("t", 20<<10) + `", "x": "`
	_, _ = m.Write([]byte(head + strings.Repeat("x", 1000+32<<10-len(head)-10) + secret + strings.Repeat("y", 1000)))
	if text := k.read(t, m.Finish()); strings.Contains(text, secret[:3]) {
		t.Errorf("it ends in %q", text[len(text)-40:])
	}
}

// However a body is made, what searches it takes time in proportion to it.
func TestHostileBodiesLG04(t *testing.T) {
	k := newKit(t, func(c *capture.Config) { c.Size = 256 << 10 })
	for _, piece := range []string{
		`"`, `\`, `\"`, `{"token":`, `{"token":{"`, `"token\":`, `[`, "a=", "token=", "?a", "form-data;", "form-data; name=token\r\n", "form-data; name=token\n\n", "\n--", "=", "a",
	} {
		m := k.Message("cell", "POST / HTTP/1.1", nil)
		_, _ = m.Write([]byte(strings.Repeat(piece, 256<<10/len(piece))))
		if ref := m.Finish(); ref.Error != "" {
			t.Errorf("%q: %+v", piece, ref)
		}
	}
}

// TestHalfAMessageIsCleared: who was killed while he wrote one leaves no file for good.
func TestHalfAMessageIsCleared(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".new-123", "kept.age"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	who, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	_, err = capture.New(capture.Config{
		Dir: dir, Recipient: who.Recipient().String(), Hider: func(string) func(string) string { return strings.Clone },
		Decode: func(_ string, b io.ReadCloser) (io.ReadCloser, error) { return b, nil },
	})
	names, _ := filepath.Glob(filepath.Join(dir, "*"))
	hidden, _ := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(names) != 1 || len(hidden) != 0 {
		t.Errorf("New: %v; %q and %q are there", err, names, hidden)
	}
}

// TestAPipeIsNoMessage: nothing waits for whoever could write to it.
func TestAPipeIsNoMessage(t *testing.T) {
	dir, name := t.TempDir(), strings.Repeat("ab", 32)
	if err := syscall.Mkfifo(capture.Path(dir, name), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := capture.Open(dir, name); !errors.Is(err, capture.ErrNotOurs) {
		t.Errorf("Open of a pipe = %v", err)
	}
}
