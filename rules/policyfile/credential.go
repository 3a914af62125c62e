package policyfile

import (
	"net/textproto"
	"path"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
	"sallyport/rules/target"
)

// CredentialType says where a credential goes in a request.
type CredentialType string

// The types that this version builds.
const (
	Bearer CredentialType = "bearer" // Authorization: Bearer SECRET (RFC 6750)
	Header CredentialType = "header" // a header of its own
	Basic  CredentialType = "basic"  // Authorization: Basic … (RFC 7617)
)

// laterTypes are types of the language that this version does not build.
var laterTypes = []string{
	"query", "aws-sigv4", "gcp-service-account", "github-app",
	"oauth2-client", "oauth2-refresh", "jwt", "hmac", "mtls",
}

// Credential is a credential file: everything about a secret but the secret.
type Credential struct {
	Name        string
	Owner       string
	Description string
	Where       string // file:line of its name
	Digest      string // of the file's bytes
	Type        CredentialType
	// HeaderName is the canonical name of the header that it goes into, whatever the type.
	HeaderName string
	Prefix     string // type header: stands before the secret
	Username   string // type basic
	Endpoints  []Endpoint
	File       string // source.file, absolute
	Env        string // placeholder.env, "" if the sandbox gets no placeholder
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
	var header, basic ast.Node
	keep := func(dst *ast.Node) func(ast.Node) { return func(n ast.Node) { *dst = n } }
	skip := func(ast.Node) {} // checked by open
	seen := f.mapping(root, "a credential", []key{
		{name: "apiVersion", read: skip},
		{name: "kind", read: skip},
		{name: "metadata", required: true, read: f.metadata(&c.Name, &c.Owner, &c.Description)},
		{name: "type", required: true, read: f.credentialType(&c.Type)},
		{name: "header", read: keep(&header)},
		{name: "basic", read: keep(&basic)},
		{name: "endpoints", required: true, read: f.items(func(n ast.Node) {
			c.Endpoints = append(c.Endpoints, f.endpoint(n))
		})},
		{name: "source", required: true, read: f.source(&c.File)},
		{name: "placeholder", read: f.placeholder(&c.Env)},
	})
	if m := seen["metadata"]; m != nil {
		c.Where = f.at(m)
	}
	c.HeaderName = "Authorization"
	f.onlyFor(c.Type, Header, "header", seen["header"], root)
	f.onlyFor(c.Type, Basic, "basic", seen["basic"], root)
	if header != nil && c.Type == Header {
		f.mapping(header, "header", []key{
			{name: "name", required: true, read: f.headerName(&c.HeaderName)},
			{name: "prefix", read: f.headerText(&c.Prefix)},
		})
	}
	if basic != nil && c.Type == Basic {
		f.mapping(basic, "basic", []key{{name: "username", required: true, read: func(n ast.Node) {
			f.headerText(&c.Username)(n)
			if strings.Contains(c.Username, ":") {
				f.errorf(n, "a user name has no colon (RFC 7617)")
			}
		}}})
	}
}

// onlyFor refuses the settings of one type under another, and their absence.
func (f *file) onlyFor(got, want CredentialType, name string, n ast.Node, root ast.Node) {
	switch {
	case got == want && n == nil:
		f.errorf(root, "type %s needs %s", want, name)
	case got != want && got != "" && n != nil:
		f.errorf(n, "%s is for type %s, and this is type %s", name, want, got)
	}
}

func (f *file) credentialType(dst *CredentialType) func(ast.Node) {
	known := []string{string(Bearer), string(Header), string(Basic)}
	return func(n ast.Node) {
		if s, ok := n.(*ast.StringNode); ok && slices.Contains(laterTypes, s.Value) {
			f.errorf(n, "type %q is not built in this version; it knows %s", s.Value, list(known))
			return
		}
		f.word(known, func(s string) { *dst = CredentialType(s) })(n)
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

func (f *file) source(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		f.mapping(n, "source", []key{
			{name: "file", required: true, read: f.path(dst)},
			{name: "env", later: true},
			{name: "age", later: true},
			{name: "exec", later: true},
			{name: "vault", later: true},
			{name: "systemd", later: true},
		})
	}
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

func (f *file) placeholder(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		f.mapping(n, "placeholder", []key{{name: "env", required: true, read: func(n ast.Node) {
			before := len(f.errs)
			f.str(dst)(n)
			switch {
			case len(f.errs) > before:
			case !isEnv(*dst):
				f.errorf(n, "%q is not a variable: use upper-case letters, digits and _", *dst)
			case ownEnv(*dst):
				f.errorf(n, "%q has a meaning of its own inside a sandbox and cannot hold a placeholder", *dst)
			}
		}}})
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

// ownEnv reports variables that steer the loader, the shell or the way out.
func ownEnv(s string) bool {
	switch s {
	case "PATH", "HOME", "USER", "SHELL", "IFS", "ENV", "BASH_ENV", "LANG", "TZ", "TERM", "TMPDIR", "HOSTNAME",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_OPTIONS", "PYTHONPATH", "JAVA_TOOL_OPTIONS":
		return true
	}
	return strings.HasPrefix(s, "LD_") || strings.HasPrefix(s, "SALLYPORT_") || strings.HasSuffix(s, "_PROXY")
}

// headerName reads the name of a header that a credential may go into.
func (f *file) headerName(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		var s string
		if f.str(&s)(n); len(f.errs) > before {
			return
		}
		right := textproto.CanonicalMIMEHeaderKey(s)
		switch {
		case !rules.IsMethod(s): // a header's name is a token too (RFC 9110 section 5.1)
			f.errorf(n, "%q is not the name of a header", s)
		case frames(right):
			f.errorf(n, "%s belongs to the connection or the message, and cannot hold a credential", right)
		default:
			*dst = right
		}
	}
}

// frames reports headers that say how a message travels: one that was put into
// them would change what the origin reads, or be lost on the way.
func frames(h string) bool {
	switch h {
	case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Te", "Trailer", "Upgrade",
		"Expect", "Via", "Forwarded", "Date", "Content-Type", "Content-Encoding", "Accept-Encoding", "Range":
		return true
	}
	return strings.HasPrefix(h, "Proxy-") || strings.HasPrefix(h, "X-Forwarded-") || strings.HasPrefix(h, "Sallyport-")
}

// headerText reads text that goes into a header: printable ASCII.
func (f *file) headerText(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		f.str(dst)(n)
		for i := range len(*dst) {
			if c := (*dst)[i]; c < 0x20 || c > 0x7e {
				f.errorf(n, "this goes into a header, and %q is not printable ASCII", *dst)
				return
			}
		}
	}
}
