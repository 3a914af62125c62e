package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"sallyport/control"
	"sallyport/launcher"
	"sallyport/launcher/cell"
	"sallyport/launcher/nerdctl"
	"sallyport/rules/plural"
)

type runOptions struct {
	policy, narrow, code, workspace, export, isolation, result, dir, detectRoot string
	env                                                                         []string
	timeout                                                                     time.Duration
	json, stdin, verbose                                                        bool
}

func newRun() *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:   "run -p POLICY IMAGE [COMMAND [ARG...]]",
		Short: "Run a command in a sandbox whose only way out is the gateway",
		Long: `Run makes a cell and a container in it, runs the command and takes everything down again.
Standard output and standard error stream through; the exit code is the command's own.
The sandbox has no capability, no root, a read-only file system but for /tmp and /workspace,
limits on everything, and no key: where the policy grants a credential it gets a placeholder.

Exit codes: the command's; 124 it ran out of time; 125 it could not be run; 127 there is no
such command in the image; 130 it was interrupted; 137 it was killed (out of memory, too much
output); 2 the command line or a file is wrong. Without COMMAND the image's own is run.`,
		Example: `  sallyport run -p policy.yaml sallyport/sandbox:latest curl -sS https://api.example.com/
  sallyport run -p policy.yaml --code agent.py sallyport/sandbox:latest
  sallyport run -p policy.yaml --workspace ./src --export ./out IMAGE make
  sallyport run -p policy.yaml --isolation hardened --timeout 2m --json IMAGE python3 -V`,
		Args: someArgs,
		RunE: func(c *cobra.Command, args []string) error {
			inst, err := instanceOf(c)
			if err != nil {
				return err
			}
			if err := mustRoot("run"); err != nil {
				return err
			}
			return runSandbox(c, inst, o, args)
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows the image is the command's
	f.StringVarP(&o.policy, "policy", "p", "", "policy file (required)")
	f.StringVar(&o.narrow, "narrow", "", "policy file that takes away from the policy for this run, and adds nothing")
	f.StringVar(&o.detectRoot, "detect-root", "", detectRootUsage)
	f.StringVar(&o.code, "code", "", "program to run: .py, .sh or .js; arguments follow the image")
	f.StringArrayVarP(&o.env, "env", "e", nil, "NAME=value for the command; not for secrets")
	f.StringVar(&o.workspace, "workspace", "", "directory whose files are copied into /workspace")
	f.StringVar(&o.export, "export", "", "new directory that gets a copy of /workspace at the end")
	f.StringVarP(&o.dir, "workdir", "w", "", "where the command starts; default /workspace")
	f.DurationVar(&o.timeout, "timeout", 0, "wall clock until it is killed; default 10m")
	f.StringVar(&o.isolation, "isolation", string(launcher.Container), "container (runc) or hardened (gVisor)")
	f.BoolVar(&o.json, "json", false, "print the structured result in place of the output")
	f.StringVar(&o.result, "result", "", "file that gets the structured result")
	f.BoolVarP(&o.stdin, "stdin", "i", false, "pass standard input to the command")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "say each step")
	return c
}

func runSandbox(c *cobra.Command, inst instance, o runOptions, args []string) error {
	if o.policy == "" {
		return usage(hint(errors.New("no policy is named: what may the sandbox reach?"), "sallyport run -p policy.yaml %s", strings.Join(args, " ")))
	}
	if err := inst.mustBeUp(); err != nil {
		return notRun(err)
	}
	open := sync.OnceValues(func() (*launcher.Launcher, error) {
		return openLauncher(c.Context(), inst, c.ErrOrStderr(), o.verbose)
	})
	spec, err := runSpec(c, inst, o, args, func(patterns []string) (*launcher.ImageFiles, error) {
		l, err := open()
		if err != nil {
			return nil, err
		}
		return l.ReadImage(c.Context(), args[0], patterns)
	})
	if err != nil {
		return err
	}
	result, err := resultPath(o.result)
	if err != nil {
		return err
	}
	l, err := open()
	if err != nil {
		return notRun(err)
	}
	flush := func() {}
	if !o.json {
		spec.Stdout, spec.Stderr, flush = detached(c.OutOrStdout(), c.ErrOrStderr())
	}
	r, err := l.Run(c.Context(), *spec)
	flush()
	if r.Cause == "" { // refused before anything ran
		return notRun(explainRun(inst, err))
	}
	if result != "" {
		err = errors.Join(err, writeResult(result, &r))
	}
	if o.json {
		err = errors.Join(err, printJSON(c.OutOrStdout(), &r))
	}
	summarize(c.ErrOrStderr(), inst, &r, o.export != "")
	if err != nil && r.Cause != launcher.Canceled {
		return notRun(explainRun(inst, err))
	}
	return codeOf(&r, c.ErrOrStderr())
}

