package sign

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/url"
	"strings"
	"time"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// azureSASMade makes a shared access signature for each request, from the key of the
// account ("Create an account SAS" and "Create a service SAS" in the REST API
// reference of Azure Storage). The key stays in the broker; what leaves it ends soon.
type azureSASMade struct {
	key  azureKey // reads the secret
	spec policyfile.SAS
}

const (
	// azureSASVersion is the first one with lines for encryption scopes, and no
	// others: what is signed has had this form since.
	azureSASVersion = "2020-12-06"
	azureSASTime    = "2006-01-02T15:04:05Z"
	// azureSASForever is when the sandbox's signature ends, which is never checked by
	// whom it is sent to.
	azureSASForever = "2100-01-01T00:00:00Z"
)

func newAzureSAS(s policyfile.Scheme) (Scheme, error) {
	a := s.SAS
	whole := a.Scope == policyfile.SASAccount && a.Services != "" && a.Resources != "" && a.Container == ""
	part := (a.Scope == policyfile.SASContainer || a.Scope == policyfile.SASBlob) && a.Container != "" && a.Services+a.Resources == ""
	switch {
	case a == policyfile.SAS{}:
		return azureSAS{}, nil
	case a.Account == "" || a.Permissions == "" || a.Life <= 0 || !whole && !part:
		return nil, errors.New(`type "azure-sas" needs an account, permissions, a life, and a scope with what it is for`)
	}
	return azureSASMade{azureKey{a.Account}, a}, nil
}

func (azureSASMade) Place() control.Place { return azureSAS{}.Place() }

func (m azureSASMade) Check(v secret.Value) error { return m.key.Check(v) }

// Shapes implements [Shaper]: the sandbox sees a signature.
func (azureSASMade) Shapes(secret.Value) ([]string, error) {
	sum := sha256.Sum256([]byte("a signature"))
	return []string{base64.StdEncoding.EncodeToString(sum[:])}, nil
}

// Document implements [Documenter]: a token that says what the true ones say, and does
// not end, with the placeholder for a signature.
func (m azureSASMade) Document(v secret.Value, placeholder string) (text, id string, err error) {
	if err := m.Check(v); err != nil {
		return "", "", err
	}
	params := m.params(azureSASForever)
	params["sig"] = placeholder
	return sasText(params), placeholder, nil
}

// Sign implements [Scheme].
func (m azureSASMade) Sign(_ context.Context, v secret.Value, r Request) (Changes, error) {
	_, key, err := m.key.azureSecret(v)
	if err != nil {
		return Changes{}, err
	}
	params := m.params(r.Now.Add(time.Duration(m.spec.Life) * time.Second).UTC().Format(azureSASTime))
	toSign := m.accountText(params)
	if m.spec.Scope != policyfile.SASAccount {
		resource, err := m.resource(r.Path.String())
		if err != nil {
			return Changes{}, err
		}
		toSign = serviceText(params, resource)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(toSign))
	params["sig"] = base64.StdEncoding.EncodeToString(mac.Sum(nil))
	return Changes{Query: params, Expose: []string{params["sig"]}}, nil
}

// params are those of a token that ends at a time, without its signature.
func (m azureSASMade) params(end string) map[string]string {
	out := map[string]string{"sv": azureSASVersion, "spr": "https", "sp": m.spec.Permissions, "se": end}
	if m.spec.IP != "" {
		out["sip"] = m.spec.IP
	}
	switch m.spec.Scope {
	case policyfile.SASAccount:
		out["ss"], out["srt"] = m.spec.Services, m.spec.Resources
	case policyfile.SASContainer:
		out["sr"] = "c"
	case policyfile.SASBlob:
		out["sr"] = "b"
	}
	return out
}

// accountText is what the signature of an account's token is over. A last line for
// the encryption scope is empty.
func (m azureSASMade) accountText(p map[string]string) string {
	return strings.Join([]string{m.spec.Account, p["sp"], p["ss"], p["srt"], "", p["se"], p["sip"], p["spr"], p["sv"], "", ""}, "\n")
}

// serviceText is what the signature of a container's or a blob's token is over: no
// start, no stored policy, no snapshot, no encryption scope, and none of the five
// fields that an answer could be made to have.
func serviceText(p map[string]string, resource string) string {
	return strings.Join([]string{p["sp"], "", p["se"], resource, "", p["sip"], p["spr"], p["sv"], p["sr"], "", "", "", "", "", "", ""}, "\n")
}

// resource names what the token is for: the container, or the blob that the path of a
// request leads to.
func (m azureSASMade) resource(path string) (string, error) {
	container, blob, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if container, err := url.PathUnescape(container); err != nil || container != m.spec.Container {
		return "", unfit("the request is not for container %q", m.spec.Container)
	}
	base := "/blob/" + m.spec.Account + "/" + m.spec.Container
	if m.spec.Scope == policyfile.SASContainer {
		return base, nil
	}
	name, err := url.PathUnescape(blob)
	if err != nil || name == "" {
		return "", unfit("the request names no blob of container %q", m.spec.Container)
	}
	// Azure serves it as a slash, so that the path that was admitted would not be the one
	// that is read or written.
	if strings.Contains(name, `\`) {
		return "", unfit("the blob's name has a backslash, which Azure takes for a slash: ask for it with slashes")
	}
	return base + "/" + name, nil
}
