package policyfile

import (
	"path"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// Source says where a secret is; exactly one field is set.
type Source struct {
	File    string   // absolute path
	Env     string   // variable of the broker's own environment
	Systemd string   // name of a credential that the service manager gives
	Exec    []string // absolute path of a command, and its arguments; no shell
	Age     *Age

	Vault      *Vault
	Kubernetes *Kubernetes

	None bool // there is no secret: a public client of type oauth2-user

	// KeepOnError has the value that was good last serve on while the store
	// fails. Without it a store that fails refuses.
	KeepOnError bool
}

// Age is a file that is encrypted with age, and the file of the identity that
// opens it. Both paths are absolute.
type Age struct {
	File     string
	Identity string
}

func (f *file) source(dst *Source) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		seen := f.mapping(n, "source", []key{
			{name: "file", read: f.path(&dst.File)},
			{name: "env", read: f.brokerEnv(&dst.Env)},
			{name: "systemd", read: f.systemd(&dst.Systemd)},
			{name: "exec", read: f.exec(&dst.Exec)},
			{name: "age", read: f.age(&dst.Age)},
			{name: "vault", read: f.vault(&dst.Vault)},
			{name: "kubernetes", read: f.kubernetes(&dst.Kubernetes)},
			{name: "none", read: func(n ast.Node) {
				if f.boolean(&dst.None)(n); !dst.None {
					f.errorf(n, "none is true, or left out")
				}
			}},
			{name: "on_error", read: f.word([]string{"refuse", "keep"}, func(w string) { dst.KeepOnError = w == "keep" })},
		})
		delete(seen, "on_error")
		switch {
		case len(f.errs) > before:
		case len(seen) == 0:
			f.errorf(n, "source is empty; it has one of file, env, systemd, exec, age, vault, kubernetes, none")
		case len(seen) > 1:
			f.errorf(n, "a credential has one source, not %d", len(seen))
		}
	}
}

// brokerEnv reads the name of a variable of the broker's.
func (f *file) brokerEnv(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		if f.str(dst)(n); len(f.errs) == before && !isEnv(strings.ToUpper(*dst)) { //nolint:forbidigo // no host
			f.errorf(n, "%q is not the name of a variable", *dst)
		}
	}
}

// systemd reads the name of a credential in the broker's unit, which is a file
// name (systemd.exec(5), LoadCredential=).
func (f *file) systemd(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		f.str(dst)(n)
		if len(f.errs) == before && (strings.ContainsAny(*dst, "/\x00") || strings.HasPrefix(*dst, ".")) {
			f.errorf(n, "%q is not the name of a systemd credential", *dst)
		}
	}
}

// exec reads a command and its arguments.
func (f *file) exec(dst *[]string) func(ast.Node) {
	return f.strs(func(n ast.Node, s string) {
		switch {
		case strings.Contains(s, "\x00"):
			f.errorf(n, "an argument holds no NUL")
		case len(*dst) == 0 && (!path.IsAbs(s) || path.Clean(s) != s):
			f.errorf(n, "%q is not the absolute path of a command; there is no shell that would look for it", s)
		}
		*dst = append(*dst, s)
	})
}

func (f *file) age(dst **Age) func(ast.Node) {
	return func(n ast.Node) {
		*dst = &Age{}
		f.mapping(n, "age", []key{
			{name: "file", required: true, read: f.path(&(*dst).File)},
			{name: "identity", required: true, read: f.path(&(*dst).Identity)},
		})
	}
}
