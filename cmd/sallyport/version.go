package main

import (
	"runtime/debug"
	"strings"
)

// buildVersion is set by the Makefile from the checkout's tag.
var buildVersion string

// version says what this program was built from.
func version() string {
	if buildVersion != "" {
		return buildVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	var b strings.Builder
	b.WriteString(info.Main.Version)
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			b.WriteString(" " + s.Value[:12])
		}
	}
	return b.String()
}
