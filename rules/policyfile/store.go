package policyfile

import (
	"net/netip"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// Vault is a field of a secret in the key-value engine, version 2, of HashiCorp
// Vault or OpenBao. Exactly one of TokenFile, AppRole and Kubernetes is set.
type Vault struct {
	URL       string // https, without a path of its own
	Mount     string // of the engine
	Path      string // of the secret below it
	Field     string
	Namespace string // "" for none
	// Private are address ranges in which the server may be.
	Private []netip.Prefix

	TokenFile  string
	AppRole    *AppRole
	Kubernetes *KubernetesLogin
}

// AppRole is a login with the id of a role and a secret id from a file.
type AppRole struct {
	Mount        string
	RoleID       string
	SecretIDFile string
}

// KubernetesLogin is a login with the token of a pod's service account.
type KubernetesLogin struct {
	Mount     string
	Role      string
	TokenFile string
}

// Kubernetes is a key of a Kubernetes secret: in a directory where a pod's
// volume mounts it, or at the API server.
type Kubernetes struct {
	Mount string // directory; then Key alone counts
	Key   string

	Namespace string
	Secret    string
	API       string // https
	TokenFile string // of the pod's service account
	// Private are address ranges in which the API server may be.
	Private []netip.Prefix
}

// What stands in for settings that a file leaves out.
const (
	vaultMount        = "secret"
	kubernetesAPI     = "https://kubernetes.default.svc"
	serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// Logins tells how many ways to log in are set.
func (v *Vault) Logins() (n int) {
	for _, set := range []bool{v.TokenFile != "", v.AppRole != nil, v.Kubernetes != nil} {
		if set {
			n++
		}
	}
	return n
}

// SecretURL is where the secret is read.
func (v *Vault) SecretURL() string { return v.URL + "/v1/" + v.Mount + "/data/" + v.Path }

// LoginURL is where a token is asked for, "" if a file holds it.
func (v *Vault) LoginURL() string {
	switch {
	case v.AppRole != nil:
		return v.URL + "/v1/auth/" + v.AppRole.Mount + "/login"
	case v.Kubernetes != nil:
		return v.URL + "/v1/auth/" + v.Kubernetes.Mount + "/login"
	default:
		return ""
	}
}

// SecretURL is where the secret is read, "" if it is mounted.
func (k *Kubernetes) SecretURL() string {
	if k.Mount != "" {
		return ""
	}
	return k.API + "/api/v1/namespaces/" + k.Namespace + "/secrets/" + k.Secret
}

// Ask is a URL that the broker itself sends requests to.
type Ask struct {
	URL string
	// Private are address ranges in which its server may be, though they are not
	// public.
	Private []netip.Prefix
}

// Reaches lists what the broker itself asks for a credential: token endpoints, and
// the store that its secret is in.
func (c *Credential) Reaches() (out []Ask) {
	for _, u := range c.Asks() {
		out = append(out, Ask{URL: u})
	}
	if v := c.Source.Vault; v != nil {
		out = append(out, Ask{v.SecretURL(), v.Private})
		if u := v.LoginURL(); u != "" {
			out = append(out, Ask{u, v.Private})
		}
	}
	if k := c.Source.Kubernetes; k != nil && k.Mount == "" {
		out = append(out, Ask{k.SecretURL(), k.Private})
	}
	return out
}

func (f *file) vault(dst **Vault) func(ast.Node) {
	return func(n ast.Node) {
		v := &Vault{Mount: vaultMount}
		*dst = v
		before := len(f.errs)
		f.mapping(n, "vault", []key{
			{name: "url", required: true, read: f.serverURL(&v.URL)},
			{name: "mount", read: f.storePath(&v.Mount)},
			{name: "path", required: true, read: f.storePath(&v.Path)},
			{name: "field", required: true, read: f.str(&v.Field)},
			{name: "namespace", read: f.headerText(&v.Namespace)},
			{name: "cidrs", read: f.prefixes(&v.Private)},
			{name: "token_file", read: f.path(&v.TokenFile)},
			{name: "approle", read: f.appRole(&v.AppRole)},
			{name: "kubernetes", read: f.kubernetesLogin(&v.Kubernetes)},
		})
		if len(f.errs) == before && v.Logins() != 1 {
			f.errorf(n, "vault needs one of token_file, approle and kubernetes, and has %d", v.Logins())
		}
	}
}

func (f *file) appRole(dst **AppRole) func(ast.Node) {
	return func(n ast.Node) {
		*dst = &AppRole{Mount: "approle"}
		f.mapping(n, "approle", []key{
			{name: "role_id", required: true, read: f.headerText(&(*dst).RoleID)},
			{name: "secret_id_file", required: true, read: f.path(&(*dst).SecretIDFile)},
			{name: "mount", read: f.storePath(&(*dst).Mount)},
		})
	}
}

func (f *file) kubernetesLogin(dst **KubernetesLogin) func(ast.Node) {
	return func(n ast.Node) {
		*dst = &KubernetesLogin{Mount: "kubernetes", TokenFile: serviceAccountDir + "/token"}
		f.mapping(n, "kubernetes", []key{
			{name: "role", required: true, read: f.headerText(&(*dst).Role)},
			{name: "token_file", read: f.path(&(*dst).TokenFile)},
			{name: "mount", read: f.storePath(&(*dst).Mount)},
		})
	}
}

func (f *file) kubernetes(dst **Kubernetes) func(ast.Node) {
	return func(n ast.Node) {
		k := &Kubernetes{API: kubernetesAPI, TokenFile: serviceAccountDir + "/token"}
		*dst = k
		before := len(f.errs)
		seen := f.mapping(n, "kubernetes", []key{
			{name: "key", required: true, read: f.step(&k.Key)},
			{name: "mount", read: f.path(&k.Mount)},
			{name: "namespace", read: f.step(&k.Namespace)},
			{name: "secret", read: f.step(&k.Secret)},
			{name: "api", read: f.serverURL(&k.API)},
			{name: "token_file", read: f.path(&k.TokenFile)},
			{name: "cidrs", read: f.prefixes(&k.Private)},
		})
		if len(f.errs) > before {
			return
		}
		api := seen["namespace"] != nil || seen["secret"] != nil || seen["api"] != nil || seen["token_file"] != nil || seen["cidrs"] != nil
		switch {
		case k.Mount != "" && api:
			f.errorf(n, "a kubernetes secret is mounted or asked for at the API server, not both")
		case k.Mount == "" && (k.Namespace == "" || k.Secret == ""):
			f.errorf(n, "kubernetes needs namespace and secret, or mount")
		}
	}
}

// serverURL reads the address of a server: an https URL without a path.
func (f *file) serverURL(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		var s, whole string
		if f.str(&s)(n); len(f.errs) > before {
			return
		}
		if _, rest, _ := strings.Cut(s, "://"); strings.Contains(rest, "/") {
			f.errorf(n, "%q has a path; write the server's address alone", s)
			return
		}
		f.checkURL(n, s+"/", &whole)
		*dst = s
	}
}

// storePath reads a path inside a store: plain steps between slashes.
func (f *file) storePath(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		if f.str(dst)(n); len(f.errs) > before {
			return
		}
		for step := range strings.SplitSeq(*dst, "/") {
			if !isStep(step) {
				f.errorf(n, "%q is not a path of letters, digits, - . _ and slashes between them", *dst)
				return
			}
		}
	}
}

// step reads one step of a path.
func (f *file) step(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		if f.str(dst)(n); len(f.errs) == before && !isStep(*dst) {
			f.errorf(n, "%q is not a name of letters, digits, - . and _", *dst)
		}
	}
}

func isStep(s string) bool {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._"
	return s != "" && s != "." && s != ".." && len(s) <= 253 && strings.Trim(s, plain) == ""
}
