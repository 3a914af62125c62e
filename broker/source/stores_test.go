package source_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/broker/source"
	"sallyport/rules/policyfile"
)

// vaultServer keeps the HTTP contract of Vault's and OpenBao's KV engine, version
// 2, and of their logins (their API documentation, "KV secrets engine - version
// 2", "AppRole" and "Kubernetes auth method"). It refuses whatever a server would.
type vaultServer struct {
	*httptest.Server
	logins, reads atomic.Int64
	token         atomic.Value // string: the only one that is good now
	secret        atomic.Value // string
	version       atomic.Int64 // 0: there is none, as after a deletion
	lease         int64
}

func newVaultServer(t *testing.T) *vaultServer {
	t.Helper()
	v := &vaultServer{lease: 600}
	v.token.Store("hvs.static-token")
	v.secret.Store(text)
	v.version.Store(1)
	v.Server = httptest.NewTLSServer(http.HandlerFunc(v.serve))
	t.Cleanup(v.Close)
	return v
}

func vaultError(w http.ResponseWriter, status int, text string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string][]string{"errors": {text}})
}

func (v *vaultServer) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Header.Get("X-Vault-Request") != "true" || r.Header.Get("X-Vault-Namespace") != "team" {
		vaultError(w, http.StatusBadRequest, "missing header")
		return
	}
	var in map[string]string
	switch r.Method + " " + r.URL.Path {
	case "POST /v1/auth/approle/login", "POST /v1/auth/k8s/login":
		dec := json.NewDecoder(r.Body)
		dec.DisallowUnknownFields()
		ok := dec.Decode(&in) == nil && len(in) == 2 &&
			(in["role_id"] == "role-1" && in["secret_id"] == "secret-id-0123" || in["role"] == "agents" && in["jwt"] == "eyJ.service.account")
		if !ok {
			vaultError(w, http.StatusBadRequest, "invalid role or secret ID "+in["secret_id"])
			return
		}
		token := fmt.Sprintf("hvs.login-%d", v.logins.Add(1))
		v.token.Store(token)
		fmt.Fprintf(w, `{"request_id":"r","auth":{"client_token":%q,"accessor":"a","lease_duration":%d,"renewable":true}}`, token, v.lease)
	case "GET /v1/kv/data/team/stripe":
		v.reads.Add(1)
		switch {
		case r.Header.Get("X-Vault-Token") != v.token.Load():
			vaultError(w, http.StatusForbidden, "permission denied for "+r.Header.Get("X-Vault-Token"))
		case v.version.Load() == 0:
			vaultError(w, http.StatusNotFound, "no secret")
		default:
			fmt.Fprintf(w, `{"request_id":"r","lease_duration":0,"data":{"data":{"key":%q,"other":"%s-other","number":5},"metadata":{"version":%d,"destroyed":false,"deletion_time":""}}}`,
				v.secret.Load(), v.secret.Load(), v.version.Load())
		}
	default:
		vaultError(w, http.StatusNotFound, "no handler for route "+r.URL.Path)
	}
}

func (v *vaultServer) spec() policyfile.Vault {
	return policyfile.Vault{URL: v.URL, Mount: "kv", Path: "team/stripe", Field: "key", Namespace: "team"}
}

// webConfig is a config with a way to a server and a clock that the test sets.
func webConfig(srv *httptest.Server) (source.Config, *atomic.Int64) {
	cfg, now := config(), new(atomic.Int64)
	now.Store(time.Now().Add(time.Minute).UnixNano())
	cfg.Transport = srv.Client().Transport
	cfg.Now = func() time.Time { return time.Unix(0, now.Load()) }
	return cfg, now
}

