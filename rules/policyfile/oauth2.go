package policyfile

import (
	"github.com/goccy/go-yaml/ast"
)

// OAuth2 is how a token endpoint is asked.
type OAuth2 struct {
	TokenURL string // https
	ClientID string
	Scopes   []string
	// Audience is sent if it is not empty; some servers want it. In a signed
	// statement it stands in place of the endpoint's URL.
	Audience string
	// Auth is how the client shows who it is: ClientBasic, which "" is too,
	// ClientPost or PrivateKeyJWT.
	Auth      string
	Algorithm string // of a signed statement: RS256 … EdDSA
	KeyID     string // kid of a signed statement, if not empty
	Issuer    string // of the statement that is exchanged
	Subject   string // whom it is for; the issuer if empty
	// DeviceURL and Grants are where and how a person signs in, of type oauth2-user.
	DeviceURL string
	Grants    []string
}

// The ways for a client to show who it is (RFC 7591 section 2).
const (
	ClientBasic   = "client_secret_basic"
	ClientPost    = "client_secret_post"
	PrivateKeyJWT = "private_key_jwt"
)

func oauth2ClientKeys(f *file, s *Scheme) []key {
	return []key{
		{name: "token_url", required: true, read: f.httpsURL(&s.OAuth2.TokenURL), form: urlForm},
		{name: "client_id", required: true, read: f.headerText(&s.OAuth2.ClientID), form: printableForm},
		{name: "scopes", read: f.scopes(&s.OAuth2.Scopes), form: listOf(scopeForm)},
		{name: "audience", read: f.headerText(&s.OAuth2.Audience), form: printableForm},
		{name: "auth", read: f.word([]string{ClientBasic, ClientPost, PrivateKeyJWT}, func(w string) { s.OAuth2.Auth = w }), form: word(ClientBasic, ClientPost, PrivateKeyJWT)},
		{name: "algorithm", read: f.assertionAlgorithm(s), form: word(jwtAlgorithms[3:]...)},
		{name: "key_id", read: f.headerText(&s.OAuth2.KeyID), form: printableForm},
	}
}

// oauth2ClientTogether is what checkOAuth2Client says.
var oauth2ClientTogether = object{
	"if": has("auth", PrivateKeyJWT), "then": needsAll("algorithm"), "else": without("algorithm", "key_id"),
}

// checkOAuth2Client refuses settings that go with another way to show who a
// client is.
func checkOAuth2Client(f *file, s *Scheme, n ast.Node) {
	o := s.OAuth2
	switch {
	case o.Auth == PrivateKeyJWT && o.Algorithm == "":
		f.errorf(n, "auth %s needs the algorithm of the key, for example algorithm: ES256", PrivateKeyJWT)
	case o.Auth != PrivateKeyJWT && (o.Algorithm != "" || o.KeyID != ""):
		f.errorf(n, "algorithm and key_id are for auth: %s", PrivateKeyJWT)
	}
}

func oauth2RefreshKeys(f *file, s *Scheme) []key {
	return []key{
		{name: "token_url", required: true, read: f.httpsURL(&s.OAuth2.TokenURL), form: urlForm},
		{name: "client_id", read: f.headerText(&s.OAuth2.ClientID), form: printableForm},
		{name: "scopes", read: f.scopes(&s.OAuth2.Scopes), form: listOf(scopeForm)},
		{name: "auth", read: f.word([]string{ClientBasic, ClientPost}, func(w string) { s.OAuth2.Auth = w }), form: word(ClientBasic, ClientPost)},
	}
}

func oauth2JWTKeys(f *file, s *Scheme) []key {
	return []key{
		{name: "token_url", required: true, read: f.httpsURL(&s.OAuth2.TokenURL), form: urlForm},
		{name: "issuer", required: true, read: f.headerText(&s.OAuth2.Issuer), form: printableForm},
		{name: "algorithm", required: true, read: f.assertionAlgorithm(s), form: word(jwtAlgorithms[3:]...)},
		{name: "subject", read: f.headerText(&s.OAuth2.Subject), form: printableForm},
		{name: "audience", read: f.headerText(&s.OAuth2.Audience), form: printableForm},
		{name: "key_id", read: f.headerText(&s.OAuth2.KeyID), form: printableForm},
		{name: "scopes", read: f.scopes(&s.OAuth2.Scopes), form: listOf(scopeForm)},
	}
}

// assertionAlgorithm reads the algorithm of a key pair: a statement that a shared
// secret signs is client_secret_jwt, which nobody here asked for.
func (f *file) assertionAlgorithm(s *Scheme) func(ast.Node) {
	return f.word(jwtAlgorithms[3:], func(w string) { s.OAuth2.Algorithm = w })
}

// Google is which token a service account's key gets.
type Google struct{ Token string }

// The tokens of Google.
const (
	GoogleAccess     = "access"      // exchanged for a signed statement, with scopes
	GoogleSelfSigned = "self-signed" // the signed statement itself
	GoogleID         = "id"          // an OpenID Connect id token for one audience
)

// googleTokenURL is where tokens are exchanged, unless a file says otherwise.
const googleTokenURL = "https://oauth2.googleapis.com/token" //nolint:gosec // an address

func googleKeys(f *file, s *Scheme) []key {
	s.Google.Token, s.OAuth2.TokenURL = GoogleAccess, googleTokenURL
	return []key{
		{name: "scopes", read: f.scopes(&s.OAuth2.Scopes), form: listOf(scopeForm)},
		{name: "token", read: f.word([]string{GoogleAccess, GoogleSelfSigned, GoogleID}, func(w string) { s.Google.Token = w }), form: word(GoogleAccess, GoogleSelfSigned, GoogleID)},
		{name: "audience", read: f.headerText(&s.OAuth2.Audience), form: printableForm},
		{name: "subject", read: f.headerText(&s.OAuth2.Subject), form: printableForm},
		{name: "token_url", read: f.httpsURL(&s.OAuth2.TokenURL), form: urlForm},
	}
}

// googleTogether is what checkGoogle says.
var googleTogether = object{
	"if":   object{"properties": object{"token": object{"const": GoogleAccess}}},
	"then": object{"required": []string{"scopes"}, "properties": object{"audience": false}},
	"else": object{"allOf": []any{
		without("subject"), object{"oneOf": needsOne("scopes", "audience")}, when(has("token", GoogleID), needsAll("audience")),
	}},
}

func checkGoogle(f *file, s *Scheme, n ast.Node) {
	scopes, audience := len(s.OAuth2.Scopes) > 0, s.OAuth2.Audience != ""
	switch t := s.Google.Token; {
	case t == GoogleAccess && (!scopes || audience):
		f.errorf(n, "an access token has scopes, and no audience")
	case t == GoogleSelfSigned && scopes == audience:
		f.errorf(n, "a self-signed token has either scopes or an audience")
	case t == GoogleID && (!audience || scopes):
		f.errorf(n, "an id token has an audience, and no scopes")
	case t != GoogleAccess && s.OAuth2.Subject != "":
		f.errorf(n, "subject is for access tokens")
	}
}
