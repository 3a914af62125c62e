package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// GitPath is the path of the git repository on the files site.
const GitPath = "/git/project.git"

// The files that the files site serves, beside /big.bin.
const (
	HelloPath = "/hello.txt"
	HelloText = "hello from the allowed site\n"
	BigPath   = "/big.bin"
	BigSize   = 16 << 20
)

// filesHandler serves files (with ranges) and, if there is git, a repository.
func filesHandler(git http.Handler) http.Handler {
	began := time.Now()
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+HelloPath, func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "hello.txt", began, strings.NewReader(HelloText))
	})
	mux.HandleFunc("GET "+BigPath, func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "big.bin", began, strings.NewReader(bigText()))
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("files\n"))
	})
	if git != nil {
		mux.Handle("/git/", git)
	}
	return mux
}

// bigText is the content of BigPath. It is made when it is first asked for: the
// program that the lab is part of is also the first process of every sandbox.
var bigText = sync.OnceValue(func() string {
	return strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyz+/=-_.,:;!?()[]{}<>#%&*~^$@|", BigSize/64)
})

// gitHandler makes a repository with one commit below dir and returns its path
// and the handler that serves it for clone and push by git's smart HTTP
// protocol. Without git both are empty.
func gitHandler(dir string) (repo string, h http.Handler, err error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return "", nil, nil // the lab works without; the demo asks for it
	}
	repo = filepath.Join(dir, filepath.FromSlash(GitPath[len("/git/"):]))
	if _, err := os.Stat(filepath.Join(repo, "HEAD")); errors.Is(err, os.ErrNotExist) {
		if err := makeRepo(git, repo); err != nil {
			return "", nil, fmt.Errorf("making a git repository: %w", err)
		}
	}
	backend := &cgi.Handler{
		Path: git, Args: []string{"http-backend"}, Root: "/git", Dir: dir, Stderr: quiet.Writer(),
		Env: append(gitEnv(dir), "GIT_PROJECT_ROOT="+dir, "GIT_HTTP_EXPORT_ALL=1"),
	}
	return repo, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.TransferEncoding = nil // package cgi refuses chunks, which git sends and its backend reads to the end
		backend.ServeHTTP(w, r)
	}), nil
}

// gitEnv keeps the configuration of whoever runs the lab out of it.
func gitEnv(dir string) []string {
	return []string{
		"HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "LC_ALL=C.UTF-8",
		"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
	}
}

// firstCommit is a repository in the form of git fast-import.
const firstCommit = `blob
mark :1
data 25
# Project

From the lab.

commit refs/heads/main
mark :2
committer Lab <lab@acme.test> 1767225600 +0000
data 13
first commit

M 100644 :1 README.md

done
`

func makeRepo(git, repo string) error {
	if err := os.MkdirAll(repo, 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, step := range []struct {
		args  []string
		stdin string
	}{
		{[]string{"init", "--quiet", "--bare", "--initial-branch=main", repo}, ""},
		{[]string{"-C", repo, "config", "http.receivepack", "true"}, ""},
		{[]string{"-C", repo, "fast-import", "--quiet", "--done"}, firstCommit},
	} {
		cmd := exec.CommandContext(ctx, git, step.args...)
		cmd.Env = gitEnv(filepath.Dir(repo))
		cmd.Stdin = strings.NewReader(step.stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %w: %s", step.args[0], err, out)
		}
	}
	return nil
}
