package policyfile

import (
	_ "embed"
	"slices"
	"strings"
	"sync"

	"github.com/goccy/go-yaml/ast"
	"golang.org/x/net/publicsuffix"

	"sallyport/rules"
	"sallyport/rules/target"
)

// aboveSuffixes are the names that are no public suffix and have one below, by
// the public suffix list of golang.org/x/net (which tells only of a name whether it
// is one): one a line, and " icann" where one of those below is nobody's. A test
// writes it with -update and keeps it in step.
//
//go:embed suffixparents.txt
var aboveSuffixes string

// parents says of each name of aboveSuffixes whether it is above one of ICANN's.
var parents = sync.OnceValue(func() map[string]bool {
	m := map[string]bool{}
	for line := range strings.Lines(aboveSuffixes) {
		name, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		m[name] = kind != ""
	}
	return m
})

// tenancy is a domain that many tenants share and which the public suffix list
// knows in part or not at all. Tenants have names below it, and below every name
// that is at most depth labels longer: those of services and regions.
type tenancy struct {
	name  string
	depth int
}

var tenancies = []tenancy{
	{"aliyuncs.com", 1},
	{"amazonaws.com", 2},
	{"amazonaws.com.cn", 2},
	{"appspot.com", 1},
	{"azure.cn", 1},
	{"azure.com", 1},
	{"azure.net", 1},
	{"bcebos.com", 1},
	{"chinacloudapi.cn", 2},
	{"cloudflarestorage.com", 1},
	{"force.com", 1},
	{"googleusercontent.com", 0},
	{"ksyuncs.com", 1},
	{"mongodb.net", 0},
	{"myhuaweicloud.com", 2},
	{"myqcloud.com", 2},
	{"myshopify.com", 0},
	{"okta.com", 0},
	{"oraclecloud.com", 3},
	{"qiniucs.com", 1},
	{"salesforce.com", 1},
	{"sharepoint.com", 0},
	{"storage.googleapis.com", 0},
	{"snowflakecomputing.com", 1},
	{"tencentcos.cn", 2},
	{"volces.com", 1},
	{"windows.net", 2},
	{"zendesk.com", 0},
}

// sharing says whose names lie below one: somebody's, those of many tenants, or
// everybody's.
type sharing int

const (
	own sharing = iota + 1
	tenants
	public
)

func sharingOf(n target.Name) sharing {
	s := n.String()
	suffix, icann := publicsuffix.PublicSuffix(s)
	icannBelow, above := parents()[s]
	switch {
	case suffix == s && (icann || !strings.Contains(s, ".")), above && icannBelow:
		return public
	case suffix == s, above, dropOf(n) == s, slices.ContainsFunc(tenancies, func(t tenancy) bool { return t.has(s) }):
		return tenants
	default:
		return own
	}
}

// has reports whether tenants of t have names right below s.
func (t tenancy) has(s string) bool {
	rest, ok := strings.CutSuffix(s, t.name)
	return ok && (rest == "" || rest[len(rest)-1] == '.' && strings.Count(rest, ".") <= t.depth)
}

// checkWildcard refuses a wildcard that covers what belongs to many.
func (f *file) checkWildcard(n ast.Node, h rules.HostPattern, acknowledged bool) {
	name, ok := h.Host.Name()
	if !ok || !h.Wildcard {
		return
	}
	switch sharingOf(name) {
	case tenants:
		if !acknowledged {
			f.errorf(n, "%q covers a domain that many tenants share, an attacker among them; name the hosts, or say multi_tenant: acknowledged in the rule", h)
		}
	case public:
		f.errorf(n, "%q covers a public suffix: everybody's names, not somebody's", h)
	case own:
	}
}
