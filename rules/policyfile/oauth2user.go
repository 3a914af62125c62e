package policyfile

import (
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
	"sallyport/rules/near"
	"sallyport/rules/target"
)

// PublicClient is the way of a client that has no secret to show (RFC 6749 section 2.1).
const PublicClient = "none"

// The grants in which a person signs in, and the one that follows them, by the names
// of RFC 7591 section 2, without the prefix of RFC 8628's.
const (
	DeviceCode        = "device_code"
	AuthorizationCode = "authorization_code"
	RefreshToken      = "refresh_token"
)

func oauth2UserKeys(f *file, s *Scheme) []key {
	return []key{
		{name: "token_url", required: true, read: f.httpsURL(&s.OAuth2.TokenURL), form: urlForm},
		{name: "device_url", read: f.httpsURL(&s.OAuth2.DeviceURL), form: urlForm},
		{name: "client_id", required: true, read: f.headerText(&s.OAuth2.ClientID), form: printableForm},
		{name: "auth", required: true, read: f.word([]string{PublicClient, ClientBasic, ClientPost}, func(w string) { s.OAuth2.Auth = w }), form: word(PublicClient, ClientBasic, ClientPost)},
		{name: "grants", required: true, form: listOf(word(DeviceCode, AuthorizationCode, RefreshToken)), read: f.strs(func(n ast.Node, w string) {
			known := []string{DeviceCode, AuthorizationCode, RefreshToken}
			switch {
			case !slices.Contains(known, w):
				f.errorf(n, "%q is none of %s%s", w, list(known), near.Hint(w, known))
			case slices.Contains(s.OAuth2.Grants, w):
				f.errorf(n, "%q stands twice", w)
			default:
				s.OAuth2.Grants = append(s.OAuth2.Grants, w)
			}
		})},
		{name: "scopes", required: true, read: f.scopes(&s.OAuth2.Scopes), form: listOf(scopeForm)},
	}
}

// oauth2UserTogether is what of checkOAuth2User a schema can say.
var oauth2UserTogether = object{"allOf": []any{
	object{"if": grantsHave(DeviceCode), "then": needsAll("device_url"), "else": without("device_url")},
	object{"anyOf": []any{grantsHave(DeviceCode), grantsHave(AuthorizationCode)}},
}}

func grantsHave(grant string) object {
	return object{"properties": object{"grants": object{"contains": object{"const": grant}}}}
}

func checkOAuth2User(f *file, s *Scheme, n ast.Node) {
	o := s.OAuth2
	signsIn := slices.Contains(o.Grants, DeviceCode) || slices.Contains(o.Grants, AuthorizationCode)
	switch {
	case len(o.Grants) > 0 && !signsIn:
		f.errorf(n, "nobody signs in with %s alone; add %s or %s, or use type %s", RefreshToken, DeviceCode, AuthorizationCode, OAuth2Refresh)
	case slices.Contains(o.Grants, DeviceCode) != (o.DeviceURL != ""):
		f.errorf(n, "%s and device_url go together", DeviceCode)
	case o.DeviceURL != "" && o.DeviceURL == o.TokenURL:
		f.errorf(n, "device_url and token_url are two addresses")
	}
}

// checkSignIn holds a credential of type oauth2-user against what else its file says.
func (f *file) checkSignIn(seen map[string]ast.Node, c *Credential) {
	public := c.Type == OAuth2User && c.OAuth2.Auth == PublicClient
	switch {
	case c.Source.None && !public:
		f.errorf(seen["source"], "source {none: true} is for type %s with auth: %s", OAuth2User, PublicClient)
	case public && !c.Source.None:
		f.errorf(seen["source"], "a client with auth: %s has no secret; write source: {none: true}", PublicClient)
	}
	if c.Type != OAuth2User || seen["endpoints"] == nil {
		return
	}
	for _, u := range []string{c.OAuth2.TokenURL, c.OAuth2.DeviceURL} {
		if u != "" {
			f.checkSignInEndpoint(seen["endpoints"], c, u)
		}
	}
}

// checkSignInEndpoint: a request to the endpoint in another spelling than its own
// would be sent as it is, and a true token come back. No pattern may let one through.
func (f *file) checkSignInEndpoint(n ast.Node, c *Credential, u string) {
	authority, rest, _ := strings.Cut(strings.TrimPrefix(u, "https://"), "/")
	e, err := target.ParseAuthority(authority, 443)
	if err != nil {
		return // checkURL said so
	}
	listed := false
	for _, x := range c.Endpoints {
		if x.Host != e.Host || !slices.Contains(x.Ports, e.Port) {
			continue
		}
		if len(x.Paths) == 0 {
			f.errorf(n, "the endpoint on %s has no paths; list them: %s is answered by the gateway in just that spelling", authority, u)
			return
		}
		for _, p := range x.Paths {
			switch {
			case p.String() == "/"+rest:
				listed = true
			case strings.Contains(p.String(), "*") && matchesAny(p, "/"+rest, "/"+rest+"/", "/"+rest+"/x"):
				f.errorf(n, "the path %s on %s takes in other spellings of %s; list paths that do not", p, authority, u)
				return
			}
		}
	}
	if !listed {
		f.errorf(n, "add an endpoint for %s, with methods: [POST] and just that path: a program in the sandbox asks it", u)
	}
}

func matchesAny(p rules.PathPattern, paths ...string) bool {
	return slices.ContainsFunc(paths, func(s string) bool {
		path, err := target.ParsePath(s)
		return err == nil && p.Match(path)
	})
}
