package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/rules"
	"sallyport/rules/plural"
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
		err := fmt.Errorf("there is no preset %q%s", ref, policyfile.NearPreset(ref))
		for _, known := range preset.Refs() {
			if name, _, _ := strings.Cut(known, "@"); name == ref {
				return presetOut{}, usage(hint(err, "sallyport preset show %s", known))
			}
		}
		return presetOut{}, usage(hint(err, "sallyport preset ls"))
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
			return printFit(c.OutOrStdout(), rows)
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
	printWrapped(w, "", p.Preset+": "+p.Description)
	fmt.Fprintf(w, "%s, %s\n\n", p.Digest, plural.Count(p.Tests, "test"))
	for _, x := range p.Parameters {
		printWrapped(w, "  ", x.Name+": "+x.Description)
	}
	if len(p.Parameters) > 0 {
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "include:\n%s\n", p.include())
	for _, r := range p.Rules {
		printWrapped(w, "", r.Action+" "+r.Rule+": "+r.Reason)
		printWrapped(w, "  ", strings.Join(r.Methods, ",")+" "+strings.Join(r.Hosts, " "))
		for _, path := range r.Paths {
			fmt.Fprintf(w, "    %s\n", path)
		}
	}
	const indent = "  "
	_, err := fmt.Fprintf(w, "\nwhat could leak:\n%s%s\n", indent, strings.Join(wrap(p.Leaks, maxColumns-len(indent)), "\n"+indent))
	return err
}

// include is an entry under include, to be copied: in one line, or where that is
// too long in one for each key.
func (p *presetOut) include() string {
	parts := []string{"preset: " + p.Preset}
	var values []string
	for _, x := range p.Parameters {
		values = append(values, x.Name+": ["+strings.Join(x.Example, ", ")+"]")
	}
	if len(values) > 0 {
		parts = append(parts, "with: {"+strings.Join(values, ", ")+"}")
	}
	if p.Credential {
		parts = append(parts, "credential: NAME")
	}
	if line := "  - {" + strings.Join(parts, ", ") + "}"; len(line) <= maxColumns {
		return line + "\n"
	}
	return "  - " + strings.Join(parts, "\n    ") + "\n"
}
