package source_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	"filippo.io/age/armor"
	"golang.org/x/sys/unix"

	"sallyport/broker/source"
	"sallyport/rules/policyfile"
)

const text = "sk_test_4eC39HqLyjWDarjtT1zdp7dc"

func config() source.Config {
	return source.Config{UID: uint32(os.Getuid()), User: "sallyport-broker", Now: time.Now}
}

func write(t *testing.T, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
	return path
}

// get opens and reads; every error is checked for the secret.
func get(t *testing.T, s policyfile.Source, cfg source.Config) (string, error) {
	t.Helper()
	src, err := source.Open(s, cfg)
	if err != nil {
		return "", err
	}
	v, err := src.Get(t.Context())
	if err != nil {
		if strings.Contains(err.Error(), text[:8]) {
			t.Errorf("the error shows the secret: %v", err)
		}
		return "", err
	}
	return string(v.Reveal()), nil
}

func TestOpenRefuses(t *testing.T) {
	tests := []struct {
		name string
		spec policyfile.Source
		want string
	}{
		{"nothing", policyfile.Source{}, "needs a source"},
		{"two", policyfile.Source{File: "/a", Env: "B"}, "one source"},
		{"relative file", policyfile.Source{File: "a"}, "absolute"},
		{"file with dots", policyfile.Source{File: "/a/../b"}, "absolute"},
		{"not a variable", policyfile.Source{Env: "A-B"}, "not the name"},
		{"credential with a slash", policyfile.Source{Systemd: "../x"}, "not the name"},
		{"relative command", policyfile.Source{Exec: []string{"cat", "/x"}}, "absolute"},
		{"relative age file", policyfile.Source{Age: &policyfile.Age{File: "a", Identity: "/b"}}, "absolute"},
		{"no age identity", policyfile.Source{Age: &policyfile.Age{File: "/a"}}, "absolute"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := source.Open(tt.spec, config()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Open = %v, want an error with %q", err, tt.want)
			}
		})
	}
}

// TestFileContent: CR-12, as far as the store can judge; package sign judges the
// octets.
func TestFileContent(t *testing.T) {
	tests := []struct{ name, content, want, fault string }{
		{"empty", "", "", "it is empty"},
		{"only a line end", "\n", "", "it is empty"},
		{"blanks", "          \n", "", "only blanks"},
		{"short", "hunter2\n", "", "shorter than 8"},
		{"64 KiB", strings.Repeat("x", 64<<10), "", "longer than 16384"},
		{"one too many", strings.Repeat("x", 16<<10+1), "", "longer than 16384"},
		{"one too many and line end", strings.Repeat("x", 16<<10+1) + "\n", "", "longer than 16384"},
		{"twin", text, text, ""},
		{"line end", text + "\n", text, ""},
		{"CR LF", text + "\r\n", text, ""},
		{"two line ends: one goes", text + "\n\n", text + "\n", ""},
		{"as long as may be", strings.Repeat("x", 16<<10) + "\r\n", strings.Repeat("x", 16<<10), ""},
		{"inner line ends are the scheme's to judge", "-----BEGIN-----\nabc\n", "-----BEGIN-----\nabc", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := get(t, policyfile.Source{File: write(t, tt.content, 0o600)}, config())
			if tt.fault == "" && (err != nil || got != tt.want) {
				t.Errorf("Get = %q, %v, want %q", got, err, tt.want)
			}
			if tt.fault != "" && (err == nil || !strings.Contains(err.Error(), tt.fault)) {
				t.Errorf("Get = %q, %v, want an error with %q", got, err, tt.fault)
			}
		})
	}
}

func TestFileMode(t *testing.T) {
	for _, mode := range []os.FileMode{0o644, 0o640, 0o440, 0o604, 0o601, 0o660, 0o620, 0o700, 0o500} {
		_, err := get(t, policyfile.Source{File: write(t, text, mode)}, config())
		if err == nil || !strings.Contains(err.Error(), "run: chmod 0400 /") {
			t.Errorf("mode %o: %v, want the chmod to type", mode, err)
		}
	}
	if uid := os.Getuid(); uid == 0 { // a file of root's that is closed to others is closed to the broker
		cfg := config()
		cfg.UID, cfg.User = 4200001, "sallyport-broker"
		path := write(t, text, 0o644)
		want := "run: chown sallyport-broker " + path + " && chmod 0400 " + path
		if _, err := get(t, policyfile.Source{File: path}, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of root's: %v, want %q", err, want)
		}
	}
	for _, mode := range []os.FileMode{0o600, 0o400, 0o200} { // root reads what it cannot
		if got, err := get(t, policyfile.Source{File: write(t, text, mode)}, config()); err != nil || got != text {
			t.Errorf("twin, mode %o: %q, %v", mode, got, err)
		}
	}
}

