package broker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/control"
	"sallyport/rules"
)

// (ADR-0031) A program in a sandbox has a person sign in. What it sends to the
// endpoints goes there by way of the broker, which puts in what is true; what comes
// back stays here, and the program gets stand-ins. A stand-in ends in a core, which
// belongs to the grant: it is recognised by that, whatever stands before it.

// The cores of a grant, in the order of its values: the first one, that of access
// tokens, is the grant's placeholder.
const (
	coreRefresh = iota
	coreDevice
	coreID
	coreClient // the stand-in of the client's secret itself
	cores
)

// coreShape is what a core looks like: characters that every kind of token has.
const coreShape = "0123456789abcdef0123456789abcdef"

// signInGrant makes the placeholders of a grant of type oauth2-user.
func signInGrant(b *bound, scheme *sign.Login, client secret.Value) (control.Grant, error) {
	g := control.Grant{Credential: b.name, Place: b.place(), Generation: b.generation}
	core, err := newPlaceholder([]byte(coreShape))
	if err != nil {
		return g, err
	}
	g.Placeholder = core
	for i := range cores {
		shape := []byte(coreShape)
		if i == coreClient && !scheme.Public() {
			shape = client.Reveal()
		}
		ph, err := newPlaceholder(shape)
		if err != nil {
			return g, err
		}
		v := control.Value{Placeholder: ph}
		if i == coreClient {
			// It may stand where the access token does: as a password, for the token endpoint.
			v.ID = ph
			if !scheme.Public() {
				v.Env = b.env
			}
		}
		g.More = append(g.More, v)
	}
	return g, nil
}

// signedIn is what came of a sign-in in one run.
type signedIn struct {
	turn                    chan struct{} // holds one token: who has it may ask, since a refresh token is good for one use
	access, refresh, device string        // true; guarded by turn, and mu of the server for access
}

// signInOf returns the sign-in of a cell's credential, and makes it if there is none.
func (s *Server) signInOf(cell, credential string) *signedIn {
	s.mu.Lock()
	defer s.mu.Unlock()
	byName := s.signIns[cell]
	if byName == nil {
		byName = map[string]*signedIn{}
		s.signIns[cell] = byName
	}
	if byName[credential] == nil {
		byName[credential] = &signedIn{turn: make(chan struct{}, 1)}
		byName[credential].turn <- struct{}{}
	}
	return byName[credential]
}

var errNotSignedIn = errors.New("nobody has signed in for this run, or the broker was restarted since: have the program sign in (again)")

// token returns what a request of a run is signed with: the secret itself or, where a
// person signs in, the access token of the run. The caller wipes it.
func (s *Server) token(b *bound, in injectRequest, v secret.Value) (secret.Value, error) {
	if _, ok := b.scheme.(*sign.Login); !ok {
		return v, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if signIn := s.signIns[in.Cell][in.Credential]; signIn != nil && signIn.access != "" {
		return secret.New([]byte(signIn.access)), nil
	}
	return secret.Value{}, errNotSignedIn
}

// signInRequest is what a program sends to an endpoint at which people sign in.
type signInRequest struct {
	injectRequest
	Form          string `json:"form"`
	Authorization string `json:"authorization,omitempty"`
}

// signInAnswer is what the program is answered.
type signInAnswer struct {
	Status int    `json:"status"`
	Kind   string `json:"kind"` // Content-Type
	Body   string `json:"body"`
	// Taken tells that tokens were taken from the answer.
	Taken bool `json:"taken,omitempty"`
}

func (s *Server) signIn(ctx context.Context, in signInRequest) (signInAnswer, error) {
	b, refusal := s.usableBy(in.injectRequest)
	if refusal == nil {
		_, refusal = s.check(in.injectRequest, b)
	}
	if refusal != nil {
		return signInAnswer{}, s.refused(in.injectRequest, refusal)
	}
	scheme, ok := b.scheme.(*sign.Login)
	g := s.grantOf(in.injectRequest)
	if !ok || g == nil {
		return signInAnswer{}, s.refused(in.injectRequest, refuse(http.StatusForbidden, rules.CredentialMismatch, "nobody signs in with credential %q", in.Credential))
	}
	v, err := b.usable(ctx)
	if err != nil {
		return signInAnswer{}, s.refused(in.injectRequest, refuse(http.StatusServiceUnavailable, rules.CredentialUnavail, "%v", err))
	}
	defer v.Wipe()
	state := s.signInOf(in.Cell, in.Credential)
	waiting, leave := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("it took longer than %v", answerTimeout))
	defer leave()
	select {
	case <-state.turn:
		defer func() { state.turn <- struct{}{} }()
	case <-waiting.Done():
		return signInAnswer{}, s.refused(in.injectRequest, refuse(http.StatusServiceUnavailable, rules.CredentialUnavail, "waiting for another's turn: %v", context.Cause(waiting)))
	}
	t := signInTask{scheme: scheme, g: g, state: state, device: in.askedURL() == g.Place.Device}
	form, err := t.form(in)
	if err != nil {
		return signInAnswer{}, s.refused(in.injectRequest, refuse(http.StatusForbidden, rules.ForeignCredential, "%v", err))
	}
	// What the endpoint gives is taken, whether or not the program still waits.
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	ans, err := scheme.Ask(asking, t.device, form, v)
	if err != nil {
		return signInAnswer{}, s.refused(in.injectRequest, refuse(http.StatusServiceUnavailable, rules.CredentialUnavail, "%v", err))
	}
	if refusal := s.take(in.injectRequest, state, ans); refusal != nil {
		return signInAnswer{}, s.refused(in.injectRequest, refusal)
	}
	return t.answer(ans)
}

