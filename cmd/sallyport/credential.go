package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/audit/query"
	"sallyport/rules/policyfile"
)

func newCredential() *cobra.Command {
	c := &cobra.Command{
		Use:   "credential",
		Short: "Show, add, test, rotate and revoke credentials",
		Long: `Credential shows what credential files say, puts secrets into the encrypted store, and tells
how credentials are used. No command prints a secret, nor takes one as an argument.`,
		Example: `  sallyport credential ls
  sallyport credential add stripe-test --type bearer --host api.stripe.com --env STRIPE_API_KEY
  sallyport credential test stripe-test --live --path /v1/charges
  sallyport credential rotate stripe-test
  sallyport credential usage stripe-test --since 7d
  sallyport credential revoke stripe-test`,
		Args: oneOfCommands,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.PersistentFlags().String("credentials", "", "directory of credential files; default: those of the instance, or /etc/sallyport/credentials")
	c.AddCommand(newCredentialList(), newCredentialShow(), newCredentialAdd(), newCredentialRotate(),
		newCredentialRevoke(), newCredentialTest(), newCredentialUsage())
	return c
}

// credentialNamed picks one credential out of the files.
func credentialNamed(files []policyfile.Credential, name string) (policyfile.Credential, error) {
	i := slices.IndexFunc(files, func(f policyfile.Credential) bool { return f.Name == name })
	if i < 0 {
		return policyfile.Credential{}, noCredential(name)
	}
	return files[i], nil
}

func noCredential(name string) error {
	return usage(hint(fmt.Errorf("there is no credential %q", name), "sallyport credential ls"))
}

// judged is what a command found that may be bad: the exit code says so, whichever
// way it was printed.
type judged interface{ fault() error }

// credentialCommand is a command about one credential, or about all of them, that
// prints what it finds as text or JSON.
func credentialCommand[T any](c *cobra.Command, args int, find func(*cobra.Command, []string) (T, error), text func(io.Writer, T) error) *cobra.Command {
	c.Args = exactArgs(args)
	c.RunE = func(c *cobra.Command, args []string) error {
		asJSON, err := outputJSON(c)
		if err != nil {
			return err
		}
		out, err := find(c, args)
		switch {
		case err != nil:
			return err
		case asJSON:
			err = printJSON(c.OutOrStdout(), out)
		default:
			err = text(c.OutOrStdout(), out)
		}
		if j, ok := any(out).(judged); ok && err == nil {
			err = j.fault()
		}
		return err
	}
	addOutput(c)
	return c
}

// credentialOut is what is told about a credential file.
type credentialOut struct {
	Name        string        `json:"name"`
	Owner       string        `json:"owner,omitempty"`
	Description string        `json:"description,omitempty"`
	Type        string        `json:"type"`
	Source      string        `json:"source"`
	Endpoints   []endpointOut `json:"endpoints"`
	Env         []string      `json:"env"`  // variables that hold placeholders
	Asks        []string      `json:"asks"` // what the broker itself asks for it
	Where       string        `json:"where"`
	Digest      string        `json:"digest"`
	Revoked     bool          `json:"revoked"` // with the instance, until it is rotated
	inst        instance
}

// endpointOut is one place that a credential may go to; nothing means any.
type endpointOut struct {
	Host    string   `json:"host"`
	Ports   []uint16 `json:"ports"`
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
}

func credentialOf(inst instance, c policyfile.Credential) credentialOut {
	out := credentialOut{
		Name: c.Name, Owner: c.Owner, Description: c.Description, Type: string(c.Type), Source: sourceText(c.Source),
		Endpoints: []endpointOut{}, Env: []string{}, Asks: []string{}, Where: c.Where, Digest: c.Digest,
		inst: inst,
	}
	_, err := os.Lstat(inst.revoked(c.Name))
	out.Revoked = err == nil
	for _, a := range c.Reaches() {
		out.Asks = append(out.Asks, a.URL)
	}
	for _, env := range []string{c.Env, c.SecretEnv} {
		if env != "" {
			out.Env = append(out.Env, env)
		}
	}
	for _, e := range c.Endpoints {
		o := endpointOut{Host: e.Host.String(), Ports: e.Ports, Methods: e.Methods}
		for _, p := range e.Paths {
			o.Paths = append(o.Paths, p.String())
		}
		out.Endpoints = append(out.Endpoints, o)
	}
	return out
}

// sourceText names a store. The arguments of a command are left out: people are
// known to put secrets there.
func sourceText(s policyfile.Source) string {
	switch {
	case s.None:
		return "none"
	case s.File != "":
		return "file " + s.File
	case s.Env != "":
		return "env " + s.Env
	case s.Systemd != "":
		return "systemd credential " + s.Systemd
	case len(s.Exec) > 0:
		return "exec " + s.Exec[0]
	case s.Age != nil:
		return "age file " + s.Age.File
	case s.Vault != nil:
		return "vault " + s.Vault.URL + " " + s.Vault.Mount + "/" + s.Vault.Path
	case s.Kubernetes != nil && s.Kubernetes.Mount != "":
		return "kubernetes mount " + s.Kubernetes.Mount + "/" + s.Kubernetes.Key
	case s.Kubernetes != nil:
		return "kubernetes secret " + s.Kubernetes.Namespace + "/" + s.Kubernetes.Secret
	default:
		return ""
	}
}

func newCredentialList() *cobra.Command {
	return credentialCommand(&cobra.Command{
		Use:     "ls",
		Short:   "List the credentials that policies may grant",
		Example: "  sallyport credential ls\n  sallyport credential ls -o json",
	}, 0, func(c *cobra.Command, _ []string) ([]credentialOut, error) {
		files, err := instanceCredentials(c)
		list := []credentialOut{}
		if err != nil {
			return list, err
		}
		inst, err := instanceOf(c)
		for _, f := range files {
			list = append(list, credentialOf(inst, f))
		}
		return list, err
	}, func(w io.Writer, list []credentialOut) error {
		rows := [][]string{{"NAME", "TYPE", "OWNER", "HOSTS", "SOURCE"}}
		for _, o := range list {
			var hosts []string
			for _, e := range o.Endpoints {
				hosts = append(hosts, e.Host)
			}
			slices.Sort(hosts)
			kind := o.Type
			if o.Revoked {
				kind += ", revoked"
			}
			rows = append(rows, []string{o.Name, kind, o.Owner, firstOf(slices.Compact(hosts), 30), o.Source})
		}
		return printFit(w, rows)
	})
}

// firstOf is the first of a list, in at most width columns, and how many there are
// beside it: one column's share of a table.
func firstOf(list []string, width int) string {
	if len(list) == 0 {
		return ""
	}
	out := query.Fit(query.Printable(list[0]), width)
	if more := len(list) - 1; more > 0 {
		out += fmt.Sprintf(" +%d", more)
	}
	return out
}

func newCredentialShow() *cobra.Command {
	return credentialCommand(&cobra.Command{
		Use:     "show NAME",
		Short:   "Show one credential: how it signs, where its secret is, where it may go",
		Example: "  sallyport credential show stripe-test\n  sallyport credential show stripe-test -o json",
	}, 1, func(c *cobra.Command, args []string) (credentialOut, error) {
		files, err := instanceCredentials(c)
		if err != nil {
			return credentialOut{}, err
		}
		inst, err := instanceOf(c)
		if err != nil {
			return credentialOut{}, err
		}
		f, err := credentialNamed(files, args[0])
		if err != nil {
			return credentialOut{}, err
		}
		return credentialOf(inst, f), nil
	}, printCredential)
}

func printCredential(w io.Writer, o credentialOut) error {
	rows := [][]string{{"name", o.Name}, {"owner", o.Owner}, {"description", o.Description}, {"type", o.Type}, {"source", o.Source}}
	for _, e := range o.Endpoints {
		ports := make([]string, len(e.Ports))
		for i, p := range e.Ports {
			ports[i] = strconv.Itoa(int(p))
		}
		rows = append(rows, []string{"may go to", strings.Join([]string{
			e.Host + ":" + strings.Join(ports, ","), orAny(e.Methods, "any method"), orAny(e.Paths, "any path"),
		}, "  ")})
	}
	for _, env := range o.Env {
		rows = append(rows, []string{"placeholder in", env})
	}
	for _, u := range o.Asks {
		rows = append(rows, []string{"the broker asks", u})
	}
	if o.Revoked {
		rows = append(rows, []string{"revoked", "yes; " + o.inst.typed("credential rotate "+o.Name) + " makes it good again"})
	}
	rows = append(rows, []string{"file", o.Where}, []string{"digest", o.Digest})
	return printFit(w, slices.DeleteFunc(rows, func(r []string) bool { return r[1] == "" }))
}

func orAny(list []string, otherwise string) string {
	if len(list) == 0 {
		return otherwise
	}
	return strings.Join(list, " ")
}