func TestFileOwner(t *testing.T) {
	path := write(t, text, 0o400)
	if err := os.Chown(path, 4200001, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, policyfile.Source{File: path}, config()); err == nil || !strings.Contains(err.Error(), "run: chown sallyport-broker "+path) {
		t.Errorf("somebody else's file: %v, want the chown to type", err)
	}
	cfg := config()
	cfg.UID = 4200001
	if got, err := get(t, policyfile.Source{File: path}, cfg); err != nil || got != text {
		t.Errorf("twin, the broker's own: %q, %v", got, err)
	}
	if err := os.Chown(path, 0, 0); err != nil {
		t.Fatal(err)
	}
	if got, err := get(t, policyfile.Source{File: path}, cfg); err != nil || got != text {
		t.Errorf("twin, root's: %q, %v", got, err)
	}
}

func TestFileKind(t *testing.T) {
	dir := t.TempDir()
	target := write(t, text, 0o400)
	link, fifo, hole := filepath.Join(dir, "link"), filepath.Join(dir, "fifo"), filepath.Join(dir, "none")
	if err := errors.Join(os.Symlink(target, link), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{link: "symbolic link", fifo: "not a regular file", hole: "does not exist", dir: "not a regular file", "/dev/zero": "not a regular file"} {
		if _, err := get(t, policyfile.Source{File: path}, config()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// TestFileRotation: CR-25. A value that was good before is never used.
func TestFileRotation(t *testing.T) {
	path := write(t, text, 0o600)
	src, err := source.Open(policyfile.Source{File: path}, config())
	if err != nil {
		t.Fatal(err)
	}
	read := func() (string, error) {
		v, err := src.Get(t.Context())
		return string(v.Reveal()), err
	}
	if got, err := read(); err != nil || got != text {
		t.Fatal(got, err)
	}
	if err := os.WriteFile(path, []byte("rotated, at once"), 0o600); err != nil { // same inode, same tick
		t.Fatal(err)
	}
	if got, err := read(); err != nil || got != "rotated, at once" {
		t.Errorf("after a rotation: %q, %v", got, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got, err := read(); err == nil {
		t.Errorf("after it went: %q", got)
	}
}

func TestEnv(t *testing.T) {
	cfg := config()
	cfg.LookupEnv = func(k string) (string, bool) { return map[string]string{"TOKEN": text, "EMPTY": ""}[k], k != "UNSET" }
	for name, want := range map[string]string{"UNSET": "not set", "EMPTY": "is empty"} {
		if _, err := get(t, policyfile.Source{Env: name}, cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if got, err := get(t, policyfile.Source{Env: "TOKEN"}, cfg); err != nil || got != text {
		t.Errorf("twin: %q, %v", got, err)
	}
	if _, err := get(t, policyfile.Source{Env: "TOKEN"}, config()); err == nil {
		t.Error("a Config without LookupEnv reads the environment")
	}
}

func TestSystemd(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "tok"), []byte(text), 0o440), os.WriteFile(filepath.Join(dir, "wide"), []byte(text), 0o444),
		os.Symlink("tok", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	cfg := config()
	if _, err := get(t, policyfile.Source{Systemd: "tok"}, cfg); err == nil || !strings.Contains(err.Error(), "LoadCredential=") {
		t.Errorf("outside systemd: %v", err)
	}
	cfg.LookupEnv = func(k string) (string, bool) { return dir, k == "CREDENTIALS_DIRECTORY" }
	for _, name := range []string{"wide", "link", "none"} {
		if _, err := get(t, policyfile.Source{Systemd: name}, cfg); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	if got, err := get(t, policyfile.Source{Systemd: "tok"}, cfg); err != nil || got != text {
		t.Errorf("twin: %q, %v", got, err)
	}
}

func script(t *testing.T, body string) []string {
	t.Helper()
	path := write(t, "#!/bin/sh\n"+body+"\n", 0o700)
	return []string{path, "an argument; not a shell's"}
}

func TestExec(t *testing.T) {
	tests := []struct{ name, body, fault string }{
		{"fails", "echo " + text + " >&2; exit 3", "exit status 3"},
		{"prints nothing", "true", "it is empty"},
		{"prints much", "head -c 100000 /dev/zero", "more than 16384"},
		{"dies", "kill -9 $$", "killed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := get(t, policyfile.Source{Exec: script(t, tt.body)}, config()); err == nil || !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("Get = %v, want an error with %q", err, tt.fault)
			}
		})
	}
	if _, err := get(t, policyfile.Source{Exec: []string{"/nonexistent"}}, config()); err == nil {
		t.Error("a command that is not there")
	}
	t.Setenv("LEAK", "1")
	if got, err := get(t, policyfile.Source{Exec: script(t, `test -z "$LEAK" && test "$1" = "an argument; not a shell's" && echo `+text)}, config()); err != nil || got != text {
		t.Errorf("twin: %q, %v", got, err)
	}
}

func TestExecEndsWithItsContext(t *testing.T) {
	src, err := source.Open(policyfile.Source{Exec: script(t, "read x < /dev/tty; while :; do :; done & wait")}, config())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := src.Get(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Get = %v, want a deadline", err)
	}
}

// TestExecRunsOnceForAll: one run serves all who wait, its answer lives a
// minute, and a failure after that refuses.
func TestExecRunsOnceForAll(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	now := time.Unix(1e9, 0)
	cfg := config()
	cfg.Now = func() time.Time { return now }
	argv := script(t, `test -e `+count+`.stop && exit 1; echo x >> `+count+`; echo `+text)
	src, err := source.Open(policyfile.Source{Exec: argv}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	runs := func() int {
		b, err := os.ReadFile(count)
		if err != nil {
			t.Fatal(err)
		}
		return len(b) / 2
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			v, err := src.Get(t.Context())
			if err != nil || string(v.Reveal()) != text {
				t.Errorf("Get = %q, %v", v.Reveal(), err)
			}
			v.Wipe() // must not reach the kept one
		})
	}
	wg.Wait()
	if n := runs(); n != 1 {
		t.Errorf("%d runs for 50 requests, want 1", n)
	}
	now = now.Add(time.Minute)
	if _, err := src.Get(t.Context()); err != nil || runs() != 2 {
		t.Errorf("after a minute: %v, %d runs, want 2", err, runs())
	}
	now = now.Add(time.Minute)
	if err := os.WriteFile(count+".stop", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if v, err := src.Get(t.Context()); err == nil {
		t.Errorf("a failing command gave %d octets", v.Len())
	}
}

func TestAge(t *testing.T) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	other, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	seal := func(plain string, armored bool) string {
		var b bytes.Buffer
		var closeArmor func() error
		w, err := age.Encrypt(&b, id.Recipient())
		if armored {
			b.Reset()
			a := armor.NewWriter(&b)
			closeArmor = a.Close
			w, err = age.Encrypt(a, id.Recipient())
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Write([]byte(plain))
		err = errors.Join(err, w.Close())
		if closeArmor != nil {
			err = errors.Join(err, closeArmor())
		}
		if err != nil {
			t.Fatal(err)
		}
		return write(t, b.String(), 0o644)
	}
	key := write(t, "# a comment\n"+id.String()+"\n", 0o400)
	good := seal(text+"\n", false)
	flipped, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	flipped[len(flipped)-1] ^= 1
	tests := []struct {
		name string
		age  policyfile.Age
	}{
		{"identity that others can read", policyfile.Age{File: good, Identity: write(t, id.String(), 0o444)}},
		{"another identity", policyfile.Age{File: good, Identity: write(t, other.String(), 0o400)}},
		{"no identity", policyfile.Age{File: good, Identity: write(t, text, 0o400)}},
		{"not encrypted", policyfile.Age{File: write(t, text, 0o600), Identity: key}},
		{"a bit flipped", policyfile.Age{File: write(t, string(flipped), 0o600), Identity: key}},
		{"long", policyfile.Age{File: seal(strings.Repeat("x", 20<<10), false), Identity: key}},
		{"empty", policyfile.Age{File: seal("", false), Identity: key}},
		{"not there", policyfile.Age{File: "/nonexistent", Identity: key}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := get(t, policyfile.Source{Age: &tt.age}, config()); err == nil {
				t.Errorf("Get = %q", got)
			} else if strings.Contains(err.Error(), "AGE-SECRET-KEY") {
				t.Errorf("the error shows the identity: %v", err)
			}
		})
	}
	for _, file := range []string{good, seal(text, true)} {
		if got, err := get(t, policyfile.Source{Age: &policyfile.Age{File: file, Identity: key}}, config()); err != nil || got != text {
			t.Errorf("twin: %q, %v", got, err)
		}
	}
}
