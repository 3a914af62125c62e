package policyfile

import (
	"path"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
	"sallyport/rules/target"
)

// Credential is a credential file: everything about a secret but the secret.
type Credential struct {
	Name        string
	Owner       string
	Description string
	Where       string // file:line of its name
	Digest      string // of the file's bytes
	Scheme             // how it signs
	Endpoints   []Endpoint
	// KeysIn are further places in which the API takes keys: a caller's own in one
	// of them is refused.
	KeysIn    []Field
	Source    Source
	Env       string // placeholder.env, "" if the sandbox gets no placeholder
	SecretEnv string // placeholder.secret_env, of types with a pair of keys
	EnvFile   bool   // placeholder.file: Env holds the path of a file with a document
}

// Endpoint is one place where a credential may go. Empty Methods and Paths
// mean any. A credential is never bound to a wildcard: whoever takes over a
// name below it would be given the secret (CR-21).
type Endpoint struct {
	Host    target.Host
	Ports   []uint16
	Methods []string
	Paths   []rules.PathPattern
}

// Permits reports whether the credential may go into a request: the second
// lock, which holds whatever a policy says.
func (c *Credential) Permits(e target.Endpoint, method string, p target.Path) bool {
	return slices.ContainsFunc(c.Endpoints, func(x Endpoint) bool {
		return !x.Host.IsZero() && x.Host == e.Host && slices.Contains(x.Ports, e.Port) &&
			rules.IsMethod(method) && (len(x.Methods) == 0 || slices.Contains(x.Methods, method)) &&
			!p.IsZero() && (len(x.Paths) == 0 || slices.ContainsFunc(x.Paths, func(q rules.PathPattern) bool { return q.Match(p) }))
	})
}

// at returns the endpoints on a host.
func (c *Credential) at(h rules.HostPattern) (out []*Endpoint) {
	for i := range c.Endpoints {
		if !h.Wildcard && c.Endpoints[i].Host == h.Host {
			out = append(out, &c.Endpoints[i])
		}
	}
	return out
}

// ParseCredential reads a credential file. The error is [Errors].
func ParseCredential(name string, data []byte) (*Credential, error) {
	f, root := open(name, data, KindCredential)
	if root == nil {
		return nil, f.err()
	}
	c := &Credential{Digest: Digest(data)}
	f.readCredential(root, c)
	if err := f.err(); err != nil {
		return nil, err
	}
	return c, nil
}

func (f *file) readCredential(root *ast.MappingNode, c *Credential) {
	settings := map[string]ast.Node{}
	seen := f.mapping(root, "a credential", f.credentialKeys(c, settings))
	if m := seen["metadata"]; m != nil {
		c.Where = f.at(m)
	}
	f.settings(&c.Scheme, settings, root)
	if n := settings["body"]; n != nil && c.Type == Body && len(c.Scheme.Body) == 0 {
		f.errorf(n, "body names no field; it has lists under json, form, multipart and websocket")
	}
	if n := seen["placeholder"]; n != nil && c.Type != "" {
		f.checkPlaceholder(n, c)
	}
	if c.Type != "" && seen["source"] != nil {
		f.checkSignIn(seen, c)
	}
}

// credentialKeys are the keys of a credential; those of its type are found in
// settings after.
func (f *file) credentialKeys(c *Credential, settings map[string]ast.Node) []key {
	skip := func(ast.Node) {} // checked by open
	keys := []key{
		{name: "apiVersion", read: skip},
		{name: "kind", read: skip},
		{name: "metadata", required: true, read: f.metadata(&c.Name, &c.Owner, &c.Description)},
		{name: "type", required: true, read: f.credentialType(&c.Type)},
	}
	for _, s := range schemes {
		if s.keys != nil {
			keys = append(keys, key{name: string(s.name), read: func(n ast.Node) { settings[string(s.name)] = n }})
		}
	}
	return append(keys, []key{
		{name: "endpoints", required: true, read: f.items(func(n ast.Node) {
			c.Endpoints = append(c.Endpoints, f.endpoint(n))
		})},
		{name: "source", required: true, read: f.source(&c.Source)},
		{name: "placeholder", read: f.placeholder(c)},
		{name: "keys_in", read: f.keysIn(&c.KeysIn)},
	}...)
}

