package broker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// (ADR-0016) The token endpoint of a credential is the broker's to ask. A program in a
// sandbox that asks it too, as SDKs do with a key file or a refresh token, is
// answered here: with the placeholder, which is what it then puts into requests.

const (
	maxTokenForm = 64 << 10
	// toldLife is how long a program is told that its token holds. A placeholder
	// holds as long as the run; programs that ask again are answered again.
	toldLife = time.Hour
)

// asksToken reports whether p admits a request for a token that the broker gets.
func (cc *clientCell) asksToken(p gate.Pass) bool {
	if cc == nil || cc.finder == nil {
		return false
	}
	q := p.Request()
	place, ok := cc.finder.place(p.Decision().Credential)
	return ok && place.Token != "" && q.Secure && q.Method == http.MethodPost && q.Question == rules.Fetch && givesTokens(place, p)
}

// givesTokens reports whether p is for an endpoint at which the broker gets tokens.
func givesTokens(place control.Place, p gate.Pass) bool {
	if place.Token == "" && place.Device == "" {
		return false
	}
	asked := askedURL(p)
	return asked == place.Token || place.Device != "" && asked == place.Device
}

// answeredHere reports whether nothing of a request is sent: [Client.Answer] answers it,
// or it is refused. No request goes as it is to an endpoint at which people sign in.
func (cc *clientCell) answeredHere(p gate.Pass, place control.Place) (bool, error) {
	switch {
	case cc.asksToken(p):
		return true, nil
	case place.Type == "oauth2-user" && givesTokens(place, p):
		return true, denied(p, rules.CredentialMismatch, errors.New("an endpoint at which people sign in is asked with POST alone"))
	default:
		return false, nil
	}
}

// askedURL is the address that was admitted, as credential files write it.
func askedURL(p gate.Pass) string {
	q := p.Request()
	return "https://" + q.Endpoint.Authority(443) + q.Path.String()
}

// Answer answers a request for a token in upstream's place; nil says that the
// request is another. The broker has to have a token, or get one: else the answer
// is a [*gate.DeniedError], as of [Client.Inject]. A request that shows itself
// with anything but the placeholder is refused (foreign_credential).
func (c *Client) Answer(ctx context.Context, p gate.Pass, r *http.Request) (*http.Response, error) {
	cc := c.cell(p.Identity().Cell)
	if !cc.asksToken(p) {
		return nil, nil
	}
	var form []byte
	if r.Body != nil {
		var err error
		form, err = io.ReadAll(io.LimitReader(r.Body, maxTokenForm+1))
		if err = errors.Join(err, r.Body.Close()); err != nil {
			return nil, fmt.Errorf("reading a request for a token: %w", err)
		}
	}
	g := cc.finder.grant(p.Decision().Credential)
	if g.Place.Type == "oauth2-user" {
		return c.answerSignIn(ctx, p, r, form)
	}
	if len(form) > maxTokenForm || !shows(g, r.Header.Get("Authorization"), form) {
		return nil, denied(p, rules.ForeignCredential, errors.New("the request for a token does not show itself with the placeholder"))
	}
	ans, reason, err := c.ask(ctx, p, g.Place, message{})
	if err != nil {
		return nil, denied(p, reason, err)
	}
	if err := c.tell(ctx, p, ans); err != nil {
		return nil, err
	}
	body, err := tokenAnswer(g)
	if err != nil {
		return nil, err
	}
	return answered(r, http.StatusOK, "application/json", body), nil
}

// answered makes an answer in upstream's place.
func answered(r *http.Request, status int, kind, body string) *http.Response {
	return &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {kind}, "Content-Length": {strconv.Itoa(len(body))}, "Cache-Control": {"no-store"}},
		Body:   io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
}

// answerSignIn answers a program that has a person sign in: by way of the broker, with
// stand-ins.
func (c *Client) answerSignIn(ctx context.Context, p gate.Pass, r *http.Request, form []byte) (*http.Response, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	coded := r.Header.Get("Content-Encoding") != ""
	if len(form) > maxTokenForm || err != nil || kind != "application/x-www-form-urlencoded" || coded {
		return nil, denied(p, rules.BadRequest, fmt.Errorf("a request to an endpoint at which people sign in is a form of at most %d octets (application/x-www-form-urlencoded), not coded", maxTokenForm))
	}
	in := signInRequest{injectRequest: c.requestOf(p), Form: string(form), Authorization: r.Header.Get("Authorization")}
	var ans signInAnswer
	if reason, err := c.call(ctx, "/v1/signin", in, &ans); err != nil {
		return nil, denied(p, reason, err)
	}
	if err := c.tell(ctx, p, injectAnswer{Minted: ans.Taken}); err != nil {
		return nil, err
	}
	return answered(r, ans.Status, ans.Kind, ans.Body), nil
}

// shows reports whether a request for a token holds a placeholder of g where
// clients show who they are: as HTTP basic authentication, as a parameter of the
// form, or as the key id of a signed statement.
func shows(g *control.Grant, authorization string, form []byte) bool {
	if authorization != "" && !isAlone(authorization, g.Placeholder) {
		return false
	}
	params, err := url.ParseQuery(string(form))
	if err != nil {
		return false
	}
	for _, values := range params {
		for _, v := range values {
			if v == g.Placeholder || signedWith(g, v) {
				return true
			}
		}
	}
	return authorization != ""
}

// signedWith reports whether a token names the key of a document that the sandbox
// was given (RFC 7515 section 4.1.4).
func signedWith(g *control.Grant, token string) bool {
	head, _, ok := strings.Cut(token, ".")
	if !ok || len(g.More) == 0 {
		return false
	}
	text, err := base64.RawURLEncoding.DecodeString(head)
	if err != nil {
		return false
	}
	var h struct {
		KeyID string `json:"kid"`
	}
	if json.Unmarshal(text, &h) != nil {
		return false
	}
	for _, v := range g.More {
		if v.ID != "" && v.ID == h.KeyID {
			return true
		}
	}
	return false
}

// tokenAnswer is what a token endpoint says (RFC 6749 section 5.1), with the
// placeholder for a token.
func tokenAnswer(g *control.Grant) (string, error) {
	out := map[string]any{"access_token": g.Placeholder, "token_type": "Bearer", "expires_in": int(toldLife / time.Second)}
	if g.Place.Name == "id_token" {
		// Libraries read the end of an id token; the rest is for nobody.
		b64 := base64.RawURLEncoding
		out = map[string]any{"id_token": b64.EncodeToString([]byte(`{"alg":"none"}`)) + "." +
			b64.EncodeToString([]byte(`{"exp":4102444800}`)) + "." + g.Placeholder}
	}
	body, err := json.Marshal(out)
	return string(body), err
}

// isMintedAs reports whether a field's value is the placeholder as tokenAnswer
// gives it, or a statement that was signed with the document.
func isMintedAs(g *control.Grant, v string) bool {
	token, ok := strings.CutPrefix(strings.Trim(v, " \t"), "Bearer ")
	if !ok || strings.Count(token, ".") != 2 {
		return false
	}
	return strings.HasSuffix(token, "."+g.Placeholder) || signedWith(g, token)
}
