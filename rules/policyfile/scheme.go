package policyfile

import (
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"sallyport/rules"
	"sallyport/rules/target"
)

// CredentialType names a way to sign.
type CredentialType string

// The types that this version builds.
const (
	Bearer       CredentialType = "bearer"    // Authorization: Bearer SECRET (RFC 6750)
	Header       CredentialType = "header"    // a header of its own
	Basic        CredentialType = "basic"     // Authorization: Basic … (RFC 7617)
	Query        CredentialType = "query"     // a parameter of the query
	Body         CredentialType = "body"      // fields of the body
	AWSSigV4     CredentialType = "aws-sigv4" // AWS Signature Version 4
	JSONWebToken CredentialType = "jwt"       // a token of the broker's own making (RFC 7519)
	// GitHub is a token of a GitHub App's installation.
	GitHub       CredentialType = "github-app"
	OAuth2Client CredentialType = "oauth2-client" // client credentials grant (RFC 6749 section 4.4)
	// OAuth2Refresh and OAuth2JWT are grants of a refresh token (RFC 6749 section
	// 6) and of a signed statement (RFC 7523 section 2.1).
	OAuth2Refresh CredentialType = "oauth2-refresh"
	OAuth2JWT     CredentialType = "oauth2-jwt-bearer"
	// OAuth2User is what a person grants to a program in the sandbox (RFC 8628, RFC
	// 6749 section 4.1).
	OAuth2User CredentialType = "oauth2-user"
	// GCPServiceAccount signs with the key file of a Google Cloud service account.
	GCPServiceAccount CredentialType = "gcp-service-account"
	HMACSigned        CredentialType = "hmac" // a declared string, with a shared key
	AzureStorage      CredentialType = "azure-storage"
	AzureSAS          CredentialType = "azure-sas" // a shared access signature
	TencentTC3        CredentialType = "tencent-tc3"
	AlibabaACS3       CredentialType = "alibaba-acs3"
	VolcengineV4      CredentialType = "volcengine-v4"
	OCIRegistry       CredentialType = "oci-registry" // tokens of a container registry
	// ClientCert is a certificate of the client's in TLS (RFC 8446 section 4.4.2).
	ClientCert CredentialType = "mtls"
)

// Scheme says how a credential signs: its type and the type's own settings. A
// field that the type has no use for is empty.
type Scheme struct {
	Type     CredentialType
	Header   string // header: its canonical name
	Prefix   string // header: stands before the secret
	Username string // basic
	Param    string // query: the parameter's name
	Body     []Field
	OAuth2   OAuth2 // those that ask a token endpoint
	Google   Google // gcp-service-account
	AWS      AWS    // aws-sigv4
	JWT      JWT    // jwt

	GitHubApp GitHubApp // github-app
	HMAC      HMAC      // hmac
	Azure     Azure     // azure-storage
	SAS       SAS       // azure-sas
	Cloud     Cloud     // tencent-tc3, volcengine-v4
	OCI       OCI       // oci-registry
}

// JWT is how a token is made.
type JWT struct {
	Algorithm string // HS256 … EdDSA (RFC 7518 section 3.1)
	KeyID     string // kid, if not empty
	Life      int    // seconds
	Claims    map[string]string
}

// Pair reports whether the secret is a pair of an id and a key, so that a sandbox
// gets two placeholders.
func (s *Scheme) Pair() bool {
	return slices.Contains([]CredentialType{AWSSigV4, TencentTC3, AlibabaACS3, VolcengineV4}, s.Type)
}

// Asks lists the URLs that the broker itself sends requests to for the scheme.
func (s *Scheme) Asks() []string {
	var out []string
	for _, u := range []string{s.OAuth2.TokenURL, s.OAuth2.DeviceURL, s.GitHubApp.TokenURL, s.AWS.Role.URL, s.OCI.TokenURL} {
		if u != "" {
			out = append(out, u)
		}
	}
	return out
}

// scheme is a type with the table of its settings, which stand under a key of
// the type's name; a type without a table has none.
type scheme struct {
	name CredentialType
	keys func(*file, *Scheme) []key
	// check judges the settings together; nil has nothing to say.
	check func(*file, *Scheme, ast.Node)
	// optional says that the settings may be left out.
	optional bool
	// together is what check says, as far as a schema can say it.
	together object
}

