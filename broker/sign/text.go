package sign

import (
	"maps"
	"slices"
	"strings"
)

// lower writes a header's name as canonical strings have it.
func lower(s string) string { return strings.ToLower(s) } //nolint:forbidigo // a header, no host

// joinField writes the values of a field in one line, with single blanks.
func joinField(values []string) string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = strings.Join(strings.Fields(v), " ")
	}
	return strings.Join(out, ",")
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
