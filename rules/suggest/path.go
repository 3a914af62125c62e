package suggest

import (
	"regexp"
	"slices"
	"strings"

	"sallyport/rules"
)

const (
	// many is how many values at one place of otherwise equal paths make it a
	// parameter.
	many = 4
	// deepest is how many segments a suggested pattern has, before the rest is
	// one "**".
	deepest = 16
)

// ids are segments that name one thing among many, as APIs write them: numbers,
// hexadecimal digests, UUIDs (RFC 9562), ULIDs, dates, and ids with a prefix.
var ids = regexp.MustCompile(`^([0-9]+` +
	`|[0-9]{4}-[0-9]{2}-[0-9]{2}` +
	`|(?i:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})` +
	`|[0-9A-HJKMNP-TV-Z]{26})$`)

var (
	hexDigits = regexp.MustCompile(`^(?i:[0-9a-f]{8,})$`)
	prefixed  = regexp.MustCompile(`^[A-Za-z]{1,10}[_-][A-Za-z0-9]{6,}$`)
	mixed     = regexp.MustCompile(`^[A-Za-z0-9_-]{16,}$`)
	digit     = regexp.MustCompile(`[0-9]`)
	letter    = regexp.MustCompile(`[A-Za-z]`)
)

// isID reports a segment that is taken for an id.
func isID(seg string) bool {
	switch {
	case ids.MatchString(seg):
		return true
	case hexDigits.MatchString(seg):
		return digit.MatchString(seg)
	case prefixed.MatchString(seg):
		return digit.MatchString(seg[strings.IndexAny(seg, "_-"):])
	default:
		return mixed.MatchString(seg) && digit.MatchString(seg) && letter.MatchString(seg)
	}
}

// generalise returns a pattern for the path of each request.
func generalise(seen []Seen) []string {
	paths := make([][]string, len(seen))
	for i := range seen {
		segs := strings.Split(seen[i].Request.Path.String()[1:], "/")
		for j, s := range segs {
			// A star in a path cannot be told from the pattern's.
			if isID(s) || strings.Contains(s, "*") {
				segs[j] = "*"
			}
		}
		if len(segs) > deepest {
			segs = append(segs[:deepest], "**")
		}
		paths[i] = segs
	}
	for at := range deepest {
		parameter(paths, at)
	}
	out := make([]string, len(paths))
	for i, segs := range paths {
		out[i] = "/" + strings.Join(segs, "/")
		if p, err := rules.ParsePathPattern(out[i]); err != nil || !p.Match(seen[i].Request.Path) {
			out[i] = "/**"
		}
	}
	return out
}

// parameter makes a star of a place at which many paths that are otherwise equal
// differ.
func parameter(paths [][]string, at int) {
	values := map[string][]string{}
	rest := func(segs []string) string {
		other := slices.Clone(segs)
		other[at] = "*"
		return strings.Join(other, "/")
	}
	for _, segs := range paths {
		if at >= len(segs) || segs[at] == "" || segs[at] == "**" {
			continue
		}
		key := rest(segs)
		if !slices.Contains(values[key], segs[at]) {
			values[key] = append(values[key], segs[at])
		}
	}
	for _, segs := range paths {
		if at < len(segs) && segs[at] != "" && segs[at] != "**" && len(values[rest(segs)]) >= many {
			segs[at] = "*"
		}
	}
}