func TestVaultLogins(t *testing.T) {
	secretID := write(t, "secret-id-0123\n", 0o400)
	saToken := write(t, "eyJ.service.account\n", 0o644)
	staticToken := write(t, "hvs.static-token\n", 0o600)
	logins := map[string]func(*policyfile.Vault){
		"token": func(v *policyfile.Vault) { v.TokenFile = staticToken },
		"approle": func(v *policyfile.Vault) {
			v.AppRole = &policyfile.AppRole{Mount: "approle", RoleID: "role-1", SecretIDFile: secretID}
		},
		"kubernetes": func(v *policyfile.Vault) {
			v.Kubernetes = &policyfile.KubernetesLogin{Mount: "k8s", Role: "agents", TokenFile: saToken}
		},
	}
	for name, login := range logins {
		t.Run(name, func(t *testing.T) {
			srv := newVaultServer(t)
			spec := srv.spec()
			login(&spec)
			cfg, now := webConfig(srv.Server)
			k, err := source.Open(policyfile.Source{Vault: &spec}, cfg)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if got := reveal(t, k); got != text {
					t.Fatalf("%q", got)
				}
			}
			if n := srv.reads.Load(); n != 1 {
				t.Errorf("%d reads for three uses, want 1", n)
			}
			srv.secret.Store("sk_test_rotated_in_the_vault")
			now.Add(int64(61 * time.Second))
			if got := reveal(t, k); got != "sk_test_rotated_in_the_vault" {
				t.Errorf("a minute after the rotation: %q", got)
			}
			if name == "token" {
				return
			}
			if n := srv.logins.Load(); n != 1 {
				t.Errorf("%d logins, want 1", n)
			}
			now.Add(int64(7 * time.Minute)) // two thirds of the lease are gone
			reveal(t, k)
			srv.token.Store("revoked") // the server has forgotten the token
			now.Add(int64(2 * time.Minute))
			if got := reveal(t, k); got != "sk_test_rotated_in_the_vault" || srv.logins.Load() != 3 {
				t.Errorf("after the token was revoked: %q, %d logins", got, srv.logins.Load())
			}
		})
	}
}

// TestVaultRefuses: CR-11.
func TestVaultRefuses(t *testing.T) {
	good := write(t, "hvs.static-token\n", 0o600)
	bad := write(t, "hvs.another-token\n", 0o600)
	tests := []struct {
		name   string
		change func(*policyfile.Vault, *vaultServer)
		want   string
	}{
		{"a token that may not", func(v *policyfile.Vault, _ *vaultServer) { v.TokenFile = bad }, "it needs a policy with read on kv/data/team/stripe"},
		{"a token file for all", func(v *policyfile.Vault, _ *vaultServer) { v.TokenFile = write(t, "hvs.static-token", 0o644) }, "chmod 0400"},
		{"a deleted secret", func(_ *policyfile.Vault, s *vaultServer) { s.version.Store(0) }, "it answered 404"},
		{"another field", func(v *policyfile.Vault, _ *vaultServer) { v.Field = "kye" }, `no field "kye"`},
		{"a number", func(v *policyfile.Vault, _ *vaultServer) { v.Field = "number" }, "is not text"},
		{"another namespace", func(v *policyfile.Vault, _ *vaultServer) { v.Namespace = "" }, "it answered 400"},
		{"a wrong secret id", func(v *policyfile.Vault, _ *vaultServer) {
			v.TokenFile, v.AppRole = "", &policyfile.AppRole{Mount: "approle", RoleID: "role-1", SecretIDFile: write(t, "wrong-secret-id", 0o400)}
		}, "logging in at"},
		{"an empty secret", func(_ *policyfile.Vault, s *vaultServer) { s.secret.Store("") }, "it is empty"},
		{"twin", func(*policyfile.Vault, *vaultServer) {}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := newVaultServer(t)
			spec := srv.spec()
			spec.TokenFile = good
			tt.change(&spec, srv)
			cfg, _ := webConfig(srv.Server)
			got, err := get(t, policyfile.Source{Vault: &spec}, cfg)
			if tt.want == "" {
				if err != nil || got != text {
					t.Errorf("%q, %v", got, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%q, %v, want an error with %q", got, err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "wrong-secret-id") {
				t.Errorf("the error shows what the server repeated: %v", err)
			}
		})
	}
}

// TestStoresFollowNoRedirect: RD-01. A token goes to no other place.
func TestStoresFollowNoRedirect(t *testing.T) {
	var other atomic.Int64
	away := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { other.Add(1) }))
	defer away.Close()
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, away.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer srv.Close()
	cfg, _ := webConfig(srv)
	spec := policyfile.Vault{URL: srv.URL, Mount: "kv", Path: "a", Field: "b", TokenFile: write(t, "hvs.static-token", 0o400)}
	if _, err := get(t, policyfile.Source{Vault: &spec}, cfg); err == nil || !strings.Contains(err.Error(), "it answered 307") || other.Load() != 0 {
		t.Errorf("%v, the other was asked %d times", err, other.Load())
	}
}

