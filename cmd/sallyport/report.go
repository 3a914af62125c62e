package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/rules/policyfile"
)

// failure is an error as a program reads it: one line of JSON on standard error.
type failure struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"` // what to type next
	Exit  int    `json:"exit"`
	// Problems are the places in files that the error is about, if it is about any.
	Problems policyfile.Errors `json:"problems,omitempty"`
}

// report prints an error, for a person or for a program, and returns the exit
// code. That nobody reads the output any more is no error worth a word.
func report(err error, asJSON bool, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	if unread(err) {
		return exitPipe
	}
	code := exitFailed
	if exit, ok := errors.AsType[*exitError](err); ok {
		code = exit.code
		if exit.err == nil {
			return code
		}
	}
	out := failure{Error: err.Error(), Exit: code}
	if h, ok := errors.AsType[*hintError](err); ok {
		out.Hint = h.hint
	}
	if _, ok := errors.AsType[policyfile.Errors](err); ok {
		out.Problems = problems("", err)
	}
	if asJSON {
		if text, err := json.Marshal(out); err == nil {
			fmt.Fprintf(stderr, "%s\n", audit.EscapeJSON(text))
			return code
		}
	}
	fmt.Fprintf(stderr, "sallyport: error: %s\n", shown(out.Error)) // it may cite a file, or who sent it
	if out.Hint != "" {
		fmt.Fprintf(stderr, "sallyport: hint: %s\n", shown(out.Hint))
	}
	return code
}

// unread reports whether an error says that the reader of the standard output
// has gone, as head(1) does when it has seen enough.
func unread(err error) bool {
	bad, ok := errors.AsType[*fs.PathError](err)
	return ok && bad.Op == "write" && bad.Path == os.Stdout.Name() && errors.Is(bad, syscall.EPIPE)
}

// wantsJSON reports whether the command that args name was asked for -o json,
// also when it is what stands before that it could not make sense of.
func wantsJSON(root *cobra.Command, args []string) bool {
	c, rest, err := root.Find(args)
	if err != nil || c.HasSubCommands() { // which command was meant nobody can tell
		return saysJSON(args)
	}
	if c.Flags().Lookup("output") == nil {
		return false
	}
	if !c.Flags().Changed("output") {
		c.Flags().ParseErrorsAllowlist.UnknownFlags = true
		_ = c.Flags().Parse(rest) // what is wrong has been told
	}
	return c.Flags().Lookup("output").Value.String() == "json"
}

// saysJSON reports whether -o json stands among args, in any of its spellings,
// before what is a sandbox's.
func saysJSON(args []string) bool {
	said := false
	for i, arg := range args {
		switch arg {
		case "--":
			return said
		case "-o", "--output":
			said = i+1 < len(args) && args[i+1] == "json"
		case "-ojson", "-o=json", "--output=json":
			said = true
		}
	}
	return said
}
