// Command sallyport runs agent code in containers that hold no keys and have
// one way out. It is the only place that knows every room: it parses, wires
// and exits. What is decided, recorded, dialled and signed is decided,
// recorded, dialled and signed elsewhere.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"sallyport/rules/plural"
)

// The exit codes, besides a sandboxed command's own. docs/cli.md lists them.
const (
	exitFailed = 1 // something did not work
	exitUsage  = 2 // the command line or a file it names is wrong

	exitTimedOut = 124 // run: the command ran out of time, as timeout(1) says it
	exitNotRun   = 125 // run: it could not be run, as container engines say it

	exitInterrupted = 130 // run: ^C, as shells say it
	exitPipe        = 141 // nobody reads the output any more, as shells say it
)

// hintError carries what to type next.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() }
func (e *hintError) Unwrap() error { return e.err }

// hint adds to err what a person can type next.
func hint(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &hintError{err, fmt.Sprintf(format, args...)}
}

// exitError ends the process with a code; err may be nil where all is said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }

func usage(err error) error { return &exitError{exitUsage, err} }

// ownUmask is that of who called, for files that are theirs.
var ownUmask os.FileMode

// fixedEnvironment makes what this program does the same however root came to be root.
func fixedEnvironment() {
	// What daemons, containerd and sandboxes have to read is made with its mode.
	ownUmask = os.FileMode(syscall.Umask(0o022))
	// su(1) leaves the PATH of a user, who has no use for iptables.
	path := os.Getenv("PATH")
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if !slices.Contains(filepath.SplitList(path), dir) {
			path += string(filepath.ListSeparator) + dir
		}
	}
	_ = os.Setenv("PATH", path) // the name is one
}

func main() {
	// A terminal that is closed and a pipe that nobody reads any more must not
	// end this program before it has undone what it made.
	signal.Ignore(syscall.SIGPIPE)
	fixedEnvironment()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process around it.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	c, err := root.ExecuteContextC(ctx)
	if h, ok := errors.AsType[*hintError](err); ok {
		h.hint = hintedAt(c, h.hint)
	}
	return report(err, err != nil && wantsJSON(root, args), stderr)
}

// ofLogs are the commands that read a log, in a hint.
var ofLogs = regexp.MustCompile(`sallyport (audit|credential) [a-z]+`)

// hintedAt has the commands of a hint name what the command line c named: the log, its
// key and index, the instance.
func hintedAt(c *cobra.Command, text string) string {
	root := c.Root()
	if c != root && !strings.Contains(text, "--dir") {
		text = ofLogs.ReplaceAllStringFunc(text, func(command string) string {
			words := []string{command}
			for _, f := range []string{"dir", "index", "key"} {
				named := c.Flags().Lookup(f)
				takes := command == c.CommandPath() || f != "key" && strings.HasPrefix(command, "sallyport audit")
				if named != nil && named.Changed && takes && !strings.Contains(text, "--"+f) {
					words = append(words, quoteArgs([]string{"--" + f, named.Value.String()})...)
				}
			}
			return strings.Join(words, " ")
		})
	}
	inst, err := instanceOf(root)
	if err != nil || inst.name == defaultInstance || strings.Contains(text, "--instance") {
		return text
	}
	for _, c := range root.Commands() {
		text = strings.ReplaceAll(text, "sallyport "+c.Name(), inst.typed(c.Name()))
	}
	return text
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "sallyport",
		Short: "Run agent code in containers that hold no keys and have one way out",
		Long: `Sallyport runs agent code in containers that hold no keys and have one way out.

A launcher starts containers on an isolated bridge; the only exit is a gateway that
enforces an allowlist of hosts, methods and paths; a broker adds the keys to calls
that are allowed; every decision goes into a tamper-evident log.`,
		Example: `  sallyport doctor                                  # is this machine ready?
  sallyport up                                      # start gateway and broker, in one terminal
  sallyport run -p policy.yaml IMAGE python3 -c ... # run something, in another
  sallyport audit query --run RUN                   # what did it do?
  sallyport audit verify                            # is the log whole?`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version(),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		Args:          oneOfCommands,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", maxColumns)))
	root.PersistentFlags().String("instance", defaultInstance, "which installation on this machine")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if c.HasSubCommands() && c.Flags().NArg() > 0 { // the flag is of the command that was meant
			return oneOfCommands(c, c.Flags().Args())
		}
		return usage(ofFlag(c, err))
	})
	root.SetHelpCommand(newHelp())
	root.AddCommand(newUp(), newDown(), newRun(), newPS(), newStatus(), newReconcile(), newDoctor(), newDemo(),
		newImage(), newPolicy(), newPreset(), newAccess(), newCredential(), newAudit(), newCA(), newEnv(), newGateway(), newBroker(), newShipper(), newGuest())
	return root
}

// newHelp is cobra's, with an error for what is no command.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]...",
		Short:   "Tell what a command does",
		Example: "  sallyport help policy lint",
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err != nil {
				return usage(err)
			}
			if about.HasSubCommands() {
				if err := oneOfCommands(about, rest); err != nil {
					return err
				}
			}
			return about.Help()
		},
	}
}

// oneOfCommands is for a command that has others below it and takes no argument
// itself: what stands in the place of one is a name that none has.
func oneOfCommands(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("%s has no command %q", c.CommandPath(), args[0])
	for distance := 1; distance <= 2; distance++ { // the nearest, not the first
		c.SuggestionsMinimumDistance = distance
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			return usage(hint(fmt.Errorf("%w; did you mean %q?", err, near[0]), "%s %s", c.CommandPath(), near[0]))
		}
	}
	if other, _, found := c.Root().Find(args); found == nil && other.HasParent() {
		return usage(hint(err, "%s", other.CommandPath()))
	}
	return usage(hint(err, "%s --help", c.CommandPath()))
}

// useLine is how a command is typed, with what its arguments are called.
func useLine(c *cobra.Command) string { return strings.TrimSuffix(c.UseLine(), " [flags]") }

// someArgs is cobra.MinimumNArgs(1) with an error of our own kind.
func someArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage(hint(fmt.Errorf("%s takes at least 1 argument", c.CommandPath()), "%s", useLine(c)))
	}
	return nil
}

// exactArgs is cobra.ExactArgs with an error of our own kind.
func exactArgs(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return usage(hint(fmt.Errorf("%s takes %s, not %d", c.CommandPath(), plural.Count(n, "argument"), len(args)), "%s", useLine(c)))
		}
		return nil
	}
}
