package source_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"sallyport/broker/source"
	"sallyport/rules/policyfile"
)

// seal encrypts a text for an identity.
func seal(t *testing.T, id *age.X25519Identity, plain string) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := age.Encrypt(&b, id.Recipient())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// put replaces a file by a rename, as a rotation does.
func put(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", content, 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

// TestAgeIsRotated: CR-25. The next use has what the encrypted file holds by then, and
// so it has after the identity was exchanged along with it; one without the other is
// refused, unless the document says that the last good value serves on.
func TestAgeIsRotated(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprint("keep ", keep), func(t *testing.T) {
			first, err := age.GenerateX25519Identity()
			if err != nil {
				t.Fatal(err)
			}
			second, err := age.GenerateX25519Identity()
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			file, identity := filepath.Join(dir, "key.age"), filepath.Join(dir, "identity")
			put(t, file, seal(t, first, "sk_test_first"))
			put(t, identity, []byte(first.String()))
			k, err := source.Open(policyfile.Source{KeepOnError: keep, Age: &policyfile.Age{File: file, Identity: identity}}, config())
			if err != nil {
				t.Fatal(err)
			}
			if got := reveal(t, k); got != "sk_test_first" {
				t.Fatalf("%q", got)
			}
			put(t, file, seal(t, first, "sk_test_second"))
			if got := reveal(t, k); got != "sk_test_second" {
				t.Errorf("after the file was exchanged: %q", got)
			}
			put(t, file, seal(t, second, "sk_test_third"))
			wantKept(t, k, keep, "sk_test_second", "")
			put(t, identity, []byte(second.String()))
			if got := reveal(t, k); got != "sk_test_third" {
				t.Errorf("after the identity was exchanged too: %q", got)
			}
			if _, why := k.Stale(); why != nil {
				t.Errorf("mended, and still stale: %v", why)
			}
		})
	}
}

// wantKept asserts what a store that fails makes of the value that was good last.
func wantKept(t *testing.T, k *source.Kept, keep bool, last, fault string) {
	t.Helper()
	v, err := k.Get(t.Context())
	_, why := k.Stale()
	switch {
	case keep && (err != nil || string(v.Reveal()) != last || why == nil || !strings.Contains(why.Error(), fault)):
		t.Errorf("told to keep: %v, stale: %v, want %q kept for %q", err, why, last, fault)
	case !keep && (err == nil || !strings.Contains(err.Error(), fault) || why != nil):
		t.Errorf("not told to keep: %v, stale: %v, want %q", err, why, fault)
	}
	v.Wipe()
}

// TestSlowStoresOnError: CR-11. A vault that is sealed, a command that fails: a refusal,
// or with on_error: keep the last good value, until the store answers again.
func TestSlowStoresOnError(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprint("vault, keep ", keep), func(t *testing.T) {
			srv := newVaultServer(t)
			spec := srv.spec()
			spec.TokenFile = write(t, "hvs.static-token\n", 0o600)
			cfg, now := webConfig(srv.Server)
			k, err := source.Open(policyfile.Source{KeepOnError: keep, Vault: &spec}, cfg)
			if err != nil {
				t.Fatal(err)
			}
			tryOnError(t, k, now, keep, "it needs a policy", func(ok bool) {
				if srv.token.Store("hvs.another"); ok {
					srv.token.Store("hvs.static-token")
				}
			})
		})
		t.Run(fmt.Sprint("exec, keep ", keep), func(t *testing.T) {
			stop := filepath.Join(t.TempDir(), "stop")
			cfg := config()
			now := new(atomic.Int64)
			now.Store(time.Now().UnixNano())
			cfg.Now = func() time.Time { return time.Unix(0, now.Load()) }
			k, err := source.Open(policyfile.Source{KeepOnError: keep, Exec: script(t, "test -e "+stop+" && exit 7; echo "+text)}, cfg)
			if err != nil {
				t.Fatal(err)
			}
			tryOnError(t, k, now, keep, "exit status 7", func(ok bool) {
				err := os.WriteFile(stop, nil, 0o600)
				if ok {
					err = os.Remove(stop)
				}
				if err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// tryOnError has a store fail, and work again.
func tryOnError(t *testing.T, k *source.Kept, now *atomic.Int64, keep bool, fault string, works func(ok bool)) {
	t.Helper()
	if got := reveal(t, k); got != text {
		t.Fatalf("%q", got)
	}
	works(false)
	if got := reveal(t, k); got != text {
		t.Errorf("within the minute: %q", got)
	}
	now.Add(int64(61 * time.Second))
	wantKept(t, k, keep, text, fault)
	works(true)
	if got := reveal(t, k); got != text {
		t.Errorf("twin, when it works again: %q", got)
	}
	if _, why := k.Stale(); why != nil {
		t.Errorf("mended, and still stale: %v", why)
	}
	if k.Forget(); keep { // what was kept is gone with a revoke
		works(false)
		now.Add(int64(61 * time.Second))
		wantKept(t, k, false, text, fault)
	}
}

// TestExecEndsWithItsChildren: what a command has started ends with it when its time is
// over, and holds nothing up.
func TestExecEndsWithItsChildren(t *testing.T) {
	alive := filepath.Join(t.TempDir(), "alive") // has a writer for as long as any of them lives
	if err := unix.Mkfifo(alive, 0o600); err != nil {
		t.Fatal(err)
	}
	src, err := source.Open(policyfile.Source{Exec: script(t, "exec 3>"+alive+"; (sleep 600 & sleep 600) & sleep 600 & wait")}, config())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		f, err := os.Open(alive) // waits for the command
		close(began)
		if err == nil {
			_, err = io.Copy(io.Discard, f) // until nobody has it open
			err = errors.Join(err, f.Close())
		}
		ended <- err
	}()
	go func() {
		<-began
		cancel()
	}()
	if _, err := src.Get(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Get = %v, want that it was given up", err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("a child of the command lives on")
	}
}

// TestKubernetesTokenIsRefused: the API server has forgotten a token before the kubelet
// has written the next one. That is refused, and asked again with the next token as
// soon as there is one.
func TestKubernetesTokenIsRefused(t *testing.T) {
	var good, asked atomic.Value
	good.Store("eyJ.first.token")
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.Header.Get("Authorization"))
		if r.Header.Get("Authorization") != "Bearer "+good.Load().(string) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"kind":"Secret","data":{"key":"c2tfdGVzdF9maXJzdA=="}}`)
	}))
	defer srv.Close()
	dir := t.TempDir()
	project(t, dir, "eyJ.first.token", 0o644)
	cfg, now := webConfig(srv)
	k, err := source.Open(policyfile.Source{Kubernetes: &policyfile.Kubernetes{
		API: srv.URL, Namespace: "agents", Secret: "stripe", Key: "key", TokenFile: dir + "/key",
	}}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got := reveal(t, k); got != "sk_test_first" {
		t.Fatalf("%q", got)
	}
	good.Store("eyJ.second.token")
	now.Add(int64(61 * time.Second))
	wantKept(t, k, false, "", "it answered 401")
	if got := asked.Load(); got != "Bearer eyJ.first.token" {
		t.Errorf("it was asked with %q", got)
	}
	project(t, dir, "eyJ.second.token", 0o644)
	if got := reveal(t, k); got != "sk_test_first" || asked.Load() != "Bearer eyJ.second.token" {
		t.Errorf("twin, with the next token: %q, asked with %q", got, asked.Load())
	}
}
