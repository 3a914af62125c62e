package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/rules"
	"sallyport/rules/policyfile"
	"sallyport/rules/preset"
)

func newPreset() *cobra.Command {
	c := &cobra.Command{
		Use:   "preset",
		Short: "Show the rules that this program brings along",
		Long: `Presets are small policies for services that many agents use: model APIs, agents' command lines,
git, and some APIs. A policy includes one by name and version, with values for its parameters:

  include: [{preset: git-github-read@1, with: {repositories: [acme/site]}}]`,
		Example: `  sallyport preset ls
  sallyport preset show git-github-read@1`,
		Args: oneOfCommands,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newPresetList(), newPresetShow())
	return c
}

// presetOut is what is told about a preset. Its rules and tests have the examples
// of its parameters as their values.
type presetOut struct {
	Preset      string                 `json:"preset"`
	Description string                 `json:"description"`
	Leaks       string                 `json:"leaks"`
	Parameters  []policyfile.Parameter `json:"parameters"`
	Credential  bool                   `json:"credential"` // an include may name one
	Digest      string                 `json:"digest"`
	Rules       []presetRule           `json:"rules"`
	Tests       int                    `json:"tests"`
}

// presetRule is a rule of a preset.
type presetRule struct {
	Rule    string   `json:"rule"`
	Action  string   `json:"action"`
	Reason  string   `json:"reason"`
	Hosts   []string `json:"hosts"`
	Methods []string `json:"methods"`
	Paths   []string `json:"paths"` // empty for any
}

// readPreset reads one of the presets, which are tested: an error is a broken program.
func readPreset(ref string) (presetOut, error) {
	text, ok := preset.Read(ref)
	if !ok {
		return presetOut{}, usage(hint(fmt.Errorf("there is no preset %q%s", ref, policyfile.NearPreset(ref)), "sallyport preset ls"))
	}
	p, err := policyfile.ReadPreset(ref, text)
	if err != nil {
		return presetOut{}, err
	}
	out := presetOut{
		Preset: ref, Description: p.Description, Leaks: p.Leaks, Parameters: append([]policyfile.Parameter{}, p.Parameters...),
		Credential: p.Credential, Digest: p.Digest, Tests: len(p.Tests),
	}
	for i := range p.Rules {
		out.Rules = append(out.Rules, presetRuleOf(&p.Rules[i]))
	}
	return out, nil
}

func presetRuleOf(r *rules.Rule) presetRule {
	out := presetRule{Rule: r.ID, Action: "deny", Reason: r.Purpose, Methods: r.Methods, Paths: []string{}}
	if r.Action == rules.AllowAction {
		out.Action = "allow"
	}
	for _, h := range r.Hosts {
		out.Hosts = append(out.Hosts, h.String())
	}
	for _, p := range r.Paths {
		out.Paths = append(out.Paths, p.String())
	}
	return out
}

func newPresetList() *cobra.Command {
	c := &cobra.Command{
		Use:     "ls",
		Short:   "List the presets",
		Example: "  sallyport preset ls\n  sallyport preset ls -o json",
		Args:    exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			var list []presetOut
			rows := [][]string{{"PRESET", "PARAMETERS", "WHAT IT IS FOR"}}
			for _, ref := range preset.Refs() {
				p, err := readPreset(ref)
				if err != nil {
					return err
				}
				list = append(list, p)
				var names []string
				for _, x := range p.Parameters {
					names = append(names, x.Name)
				}
				rows = append(rows, []string{p.Preset, orAny(names, "-"), p.Description})
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), list)
			}
			return printTable(c.OutOrStdout(), rows)
		},
	}
	addOutput(c)
	return c
}

func newPresetShow() *cobra.Command {
	var file bool
	c := &cobra.Command{
		Use:   "show NAME@VERSION",
		Short: "Show a preset: its parameters, its rules, and what could still leak through it",
		Long: `Show prints what a preset allows, and what could still leak through it. In the rules, the values
of its parameters are examples. With --file it prints the preset's own file.`,
		Example: `  sallyport preset show git-github-read@1
  sallyport preset show -o json openai@1
  sallyport preset show --file openai@1`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			if asJSON && file {
				return usage(errors.New("--file prints the file as it is: leave -o json out"))
			}
			p, err := readPreset(args[0])
			switch {
			case err != nil:
				return err
			case file:
				text, _ := preset.Read(args[0])
				_, err = c.OutOrStdout().Write(text)
				return err
			case asJSON:
				return printJSON(c.OutOrStdout(), p)
			default:
				return printPreset(c.OutOrStdout(), &p)
			}
		},
	}
	c.Flags().BoolVar(&file, "file", false, "print the preset's own file")
	addOutput(c)
	return c
}

func printPreset(w io.Writer, p *presetOut) error {
	fmt.Fprintf(w, "%s: %s\n%s, %d tests\n\n", p.Preset, p.Description, p.Digest, p.Tests)
	var values []string
	for _, x := range p.Parameters {
		fmt.Fprintf(w, "  %s: %s\n", x.Name, x.Description)
		values = append(values, x.Name+": ["+strings.Join(x.Example, ", ")+"]")
	}
	include := "{preset: " + p.Preset
	if len(values) > 0 {
		fmt.Fprintln(w)
		include += ", with: {" + strings.Join(values, ", ") + "}"
	}
	if p.Credential {
		include += ", credential: NAME"
	}
	fmt.Fprintf(w, "include:\n  - %s}\n\n", include)
	for _, r := range p.Rules {
		fmt.Fprintf(w, "%s %s: %s\n  %s %s\n", r.Action, r.Rule, r.Reason, strings.Join(r.Methods, ","), strings.Join(r.Hosts, " "))
		for _, path := range r.Paths {
			fmt.Fprintf(w, "    %s\n", path)
		}
	}
	lines := slices.Collect(strings.Lines(p.Leaks))
	_, err := fmt.Fprintf(w, "\nwhat could leak:\n  %s\n", strings.Join(lines, "  "))
	return err
}