// checkPlaceholder holds a placeholder against the type of its credential.
func (f *file) checkPlaceholder(n ast.Node, c *Credential) {
	switch {
	case c.Pair() && c.SecretEnv == "":
		f.errorf(n, "type %s has a pair of keys, and placeholder has no secret_env for the second", c.Type)
	case !c.Pair() && c.SecretEnv != "":
		f.errorf(n, "secret_env is for types with a pair of keys, and this is type %s", c.Type)
	case c.SecretEnv != "" && c.SecretEnv == c.Env:
		f.errorf(n, "env and secret_env are one variable")
	case c.EnvFile && c.Type != GCPServiceAccount:
		f.errorf(n, "file is for types whose programs read a key file, and this is type %s", c.Type)
	}
}

func (f *file) endpoint(n ast.Node) (e Endpoint) {
	seen := f.mapping(n, "an endpoint", []key{
		{name: "host", required: true, read: func(n ast.Node) {
			before := len(f.errs)
			var s string
			if f.str(&s)(n); len(f.errs) > before {
				return
			}
			h, ok := f.host(n, s)
			if name, isName := h.Host.Name(); ok && h.Wildcard {
				f.errorf(n, "a credential is bound to exact hosts, and %q is a wildcard", s)
			} else if isName && rules.IsReserved(name) {
				f.errorf(n, "%s is reserved: the gateway answers it itself", rules.Reserved)
			}
			e.Host = h.Host
		}},
		{name: "ports", read: f.ports(&e.Ports)},
		{name: "methods", read: f.methods(&e.Methods)},
		{name: "paths", read: f.paths(&e.Paths)},
	})
	if seen["ports"] == nil {
		e.Ports = []uint16{443}
	}
	return e
}

// path reads an absolute path: whoever reads the file has its own idea of
// where it is.
func (f *file) path(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		f.str(dst)(n)
		switch {
		case len(f.errs) > before:
		case !path.IsAbs(*dst):
			f.errorf(n, "%q is not an absolute path", *dst)
		case path.Clean(*dst) != *dst:
			f.errorf(n, "%q is not a clean path; write %q", *dst, path.Clean(*dst))
		}
	}
}

func (f *file) placeholder(c *Credential) func(ast.Node) {
	return func(n ast.Node) {
		f.mapping(n, "placeholder", []key{
			{name: "env", required: true, read: f.sandboxEnv(&c.Env)},
			{name: "secret_env", read: f.sandboxEnv(&c.SecretEnv)},
			{name: "file", read: f.boolean(&c.EnvFile)},
		})
	}
}

func (f *file) sandboxEnv(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		f.str(dst)(n)
		switch {
		case len(f.errs) > before:
		case !isEnv(*dst):
			f.errorf(n, "%q is not a variable: use upper-case letters, digits and _", *dst)
		case ownEnv(*dst):
			f.errorf(n, "%q has a meaning of its own inside a sandbox and cannot hold a placeholder", *dst)
		}
	}
}

func isEnv(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'A' || c > 'Z') && c != '_' && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

var ownEnvs = []string{
	"PATH", "HOME", "USER", "SHELL", "IFS", "ENV", "BASH_ENV", "LANG", "TZ", "TERM", "TMPDIR", "HOSTNAME",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_OPTIONS", "PYTHONPATH", "JAVA_TOOL_OPTIONS",
}

// ownEnv reports variables that steer the loader, the shell or the way out.
func ownEnv(s string) bool {
	return slices.Contains(ownEnvs, s) || strings.HasPrefix(s, "LD_") || strings.HasPrefix(s, "SALLYPORT_") || strings.HasSuffix(s, "_PROXY")
}