// summarize says on standard error what a person would otherwise have to look
// for: what was refused, and what did not come out.
func summarize(w io.Writer, inst instance, r *launcher.Result, exported bool) {
	if r.Denied > 0 {
		noun := "requests were"
		if r.Denied == 1 {
			noun = "request was"
		}
		ask := "audit query --verdict deny --run " + r.Run
		if !slices.ContainsFunc(r.Denials, func(d launcher.Denial) bool { return d.Record != "" }) && len(r.Denials) > 0 {
			ask = "audit timeline " + r.Run // none is in the log, which tells of the gap
		}
		fmt.Fprintf(w, "sallyport: %d %s refused: %s\n", r.Denied, noun, inst.typed(ask))
	}
	if exported && r.Export == "" {
		fmt.Fprintf(w, "sallyport: nothing was exported: %s\n", r.Text)
	}
	if n := len(r.Skipped); n > 0 {
		fmt.Fprintf(w, "sallyport: %s %s not exported, the first: %s\n", plural.Count(n, "file"), plural.Of(n, "was", "were"), r.Skipped[0])
	}
}

// codeOf passes the command's exit code on. What ended it, if it was not the
// command itself, is said in words.
func codeOf(r *launcher.Result, stderr io.Writer) error {
	if r.Cause != launcher.Exited {
		fmt.Fprintf(stderr, "sallyport: %s\n", r.Text)
	}
	code := r.Exit
	if r.Cause == launcher.TimedOut {
		code = exitTimedOut
	}
	if r.Cause == launcher.Canceled {
		code = exitInterrupted
	}
	if code == 0 && r.Cause != launcher.Exited {
		code = exitNotRun
	}
	if code == 0 {
		return nil
	}
	return &exitError{code: code}
}

// notRun gives an error that is nobody's usage the exit code of "could not be run".
func notRun(err error) error {
	if spec, ok := errors.AsType[*launcher.SpecError](err); ok {
		return usage(hint(spec, "sallyport run --help"))
	}
	if _, ok := errors.AsType[*exitError](err); ok {
		return err
	}
	return &exitError{exitNotRun, err}
}

// explainRun says what to type where the cause is one that people meet.
func explainRun(inst instance, err error) error {
	switch {
	case errors.Is(err, nerdctl.ErrNoImage):
		return hint(err, "%s; to add one: %s", inst.typed("image ls"), inst.typed("image load ARCHIVE"))
	case errors.Is(err, nerdctl.ErrNoEngine):
		return hint(err, "in another terminal: %s", inst.typed("up"))
	default:
		return err
	}
}

// runSpec turns the command line into what the launcher runs. read is for what a
// policy asks of the image.
func runSpec(c *cobra.Command, inst instance, o runOptions, args []string, read imageReader) (*launcher.Spec, error) {
	creds, err := loadCredentials(inst.credentials())
	if err != nil {
		return nil, err
	}
	d, err := newRunDetector(o.detectRoot, o.env, read)
	if err != nil {
		return nil, err
	}
	src := policySource{path: o.policy, floor: inst.under(), from: inst.floorFrom(), narrow: o.narrow, detect: d.find}
	src.place = &place{workspace: o.workspace, owner: asker().UID}
	p, err := loadPolicy(src, creds)
	if err != nil {
		return nil, err
	}
	file, err := filepath.Abs(o.policy)
	if err != nil {
		return nil, usage(err)
	}
	narrow := o.narrow
	if narrow != "" {
		if narrow, err = filepath.Abs(narrow); err != nil {
			return nil, usage(err)
		}
	}
	workspace := o.workspace
	if workspace != "" {
		if workspace, err = filepath.Abs(workspace); err != nil {
			return nil, usage(err)
		}
	}
	origin := &control.Origin{File: file, Narrow: narrow, Detected: d.detected(), Workspace: workspace, Owner: asker().UID}
	s := &launcher.Spec{
		Image: args[0], Argv: args[1:], Isolation: launcher.Isolation(o.isolation),
		Policy:      launcher.Policy{Name: p.name, Digest: p.digest, Source: p.text, Origin: origin},
		Credentials: p.rules.Credentials(), Env: o.env, Dir: o.dir,
		Workspace: o.workspace, Export: o.export, Limits: launcher.Limits{Time: o.timeout}, Asker: asker(),
	}
	if o.code != "" {
		data, err := readFile(o.code)
		if err != nil {
			return nil, usage(hint(fmt.Errorf("code: %w", err), "sallyport run --code FILE, and a FILE that is there"))
		}
		s.Code = &launcher.Code{Name: filepath.Base(o.code), Data: data}
	}
	if o.stdin {
		s.Stdin = c.InOrStdin()
	}
	return s, nil
}

