package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

const (
	defaultInstance = "sallyport"
	gatewayUser     = "sallyport-gateway"
	brokerUser      = "sallyport-broker"
	shipperUser     = "sallyport-shipper"
	sharedGroup     = "sallyport"
	auditGroup      = "sallyport-audit" // of those who review: they read the log, and write nothing
)

// instance is one installation on this machine: everything that it makes is
// named after it, so that several run side by side.
type instance struct{ name string }

// validInstance keeps names short enough for interface names and free of
// anything a path or an iptables chain could misread.
var validInstance = regexp.MustCompile(`^[a-z][a-z0-9-]{0,22}$`)

// rootCommand reads what commands that talk to the daemons have in common: the
// instance, and whether -o json was asked for. They need root.
func rootCommand(c *cobra.Command) (inst instance, asJSON bool, err error) {
	if asJSON, err = outputJSON(c); err != nil {
		return inst, false, err
	}
	if inst, err = instanceOf(c); err != nil {
		return inst, false, err
	}
	if err = mustRoot(c.Name()); err != nil {
		return inst, false, err
	}
	return inst, asJSON, nil
}

// daemonCommand is a process that up starts.
func daemonCommand(name, short string, run func(context.Context, instance, *slog.Logger) error) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Hidden: true, Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			inst, err := instanceOf(c)
			if err != nil {
				return err
			}
			return run(c.Context(), inst, slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil)).With("daemon", name))
		},
	}
}

func instanceOf(c *cobra.Command) (instance, error) {
	name, err := c.Flags().GetString("instance")
	if err != nil {
		return instance{}, err
	}
	if !validInstance.MatchString(name) {
		err := fmt.Errorf("instance %q: lower-case letters, digits and hyphens, at most 23", name)
		return instance{}, usage(hint(err, "%s --instance lab-1", c.CommandPath()))
	}
	return instance{name}, nil
}

// typed is a command line for a hint: it can be typed as it stands.
func (i instance) typed(command string) string {
	if i.name == defaultInstance {
		return "sallyport " + command
	}
	return "sallyport --instance " + i.name + " " + command
}

// mustBeUp refuses what needs the daemons of an instance that is not up.
func (i instance) mustBeUp() error {
	if _, up := supervisorPID(i); !up {
		return hint(fmt.Errorf("instance %q is not up", i.name), "in another terminal: %s", i.typed("up"))
	}
	return nil
}

func (i instance) run(elem ...string) string {
	return filepath.Join(append([]string{"/run", i.name}, elem...)...)
}

func (i instance) state(elem ...string) string {
	return filepath.Join(append([]string{"/var/lib", i.name}, elem...)...)
}

func (i instance) gatewaySocket() string { return i.run("gateway.sock") }
func (i instance) brokerSocket() string  { return i.run("broker.sock") }

// upSocket is where the supervisor is asked to reload, by root alone.
func (i instance) upSocket() string { return i.run("up.sock") }

func (i instance) cells() string       { return i.run("cells") }
func (i instance) floor() string       { return i.run("floor.yaml") }
func (i instance) floorName() string   { return i.run("floor.from") }
func (i instance) policies() string    { return i.run("policies") }
func (i instance) credentials() string { return i.run("credentials") }
func (i instance) caCert() string      { return i.state("ca.crt") }
func (i instance) auditDir() string    { return i.state("audit") }
func (i instance) bodies() string      { return i.state("bodies") }
func (i instance) auditKey() string    { return i.state("audit-key", "key") }

// under is the floor that policies stand under here, "" for none.
func (i instance) under() string {
	if exists(i.floor()) {
		return i.floor()
	}
	return ""
}

// floorFrom is the file that the floor was made of, as a person knows it, "" if
// there is none.
func (i instance) floorFrom() string {
	if i.under() == "" {
		return ""
	}
	name, err := readFile(i.floorName())
	if err != nil {
		return "" // errors name the copy, then
	}
	return string(name)
}

// auditPublicKey is what the log is checked against. It is root's, outside the
// reach of the process that writes the log.
func (i instance) auditPublicKey() string { return i.state("audit.pub") }

// account is a system user as this machine has it.
type account struct{ uid, gid int }

// accounts are the users and the group that the daemons run as.
type accounts struct {
	gateway, broker account
	group           int
	reviewers       int // the group of those who read the log
}

func lookupAccounts() (accounts, error) {
	var a accounts
	g, err := user.LookupGroup(sharedGroup)
	if err != nil {
		return a, hint(fmt.Errorf("looking up group %q: %w", sharedGroup, err), "make setup")
	}
	if a.group, err = strconv.Atoi(g.Gid); err != nil {
		return a, fmt.Errorf("looking up group %q: %w", sharedGroup, err)
	}
	r, err := user.LookupGroup(auditGroup)
	if err != nil {
		return a, hint(fmt.Errorf("looking up group %q: %w", auditGroup, err), "make setup")
	}
	if a.reviewers, err = strconv.Atoi(r.Gid); err != nil {
		return a, fmt.Errorf("looking up group %q: %w", auditGroup, err)
	}
	if a.gateway, err = lookupUser(gatewayUser); err != nil {
		return a, err
	}
	a.broker, err = lookupUser(brokerUser)
	return a, err
}

