// Package sign turns a secret and an admitted request into header changes: one
// file per scheme, each with one [Scheme].
//
// It trusts its caller to have checked that the secret may be used for the
// request. It never reads a secret from anywhere, never sends, and never puts a
// secret into an error.
package sign

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/target"
)

// Spec says how a credential signs: the part of a credential document that a
// scheme reads. A field that the type does not use must be empty.
type Spec struct {
	Type     string // one of Types
	Header   string // header: its name. bearer, basic: Authorization or nothing
	Prefix   string // header: what stands before the secret
	Username string // basic: the user name
	Param    string // query: the parameter's name
	OAuth2   OAuth2 // oauth2-client
}

// Config is what schemes need that talk to somebody.
type Config struct {
	// Transport is the broker's way out; nil refuses the schemes that need one.
	// It verifies its peers, and never follows a redirect.
	Transport http.RoundTripper
	Now       func() time.Time
}

// Request is an admitted request, as far as a scheme needs it.
type Request struct {
	Method   string
	Endpoint target.Endpoint
	Path     target.Path
	Query    string // raw
	Now      time.Time
}

// Changes is what a scheme does to a request. Everything that stands under the
// names in Set, Remove and Query beforehand is taken away, however spelled.
type Changes struct {
	Set    map[string][]string // canonical header names
	Remove []string            // canonical header names
	Query  map[string]string   // parameters, not yet encoded
	// Expose holds what leaves the broker with the changes and is worth
	// stealing: a response must not show it.
	Expose []string
}

// Scheme is one way to sign. It is safe for use by many goroutines.
type Scheme interface {
	// Place says where the credential goes, so that the gateway can tell what
	// a sandbox put there.
	Place() control.Place
	// Check reports whether a secret can be used at all. The error names the
	// fault, never the secret.
	Check(secret.Value) error
	// Sign makes the changes. A secret that Check refuses is refused here too.
	Sign(context.Context, secret.Value, Request) (Changes, error)
}

// Types lists the schemes that New knows.
func Types() []string { return []string{"bearer", "header", "basic", "query", "oauth2-client"} }

// New returns the scheme that a Spec describes.
func New(s Spec, cfg Config) (Scheme, error) {
	if o := s.OAuth2; s.Type != "oauth2-client" && (o.TokenURL != "" || o.ClientID != "" || o.Audience != "" || len(o.Scopes) > 0) {
		return nil, fmt.Errorf("type %q has no token endpoint", s.Type)
	}
	switch s.Type {
	case "bearer":
		return newBearer(s)
	case "header":
		return newHeader(s)
	case "basic":
		return newBasic(s)
	case "query":
		return newQuery(s)
	case "oauth2-client":
		return newOAuth2Client(s, cfg)
	case "":
		return nil, errors.New("a credential needs a type: " + strings.Join(Types(), ", "))
	default:
		return nil, fmt.Errorf("type %q is not one of %s", s.Type, strings.Join(Types(), ", "))
	}
}

// only refuses fields that a type has no use for: a setting that does nothing
// is a mistake.
func only(s Spec, header, prefix, username, param bool) error {
	for _, f := range []struct {
		name, value string
		used        bool
	}{{"header", s.Header, header}, {"prefix", s.Prefix, prefix}, {"username", s.Username, username}, {"param", s.Param, param}} {
		if f.name == "header" && f.value == "Authorization" && s.Type != "header" && s.Type != "query" {
			continue
		}
		if f.value != "" && !f.used {
			return fmt.Errorf("type %q has no %q", s.Type, f.name)
		}
	}
	return nil
}

// maxHeaderValue is what common servers still accept in one header line.
const maxHeaderValue = 8 << 10

// checkHeaderSafe refuses a secret that cannot stand in a header line, or that
// a server would read otherwise than it was meant (RFC 9110 section 5.5).
func checkHeaderSafe(v secret.Value) error {
	b := v.Reveal()
	switch {
	case len(b) == 0:
		return errors.New("the secret is empty")
	case len(b) > maxHeaderValue:
		return fmt.Errorf("the secret is longer than %d octets, more than a header line can hold", maxHeaderValue)
	case b[0] == ' ' || b[0] == '\t' || b[len(b)-1] == ' ' || b[len(b)-1] == '\t':
		return errors.New("the secret begins or ends with a blank")
	}
	for i, c := range b {
		if what := octetFault(c); what != "" {
			return fmt.Errorf("the secret has %s at octet %d", what, i+1)
		}
	}
	return nil
}

// octetFault says why an octet cannot stand in a header line, or "".
func octetFault(c byte) string {
	switch {
	case c == '\r' || c == '\n':
		return "a line break"
	case c == 0:
		return "a NUL"
	case c < 0x20 && c != '\t' || c == 0x7f:
		return "a control character"
	case c >= 0x80:
		return "an octet outside ASCII"
	}
	return ""
}

// reservedHeaders carry the message itself; a secret in one of them would
// change where its end is or where it goes.
var reservedHeaders = map[string]bool{
	"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Connection": true, "Trailer": true, "Te": true,
	"Upgrade": true, "Keep-Alive": true, "Proxy-Authorization": true, "Proxy-Connection": true, "Expect": true,
	"Content-Encoding": true, "Accept-Encoding": true,
}

// headerName returns the canonical form of a header's name.
func headerName(s string) (string, error) {
	name := http.CanonicalHeaderKey(s)
	switch {
	case !httpguts.ValidHeaderFieldName(s):
		return "", fmt.Errorf("%q is not a header name", s)
	case reservedHeaders[name]:
		return "", fmt.Errorf("header %q carries the message itself and cannot hold a credential", s)
	}
	return name, nil
}
