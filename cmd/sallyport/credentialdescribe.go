package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/broker/store"
	"sallyport/rules/policyfile"
)

// describe are the flags of add that make a credential file.
type describe struct {
	kind, owner, header, prefix, username, param, env string
	hosts, methods, paths                             []string
}

func (d *describe) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&d.kind, "type", "", "how it signs: bearer, header, basic or query")
	f.StringArrayVar(&d.hosts, "host", nil, "where it may go; may be given several times")
	f.StringArrayVar(&d.methods, "method", nil, "with which methods; default: any")
	f.StringArrayVar(&d.paths, "path", nil, "to which paths; default: any")
	f.StringVar(&d.env, "env", "", "variable that holds the placeholder in a sandbox")
	f.StringVar(&d.owner, "owner", "", "who answers for it")
	f.StringVar(&d.header, "header", "", "type header: the header's name")
	f.StringVar(&d.prefix, "prefix", "", "type header: text before the secret")
	f.StringVar(&d.username, "username", "", "type basic: the user name")
	f.StringVar(&d.param, "param", "", "type query: the parameter's name")
}

// given reports whether anything is described.
func (d *describe) given() bool {
	return d.kind+d.owner+d.header+d.prefix+d.username+d.param+d.env != "" || len(d.hosts)+len(d.methods)+len(d.paths) > 0
}

// credential is what the flags describe. What is wrong is told of them: there is no file
// yet in which a person could look it up.
func (d *describe) credential(file, name string, s store.Store) (policyfile.Credential, error) {
	if err := d.complete(file, name, s); err != nil {
		return policyfile.Credential{}, usage(err)
	}
	text := d.text(name, s)
	c, err := policyfile.ParseCredential(file, text.bytes())
	if err != nil {
		return policyfile.Credential{}, usage(text.blame(err))
	}
	return *c, nil
}

// complete tells what is still to be said.
func (d *describe) complete(file, name string, s store.Store) error {
	needs := map[string]struct{ flag, value string }{
		"bearer": {}, "header": {"--header", d.header}, "basic": {"--username", d.username}, "query": {"--param", d.param},
	}
	need, known := needs[d.kind]
	switch {
	case d.kind == "" || len(d.hosts) == 0:
		return hint(fmt.Errorf("there is no %s yet: say how the secret signs and where it may go", file),
			"sallyport credential add %s --type bearer --host api.example.com --env API_KEY", name)
	case !known:
		return hint(fmt.Errorf("--type: %q is none of bearer, header, basic and query", d.kind),
			"for other types write %s first, with %s; then: sallyport credential add %s", file, storeText(name, s), name)
	case need.flag != "" && need.value == "":
		return fmt.Errorf("--type %s needs %s", d.kind, need.flag)
	case d.prefix != "" && d.header == "":
		return errors.New("--prefix goes with --header")
	default:
		return nil
	}
}

// storeText is how a credential file says that its secret is in the store. JSON's texts
// are YAML's.
func storeText(name string, s store.Store) string {
	a := s.File(name)
	return fmt.Sprintf("source: {age: {file: %s, identity: %s}}", strconv.QuoteToASCII(a.File), strconv.QuoteToASCII(a.Identity))
}

// text is the credential file that the flags describe.
func (d *describe) text(name string, s store.Store) *described {
	t := &described{}
	t.line("", "apiVersion: sallyport/v1").line("", "kind: Credential")
	t.line("", "metadata:").value("NAME", "  name", name).value("--owner", "  owner", d.owner)
	t.value("--type", "type", d.kind)
	if d.header != "" {
		t.line("--header", "header:").value("--header", "  name", d.header).value("--prefix", "  prefix", d.prefix)
	}
	if d.username != "" {
		t.line("--username", "basic:").value("--username", "  username", d.username)
	}
	if d.param != "" {
		t.line("--param", "query:").value("--param", "  param", d.param)
	}
	t.line("", "endpoints:")
	for _, h := range d.hosts {
		t.value("--host", "  - host", h).values("--method", "    methods", d.methods).values("--path", "    paths", d.paths)
	}
	t.line("--store", storeText(name, s))
	if d.env != "" {
		t.line("--env", "placeholder:").value("--env", "  env", d.env)
	}
	return t
}

// described is a credential file, with the argument that each of its lines is made of.
type described struct{ lines, args []string }

func (t *described) line(arg, text string) *described {
	t.lines, t.args = append(t.lines, text), append(t.args, arg)
	return t
}

func (t *described) value(arg, key, value string) *described {
	if value == "" {
		return t
	}
	return t.line(arg, key+": "+strconv.QuoteToASCII(value))
}

func (t *described) values(arg, key string, values []string) *described {
	if len(values) == 0 {
		return t
	}
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = strconv.QuoteToASCII(v)
	}
	return t.line(arg, key+": ["+strings.Join(quoted, ", ")+"]")
}

func (t *described) bytes() []byte { return []byte(strings.Join(t.lines, "\n") + "\n") }

// blame says of which arguments it is that a file is refused.
func (t *described) blame(err error) error {
	all, ok := errors.AsType[policyfile.Errors](err)
	if !ok {
		return err
	}
	var told []error
	seen := map[string]bool{} // methods and paths stand with every host
	for _, e := range all {
		arg := ""
		if e.Line >= 1 && e.Line <= len(t.args) && t.args[e.Line-1] != "" {
			arg = t.args[e.Line-1] + ": "
		}
		if text := arg + e.Text; !seen[text] {
			seen[text] = true
			told = append(told, errors.New(text))
		}
	}
	return errors.Join(told...)
}
