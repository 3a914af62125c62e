package policyfile

import (
	"slices"
	"strings"
)

// The regular expressions of the schema are of the syntax that ECMA-262 and RE2 share,
// without looking ahead: what must not be is said by what there is instead.
const (
	likeField = "!#$%&'*+.^_`|~0-9A-Za-z-"
	// likeHeader is the one spelling of a header's name, see [rules.CanonicalHeader].
	likeHeader = "^([" + likeUpper + "][" + likeLower + "]*)?(-([" + likeUpper + "][" + likeLower + "]*)?)*$"
	likeUpper  = "!#$%&'*+.^_`|~0-9A-Z"
	likeLower  = "!#$%&'*+.^_`|~0-9a-z"
	// likeText is text with something in it.
	likeText = `[^ \t\n]`
)

// stepOf is a step of a path that is neither "." nor "..", of some characters and dots.
func stepOf(class string) string { return oneStep("["+class+"]", "[."+class+"]") }

// stepBut is such a step of all but some characters.
func stepBut(class string) string { return oneStep("[^."+class+"]", "[^"+class+"]") }

func oneStep(noDot, char string) string {
	return `(\.{0,2}` + noDot + char + `*|\.{3}` + char + `*)`
}

// escaped says that in a path each octet that has to be is escaped, and no other.
var escaped = notLike(`%([^0-9A-F]|[0-9A-F]([^0-9A-F]|$)|$|[01]|7F|2F|25|5C|3B|C[01]|2[DE]|3[0-9]|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])`)

// notLike says that text does not match.
func notLike(re string) object { return object{"not": object{"pattern": re}} }

// caseless is a regular expression of a word in any case.
func caseless(word string) string {
	var b strings.Builder
	for _, c := range word {
		if up, low := strings.ToUpper(string(c)), strings.ToLower(string(c)); up != low { //nolint:forbidigo // no host
			b.WriteString("[" + up + low + "]")
			continue
		}
		b.WriteRune(c)
	}
	return b.String()
}

// anyCase is a regular expression of whole words in any case; one that ends in a
// hyphen is the beginning of one.
func anyCase(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		if out[i] = caseless(w); strings.HasSuffix(w, "-") {
			out[i] += ".*"
		}
	}
	return "^(" + strings.Join(out, "|") + ")$"
}

// alsoLike holds text to further patterns.
func alsoLike(f *form, more ...object) *form {
	out := *f
	all, _ := out.extra["allOf"].([]any)
	all = slices.Clone(all)
	for _, m := range more {
		all = append(all, m)
	}
	out.extra = object{"allOf": all}
	return &out
}

// The plain values of settings.
var (
	printableForm = &form{typ: "string", like: `^[ -~]*[!-~][ -~]*$`, as: "printable ASCII"}
	codeForm      = pattern("code", `^[a-z0-9-]+$`)
	scopeForm     = pattern("scope", `^[!#-\[\]-~]+$`)
	fieldForm     = alsoLike(pattern("name of a field", `^[^\x00-\x1f\x7f]{1,128}$`), object{"pattern": likeText})
	tokenForm     = pattern("name of a header", "^["+likeField+"]{1,128}$")
	headerForm    = alsoLike(tokenForm, notLike(anyCase(framing)))
	paramForm     = pattern("name of a parameter", `^[A-Za-z0-9._~-]+$`)
	urlForm       = pattern("https URL", `^https://[^A-Z/?#@\s*]+(/|(/`+stepOf(`!$&-),+:=@_~A-Za-z0-9%*`)+`)+/?)$`)
)

// mappingOf is a mapping of free names, each held to names if that says anything.
func mappingOf(values *form, names object) *form {
	extra := object{"minProperties": 1}
	if names != nil {
		extra["propertyNames"] = names
	}
	return &form{values: values, extra: extra}
}

// templateForm is text with names in braces, at least one of those that it needs.
func templateForm(known []string, needs []string) *form {
	named := func(names []string) string {
		out := make([]string, len(names))
		for i, n := range names {
			if out[i] = n; n == "header" {
				out[i] = "header:[^}]+"
			}
		}
		return `\{(` + strings.Join(out, "|") + `)\}`
	}
	part := `([^{}]|\{\{|\}\}|` + named(known) + `)*`
	if needs == nil {
		return alsoLike(pattern("template", "^"+part+"$"), object{"pattern": likeText})
	}
	return alsoLike(pattern("template", "^"+part+named(needs)+part+"$"), object{"pattern": likeText})
}

// wordsOf are the words of letters.
func wordsOf(known []letter) *form {
	var words []string
	for _, l := range known {
		words = append(words, l.word)
	}
	return listOf(word(words...))
}

// when says what has to be, if something is.
func when(is, then object) object { return object{"if": is, "then": then} }

// has is that a key has a value.
func has(name, value string) object {
	return object{"required": []string{name}, "properties": object{name: object{"const": value}}}
}

func needsAll(keys ...string) object { return object{"required": keys} }
