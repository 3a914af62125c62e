package broker_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"sallyport/broker"
	"sallyport/rules"
	"sallyport/rules/policyfile"
)

// expiredAndForged is a JSON Web Token that ended in 2001 and that no key signed.
var expiredAndForged = base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","kid":"k1"}`)) + "." +
	base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"cli","exp":1000000000}`)) + ".Zm9yZ2Vk"

// TestTokenEndpointIsAnsweredHere: CR-10. A program in the sandbox that asks the
// token endpoint gets the placeholder; true tokens stay outside, and nothing that
// the program sends goes there.
func TestTokenEndpointIsAnsweredHere(t *testing.T) {
	const refreshToken, accessToken = "true-refresh-token-0123456789", "true-access-token-0123456789"
	var asked atomic.Int64
	issuer := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		if r.ParseForm() != nil || r.PostForm.Get("grant_type") != "refresh_token" || r.PostForm.Get("refresh_token") != refreshToken {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":"invalid_grant"}`)
			return
		}
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":3600}`, accessToken)
	}))
	defer issuer.Close()
	way := issuer.Client().Transport.(*http.Transport).Clone()
	way.TLSClientConfig.ServerName = "example.com" // httptest's certificate
	way.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, issuer.Listener.Addr().String())
	}
	k := newKit(t)
	k.stop()
	writeSecret(t, k.secret("key"), refreshToken)
	k.creds[1].Scheme = policyfile.Scheme{Type: policyfile.OAuth2Refresh, OAuth2: policyfile.OAuth2{TokenURL: "https://key.test/token", ClientID: "cli"}}
	k.tweak = func(c *broker.Config) { c.Transport = way }
	k.start()
	ph := k.grant("cell1", "run1", "key").Grants[0].Placeholder

	ask := func(form url.Values) (*http.Response, error) {
		r := request("POST", "https://key.test/token", "Content-Type", "application/x-www-form-urlencoded")
		r.Body = io.NopCloser(strings.NewReader(form.Encode()))
		p, err := admit(t, "cell1", "run1", r, k.client.Find("cell1", r))
		if err != nil {
			return nil, err
		}
		if err := k.client.Inject(t.Context(), p, r); err != nil {
			return nil, err
		}
		return k.client.Answer(t.Context(), p, r)
	}
	for _, form := range []url.Values{
		{"grant_type": {"refresh_token"}, "refresh_token": {"ATTACKER"}, "client_id": {"cli"}},
		{"grant_type": {"urn:ietf:params:oauth:grant-type:device_code"}, "device_code": {"somebody's"}, "client_id": {"cli"}},
		// JW-02: two faults at once, an end in the past and a signature that is nobody's. That
		// one of them is known hides the other from no one.
		{"grant_type": {"urn:ietf:params:oauth:grant-type:jwt-bearer"}, "assertion": {expiredAndForged}},
		{"grant_type": {"refresh_token"}, "refresh_token": {expiredAndForged}, "client_id": {"cli"}},
		{},
	} {
		_, err := ask(form)
		wantDenied(t, err, rules.ForeignCredential)
	}
	if asked.Load() != 0 {
		t.Errorf("the endpoint was asked %d times for a stranger", asked.Load())
	}
	for range 2 { // as a program that asks again
		resp, err := ask(url.Values{"grant_type": {"refresh_token"}, "refresh_token": {ph}, "client_id": {"cli"}})
		if err != nil || resp == nil {
			t.Fatalf("twin: %v, %v", resp, err)
		}
		b, err := io.ReadAll(resp.Body)
		var ans struct {
			AccessToken string `json:"access_token"`
			TokenType   string `json:"token_type"`
		}
		if err != nil || json.Unmarshal(b, &ans) != nil || ans.AccessToken != ph || ans.TokenType != "Bearer" || strings.Contains(string(b), "true-") {
			t.Errorf("the sandbox is told %s, %v", b, err)
		}
	}
	if asked.Load() != 1 {
		t.Errorf("the endpoint was asked %d times, want once, by the broker", asked.Load())
	}
	// What the program then puts into a request becomes the true token.
	r := request("GET", "https://key.test/orders", "Authorization", "Bearer "+ph)
	if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil || r.Header.Get("Authorization") != "Bearer "+accessToken {
		t.Errorf("%q, %v", r.Header.Get("Authorization"), err)
	}
	// Nothing that was minted outlives a rotation (CR-25).
	if err := k.op("/v1/credentials/refresh", broker.Named{Credential: "key"}, nil); err != nil {
		t.Fatal(err)
	}
	if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil || asked.Load() != 2 {
		t.Errorf("after a rotation: %v, the endpoint was asked %d times", err, asked.Load())
	}
	// A credential that is dead is heard of where the program expects it.
	writeSecret(t, k.secret("key"), "another-refresh-token")
	if _, err := ask(url.Values{"grant_type": {"refresh_token"}, "refresh_token": {ph}}); err == nil {
		t.Error("a dead credential was answered")
	} else {
		wantDenied(t, err, rules.CredentialUnavail)
	}
}
