package sign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sallyport/broker/secret"
)

// LoginAnswer is what an endpoint said about a sign-in. All of it but Access, Refresh,
// ID and DeviceCode may be told to the program that asked.
type LoginAnswer struct {
	Status int
	Form   bool   // it was form-encoded, not JSON
	Error  string // a code, "" for success

	Access, Refresh, ID string // true tokens
	Scope               string

	DeviceCode              string // true
	UserCode                string
	VerificationURI         string
	VerificationURL         string // Google's name for it
	VerificationURIComplete string

	ExpiresIn, Interval int64 // 0 if it does not say
}

// read is an answer as it is written: RFC 6749 section 5, RFC 8628 section 3.2.
type signInText struct {
	Error                   string      `json:"error"`
	AccessToken             string      `json:"access_token"`
	TokenType               string      `json:"token_type"`
	RefreshToken            string      `json:"refresh_token"`
	IDToken                 string      `json:"id_token"`
	Scope                   string      `json:"scope"`
	DeviceCode              string      `json:"device_code"`
	UserCode                string      `json:"user_code"`
	VerificationURI         string      `json:"verification_uri"`
	VerificationURL         string      `json:"verification_url"`
	VerificationURIComplete string      `json:"verification_uri_complete"`
	ExpiresIn               json.Number `json:"expires_in"`
	Interval                json.Number `json:"interval"`
}

// readSignIn reads an answer. What it does not know it refuses or leaves out; nothing
// of an answer but a well-formed error code is put into an error.
func readSignIn(got told, device bool) (LoginAnswer, error) {
	if !slices.Contains(statuses, got.status) {
		return LoginAnswer{}, fmt.Errorf("it answered %d", got.status)
	}
	text, form, err := decodeSignIn(got)
	if err != nil {
		return LoginAnswer{}, err
	}
	out := LoginAnswer{Status: got.status, Form: form}
	if out.ExpiresIn, err = seconds(text.ExpiresIn); err != nil {
		return LoginAnswer{}, err
	}
	if out.Interval, err = seconds(text.Interval); err != nil {
		return LoginAnswer{}, err
	}
	switch {
	case text.Error != "":
		if !errorCode.MatchString(text.Error) {
			return LoginAnswer{}, fmt.Errorf("it answered %d with an error that is no code", got.status)
		}
		out.Error, out.ExpiresIn = text.Error, 0
		return out, nil
	case got.status != http.StatusOK:
		return LoginAnswer{}, fmt.Errorf("it answered %d without an error code", got.status)
	case device:
		return out, out.readDevice(text)
	default:
		return out, out.readTokens(text)
	}
}

// decodeSignIn decodes JSON, or a form, which GitHub's first answers were.
func decodeSignIn(got told) (text signInText, form bool, err error) {
	if len(got.body) == maxTokenAnswer {
		return text, false, errors.New("its answer is too long")
	}
	kind, _, err := mime.ParseMediaType(got.kind)
	switch {
	case err == nil && kind == "application/json":
		dec := json.NewDecoder(bytes.NewReader(got.body))
		if dec.Decode(&text) != nil {
			return signInText{}, false, errors.New("its answer is not an object of the form that is known")
		}
		if _, err := dec.Token(); !errors.Is(err, io.EOF) {
			return signInText{}, false, errors.New("its answer goes on after its end")
		}
		return text, false, nil
	case err == nil && kind == "application/x-www-form-urlencoded":
		values, err := url.ParseQuery(strings.TrimSpace(string(got.body)))
		if err != nil {
			return signInText{}, true, errors.New("its answer is not a form")
		}
		v := values.Get
		return signInText{
			v("error"), v("access_token"), v("token_type"), v("refresh_token"), v("id_token"), v("scope"), v("device_code"), v("user_code"),
			v("verification_uri"), v("verification_url"), v("verification_uri_complete"), json.Number(v("expires_in")), json.Number(v("interval")),
		}, true, nil
	default:
		return text, false, errors.New("its answer is neither JSON nor a form")
	}
}

func seconds(n json.Number) (int64, error) {
	if n == "" {
		return 0, nil
	}
	v, err := strconv.ParseInt(n.String(), 10, 64)
	if err != nil || v < 0 || v > maxTokenLife {
		return 0, errors.New("its answer has a time that is not a number of seconds")
	}
	return v, nil
}

func (a *LoginAnswer) readTokens(text signInText) error {
	a.Access, a.Refresh, a.ID, a.Scope = text.AccessToken, text.RefreshToken, text.IDToken, text.Scope
	switch {
	case a.Access == "":
		return errors.New("its answer holds no token")
	case !strings.EqualFold(text.TokenType, "bearer"):
		return errors.New("its token is not a bearer token")
	}
	for _, t := range []string{a.Access, a.Refresh, a.ID} {
		switch {
		case t == "":
		case len(t) < minToken:
			return errors.New("one of its tokens is too short to be told from other text")
		case checkHeaderSafe(secret.New([]byte(t))) != nil || strings.ContainsAny(t, ` "\`):
			return errors.New("one of its tokens is not plain text")
		case strings.Contains(a.Scope, t):
			return errors.New("its answer repeats a token")
		}
	}
	if len(a.Scope) > maxShown || !isPlain(a.Scope) {
		return errors.New("its scope is not plain text")
	}
	return nil
}

const (
	// minToken is the shortest token that is taken: it is looked for in answers.
	minToken = 12
	// maxShown bounds each text that a program is told.
	maxShown = 2 << 10
)

var userCode = regexp.MustCompile(`^[A-Za-z0-9 -]{1,32}$`)

func (a *LoginAnswer) readDevice(text signInText) error {
	a.DeviceCode, a.UserCode = text.DeviceCode, text.UserCode
	a.VerificationURI, a.VerificationURL, a.VerificationURIComplete = text.VerificationURI, text.VerificationURL, text.VerificationURIComplete
	switch {
	case len(a.DeviceCode) < minToken || checkHeaderSafe(secret.New([]byte(a.DeviceCode))) != nil:
		return errors.New("its answer holds no device code")
	case !userCode.MatchString(a.UserCode):
		return errors.New("its answer holds no code that a person could type")
	case a.VerificationURI == "" && a.VerificationURL == "":
		return errors.New("its answer does not say where a person signs in")
	case text.AccessToken+text.RefreshToken+text.IDToken != "":
		return errors.New("its answer holds tokens before anybody signed in")
	}
	for _, u := range []string{a.VerificationURI, a.VerificationURL, a.VerificationURIComplete} {
		switch {
		case u != "" && !isAddress(u):
			return errors.New("the address where a person signs in is no https URL")
		case strings.Contains(u, a.DeviceCode):
			return errors.New("its answer repeats the device code")
		}
	}
	return nil
}

// isAddress reports whether a person may be shown u.
func isAddress(u string) bool {
	parsed, err := url.Parse(u)
	return err == nil && parsed.Scheme == "https" && parsed.Host != "" && parsed.User == nil && len(u) <= maxShown && isPlain(u)
}

func isPlain(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}
