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
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// Config is what schemes need that talk to somebody.
type Config struct {
	// Transport is the broker's way out; nil refuses the schemes that need one.
	// It verifies its peers, and never follows a redirect.
	Transport http.RoundTripper
	Now       func() time.Time
	// Made is called when a token was made, could not be, or is used for the first
	// time: when the next one is due has changed. Nil tells nobody.
	Made func()
	// Keep is where a scheme keeps what a server gave it in place of the secret. Nil
	// keeps it in memory only.
	Keep Keeper
}

// Keeper keeps one secret over a restart.
type Keeper interface {
	// Load returns what is kept, empty if nothing is. The caller wipes it.
	Load(ctx context.Context) (secret.Value, error)
	// Save keeps v in place of what was kept before, whole or not at all.
	Save(v secret.Value) error
}

// Rotator is a [Scheme] whose secret a server may replace.
type Rotator interface {
	// Unsaved says why what took the secret's place is in memory only; nil if it is not.
	Unsaved() error
}

// Request is an admitted request, as far as a scheme needs it.
type Request struct {
	Method   string
	Endpoint target.Endpoint
	Path     target.Path
	Query    string // raw
	// Header and Payload are there if the scheme's place asks for them: the
	// fields as they will be sent, and the SHA-256 of the body in hexadecimal,
	// or what AWS writes in its stead.
	Header  http.Header
	Payload string
	Body    []byte // itself, if the place asks for it
	Now     time.Time
}

// Changes is what a scheme does to a request. Everything that stands under the
// names in Set, Remove and Query beforehand is taken away, however spelled.
type Changes struct {
	Set    map[string][]string // canonical header names
	Remove []string            // canonical header names
	Query  map[string]string   // parameters, not yet encoded
	Body   string              // stands in the body in place of the placeholder
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

// Steady is a [Scheme] whose changes depend on the secret and on nothing else: they
// are the same for every request. Steady does nothing.
type Steady interface{ Steady() }

// Shaper is a [Scheme] whose secret holds several values of which the sandbox gets
// stand-ins, or none that could be shown: Shapes returns what they look like. The
// first one is what identifies the credential in a request.
type Shaper interface {
	Shapes(secret.Value) ([]string, error)
}

// Documenter is a [Scheme] whose secret is a document that programs read: Document
// returns one of the same form for the sandbox, made anew for each run, with no
// true key in it but the placeholder, and what shows in a request that it was made
// with that. An empty text says that there is no document.
type Documenter interface {
	Document(v secret.Value, placeholder string) (text, id string, err error)
}

// Renewer is a [Scheme] that keeps tokens which end. Somebody has to call Renew when
// it is due, so that no request waits for a token.
type Renewer interface {
	// Due returns when the next token is to be made ahead of the end of one that is in
	// use; the zero time says that there is none.
	Due() time.Time
	// Renew makes the tokens that are due by now with v. Those in use stay in use,
	// whatever comes of it.
	Renew(ctx context.Context, v secret.Value) error
}

// New returns the scheme that a credential document describes.
func New(s policyfile.Scheme, cfg Config) (Scheme, error) {
	switch s.Type {
	case policyfile.Bearer:
		return bearer{}, nil
	case policyfile.Header:
		return newHeader(s)
	case policyfile.Body:
		return newBody(s)
	case policyfile.Basic:
		return newBasic(s)
	case policyfile.Query:
		return newQuery(s)
	case policyfile.AWSSigV4:
		return newSigV4(s, cfg)
	case policyfile.JSONWebToken:
		return newJWT(s)
	case policyfile.GitHub:
		return newGitHubApp(s, cfg)
	case policyfile.HMACSigned:
		return newHMAC(s)
	default:
		if scheme, ok, err := newMinted(s, cfg); ok {
			return scheme, err
		}
		return newCloud(s)
	}
}

// newMinted returns the schemes whose tokens are asked for; ok is false for any other.
func newMinted(s policyfile.Scheme, cfg Config) (scheme Scheme, ok bool, err error) {
	ok = true
	switch s.Type {
	case policyfile.OAuth2Client:
		scheme, err = newOAuth2Client(s, cfg)
	case policyfile.OAuth2Refresh:
		scheme, err = newOAuth2Refresh(s, cfg)
	case policyfile.OAuth2JWT:
		scheme, err = newOAuth2JWT(s, cfg)
	case policyfile.OAuth2User:
		scheme, err = newOAuth2User(s, cfg)
	case policyfile.GCPServiceAccount:
		scheme, err = newGCPServiceAccount(s, cfg)
	case policyfile.OCIRegistry:
		scheme, err = newOCIRegistry(s, cfg)
	default:
		ok = false
	}
	return scheme, ok, err
}

// newCloud returns the schemes of cloud vendors, and client certificates.
func newCloud(s policyfile.Scheme) (Scheme, error) {
	switch s.Type {
	case policyfile.ClientCert:
		return ClientCert{}, nil
	case policyfile.AzureStorage:
		return newAzureKey(s)
	case policyfile.AzureSAS:
		return newAzureSAS(s)
	case policyfile.TencentTC3:
		return newTC3(s)
	case policyfile.AlibabaACS3:
		return newACS3(), nil
	case policyfile.VolcengineV4:
		return newVolc(s)
	default:
		return nil, fmt.Errorf("type %q is not one of %s", s.Type, strings.Join(policyfile.Types(), ", "))
	}
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
