package policyfile

import (
	"strconv"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// GitHubApp is which tokens of which installation an app's key gets.
type GitHubApp struct {
	App string // app id or client id
	// TokenURL is where they are asked for: the API's address and the
	// installation.
	TokenURL     string
	Repositories []string // names without their owner; empty means all of the installation's
	Permissions  map[string]string
}

// gitHubAPI is where the API is, unless a file says otherwise.
const gitHubAPI = "https://api.github.com"

func gitHubAppKeys(f *file, s *Scheme) []key {
	api, installation := gitHubAPI, ""
	where := func() { s.GitHubApp.TokenURL = api + "/app/installations/" + installation + "/access_tokens" }
	return []key{
		{name: "app", required: true, read: f.headerText(&s.GitHubApp.App), form: printableForm},
		{name: "installation", required: true, form: countForm, read: func(n ast.Node) {
			x, ok := n.(*ast.IntegerNode)
			id, err := strconv.ParseUint(n.GetToken().Value, 10, 63)
			if !ok || x.Token.Type != token.IntegerType || err != nil || id == 0 {
				f.errorf(n, "an installation is a plain number; it ends the address of its settings page")
				return
			}
			installation = x.Token.Value
			where()
		}},
		{name: "api", form: urlForm, read: func(n ast.Node) {
			f.httpsURL(&api)(n)
			where()
		}},
		{name: "repositories", form: &form{list: pattern("name of a repository", `^[A-Za-z0-9._-]{1,100}$`)}, read: f.strs(func(n ast.Node, name string) {
			if !isRepository(name) {
				f.errorf(n, "%q is not the name of a repository; leave its owner out", name)
			}
			s.GitHubApp.Repositories = append(s.GitHubApp.Repositories, name)
		})},
		{name: "permissions", required: true, read: f.permissions(&s.GitHubApp.Permissions), form: mappingOf(word("read", "write", "admin"), nil)},
	}
}

func isRepository(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return s != "" && len(s) <= 100
}

// permissions reads {contents: read, …}. They are required: without them a token
// has all that the installation has.
func (f *file) permissions(dst *map[string]string) func(ast.Node) {
	return func(n ast.Node) {
		m, ok := n.(*ast.MappingNode)
		if !ok || len(m.Values) == 0 {
			f.errorf(n, "this is %s; permissions are a mapping, for example {contents: read}", kindOf(n))
			return
		}
		*dst = map[string]string{}
		for _, v := range m.Values {
			name := keyOf(v)
			if _, twice := (*dst)[name]; twice {
				f.errorf(v.Key, "%q stands twice in permissions", name)
			}
			f.word([]string{"read", "write", "admin"}, func(w string) { (*dst)[name] = w })(v.Value)
		}
	}
}
