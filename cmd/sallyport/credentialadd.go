package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/broker"
	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/broker/store"
	"sallyport/rules/policyfile"
)

// changedOut is what add, rotate and revoke tell.
type changedOut struct {
	Name   string `json:"name"`
	Did    string `json:"did"`
	Source string `json:"source"`
	File   string `json:"file"`             // the credential file
	Broker string `json:"broker"`           // ok, revoked, or what is wrong; "not up" if it does not run
	Grants int    `json:"grants,omitempty"` // that ended
	Note   string `json:"note,omitempty"`
	Log    string `json:"log,omitempty"` // ok, or why there is no record yet
}

func printChanged(w io.Writer, o changedOut) error {
	rows := [][]string{{"credential", o.Name}, {"done", o.Did}, {"secret in", o.Source}, {"file", o.File}, {"broker", o.Broker}}
	if o.Grants > 0 {
		rows = append(rows, []string{"grants ended", strconv.Itoa(o.Grants)})
	}
	if o.Note != "" {
		rows = append(rows, []string{"note", o.Note})
	}
	if o.Log != "" && o.Log != "ok" {
		rows = append(rows, []string{"log", o.Log})
	}
	return printFit(w, rows)
}

func newCredentialAdd() *cobra.Command {
	var d describe
	c := &cobra.Command{
		Use:   "add NAME",
		Short: "Ask for a secret and keep it encrypted; write its credential file if there is none",
		Long: `Add asks for a secret without showing it (or reads it from a pipe), checks that its type can
use it, and keeps it encrypted with age: the embedded store. Without a file for NAME, --type and
--host say what to write into one, for the types bearer, header, basic and query; for other types
write the file first, with the source that this command names. The broker takes it up at once.

The secrets are in /var/lib/INSTANCE/secrets, the identity that opens them in
/var/lib/INSTANCE/secrets-key: both the broker's alone (directories 0700, files 0400).`,
		Example: `  sallyport credential add stripe-test --type bearer --host api.stripe.com --env STRIPE_API_KEY
  sallyport credential add maps --type query --param key --host maps.example.com --env MAPS_KEY
  pass show stripe | sallyport credential add stripe-test   # the file is there already`,
	}
	d.add(c)
	addStore(c)
	return credentialCommand(c, 1, func(c *cobra.Command, args []string) (changedOut, error) {
		return addCredential(c, args[0], d)
	}, printChanged)
}

func addCredential(c *cobra.Command, name string, d describe) (changedOut, error) {
	t, err := openTask(c, name)
	if err != nil {
		return changedOut{}, err
	}
	fresh := t.cred.Name == ""
	switch {
	case fresh:
		if t.cred, err = d.credential(t.file, name, t.store); err != nil {
			return changedOut{}, err
		}
	case d.given():
		return changedOut{}, usage(hint(fmt.Errorf("%s describes %q already; change it there", t.cred.Where, name), "sallyport credential add %s", name))
	}
	if err := t.keep(c); err != nil {
		return changedOut{}, err
	}
	if fresh {
		if err := errors.Join(os.MkdirAll(t.dir, 0o755), writeDocument(t.file, d.text(name, t.store).bytes())); err != nil {
			return changedOut{}, err
		}
	}
	return t.done(c.Context(), "added", "the secret is kept")
}

func newCredentialRotate() *cobra.Command {
	c := &cobra.Command{
		Use:   "rotate NAME",
		Short: "Replace a secret; the next request uses the new one",
		Long: `Rotate asks for the new secret without showing it and replaces the encrypted one. For a secret
that is kept elsewhere it has the broker drop what it read, and tokens that were made with it:
change the secret where it is, then rotate. It also takes back an earlier revoke.`,
		Example: `  sallyport credential rotate stripe-test
  op read op://ci/stripe/key | sallyport credential rotate stripe-test -o json`,
	}
	addStore(c)
	return credentialCommand(c, 1, func(c *cobra.Command, args []string) (changedOut, error) {
		t, err := openTask(c, args[0])
		if err != nil {
			return changedOut{}, err
		}
		if t.cred.Name == "" {
			return changedOut{}, noCredential(args[0])
		}
		did := "the broker reads the secret anew"
		if t.cred.Source.Age != nil {
			did = "the secret is replaced"
			if err := t.keep(c); err != nil {
				return changedOut{}, err
			}
		} else if err := t.unrevoke(); err != nil {
			return changedOut{}, err
		}
		return t.done(c.Context(), "rotated", did)
	}, printChanged)
}

func newCredentialRevoke() *cobra.Command {
	c := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Stop a credential: from the next request on nobody gets it",
		Long: `Revoke ends every grant of a credential: the next request with it is refused, runs that are
going on included. The broker wipes what it holds of the secret, and no run is granted it again,
after a restart neither, until it is rotated. A secret of the encrypted store is wiped.

What the provider gave stays valid with the provider: revoke it there too.`,
		Example: "  sallyport credential revoke stripe-test\n  sallyport credential revoke stripe-test -o json",
	}
	addStore(c)
	return credentialCommand(c, 1, func(c *cobra.Command, args []string) (changedOut, error) {
		t, err := openTask(c, args[0])
		if err != nil {
			return changedOut{}, err
		}
		if t.cred.Name == "" {
			return changedOut{}, noCredential(args[0])
		}
		return t.revoke(c.Context())
	}, printChanged)
}