// take keeps what an endpoint gave, unless the grant was revoked meanwhile.
func (s *Server) take(in injectRequest, state *signedIn, ans sign.LoginAnswer) *control.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cells[in.Cell]
	if c == nil || c.run != in.Run || !c.holds(s.credential(in.Credential)) || s.signIns[in.Cell][in.Credential] != state {
		return refuse(http.StatusForbidden, rules.CredentialRevoked, "the grant was revoked")
	}
	switch {
	case ans.Error != "":
	case ans.DeviceCode != "":
		state.device = ans.DeviceCode
	default:
		state.access, state.device = ans.Access, ""
		if ans.Refresh != "" { // a server that gives none means that the old one goes on
			state.refresh = ans.Refresh
		}
	}
	u := s.uses[in.Credential]
	u.last = s.cfg.Now()
	u.count++
	return nil
}

// grantOf returns the grant that a request is about, or nil.
func (s *Server) grantOf(in injectRequest) *control.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cells[in.Cell]
	if c == nil {
		return nil
	}
	i := slices.IndexFunc(c.grants, func(g control.Grant) bool { return g.Credential == in.Credential })
	if i < 0 || len(c.grants[i].More) != cores {
		return nil
	}
	return &c.grants[i]
}

// signInTask is one request of a program, with the turn of its sign-in.
type signInTask struct {
	scheme *sign.Login
	g      *control.Grant
	state  *signedIn
	device bool
}

// form returns what goes to the endpoint. An error says that the program shows itself
// with something of its own, or sends what is not known.
func (t *signInTask) form(in signInRequest) (url.Values, error) {
	asked, err := url.ParseQuery(in.Form)
	if err != nil || in.Query != "" {
		return nil, errors.New("the request is not one form, or has a query")
	}
	if err := t.client(asked, in.Authorization); err != nil {
		return nil, err
	}
	form, err := t.scheme.Form(t.device, asked)
	if err != nil {
		return nil, err
	}
	for name, stands := range map[string]struct {
		core  int
		truth string
	}{"refresh_token": {coreRefresh, t.state.refresh}, "device_code": {coreDevice, t.state.device}} {
		if !form.Has(name) {
			continue
		}
		if !strings.HasSuffix(form.Get(name), t.g.More[stands.core].Placeholder) || stands.truth == "" {
			return nil, errors.New(name + " is none that this run was given, or no longer good")
		}
		form.Set(name, stands.truth)
	}
	for name, values := range form {
		for _, core := range slices.Concat(t.g.More, []control.Value{{Placeholder: t.g.Placeholder}}) {
			if strings.Contains(values[0], core.Placeholder) {
				return nil, errors.New("a placeholder is in " + name)
			}
		}
	}
	return form, nil
}

// client judges what shows who the client is: the credential's own client and the
// placeholder of its secret, in the form or as basic authentication.
func (t *signInTask) client(form url.Values, authorization string) error {
	secret := t.g.More[coreClient].Placeholder
	ids, secrets := form["client_id"], form["client_secret"]
	if authorization != "" {
		id, pw, ok := basicPair(authorization)
		if !ok {
			return errors.New("the field Authorization is none that a client shows itself with")
		}
		ids, secrets = append(ids, id), append(secrets, pw)
	}
	for _, id := range ids {
		if id != t.scheme.ClientID() {
			return errors.New("the client is another than the credential's")
		}
	}
	for _, s := range secrets {
		if s != secret && (s != "" || !t.scheme.Public()) {
			return errors.New("the client's secret is not the placeholder")
		}
	}
	return nil
}