// asker is who asked for the run: the user behind sudo, if there is one.
func asker() launcher.Asker {
	a := launcher.Asker{User: "root", UID: os.Getuid(), GID: os.Getgid()}
	if u, err := user.LookupId(strconv.Itoa(a.UID)); err == nil {
		a.User = u.Username
	}
	uid, err := strconv.Atoi(os.Getenv("SUDO_UID"))
	gid, err2 := strconv.Atoi(os.Getenv("SUDO_GID"))
	if err == nil && err2 == nil {
		a = launcher.Asker{User: os.Getenv("SUDO_USER"), UID: uid, GID: gid}
	}
	return a
}

// openLauncher returns a launcher for one run.
func openLauncher(ctx context.Context, inst instance, stderr io.Writer, verbose bool) (*launcher.Launcher, error) {
	who, err := lookupAccounts()
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(inst.caCert())
	if err != nil {
		return nil, hint(fmt.Errorf("reading the CA certificate: %w", err), "%s", inst.typed("status"))
	}
	n, err := cell.Open(ctx, inst.cellConfig())
	if err != nil {
		return nil, err
	}
	progress := func(string) {}
	if verbose {
		progress = func(step string) { fmt.Fprintln(stderr, "sallyport:", step) }
	}
	return inst.launcher(who, n, ca, quiet(stderr), progress)
}

func writeResult(path string, r *launcher.Result) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666&^ownUmask)
	if err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	if err := errors.Join(printJSON(f, r), f.Close()); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}

func newReconcile() *cobra.Command {
	c := &cobra.Command{
		Use:     "reconcile",
		Short:   "Remove whatever killed launchers left: containers, cells, rules, files",
		Example: "  sallyport reconcile",
		Args:    exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			inst, asJSON, err := rootCommand(c)
			if err != nil {
				return err
			}
			return reconcile(c, inst, asJSON)
		},
	}
	addOutput(c)
	return c
}

// reconcile clears what was left. If the instance is up it does so beside it;
// if not, it starts everything for as long as it takes, so that the end of
// each run is recorded, and takes it down again.
func reconcile(c *cobra.Command, inst instance, asJSON bool) error {
	if !exists(inst.state("ca")) {
		return usage(hint(fmt.Errorf("there is no instance %q: %s does not exist", inst.name, inst.state()), "%s", inst.typed("up")))
	}
	out, err := clearInstance(c, inst)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(c.OutOrStdout(), out)
	}
	return out.print(c.OutOrStdout())
}

// clearedOut is what reconcile found, and did.
type clearedOut struct {
	Live    []string `json:"live"`    // cells of launchers at work
	Removed []string `json:"removed"` // cells of dead ones
	Ended   []string `json:"ended"`   // of those at work, which had nobody to work under
}

func (o *clearedOut) print(w io.Writer) error {
	var b strings.Builder
	for _, cell := range o.Removed {
		fmt.Fprintln(&b, "removed what was left of the run in cell", cell)
	}
	for _, cell := range o.Ended {
		fmt.Fprintln(&b, "ended the run in cell", cell+", which went on without up")
	}
	if b.Len() == 0 {
		fmt.Fprintln(&b, "nothing was left")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func clearInstance(c *cobra.Command, inst instance) (*clearedOut, error) {
	var report launcher.Report
	var ended []string
	var err error
	if _, up := supervisorPID(inst); up {
		report, err = clearBeside(c, inst)
	} else {
		report, ended, err = clearAlone(c, inst)
	}
	if err != nil {
		return nil, err
	}
	return &clearedOut{append([]string{}, report.Live...), append([]string{}, report.Removed...), append([]string{}, ended...)}, nil
}

func clearBeside(c *cobra.Command, inst instance) (launcher.Report, error) {
	l, err := openLauncher(c.Context(), inst, c.ErrOrStderr(), false)
	if err != nil {
		return launcher.Report{}, err
	}
	return l.Reconcile(c.Context())
}

// clearAlone starts everything, and takes it down again. What the daemons say is of
// interest if they do not start. That secrets may be swapped and grants no longer fit
// is not: there are no credentials here.
func clearAlone(c *cobra.Command, inst instance) (report launcher.Report, ended []string, err error) {
	s := newSupervisor(inst, io.Discard, c.ErrOrStderr())
	var said heldWriter
	s.err = &said
	err = s.start(c.Context(), upOptions{})
	s.group.stop()
	if err != nil {
		err = errors.Join(said.writeTo(c.ErrOrStderr()), err)
	}
	return s.cleared, s.ended, err
}

// heldWriter keeps what several write until it is known whether it is of interest.
type heldWriter struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (h *heldWriter) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.Write(p)
}

func (h *heldWriter) writeTo(w io.Writer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.b.WriteTo(w)
	return err
}
