// Package preset holds the rules that this program brings along: policies for
// services that many agents use, as files of the policy language.
//
// It hands out bytes and knows nothing of their meaning; rules/policyfile reads
// them as strictly as a file of anybody's. It does no I/O. It holds no host of a
// package registry: which of these a machine uses is in its own configuration
// (ADR-0011).
package preset

import (
	"embed"
	"slices"
	"strings"
)

//go:embed files/*.yaml
var files embed.FS

const (
	dir    = "files/"
	suffix = ".yaml"
)

// Read returns the text of a preset by its reference, NAME@VERSION.
func Read(ref string) (text []byte, ok bool) {
	if strings.ContainsAny(ref, `/\`) {
		return nil, false
	}
	text, err := files.ReadFile(dir + ref + suffix)
	return text, err == nil
}

// Refs returns the references of all presets, sorted.
func Refs() []string {
	entries, err := files.ReadDir("files")
	if err != nil {
		panic("preset: " + err.Error()) // it is in the program
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		ref, _ := strings.CutSuffix(e.Name(), suffix)
		out = append(out, ref)
	}
	slices.Sort(out)
	return out
}