// schemes is the list of types: one line each.
var schemes = []scheme{
	{name: Bearer},
	{name: Header, keys: headerKeys},
	{name: Basic, keys: basicKeys},
	{name: Query, keys: queryKeys},
	{name: Body, keys: bodyKeys, together: object{"minProperties": 1}},
	{name: AWSSigV4, keys: awsKeys},
	{name: JSONWebToken, keys: jwtKeys},
	{name: GitHub, keys: gitHubAppKeys},
	{name: OAuth2Client, keys: oauth2ClientKeys, check: checkOAuth2Client, together: oauth2ClientTogether},
	{name: OAuth2Refresh, keys: oauth2RefreshKeys},
	{name: OAuth2JWT, keys: oauth2JWTKeys},
	{name: OAuth2User, keys: oauth2UserKeys, check: checkOAuth2User, together: oauth2UserTogether},
	{name: GCPServiceAccount, keys: googleKeys, check: checkGoogle, together: googleTogether},
	{name: HMACSigned, keys: hmacKeys, check: checkHMAC},
	{name: AzureStorage, keys: azureKeys},
	{name: AzureSAS, keys: sasKeys, check: checkSAS, optional: true, together: sasTogether},
	{name: TencentTC3, keys: tencentKeys},
	{name: AlibabaACS3},
	{name: VolcengineV4, keys: volcengineKeys},
	{name: OCIRegistry, keys: ociKeys},
	{name: ClientCert},
}

// Types lists the types that a credential file may name.
func Types() []string {
	out := make([]string, len(schemes))
	for i, s := range schemes {
		out[i] = string(s.name)
	}
	return out
}

func (f *file) credentialType(dst *CredentialType) func(ast.Node) {
	return func(n ast.Node) {
		f.word(Types(), func(s string) { *dst = CredentialType(s) })(n)
	}
}

// settings reads the settings of a credential's type, and refuses those of
// another and their absence.
func (f *file) settings(dst *Scheme, found map[string]ast.Node, root ast.Node) {
	for _, s := range schemes {
		name, n := string(s.name), found[string(s.name)]
		switch {
		case s.keys == nil || dst.Type == "":
		case s.name == dst.Type && n != nil:
			if f.mapping(n, name, s.keys(f, dst)); s.check != nil {
				s.check(f, dst, n)
			}
		case s.name == dst.Type && !s.optional:
			f.errorf(root, "type %s needs %s: {%s: …}", name, name, s.keys(f, dst)[0].name)
		case s.name != dst.Type && n != nil:
			f.errorf(n, "%s is for type %s, and this is type %s", name, name, dst.Type)
		}
	}
}

func headerKeys(f *file, s *Scheme) []key {
	return []key{
		{name: "name", required: true, read: f.headerName(&s.Header), form: headerForm},
		{name: "prefix", read: f.headerText(&s.Prefix), form: printableForm},
	}
}

func basicKeys(f *file, s *Scheme) []key {
	return []key{{name: "username", required: true, form: alsoLike(printableForm, notLike(":")), read: func(n ast.Node) {
		f.headerText(&s.Username)(n)
		if strings.Contains(s.Username, ":") {
			f.errorf(n, "a user name has no colon (RFC 7617)")
		}
	}}}
}

func queryKeys(f *file, s *Scheme) []key {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"
	return []key{{name: "param", required: true, form: paramForm, read: func(n ast.Node) {
		f.str(&s.Param)(n)
		if strings.Trim(s.Param, plain) != "" {
			f.errorf(n, "%q is not the name of a parameter: use letters, digits, -, ., _ and ~", s.Param)
		}
	}}}
}

// jwtAlgorithms are those of RFC 7518 section 3.1 and RFC 8037; "none" is no
// signature (JW-01).
var jwtAlgorithms = []string{
	"HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
}

// jwtLife stands in for a life that a file does not say, in seconds.
const jwtLife = 300

func jwtKeys(f *file, s *Scheme) []key {
	s.JWT.Life = jwtLife
	return []key{
		{name: "algorithm", required: true, read: f.word(jwtAlgorithms, func(w string) { s.JWT.Algorithm = w }), form: word(jwtAlgorithms...)},
		{name: "key_id", read: f.headerText(&s.JWT.KeyID), form: printableForm},
		{name: "life", read: f.seconds(&s.JWT.Life, 1, 3600), form: numberForm(1, 3600)},
		{name: "claims", required: true, read: f.claims(&s.JWT.Claims), form: mappingOf(textForm, object{"not": object{"enum": []string{"iat", "exp", "nbf", "jti"}}})},
	}
}

// seconds reads a number of seconds within bounds.
func (f *file) seconds(dst *int, least, most int) func(ast.Node) {
	return f.number(dst, "a number of seconds", least, most)
}

// number reads a whole number within bounds; what says of what.
func (f *file) number(dst *int, what string, least, most int) func(ast.Node) {
	return func(n ast.Node) {
		x, ok := n.(*ast.IntegerNode)
		if !ok || x.Token.Type != token.IntegerType {
			f.errorf(n, "this is %s; write %s from %d to %d", kindOf(n), what, least, most)
			return
		}
		v, err := strconv.Atoi(x.Token.Value)
		if err != nil || v < least || v > most {
			f.errorf(n, "this is %s from %d to %d", what, least, most)
			return
		}
		*dst = v
	}
}

// matching reads text of a known form.
func (f *file) matching(dst *string, form *regexp.Regexp, what string) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		if f.str(dst)(n); len(f.errs) == before && !form.MatchString(*dst) {
			f.errorf(n, "%q is not %s", *dst, what)
		}
	}
}

