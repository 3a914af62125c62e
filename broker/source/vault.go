package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sallyport/broker/secret"
	"sallyport/rules/policyfile"
)

// vault reads a field of a secret of the key-value engine, version 2, of
// HashiCorp Vault or OpenBao, with a token from a file or from a login (AppRole,
// Kubernetes). What it reads serves for a minute, and a login's token until a
// third of its life is left.
type vault struct {
	spec policyfile.Vault
	cfg  Config
	web
	*timed

	mu    sync.Mutex // guards token and renew
	token secret.Value
	renew time.Time
}

// maxVaultLease bounds how long a login's token is used: one that never ends is
// asked for anew all the same.
const maxVaultLease = time.Hour

func newVault(s policyfile.Vault, cfg Config) (Source, error) {
	switch {
	case cfg.Transport == nil:
		return nil, errors.New("source vault needs a way out for the broker, and there is none")
	case s.URL == "" || s.Path == "" || s.Field == "" || s.Mount == "":
		return nil, errors.New("source vault needs the server's URL, and mount, path and field of the secret")
	case s.Logins() != 1:
		return nil, errors.New("source vault needs one of token_file, approle and kubernetes")
	}
	v := &vault{spec: s, cfg: cfg, web: web{cfg.Transport}}
	v.timed = newTimed(cfg.Now, v.read)
	return v, nil
}

func (v *vault) String() string {
	return "vault " + v.spec.URL + " " + v.spec.Mount + "/" + v.spec.Path
}

func (v *vault) Get(ctx context.Context) (secret.Value, error) {
	s, err := v.get(ctx)
	if err != nil {
		return secret.Value{}, fmt.Errorf("reading %s: %w", v, err)
	}
	return s, nil
}

// read reads the secret's newest version. A token that is refused is asked for
// anew, once: it may have been revoked.
func (v *vault) read(ctx context.Context) ([]byte, error) {
	b, err := v.readOnce(ctx)
	var status statusError
	if errors.As(err, &status) && status == http.StatusForbidden && v.spec.TokenFile == "" && v.drop() {
		b, err = v.readOnce(ctx)
	}
	switch {
	case errors.As(err, &status) && status == http.StatusForbidden:
		return nil, errors.New("it answered 403: the token or role may not read this path; it needs a policy with read on " + v.spec.Mount + "/data/" + v.spec.Path)
	case errors.As(err, &status) && status == http.StatusNotFound:
		return nil, errors.New("it answered 404: there is no such secret, or its newest version is deleted")
	}
	return b, err
}

func (v *vault) readOnce(ctx context.Context) ([]byte, error) {
	token, err := v.login(ctx)
	if err != nil {
		return nil, err
	}
	defer token.Wipe()
	var ans struct {
		Data struct {
			Data map[string]json.RawMessage `json:"data"`
		} `json:"data"`
	}
	err = v.call(ctx, http.MethodGet, v.spec.SecretURL(), v.header(token), nil, &ans)
	if err != nil {
		return nil, err
	}
	raw, ok := ans.Data.Data[v.spec.Field]
	if !ok {
		return nil, fmt.Errorf("the secret has no field %q", v.spec.Field)
	}
	defer clear(raw)
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return nil, fmt.Errorf("field %q of the secret is not text", v.spec.Field)
	}
	return []byte(text), nil
}

func (v *vault) header(token secret.Value) map[string]string {
	return map[string]string{
		"X-Vault-Token": string(token.Reveal()), "X-Vault-Namespace": v.spec.Namespace, "X-Vault-Request": "true",
	}
}

// login returns a token, for the caller to wipe: the file's, or that of a login.
func (v *vault) login(ctx context.Context) (secret.Value, error) {
	if v.spec.TokenFile != "" {
		return v.readFile("token", v.spec.TokenFile)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.token.Len() > 0 && v.cfg.Now().Before(v.renew) {
		return clone(v.token), nil
	}
	in, err := v.loginBody()
	if err != nil {
		return secret.Value{}, err
	}
	var ans struct {
		Auth struct {
			ClientToken   string `json:"client_token"`
			LeaseDuration int64  `json:"lease_duration"`
		} `json:"auth"`
	}
	if err := v.call(ctx, http.MethodPost, v.spec.LoginURL(), v.header(secret.Value{}), in, &ans); err != nil {
		return secret.Value{}, fmt.Errorf("logging in at %s: %w", v.spec.LoginURL(), err)
	}
	if ans.Auth.ClientToken == "" || strings.ContainsAny(ans.Auth.ClientToken, "\r\n\x00") {
		return secret.Value{}, errors.New("logging in: the answer holds no token")
	}
	life := min(time.Duration(ans.Auth.LeaseDuration)*time.Second, maxVaultLease)
	if ans.Auth.LeaseDuration <= 0 { // it does not end
		life = maxVaultLease
	}
	v.token.Wipe()
	v.token, v.renew = secret.New([]byte(ans.Auth.ClientToken)), v.cfg.Now().Add(life*2/3)
	return clone(v.token), nil
}

func (v *vault) loginBody() (map[string]string, error) {
	if r := v.spec.AppRole; r != nil {
		id, err := v.readFile("secret id", r.SecretIDFile)
		if err != nil {
			return nil, err
		}
		defer id.Wipe()
		return map[string]string{"role_id": r.RoleID, "secret_id": string(id.Reveal())}, nil
	}
	k := v.spec.Kubernetes
	dir, name := filepath.Split(k.TokenFile)
	b, err := readMounted(dir, name, v.cfg, false)
	if err != nil {
		return nil, fmt.Errorf("reading service account token %q: %w", k.TokenFile, err)
	}
	defer clear(b)
	return map[string]string{"role": k.Role, "jwt": strings.TrimSpace(string(b))}, nil
}

// readFile reads a secret that opens the store, by the rules of a secret's file.
func (v *vault) readFile(what, path string) (secret.Value, error) {
	b, err := readStrict(path, v.cfg)
	if err == nil {
		var s secret.Value
		if s, err = finish(b); err == nil {
			return s, nil
		}
	}
	return secret.Value{}, fmt.Errorf("reading %s %q: %w", what, path, err)
}

// drop forgets a login's token and reports whether there was one.
func (v *vault) drop() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	had := v.token.Len() > 0
	v.token.Wipe()
	return had
}

func (v *vault) forget() {
	v.drop()
	v.timed.forget()
}

func clone(v secret.Value) secret.Value { return secret.New(append([]byte(nil), v.Reveal()...)) }
