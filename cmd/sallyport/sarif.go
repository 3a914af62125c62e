package main

import (
	"cmp"
	"io"
	"path/filepath"

	"sallyport/rules/policyfile"
)

// The parts of SARIF 2.1.0 that say where a file is wrong (OASIS, section 3):
// code review tools show each result beside its line.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool struct {
			Driver sarifDriver `json:"driver"`
		} `json:"tool"`
		ColumnKind string        `json:"columnKind"`
		Results    []sarifResult `json:"results"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID               string    `json:"id"`
		ShortDescription sarifText `json:"shortDescription"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		Physical struct {
			Artifact struct {
				URI string `json:"uri"`
			} `json:"artifactLocation"`
			Region *sarifRegion `json:"region,omitempty"` // nil for the file as a whole
		} `json:"physicalLocation"`
	}
	sarifRegion struct {
		StartLine   int        `json:"startLine"`
		StartColumn int        `json:"startColumn,omitempty"`
		Snippet     *sarifText `json:"snippet,omitempty"`
	}
)

const sarifRuleID = "policy"

// printSARIF writes errors for a code review tool.
func printSARIF(w io.Writer, found policyfile.Errors) error {
	run := sarifRun{ColumnKind: "unicodeCodePoints", Results: []sarifResult{}}
	run.Tool.Driver = sarifDriver{"sallyport policy lint", version(), []sarifRule{{sarifRuleID, sarifText{"A policy must load"}}}}
	for _, x := range policyfile.Findings() {
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{x.ID, sarifText{x.Means}})
	}
	for _, e := range found {
		var at sarifLocation
		at.Physical.Artifact.URI = filepath.ToSlash(e.File)
		if e.Line > 0 {
			at.Physical.Region = &sarifRegion{StartLine: e.Line, StartColumn: e.Column}
		}
		if e.Source != "" {
			at.Physical.Region.Snippet = &sarifText{e.Source}
		}
		run.Results = append(run.Results, sarifResult{cmp.Or(e.ID, sarifRuleID), "error", sarifText{e.Text}, []sarifLocation{at}})
	}
	return printJSON(w, sarifLog{"https://json.schemastore.org/sarif-2.1.0.json", "2.1.0", []sarifRun{run}})
}