// claims reads the claims that a token has beside those that say when it was
// made and when it ends.
func (f *file) claims(dst *map[string]string) func(ast.Node) {
	return func(n ast.Node) {
		m, ok := n.(*ast.MappingNode)
		if !ok || len(m.Values) == 0 {
			f.errorf(n, "this is %s; claims are a mapping, for example {iss: NAME}", kindOf(n))
			return
		}
		*dst = map[string]string{}
		for _, v := range m.Values {
			name := keyOf(v)
			switch _, twice := (*dst)[name]; {
			case twice:
				f.errorf(v.Key, "%q stands twice in claims", name)
			case name == "iat" || name == "exp" || name == "nbf" || name == "jti":
				f.errorf(v.Key, "%q is the broker's to set", name)
			default:
				var s string
				f.str(&s)(v.Value)
				(*dst)[name] = s
			}
		}
	}
}

// codes reads a list of names as clouds write them: us-east-1, s3.
func (f *file) codes(dst *[]string) func(ast.Node) {
	return f.strs(func(n ast.Node, s string) { f.addCode(dst, n, s) })
}

// code reads one name of that kind.
func (f *file) code(dst *[]string, n ast.Node) {
	before := len(f.errs)
	var s string
	if f.str(&s)(n); len(f.errs) == before {
		f.addCode(dst, n, s)
	}
}

func (f *file) addCode(dst *[]string, n ast.Node, s string) {
	switch {
	case strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") != "":
		f.errorf(n, "%q is not a code: use lower-case letters, digits and -", s)
	case slices.Contains(*dst, s):
		f.errorf(n, "%q stands twice", s)
	default:
		*dst = append(*dst, s)
	}
}

// scopes reads a list of scopes, which stand with blanks between them on the
// wire (RFC 6749 section 3.3).
func (f *file) scopes(dst *[]string) func(ast.Node) {
	return f.strs(func(n ast.Node, s string) {
		switch {
		case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }):
			f.errorf(n, "%q is not one scope", s)
		case slices.Contains(*dst, s):
			f.errorf(n, "scope %q stands twice", s)
		default:
			*dst = append(*dst, s)
		}
	})
}

// httpsURL reads the address of something that the broker asks: https, in one
// spelling, so that the door out judges what the file says.
func (f *file) httpsURL(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		var s string
		if f.str(&s)(n); len(f.errs) > before {
			return
		}
		f.checkURL(n, s, dst)
	}
}

// checkURL puts s into dst if it is an https URL in its one spelling.
func (f *file) checkURL(n ast.Node, s string, dst *string) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.Opaque != "" || u.User != nil || u.Fragment != "" || u.RawQuery != "" {
		f.errorf(n, "%q is not an https URL without user, query and fragment", s)
		return
	}
	e, err := target.ParseAuthority(u.Host, 443)
	if err != nil {
		f.errorf(n, "%q is not a host: %v", u.Host, err)
		return
	}
	if name, ok := e.Host.Name(); ok && rules.IsReserved(name) {
		f.errorf(n, "%s is reserved: the gateway answers it itself", rules.Reserved)
		return
	}
	if p, err := target.ParsePath(u.EscapedPath()); err != nil {
		f.errorf(n, "%q is not a path: %v", u.EscapedPath(), err)
	} else if right := "https://" + e.Authority(443) + p.String(); right != s {
		f.errorf(n, "write %q", right)
	}
	*dst = s
}

// headerName reads the name of a header that a credential may go into.
func (f *file) headerName(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		before := len(f.errs)
		var s string
		if f.str(&s)(n); len(f.errs) == before {
			*dst = f.fieldName(n, s)
		}
	}
}

// fieldName returns the canonical name of such a header.
func (f *file) fieldName(n ast.Node, s string) string {
	right := rules.CanonicalHeader(s)
	switch {
	case right == "" || len(s) > maxFieldName: // RFC 9110 section 5.1
		f.errorf(n, "%q is not the name of a header", s)
	case frames(right):
		f.errorf(n, "%s belongs to the connection or the message, and cannot hold a credential", right)
	}
	return right
}

// framing are headers that say how a message travels: what was put into one of them
// would change what the origin reads, or be lost on the way. A hyphen at the end
// stands for all that begin so.
var framing = []string{
	"Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Te", "Trailer", "Upgrade",
	"Expect", "Via", "Forwarded", "Date", "Content-Type", "Content-Encoding", "Accept-Encoding", "Range",
	"Proxy-", "X-Forwarded-", "Sallyport-",
}

func frames(h string) bool {
	return slices.ContainsFunc(framing, func(s string) bool {
		return h == s || strings.HasSuffix(s, "-") && strings.HasPrefix(h, s)
	})
}

// headerText reads text that goes into a header: printable ASCII.
func (f *file) headerText(dst *string) func(ast.Node) {
	return func(n ast.Node) {
		f.str(dst)(n)
		for i := range len(*dst) {
			if c := (*dst)[i]; c < 0x20 || c > 0x7e {
				f.errorf(n, "this goes into a header, and %q is not printable ASCII", *dst)
				return
			}
		}
	}
}