// kubernetesServer keeps the contract of the API server for reading one secret
// (Kubernetes API reference, Secret v1).
func kubernetesServer(t *testing.T) *httptest.Server {
	t.Helper()
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		status := func(code int, reason string) {
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
		}
		switch {
		case r.Header.Get("Authorization") != "Bearer eyJ.service.account":
			status(http.StatusUnauthorized, "Unauthorized")
		case r.Method != http.MethodGet || !strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/agents/secrets/"):
			status(http.StatusForbidden, "Forbidden")
		case r.URL.Path != "/api/v1/namespaces/agents/secrets/stripe":
			status(http.StatusNotFound, "NotFound")
		default:
			fmt.Fprintf(w, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"stripe"},"type":"Opaque","data":{"key":%q,"odd":"%%%%"}}`,
				base64.StdEncoding.EncodeToString([]byte(text)))
		}
	}))
	t.Cleanup(srv.Close)
	return srv
}

func TestKubernetesAPI(t *testing.T) {
	srv := kubernetesServer(t)
	token := write(t, "eyJ.service.account\n", 0o644)
	tests := []struct {
		name   string
		change func(*policyfile.Kubernetes)
		want   string
	}{
		{"another token", func(k *policyfile.Kubernetes) { k.TokenFile = write(t, "eyJ.another.account", 0o600) }, "it answered 401"},
		{"a token that others may change", func(k *policyfile.Kubernetes) { k.TokenFile = write(t, "eyJ.service.account", 0o666) }, "others could change it"},
		{"another namespace", func(k *policyfile.Kubernetes) { k.Namespace = "kube-system" }, "get on secrets/stripe in kube-system"},
		{"no such secret", func(k *policyfile.Kubernetes) { k.Secret = "strip" }, "it answered 404"},
		{"no such key", func(k *policyfile.Kubernetes) { k.Key = "kye" }, `no key "kye"`},
		{"not base64", func(k *policyfile.Kubernetes) { k.Key = "odd" }, "not base64"},
		{"twin", func(*policyfile.Kubernetes) {}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec := policyfile.Kubernetes{API: srv.URL, Namespace: "agents", Secret: "stripe", Key: "key", TokenFile: token}
			tt.change(&spec)
			cfg, _ := webConfig(srv)
			got, err := get(t, policyfile.Source{Kubernetes: &spec}, cfg)
			if tt.want == "" && (err != nil || got != text) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

// project lays a secret out as a kubelet does, and exchanges it whole.
func project(t *testing.T, dir, content string, mode os.FileMode) {
	t.Helper()
	real, err := os.MkdirTemp(dir, "..2026_") //nolint:usetesting // a kubelet's directories lie beside each other
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(real, "key")
	err = errors.Join(os.WriteFile(file, []byte(content), 0o600), os.Chmod(file, mode),
		os.Symlink(filepath.Base(real), filepath.Join(dir, "..data_tmp")), os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..data/key", filepath.Join(dir, "key")); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
}

func TestKubernetesMount(t *testing.T) {
	dir := t.TempDir()
	project(t, dir, text, 0o440)
	cfg := config()
	cfg.Now = later
	k, err := source.Open(policyfile.Source{Kubernetes: &policyfile.Kubernetes{Mount: dir, Key: "key"}}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got := reveal(t, k); got != text {
		t.Errorf("%q", got)
	}
	project(t, dir, "sk_test_rotated_by_the_kubelet", 0o440)
	if got := reveal(t, k); got != "sk_test_rotated_by_the_kubelet" {
		t.Errorf("after the rotation: %q", got)
	}
	project(t, dir, text, 0o444)
	if _, err := k.Get(t.Context()); err == nil || !strings.Contains(err.Error(), "defaultMode: 0440") {
		t.Errorf("readable by all: %v", err)
	}
	outside := write(t, text, 0o400)
	if err := errors.Join(os.Remove(filepath.Join(dir, "key")), os.Symlink(outside, filepath.Join(dir, "key"))); err != nil {
		t.Fatal(err)
	}
	if v, err := k.Get(t.Context()); err == nil {
		t.Errorf("a link out of the mount was followed: %q", v.Reveal())
	}
}
