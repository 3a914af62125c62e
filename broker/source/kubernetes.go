package source

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"sallyport/broker/secret"
	"sallyport/rules/policyfile"
)

// newKubernetes reads a Kubernetes secret: where a pod's volume mounts it, or
// from the API server with the pod's service account.
func newKubernetes(s policyfile.Kubernetes, cfg Config) (Source, error) {
	switch {
	case s.Mount != "":
		if !filepath.IsAbs(s.Mount) || !plainName(s.Key) {
			return nil, errors.New("source kubernetes: mount is an absolute directory, and key the name of a file in it")
		}
		return mounted{s, cfg}, nil
	case cfg.Transport == nil:
		return nil, errors.New("source kubernetes needs a way out for the broker, and there is none")
	case !plainName(s.Namespace) || !plainName(s.Secret) || s.Key == "" || s.API == "" || s.TokenFile == "":
		return nil, errors.New("source kubernetes needs namespace, secret and key, or mount and key")
	}
	k := &kubernetes{spec: s, cfg: cfg, web: web{cfg.Transport}}
	k.timed = newTimed(cfg.Now, k.read)
	return k, nil
}

// plainName reports whether s is one step of a path.
func plainName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00%?#")
}

// mounted is a secret volume (kubelet projects it): read anew each time, since
// the links that lead to it change under the same name.
type mounted struct {
	spec policyfile.Kubernetes
	cfg  Config
}

func (m mounted) String() string {
	return "kubernetes mount " + filepath.Join(m.spec.Mount, m.spec.Key)
}

func (m mounted) Get(context.Context) (secret.Value, error) {
	b, err := readMounted(m.spec.Mount, m.spec.Key, m.cfg, true)
	if err == nil {
		var v secret.Value
		if v, err = finish(b); err == nil {
			return v, nil
		}
	}
	return secret.Value{}, fmt.Errorf("reading %s: %w", m, err)
}

// kubernetes is a secret of the API server.
type kubernetes struct {
	spec policyfile.Kubernetes
	cfg  Config
	web
	*timed
}

func (k *kubernetes) String() string {
	return "kubernetes secret " + k.spec.Namespace + "/" + k.spec.Secret
}

func (k *kubernetes) Get(ctx context.Context) (secret.Value, error) {
	v, err := k.get(ctx)
	if err != nil {
		return secret.Value{}, fmt.Errorf("reading %s: %w", k, err)
	}
	return v, nil
}

func (k *kubernetes) read(ctx context.Context) ([]byte, error) {
	dir, name := filepath.Split(k.spec.TokenFile)
	token, err := readMounted(dir, name, k.cfg, false) // it is projected anew before it ends
	if err != nil {
		return nil, fmt.Errorf("reading service account token %q: %w", k.spec.TokenFile, err)
	}
	defer clear(token)
	var ans struct {
		Kind string                     `json:"kind"`
		Data map[string]json.RawMessage `json:"data"`
	}
	bearer := map[string]string{"Authorization": "Bearer " + strings.TrimSpace(string(token))}
	err = k.call(ctx, http.MethodGet, k.spec.SecretURL(), bearer, nil, &ans)
	var status statusError
	switch {
	case errors.As(err, &status) && (status == http.StatusForbidden || status == http.StatusUnauthorized):
		return nil, fmt.Errorf("it answered %d: the service account needs a role with get on secrets/%s in %s", int(status), k.spec.Secret, k.spec.Namespace)
	case errors.As(err, &status) && status == http.StatusNotFound:
		return nil, errors.New("it answered 404: there is no such secret")
	case err != nil:
		return nil, err
	case ans.Kind != "Secret":
		return nil, errors.New("its answer is not a secret")
	}
	raw, ok := ans.Data[k.spec.Key]
	if !ok {
		return nil, fmt.Errorf("the secret has no key %q", k.spec.Key)
	}
	defer clear(raw)
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return nil, fmt.Errorf("key %q is not text", k.spec.Key)
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("key %q is not base64", k.spec.Key)
	}
	return b, nil
}