func lookupUser(name string) (account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, hint(fmt.Errorf("looking up user %q: %w", name, err), "make setup")
	}
	uid, err := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err := errors.Join(err, err2); err != nil {
		return account{}, fmt.Errorf("looking up user %q: %w", name, err)
	}
	if uid == 0 {
		return account{}, fmt.Errorf("user %q is root: the daemons must not be", name)
	}
	return account{uid, gid}, nil
}

// dir is a directory that an instance needs.
type dir struct {
	path     string
	mode     fs.FileMode
	uid, gid int
}

// layout lists every directory of an instance, parents first.
func (i instance) layout(a accounts) []dir {
	return []dir{
		{i.run(), 0o755, 0, a.group},
		{i.cells(), 0o750, 0, a.group},
		{i.policies(), 0o750, 0, a.group},
		{i.credentials(), 0o750, 0, a.group},
		{i.run("names"), 0o700, a.gateway.uid, a.gateway.gid},
		{i.run("limits"), 0o700, a.gateway.uid, a.gateway.gid},
		{i.state(), 0o755, 0, 0},
		{i.state("ca"), 0o700, a.gateway.uid, a.gateway.gid},
		{i.state("audit"), 0o750 | fs.ModeSetgid, a.gateway.uid, a.reviewers}, // and so are the files in it
		// Reviewers reach the checkpoint in it, which is theirs to read, and nothing else.
		{i.state("audit-key"), 0o710 | fs.ModeSetgid, a.gateway.uid, a.reviewers},
		{i.state("policies"), 0o750 | fs.ModeSetgid, a.gateway.uid, a.reviewers},
		{i.bodies(), 0o750 | fs.ModeSetgid, a.gateway.uid, a.reviewers},
		{i.secrets(), 0o700, a.broker.uid, a.broker.gid},
		{i.state("secrets-key"), 0o700, a.broker.uid, a.broker.gid},
		{i.state("revoked"), 0o755, 0, 0},
		{i.state("generations"), 0o755, 0, 0},
		{i.changes(), 0o700, 0, 0},
		{i.state("cells"), 0o700, 0, 0},
		{i.state("images"), 0o755, 0, 0},
		{i.state("containerd"), 0o700, 0, 0},
	}
}

// makeDirs makes the layout and sets owners and modes of what is there: a
// directory that somebody else could write to is put right, not trusted.
func (i instance) makeDirs(a accounts) error {
	if err := makeDirs(i.layout(a)); err != nil {
		return err
	}
	return errors.Join(i.regroup(i.state("audit"), a), i.regroup(i.state("policies"), a))
}

func makeDirs(dirs []dir) error {
	for _, d := range dirs {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return fmt.Errorf("making %s: %w", d.path, err)
		}
		info, err := os.Lstat(d.path)
		if err != nil {
			return fmt.Errorf("making %s: %w", d.path, err)
		}
		if !info.IsDir() {
			return fmt.Errorf("making %s: something that is no directory is in the way", d.path)
		}
		if err := errors.Join(os.Chown(d.path, d.uid, d.gid), os.Chmod(d.path, d.mode)); err != nil {
			return fmt.Errorf("making %s: %w", d.path, err)
		}
	}
	return nil
}

// regroup gives files that an earlier version made to the reviewers' group.
func (i instance) regroup(dir string, a accounts) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading %s: %w", dir, err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		// The gateway may have put a link here meanwhile: that is what changes.
		if err := os.Lchown(filepath.Join(dir, e.Name()), a.gateway.uid, a.reviewers); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("giving %s to the reviewers: %w", e.Name(), err)
		}
	}
	return nil
}

// clearRun removes what an instance that is down does not need. The lock stays:
// see supervisor.lock.
func (i instance) clearRun() error {
	entries, err := os.ReadDir(i.run())
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Name() != "supervisor.lock" {
			errs = append(errs, os.RemoveAll(i.run(e.Name())))
		}
	}
	return errors.Join(errs...)
}

// mustRoot refuses to go on without root and says why it is needed.
func mustRoot(what string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return hint(fmt.Errorf("%s needs root", what), "sudo %s", commandLine())
}

// commandLine is what was typed, to be typed again.
func commandLine() string {
	return strings.Join(append([]string{"sallyport"}, quoteArgs(os.Args[1:])...), " ")
}

// quoteArgs quotes arguments as a shell reads them: kind!=dns and status>=400 mean
// something else to it.
func quoteArgs(args []string) []string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = a
		if a == "" || strings.ContainsFunc(a, func(r rune) bool {
			return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && !strings.ContainsRune("-_=+:,./@%^", r)
		}) {
			quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return quoted
}