// credentialTask is a change of one credential.
type credentialTask struct {
	inst      instance
	store     store.Store
	dir, file string // of the credential files, and of this one
	name      string
	cred      policyfile.Credential // no name: there is no file yet
}

func openTask(c *cobra.Command, name string) (*credentialTask, error) {
	inst, err := instanceOf(c)
	if err != nil {
		return nil, err
	}
	t := &credentialTask{inst: inst, name: name}
	if t.store, err = storeOf(c, inst); err != nil {
		return nil, err
	}
	if t.dir, err = credentialDir(c, inst); err != nil {
		return nil, err
	}
	t.file = filepath.Join(t.dir, name+".yaml")
	files, err := loadCredentials(t.dir)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(files, func(f policyfile.Credential) bool { return f.Name == name }); i >= 0 {
		t.cred = files[i]
		t.file, _, _ = strings.Cut(t.cred.Where, ".yaml:")
		t.file += ".yaml"
	} else if exists(t.file) {
		return nil, usage(fmt.Errorf("%s is there, and describes another credential", t.file))
	}
	return t, nil
}

// keep asks for the secret, checks it, and puts it into the store.
func (t *credentialTask) keep(c *cobra.Command) error {
	to := t.cred.Source.Age
	if to == nil {
		return usage(hint(fmt.Errorf("the secret of %q is not in the encrypted store: %s", t.name, sourceText(t.cred.Source)),
			"change it there, then: sallyport credential rotate %s; or name the store in %s: source: {age: {file: %s, identity: %s}}",
			t.name, t.file, t.store.File(t.name).File, t.store.Identity))
	}
	v, err := askSecret(c.Context(), c.InOrStdin(), c.ErrOrStderr(), t.name)
	if err != nil {
		return err
	}
	defer v.Wipe()
	if err := checkSecret(t.cred, v); err != nil {
		return fmt.Errorf("credential %q (type %s): %w", t.name, t.cred.Type, err)
	}
	if err := t.store.Put(to, v); err != nil {
		return err
	}
	return t.unrevoke()
}

// checkSecret has a credential's type judge a secret before it is kept.
func checkSecret(c policyfile.Credential, v secret.Value) error {
	s, err := sign.New(c.Scheme, sign.Config{Transport: noWay{}, Now: time.Now})
	if err != nil {
		return err
	}
	return s.Check(v)
}

// noWay is a way out that leads nowhere.
type noWay struct{}

// RoundTrip implements [http.RoundTripper].
func (noWay) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("nothing is sent while a secret is checked")
}

// custom reports that a store was named: then the instance is left alone.
func (t *credentialTask) custom() bool { return t.store.Dir != t.inst.secrets() }

func (t *credentialTask) unrevoke() error {
	if t.custom() {
		return nil
	}
	return t.inst.unrevoke(t.name)
}

// done has the daemons take up the change, and tells what came of it.
func (t *credentialTask) done(ctx context.Context, event, did string) (changedOut, error) {
	out := changedOut{Name: t.name, Did: did, Source: sourceText(t.cred.Source), File: t.file, Broker: "not up"}
	out.Log = t.tell(ctx, event)
	if _, up := supervisorPID(t.inst); !up || t.custom() {
		return out, nil
	}
	var followed reloadOut
	err := callUp(ctx, t.inst, "/v1/reload", &followed)
	if err == nil && followed.Credentials != "ok" {
		err = errors.New(followed.Credentials)
	}
	if err != nil {
		return out, fmt.Errorf("%s, but the instance did not take it up: %w", did, err)
	}
	var st broker.Status
	if err := callBroker(ctx, t.inst, "/v1/credentials/refresh", broker.Named{Credential: t.name}, &st); err != nil {
		return out, hint(fmt.Errorf("%s, but the broker did not take it up: %w", did, err), "sallyport up --credentials %s", t.dir)
	}
	if out.Broker = st.Status; st.Error != "" {
		out.Broker += ": " + st.Error
	}
	if st.Status == "error" {
		return out, hint(fmt.Errorf("%s, but the broker cannot use it: %s", did, st.Error), "then: sallyport credential test %s", t.name)
	}
	return out, nil
}

func (t *credentialTask) revoke(ctx context.Context) (changedOut, error) {
	out := changedOut{
		Name: t.name, Did: "revoked", Source: sourceText(t.cred.Source), File: t.file, Broker: "not up",
		Note: "with the provider the key is still valid: revoke it there too",
	}
	if !t.custom() {
		var err error
		if err := t.inst.revoke(t.name); err != nil {
			return out, err
		}
		out.Broker, out.Grants, err = t.mark(ctx)
		out.Log = t.tell(ctx, "revoked")
		if err != nil {
			return out, err
		}
	}
	if a := t.cred.Source.Age; a != nil && filepath.Dir(a.File) == t.store.Dir {
		if err := store.Wipe(a.File); err != nil {
			return out, err
		}
		out.Did = "revoked, and the encrypted secret is wiped"
	}
	return out, nil
}

// mark has the broker, if it is up, end the grants of what was revoked.
func (t *credentialTask) mark(ctx context.Context) (state string, grants int, err error) {
	if _, up := supervisorPID(t.inst); !up {
		return "not up", 0, nil
	}
	var ended broker.Revoked
	err = callBroker(ctx, t.inst, "/v1/credentials/revoke", broker.Named{Credential: t.name}, &ended)
	return "revoked", ended.Grants, err
}

// writeDocument writes a credential file, which holds no secret, where there is
// none yet.
func writeDocument(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
