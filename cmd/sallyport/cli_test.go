package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "rewrite docs/cli.md")

const cliReference = "../../docs/cli.md"

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" { // a child of another user, who cannot read the program that testscript copies
		os.Exit(m.Run())
	}
	testscript.Main(m, map[string]func(){
		"sallyport": main,
		"auditlog":  program(func(a []string) error { return writeLogTo(a[0], a[1]) }),
		"auditgrow": program(func(a []string) error { return growLog(a[0], a[1], a[2], a[3]) }),
		"auditbody": program(func(a []string) error { return keepBody(a[0], a[1], a[2]) }),
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true, ContinueOnError: true, Setup: func(e *testscript.Env) error {
		e.Setenv("XDG_CACHE_HOME", e.WorkDir+"/cache") // indexes go there
		return nil
	}, Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits}})
}

// exits is the script command "exits CODE PROGRAM ARG...": it runs the program
// and checks its exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	code := 0
	err := ts.Exec(args[1], args[2:]...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if want, err := strconv.Atoi(args[0]); err != nil || code != want {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// The reference is generated: -update writes it.
func TestCLIReferenceIsUpToDate(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# Command line\n\nThis page is made from the program's own help: `make golden` writes it anew.\n\n")
	b.WriteString("Exit codes: 0 it worked; 1 it did not; 2 the command line or a file that it names is wrong.\n" +
		"`run` has the command's own exit code, 124 if it ran out of time and 125 if it could not be run.\n" +
		"141: nobody reads the output any more. With `-o json` an error is a line of JSON on standard error:\n" +
		"`error`, `hint` (what to type next), `exit`, and `problems`, the places in files that it is about.\n")
	writeReference(&b, newRoot())
	if *update {
		if err := os.WriteFile(cliReference, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(cliReference)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), b.String()); diff != "" {
		t.Errorf("docs/cli.md is old: make golden\n%s", diff)
	}
}

func writeReference(b *bytes.Buffer, c *cobra.Command) {
	if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
		return
	}
	long := c.Long
	if long == "" {
		long = c.Short + "."
	}
	fmt.Fprintf(b, "\n## %s\n\n```text\n%s\n```\n\n%s\n", c.CommandPath(), c.UseLine(), long)
	if c.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
	if flags := c.NonInheritedFlags().FlagUsagesWrapped(maxColumns); flags != "" {
		fmt.Fprintf(b, "\n```text\n%s```\n", flags)
	}
	for _, sub := range c.Commands() {
		writeReference(b, sub)
	}
}

// Every command says how it is used, with an example that names it.
func TestEveryCommandHasHelpWithExamples(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		if c.Short == "" || !strings.Contains(c.Example, "sallyport") {
			t.Errorf("%s: no summary or no example", c.CommandPath())
		}
		var help bytes.Buffer
		c.SetOut(&help)
		if err := c.Help(); err != nil {
			t.Errorf("%s: %v", c.CommandPath(), err)
		}
		if f := c.NonInheritedFlags(); f.HasAvailableFlags() && !strings.Contains(help.String(), "Flags:") {
			t.Errorf("%s: its help does not have its flags:\n%s", c.CommandPath(), help.String())
		}
		for line := range strings.SplitSeq(c.NonInheritedFlags().FlagUsages(), "\n") {
			if strings.Count(line, "default") > 1 {
				t.Errorf("%s: a flag tells two defaults: %q", c.CommandPath(), line)
			}
		}
		for line := range strings.SplitSeq(help.String(), "\n") {
			if len([]rune(line)) > maxColumns {
				t.Errorf("%s: a line of its help is wider than 100 columns: %q", c.CommandPath(), line)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot())
}
