package policyfile

import (
	"regexp"

	"github.com/goccy/go-yaml/ast"
)

// Azure names the account of a shared key.
type Azure struct{ Account string }

// Cloud lists what may be signed for: a scope outside is refused.
type Cloud struct{ Regions, Services []string }

// OCI is how a registry's tokens are asked for.
type OCI struct {
	TokenURL string // https
	Service  string
	Username string
}

var azureAccount = regexp.MustCompile(`^[a-z0-9]{3,24}$`)

func azureKeys(f *file, s *Scheme) []key {
	return []key{{name: "account", required: true, read: f.azureAccount(&s.Azure.Account), form: pattern("account", azureAccount.String())}}
}

func (f *file) azureAccount(dst *string) func(ast.Node) {
	return f.matching(dst, azureAccount, "the name of a storage account: 3 to 24 lower-case letters and digits")
}

func tencentKeys(f *file, s *Scheme) []key {
	return []key{{name: "services", required: true, read: f.codes(&s.Cloud.Services), form: listOf(codeForm)}}
}

func volcengineKeys(f *file, s *Scheme) []key {
	return []key{
		{name: "regions", required: true, read: f.codes(&s.Cloud.Regions), form: listOf(codeForm)},
		{name: "services", required: true, read: f.codes(&s.Cloud.Services), form: listOf(codeForm)},
	}
}

func ociKeys(f *file, s *Scheme) []key {
	return []key{
		{name: "token_url", required: true, read: f.httpsURL(&s.OCI.TokenURL), form: urlForm},
		{name: "service", required: true, read: f.headerText(&s.OCI.Service), form: printableForm},
		{name: "username", required: true, read: f.headerText(&s.OCI.Username), form: printableForm},
	}
}
