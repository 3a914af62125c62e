package suggest

import (
	"regexp"
	"slices"
	"strings"

	"sallyport/rules"
)

const (
	// many is how many values at one place of otherwise equal paths make it a
	// parameter, few how many if they are numbers or days.
	many, few = 4, 2
	// deepest is how many segments a suggested pattern has, before the rest is
	// one "**".
	deepest = 16
)

// ids are segments that name one thing among many, as APIs write them: long numbers,
// hexadecimal digests, UUIDs (RFC 9562), ULIDs, and ids with a prefix.
var ids = regexp.MustCompile(`^([0-9]{5,}` +
	`|(?i:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})` +
	`|[0-9A-HJKMNP-TV-Z]{26})$`)

// perhaps are segments that may be one, or a version, a year, a page: short numbers, and
// days.
var perhaps = regexp.MustCompile(`^([0-9]{1,4}|[0-9]{4}-[0-9]{2}-[0-9]{2})$`)

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

// generalise returns a pattern for the path of each request, "" where none can be
// written.
func generalise(seen []Seen) []string {
	paths := make([][]string, len(seen))
	for i := range seen {
		segs := strings.Split(seen[i].Request.Path.String()[1:], "/")
		named := slices.ContainsFunc(segs, func(s string) bool { return s != "" && !isID(s) && !perhaps.MatchString(s) })
		for j, s := range segs {
			// A star in a path cannot be told from the pattern's. Where nothing but ids
			// is left, one is no pattern yet.
			if isID(s) && named || strings.Contains(s, "*") {
				segs[j] = "*"
			}
		}
		if len(segs) > deepest {
			segs = append(segs[:deepest], "**")
		}
		paths[i] = segs
	}
	numbers(paths)
	for at := range deepest {
		parameter(paths, at)
	}
	out := make([]string, len(paths))
	for i, segs := range paths {
		text := "/" + strings.Join(segs, "/")
		if p, err := rules.ParsePathPattern(text); err == nil && p.Match(seen[i].Request.Path) {
			out[i] = text
		}
	}
	return out
}

// numbers makes stars of places at which paths that are otherwise equal have several
// numbers or days, or ids where a path is nothing else.
func numbers(paths [][]string) {
	mark := func(s string) string {
		switch {
		case perhaps.MatchString(s):
			return "\x00"
		case isID(s):
			return "\x01"
		default:
			return s
		}
	}
	shape := func(segs []string) string {
		out := make([]string, len(segs))
		for i, s := range segs {
			out[i] = mark(s)
		}
		return strings.Join(out, "/")
	}
	values := map[string][]map[string]bool{} // of each place, by shape
	for _, segs := range paths {
		key := shape(segs)
		if values[key] == nil {
			values[key] = make([]map[string]bool, len(segs))
		}
		for i, s := range segs {
			if values[key][i] == nil {
				values[key][i] = map[string]bool{}
			}
			values[key][i][s] = true
		}
	}
	for _, segs := range paths {
		key := shape(segs)
		enough := few
		if strings.Trim(key, "\x00*/") == "" { // no word would be left
			enough = many
		}
		for i, s := range segs {
			if mark(s) != s && len(values[key][i]) >= enough {
				segs[i] = "*"
			}
		}
	}
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
