package policyfile

import (
	"slices"
	"strings"
	"unicode"

	"golang.org/x/net/idna"

	"sallyport/rules/target"
)

// latinLike are letters of other scripts that most fonts draw as a Latin one: of
// Cyrillic, Greek and Armenian (Unicode Technical Standard 39, confusables.txt, those
// of one small letter each).
const latinLike = "аԁеһіјӏкорԛѕсԝху" + "αικνορυχωγ" + "օսոհցգ"

// together are the scripts that one label may mix: how Japanese, Chinese and Korean
// names are written (Unicode Technical Standard 39, section 5.2, Highly Restrictive).
var together = [][]string{
	{"Latin", "Han", "Hiragana", "Katakana"}, {"Latin", "Han", "Bopomofo"}, {"Latin", "Han", "Hangul"},
}

// disguised returns a name as a person sees it, and why it may be taken for another
// one; "" if there is no reason to.
func disguised(n target.Name) (shown, why string) {
	shown, err := idna.Registration.ToUnicode(n.String())
	if err != nil || shown == n.String() {
		return shown, ""
	}
	domain := n.Last(1).String()
	for label := range strings.SplitSeq(shown, ".") {
		scripts := scriptsOf(label)
		if len(scripts) > 1 && !slices.ContainsFunc(together, func(may []string) bool { return within(scripts, may) }) {
			return shown, "mixes letters of " + strings.Join(scripts[:len(scripts)-1], ", ") + " and " + scripts[len(scripts)-1]
		}
		// Under a domain of that script itself the label is what it seems to be.
		if !strings.HasPrefix(domain, "xn--") && len(scripts) == 1 && scripts[0] != "Latin" && strings.Trim(label, latinLike+"0123456789-") == "" {
			return shown, "is made of " + scripts[0] + " letters that look like Latin ones"
		}
	}
	return shown, ""
}

func within(list, may []string) bool {
	return !slices.ContainsFunc(list, func(s string) bool { return !slices.Contains(may, s) })
}

// scriptsOf returns the scripts of a label's letters, sorted; what all scripts share
// is none.
func scriptsOf(label string) (list []string) {
	for _, r := range label {
		if unicode.In(r, unicode.Common, unicode.Inherited) {
			continue
		}
		for name, table := range unicode.Scripts {
			if unicode.Is(table, r) && !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
	}
	slices.Sort(list)
	return list
}
