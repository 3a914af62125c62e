package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"

	"sallyport/audit"
	"sallyport/audit/capture"
	"sallyport/audit/verify"
	"sallyport/broker/scrub"
)

const roleEnv = "SALLYPORT_TEST_ROLE" // and the directory, after a colon

// TestReviewersReadAndCannotWrite makes the log's directories as up does, has
// the gateway's user write, and then reads and meddles as a reviewer, as the
// broker, and as nobody in particular (LG-08).
func TestReviewersReadAndCannotWrite(t *testing.T) {
	if role, dir, ok := strings.Cut(os.Getenv(roleEnv), ":"); ok {
		playRole(t, role, dir)
		return
	}
	base := t.TempDir()
	must(t, os.Chmod(base, 0o755))
	must(t, os.Chmod(filepath.Dir(base), 0o755))
	tmp := filepath.Join(base, "tmp") // where each of them may write
	must(t, os.Mkdir(tmp, 0o755))
	must(t, os.Chmod(tmp, 0o777|fs.ModeSticky))
	a := accounts{gateway: account{64001, 64001}, broker: account{64002, 64002}, group: 64003, reviewers: 64004}
	inst := instance{"x"}
	for _, d := range inst.layout(a) {
		rel, err := filepath.Rel(inst.state(), d.path)
		must(t, err)
		if !filepath.IsLocal(rel) {
			continue
		}
		must(t, os.MkdirAll(filepath.Join(base, rel), 0o755))
		must(t, os.Chown(filepath.Join(base, rel), d.uid, d.gid))
		must(t, os.Chmod(filepath.Join(base, rel), d.mode))
	}
	for _, p := range []struct {
		role     string
		uid, gid int
		groups   []uint32
	}{
		{"gateway", a.gateway.uid, a.gateway.gid, []uint32{64003}},
		{"reviewer", 64010, 64010, []uint32{64004}},
		{"stranger", a.broker.uid, a.broker.gid, []uint32{64003}},
	} {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestReviewersReadAndCannotWrite$")
		cmd.Env = []string{roleEnv + "=" + p.role + ":" + base, "TMPDIR=" + tmp}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(p.uid), Gid: uint32(p.gid), Groups: p.groups}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("as the %s: %v\n%s", p.role, err, out)
		}
	}
}

func playRole(t *testing.T, role, dir string) {
	shared := []string{filepath.Join(dir, "audit"), filepath.Join(dir, "policies"), filepath.Join(dir, "bodies")}
	switch role {
	case "gateway":
		writeAsGateway(t, dir)
	case "reviewer":
		key, err := os.ReadFile(filepath.Join(dir, "audit", "log.pub"))
		must(t, err)
		beside := filepath.Join(dir, "audit-key", "key")
		anchors, err := readAnchors([]string{beside + ".anchor", elsewhere(dir)}, strings.TrimSpace(string(key)))
		must(t, err)
		if r, err := verify.Verify(filepath.Join(dir, "audit"), string(key), anchors); err != nil || !r.Whole() || r.Anchors != 2 {
			t.Errorf("Verify = %v, %v", r, err)
		}
		for _, path := range []string{beside, beside + ".hmac"} {
			if _, err := os.ReadFile(path); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("reading %s = %v", path, err)
			}
		}
		for _, path := range []string{beside + ".anchor", elsewhere(dir)} {
			if err := os.WriteFile(path, nil, 0o600); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("writing %s = %v", path, err)
			}
		}
		files := 0
		for _, d := range shared {
			files += meddle(t, d)
		}
		if files < 6 {
			t.Errorf("only %d files were read", files)
		}
		reviewByCommand(t, dir)
		if _, err := os.ReadDir(filepath.Join(dir, "audit-key")); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("reading the keys = %v", err)
		}
	case "stranger":
		for _, d := range append(shared, filepath.Join(dir, "audit-key")) {
			if _, err := os.ReadDir(d); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("reading %s = %v", d, err)
			}
		}
	}
}

