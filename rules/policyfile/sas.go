package policyfile

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules/near"
)

// SAS is how shared access signatures of Azure Storage are made. Without an account
// none is made: the secret is one.
type SAS struct {
	Account   string
	Scope     string // SASAccount, SASContainer or SASBlob
	Container string // the one that it is for, unless that is the account
	// Permissions, Services and Resources are letters, in the order in which Azure
	// writes them.
	Permissions string
	Services    string // of an account's
	Resources   string // of an account's
	Life        int    // seconds
	IP          string // an IPv4 address or a range of them; "" is any
}

// What a shared access signature is good for.
const (
	SASAccount   = "account"   // services of the account
	SASContainer = "container" // one container and its blobs
	SASBlob      = "blob"      // the one blob that a request names
)

// sasLife stands in for a life that a file does not say, in seconds.
const sasLife = 300

// letter is a word of ours for a letter of Azure's.
type letter struct{ word, letter string }

var (
	sasPermissions = []letter{
		{"read", "r"},
		{"add", "a"},
		{"create", "c"},
		{"write", "w"},
		{"delete", "d"},
		{"delete_version", "x"},
		{"permanent_delete", "y"},
		{"list", "l"},
		{"tags", "t"},
		{"find", "f"},
		{"move", "m"},
		{"execute", "e"},
		{"update", "u"},
		{"process", "p"},
		{"immutability", "i"},
	}
	sasServices  = []letter{{"blob", "b"}, {"queue", "q"}, {"table", "t"}, {"file", "f"}}
	sasResources = []letter{{"service", "s"}, {"container", "c"}, {"object", "o"}}
)

// sasOrders are the permissions that there are in each scope, in Azure's order.
var sasOrders = map[string]string{SASAccount: "rwdxylacupfti", SASContainer: "racwdxltfmei", SASBlob: "racwdxytmei"}

// azureContainer is what a container may be called, $root and $web among them.
var azureContainer = regexp.MustCompile(`^([a-z0-9](-?[a-z0-9]){2,62}|\$root|\$web)$`)

func sasKeys(f *file, s *Scheme) []key {
	s.SAS.Life = sasLife
	return []key{
		{name: "account", required: true, read: f.azureAccount(&s.SAS.Account), form: pattern("account", azureAccount.String())},
		{name: "scope", required: true, read: f.word([]string{SASAccount, SASContainer, SASBlob}, func(w string) { s.SAS.Scope = w }), form: word(SASAccount, SASContainer, SASBlob)},
		{name: "permissions", required: true, read: f.letters(&s.SAS.Permissions, sasPermissions), form: wordsOf(sasPermissions)},
		{name: "container", form: pattern("name of a container", azureContainer.String()), read: f.matching(&s.SAS.Container, azureContainer,
			"the name of a container: 3 to 63 lower-case letters, digits and single hyphens between them")},
		{name: "services", read: f.letters(&s.SAS.Services, sasServices), form: wordsOf(sasServices)},
		{name: "resources", read: f.letters(&s.SAS.Resources, sasResources), form: wordsOf(sasResources)},
		{name: "life", read: f.seconds(&s.SAS.Life, 60, 3600), form: numberForm(60, 3600)},
		{name: "ip", read: f.sasIP(&s.SAS.IP), form: pattern("IPv4 address or range", sasIPLike)},
	}
}

// sasIPLike is text that can be an IPv4 address, or two.
const sasIPLike = `^` + likeIPv4 + `(-` + likeIPv4 + `)?$`

// sasTogether is what checkSAS says.
var sasTogether = object{
	"if":   has("scope", SASAccount),
	"then": object{"required": []string{"services", "resources"}, "properties": object{"container": false}},
	"else": object{"required": []string{"container"}, "properties": object{"services": false, "resources": false}},
	"allOf": []any{
		sasLacks(SASAccount), sasLacks(SASContainer), sasLacks(SASBlob),
	},
}

// sasLacks refuses the permissions that there are not in a scope.
func sasLacks(scope string) object {
	var words []string
	for _, l := range sasPermissions {
		if strings.Contains(sasOrders[scope], l.letter) {
			words = append(words, l.word)
		}
	}
	return when(has("scope", scope), object{"properties": object{"permissions": object{"items": object{"enum": words}}}})
}

// checkSAS holds the settings against the scope, and puts the permissions into order.
func checkSAS(f *file, s *Scheme, n ast.Node) {
	a := &s.SAS
	if a.Scope == "" {
		return // it was said to be missing
	}
	switch whole := a.Scope == SASAccount; {
	case whole && (a.Services == "" || a.Resources == ""):
		f.errorf(n, "scope %s needs services and resources, for example services: [blob], resources: [object]", a.Scope)
	case whole && a.Container != "":
		f.errorf(n, "scope %s takes in every container; write scope: %s for one", a.Scope, SASContainer)
	case !whole && a.Container == "":
		f.errorf(n, "scope %s needs the container", a.Scope)
	case !whole && a.Services+a.Resources != "":
		f.errorf(n, "services and resources are for scope: %s", SASAccount)
	}
	f.orderSAS(a, n)
}

// orderSAS puts the permissions into Azure's order, and refuses what the scope lacks.
func (f *file) orderSAS(a *SAS, n ast.Node) {
	ordered := strings.Map(func(c rune) rune {
		if strings.ContainsRune(a.Permissions, c) {
			return c
		}
		return -1
	}, sasOrders[a.Scope])
	for _, l := range sasPermissions {
		if strings.Contains(a.Permissions, l.letter) && !strings.Contains(ordered, l.letter) {
			f.errorf(n, "there is no permission to %s in scope %s", l.word, a.Scope)
		}
	}
	a.Permissions = ordered
}

// letters reads a list of words, and keeps their letters in the order of the table.
func (f *file) letters(dst *string, known []letter) func(ast.Node) {
	words := make([]string, len(known))
	for i, l := range known {
		words[i] = l.word
	}
	var found []string
	return func(n ast.Node) {
		f.strs(func(n ast.Node, w string) {
			switch {
			case !slices.Contains(words, w):
				f.errorf(n, "%q is none of %s%s", w, list(words), near.Hint(w, words))
			case slices.Contains(found, w):
				f.errorf(n, "%q stands twice", w)
			}
			found = append(found, w)
		})(n)
		for _, l := range known {
			if slices.Contains(found, l.word) {
				*dst += l.letter
			}
		}
	}
}

// sasIP reads an address or a range as Azure wants it: IPv4, first-last.
func (f *file) sasIP(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		if f.str(dst)(n); len(f.errs) > before {
			return
		}
		from, to, ranged := strings.Cut(*dst, "-")
		first, err := netip.ParseAddr(from)
		last := first
		if err == nil && ranged {
			last, err = netip.ParseAddr(to)
		}
		if err != nil || !first.Is4() || !last.Is4() || last.Less(first) {
			f.errorf(n, "%q is not an IPv4 address, nor a range as first-last", *dst)
		}
	}
}
