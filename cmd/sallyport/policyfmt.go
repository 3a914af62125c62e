package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"sallyport/control/durable"
	"sallyport/rules/policyfile"
)

func newPolicyFmt() *cobra.Command {
	var write, check bool
	c := &cobra.Command{
		Use:   "fmt {FILE... | -}",
		Short: "Write policy and credential files in their one layout",
		Long: `Fmt prints files in their canonical layout: keys in the order of the reference, two blanks a
level, on one line what fits on 100 columns, quotes where they are needed. Comments stay with
what they are about; what a file means is never changed. A file need not load to be formatted.
With -w it writes the files, with --check it only names those that are laid out in another way.
Exit codes: 0 done, and with --check all are laid out so; 1 not so; 2 a file cannot be read.`,
		Example: `  sallyport policy fmt policy.yaml
  sallyport policy fmt -w policies/*.yaml
  sallyport policy fmt --check *.yaml
  sallyport policy fmt - < policy.yaml`,
		Args: someArgs,
		RunE: func(c *cobra.Command, files []string) error {
			if write && check {
				return usage(hint(fmt.Errorf("-w writes files and --check does not"), "%s --check %s", c.CommandPath(), files[0]))
			}
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			if write && slices.Contains(files, "-") {
				return usage(hint(errors.New("-w writes a file in its place, and - has none"), "%s - < FILE", c.CommandPath()))
			}
			all, err := formatFiles(c.InOrStdin(), files, write)
			if err != nil {
				return err
			}
			if err := printFormatted(c.OutOrStdout(), all, write || check, asJSON); err != nil {
				return err
			}
			return formatVerdict(all, check, asJSON)
		},
	}
	c.Flags().BoolVarP(&write, "write", "w", false, "write the files, and name those that were changed")
	c.Flags().BoolVar(&check, "check", false, "name the files that are laid out in another way")
	addOutput(c)
	return c
}

// formatted is a file and its canonical layout.
type formatted struct {
	File    string `json:"file"`
	Changed bool   `json:"changed"` // it is laid out in another way
	Text    string `json:"text"`
	// Errors are why it cannot be laid out.
	Errors policyfile.Errors `json:"errors,omitempty"`
}

// formatFiles lays files out, and writes those that change if write is set. One
// that is wrong holds back no other.
func formatFiles(stdin io.Reader, files []string, write bool) ([]formatted, error) {
	all := make([]formatted, 0, len(files))
	for _, name := range files {
		f, err := formatFile(stdin, name)
		if err != nil {
			f = formatted{File: name, Errors: problems(name, err)}
		}
		if write && f.Changed {
			if err := replaceFile(name, []byte(f.Text)); err != nil {
				return nil, err
			}
		}
		all = append(all, f)
	}
	return all, nil
}

// formatVerdict is how the command ends. What is wrong with files is in the answer
// already if that is JSON.
func formatVerdict(all []formatted, check, told bool) error {
	var wrong policyfile.Errors
	changed := false
	for _, f := range all {
		wrong = append(wrong, f.Errors...)
		changed = changed || f.Changed
	}
	return verdict(wrong, !check || !changed, told)
}

func formatFile(stdin io.Reader, name string) (formatted, error) {
	shown := name
	var data []byte
	var err error
	if name == "-" {
		shown = "stdin"
		data, err = io.ReadAll(io.LimitReader(stdin, maxConfig+1))
	} else {
		data, err = readFile(name)
	}
	if err != nil {
		return formatted{}, fmt.Errorf("policy: %w", err)
	}
	text, err := policyfile.Format(shown, data)
	if err != nil {
		return formatted{}, err
	}
	return formatted{File: shown, Changed: !bytes.Equal(data, text), Text: string(text)}, nil
}

func printFormatted(w io.Writer, all []formatted, names, asJSON bool) error {
	if asJSON {
		return printJSON(w, all)
	}
	for _, f := range all {
		var err error
		switch {
		case names && f.Changed:
			_, err = fmt.Fprintln(w, f.File)
		case !names:
			_, err = io.WriteString(w, f.Text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// replaceFile puts new text in the place of a file, or of what a link names, whole or
// not at all, with the old one's mode and owner.
func replaceFile(name string, text []byte) error {
	name, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	owner := durable.Writer
	if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 { // nobody else can give a file away
		owner = durable.Owner{UID: int(st.Uid), GID: int(st.Gid)}
	}
	return durable.Write(name, text, info.Mode().Perm(), owner)
}
