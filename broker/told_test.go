package broker_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"sallyport/broker"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
)

// tokens answers a token endpoint's part.
type tokens struct{ asked int }

func (k *tokens) RoundTrip(r *http.Request) (*http.Response, error) {
	k.asked++
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(strings.NewReader(`{"access_token":"minted-token-1","token_type":"Bearer","expires_in":3600}`)),
	}, nil
}

// TestUseAndMintAreTold: before a credential goes out it is recorded, a token
// that was made for it once, and what cannot be recorded is not sent.
func TestUseAndMintAreTold(t *testing.T) {
	k := newKit(t)
	k.stop()
	endpoint := &tokens{}
	writeSecret(t, k.secret("idp"), "a-secret-of-the-client")
	k.creds = append(k.creds, policyfile.Credential{
		Name: "idp", Scheme: policyfile.Scheme{Type: "oauth2-client", OAuth2: policyfile.OAuth2{TokenURL: "https://id.test/token", ClientID: "bot"}},
		Env: "IDP_KEY", Source: policyfile.Source{File: k.secret("idp")},
		Endpoints: []policyfile.Endpoint{{Host: host("idp.test"), Ports: []uint16{443}}},
	})
	k.tweak = func(c *broker.Config) { c.Transport = endpoint }
	k.start()
	k.grant("cell1", "run1", "idp")
	var told []string
	var fail error
	note := func(what string) func(context.Context, gate.Pass) error {
		return func(_ context.Context, p gate.Pass) error {
			if fail != nil {
				return fail
			}
			told = append(told, what+" "+p.Decision().Credential)
			return nil
		}
	}
	k.client.Used, k.client.Minted = note("use"), note("mint")
	send := func() (*http.Request, error) {
		r := request("GET", "https://idp.test/v1/x")
		return r, k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r)
	}
	for range 2 {
		r, err := send()
		if err != nil || r.Header.Get("Authorization") != "Bearer minted-token-1" {
			t.Fatalf("Inject = %v, with %v", err, r.Header)
		}
	}
	if got := strings.Join(told, ", "); got != "mint idp, use idp, use idp" || endpoint.asked != 1 {
		t.Errorf("told %q, minted %d times", got, endpoint.asked)
	}
	fail = &gate.DeniedError{Reason: rules.AuditUnavailable, Err: errors.New("no space")}
	r, err := send()
	wantDenied(t, err, rules.AuditUnavailable)
	if r.Header.Get("Authorization") != "" {
		t.Error("the token is in a request whose use could not be recorded")
	}
}