// reviewByCommand asks the log as a reviewer does at a terminal: everything but
// for the key of the hashes, which is not theirs.
func reviewByCommand(t *testing.T, dir string) {
	t.Helper()
	log, own := filepath.Join(dir, "audit"), t.TempDir()
	ask := func(args ...string) (code int, said string) {
		var out, errs bytes.Buffer
		args = append(args, "--dir", log, "--index", filepath.Join(own, "index.db"))
		code = run(t.Context(), args, strings.NewReader(""), &out, &errs)
		return code, out.String() + errs.String()
	}
	key := filepath.Join(log, "log.pub")
	for _, tt := range [][]string{
		{"audit", "query"},
		{"audit", "query", "--sql", "SELECT count(*) AS n FROM log"},
		{"audit", "verify", "--key", key},
		{"audit", "index"},
		{"audit", "top"},
		{"audit", "new", "--since", "1h"},
		{"audit", "anomalies"},
		{"audit", "export", "--format", "csv"},
		{"audit", "export", "--key", key, "--bundle", filepath.Join(own, "case.zip"), "--covered"},
	} {
		if code, said := ask(tt...); code != 0 {
			t.Errorf("%v: exit code %d: %s", tt, code, said)
		}
	}
	code, said := ask("audit", "hash", "--key", filepath.Join(dir, "audit-key", "key"), "x")
	if code == 0 || !strings.Contains(said, "permission denied") || !strings.Contains(said, "hint: sallyport audit hash ") || !strings.Contains(said, "--key FILE VALUE") {
		t.Errorf("hash without the key: exit code %d: %s", code, said)
	}
}

// elsewhere is where an anchor is kept that is a file.
func elsewhere(dir string) string { return filepath.Join(dir, "tmp", "checkpoint") }

func writeAsGateway(t *testing.T, dir string) {
	t.Helper()
	syscall.Umask(0o077) // whatever it is
	l, err := audit.Open(audit.Config{
		Dir: filepath.Join(dir, "audit"), KeyFile: filepath.Join(dir, "audit-key", "key"), Now: time.Now,
		SegmentSize: 400, Anchors: []audit.AnchorTo{audit.AnchorFile(elsewhere(dir))},
	})
	must(t, err)
	for range 5 {
		must(t, l.Append(t.Context(), &audit.Record{Kind: audit.Admit, Host: "a.test"}))
	}
	must(t, l.Close())
	must(t, keepPolicy(filepath.Join(dir, "policies"), &policy{digest: "sha256:" + strings.Repeat("ab", 32), text: []byte("x")}))
	who, err := age.GenerateX25519Identity()
	must(t, err)
	s, err := capture.New(capture.Config{
		Dir: filepath.Join(dir, "bodies"), Recipient: who.Recipient().String(), Decode: scrub.Decode,
		Hider: func(string) func(string) string { return func(s string) string { return s } },
	})
	must(t, err)
	if ref := s.Message("cell", "GET / HTTP/1.1", nil).Finish(); ref.Error != "" {
		t.Error(ref.Error)
	}
}

// meddle reads all files below dir, which must succeed, and tries to change
// each of them, which must not.
func meddle(t *testing.T, dir string) (files int) {
	t.Helper()
	refused := func(what, path string, err error) {
		t.Helper()
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s %s = %v, want that it is not permitted", what, path, err)
		}
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			refused("writing into", path, os.WriteFile(filepath.Join(path, "x"), nil, 0o640))
			refused("linking into", path, os.Symlink("/etc/passwd", filepath.Join(path, "x")))
			refused("opening up", path, os.Chmod(path, 0o777))
			return nil
		}
		files++
		if _, err := os.ReadFile(path); err != nil {
			t.Errorf("reading %s: %v", path, err)
		}
		_, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		refused("opening", path, err)
		refused("cutting", path, os.Truncate(path, 0))
		refused("removing", path, os.Remove(path))
		refused("renaming", path, os.Rename(path, path+".x"))
		refused("opening up", path, os.Chmod(path, 0o666))
		return nil
	})
	must(t, err)
	return files
}