// basicPair reads basic authentication of a client (RFC 6749 section 2.3.1).
func basicPair(authorization string) (id, password string, ok bool) {
	r := http.Request{Header: http.Header{"Authorization": {authorization}}}
	if id, password, ok = r.BasicAuth(); !ok {
		return "", "", false
	}
	plainID, err := url.QueryUnescape(id)
	if err != nil {
		return "", "", false
	}
	return plainID, password, true
}

// answer tells the program what happened, with a stand-in for everything that is true.
func (t *signInTask) answer(ans sign.LoginAnswer) (signInAnswer, error) {
	out := map[string]any{}
	text := func(name, v string) {
		if v != "" {
			out[name] = v
		}
	}
	number := func(name string, v int64) {
		if v > 0 {
			out[name] = v
		}
	}
	shaped := func(name, truth, core string, about ...string) {
		if truth != "" {
			out[name] = shapedAs(truth, core, about)
		}
	}
	text("error", ans.Error)
	if ans.Access != "" {
		out["token_type"] = "Bearer"
	}
	shaped("access_token", ans.Access, t.g.Placeholder)
	shaped("refresh_token", ans.Refresh, t.g.More[coreRefresh].Placeholder)
	shaped("id_token", ans.ID, t.g.More[coreID].Placeholder, "iss", "aud", "azp", "nonce")
	shaped("device_code", ans.DeviceCode, t.g.More[coreDevice].Placeholder)
	text("scope", ans.Scope)
	text("user_code", ans.UserCode)
	text("verification_uri", ans.VerificationURI)
	text("verification_url", ans.VerificationURL)
	text("verification_uri_complete", ans.VerificationURIComplete)
	number("expires_in", ans.ExpiresIn)
	number("interval", ans.Interval)
	return encodeSignIn(out, ans)
}

// encodeSignIn writes an answer in the form that the endpoint has. That nothing true
// is in it is asked once more, of the text itself.
func encodeSignIn(out map[string]any, ans sign.LoginAnswer) (signInAnswer, error) {
	body, err := json.Marshal(out)
	if err != nil {
		return signInAnswer{}, err
	}
	kind := "application/json"
	if ans.Form {
		values := url.Values{}
		for name, v := range out {
			values.Set(name, fmt.Sprint(v))
		}
		body, kind = []byte(values.Encode()), "application/x-www-form-urlencoded"
	}
	for _, truth := range []string{ans.Access, ans.Refresh, ans.ID, ans.DeviceCode} {
		if truth != "" && strings.Contains(string(body), truth) {
			return signInAnswer{}, refuse(http.StatusServiceUnavailable, rules.CredentialUnavail, "the endpoint's answer holds a token in a place that is not known")
		}
	}
	return signInAnswer{Status: ans.Status, Kind: kind, Body: string(body), Taken: ans.Access != ""}, nil
}

// shapedAs makes a stand-in that looks like a token and ends in a core. Of a JSON Web
// Token the times and the claims in about are kept.
func shapedAs(truth, core string, about []string) string {
	if t, ok := tokenAs(truth, core, about); ok {
		return t
	}
	prefix := knownPrefix(truth)
	filler := max(0, len(truth)-len(prefix)-len(core))
	return prefix + string(randomText(filler, alphabetOf(truth[len(prefix):]))) + core
}

// tokenAs is shapedAs of a JSON Web Token (RFC 7519); ok is false for anything else.
func tokenAs(truth, core string, about []string) (text string, ok bool) {
	head, rest, _ := strings.Cut(truth, ".")
	payload, signature, two := strings.Cut(rest, ".")
	var h struct {
		Alg string `json:"alg"`
	}
	var claims map[string]json.RawMessage
	if !two || !decodePart(head, &h) || !decodePart(payload, &claims) {
		return "", false
	}
	if !tokenAlgorithm.MatchString(h.Alg) {
		h.Alg = "RS256"
	}
	kept := map[string]any{"sub": "placeholder"}
	for _, name := range append([]string{"iat", "exp", "nbf"}, about...) {
		if v, ok := claims[name]; ok && len(v) < maxClaim {
			kept[name] = v
		}
	}
	enc := base64.RawURLEncoding.EncodeToString
	filler := randomText(max(0, len(signature)-len(core)), digits+lowers+uppers)
	return enc(mustJSON(map[string]string{"alg": h.Alg, "typ": "JWT"})) + "." + enc(mustJSON(kept)) + "." + string(filler) + core, true
}

// maxClaim bounds what is kept of a claim.
const maxClaim = 512

func decodePart(part string, into any) bool {
	raw, err := base64.RawURLEncoding.DecodeString(part)
	return err == nil && json.Unmarshal(raw, into) == nil
}

// mustJSON encodes texts and numbers, and JSON that was decoded before.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("broker: " + err.Error())
	}
	return b
}
