package broker_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"sallyport/broker"
	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/policyfile"
)

// newCloudKit grants cell1 a credential of any type on api.test.
func newCloudKit(t *testing.T, scheme policyfile.Scheme, secret string) (*kit, control.Grant) {
	t.Helper()
	k := newKit(t)
	k.stop()
	writeSecret(t, k.secret("api"), secret)
	k.creds[0].Scheme, k.creds[0].SecretEnv = scheme, ""
	k.start()
	return k, k.grant("cell1", "run1", "api").Grants[0]
}

var clouds = []struct {
	scheme       policyfile.Scheme
	secret       string
	auth, header string // what a program in the sandbox writes: %s is the id
}{
	{
		policyfile.Scheme{Type: policyfile.TencentTC3, Cloud: policyfile.Cloud{Services: []string{"cvm"}}},
		`{"SecretId":"AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE","SecretKey":"Gu5t9xGARNpq86cd98joQYCN3EXAMPLE"}`,
		"TC3-HMAC-SHA256 Credential=%s/2026-09-01/cvm/tc3_request, SignedHeaders=content-type;host, Signature=00", "X-Tc-Timestamp",
	},
	{
		policyfile.Scheme{Type: policyfile.AlibabaACS3},
		`{"AccessKeyId":"LTAIEXAMPLEEXAMPLE0000","AccessKeySecret":"YourAccessKeySecretEXAMPLE0000"}`,
		"ACS3-HMAC-SHA256 Credential=%s,SignedHeaders=host,Signature=00", "X-Acs-Date",
	},
	{
		policyfile.Scheme{Type: policyfile.VolcengineV4, Cloud: policyfile.Cloud{Regions: []string{"cn-north-1"}, Services: []string{"iam"}}},
		`{"AccessKeyId":"AKLTEXAMPLEEXAMPLE0000","SecretAccessKey":"VolcSecretEXAMPLE0000=="}`,
		"HMAC-SHA256 Credential=%s/20260901/cn-north-1/iam/request, SignedHeaders=host, Signature=00", "X-Date",
	},
}

// TestVendorSignatures: SG-07 for those who took after AWS: the placeholder's own
// signature is replaced, anybody else's is refused, and either placeholder
// anywhere else is a leak.
func TestVendorSignatures(t *testing.T) {
	for _, c := range clouds {
		t.Run(string(c.scheme.Type), func(t *testing.T) {
			k, g := newCloudKit(t, c.scheme, c.secret)
			states := func(header ...string) (out []rules.CarryState) {
				for _, c := range k.client.Find("cell1", request("POST", "https://api.test/v1/x", header...)) {
					out = append(out, c.State)
				}
				return out
			}
			own := fmt.Sprintf(c.auth, g.Placeholder)
			for name, tt := range map[string]struct {
				header []string
				want   rules.CarryState
			}{
				"SG-07 another's": {[]string{"Authorization", fmt.Sprintf(c.auth, "AKIDATTACKER00000000")}, rules.Foreign},
				"two in one":      {[]string{"Authorization", own + ", Credential=AKIDATTACKER00000000/x"}, rules.Foreign},
				"bearer":          {[]string{"Authorization", "Bearer " + g.Placeholder}, rules.Foreign},
				"longer id":       {[]string{"Authorization", fmt.Sprintf(c.auth, g.Placeholder+"x")}, rules.Foreign},
				"the key":         {[]string{"X-Other", g.More[0].Placeholder}, rules.Leaked},
				"the id":          {[]string{"X-Other", g.Placeholder}, rules.Leaked},
			} {
				if got := states(tt.header...); !slices.Contains(got, tt.want) {
					t.Errorf("%s: %v, want %v", name, got, tt.want)
				}
			}
			if got := states("Authorization", own); !slices.Equal(got, []rules.CarryState{rules.Bound}) {
				t.Errorf("twin: %v", got)
			}
			r := request("POST", "https://api.test/v1/x", "Authorization", own, "Content-Type", "application/json")
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("{}")), 2
			if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil {
				t.Fatal(err)
			}
			if auth := r.Header.Get("Authorization"); strings.Contains(auth, g.Placeholder) || !strings.Contains(auth, "EXAMPLE") || r.Header.Get(c.header) == "" {
				t.Errorf("sent %v", r.Header)
			}
			if b, err := io.ReadAll(r.Body); err != nil || string(b) != "{}" {
				t.Errorf("the body is %q, %v", b, err)
			}
		})
	}
}

// TestDrySignatures: a test of a credential that lists several services signs for
// the first.
func TestDrySignatures(t *testing.T) {
	for _, c := range clouds {
		if len(c.scheme.Cloud.Services) > 0 {
			c.scheme.Cloud.Services = append(c.scheme.Cloud.Services, "another")
		}
		k, _ := newCloudKit(t, c.scheme, c.secret)
		var out broker.Tested
		if err := k.admin.Call(t.Context(), "/v1/credentials/test", broker.Named{Credential: "api"}, &out); err != nil || !slices.Contains(out.Headers, "Authorization") {
			t.Errorf("%s: %+v, %v", c.scheme.Type, out, err)
		}
	}
}

// TestAzureSharedKey: the SDK's signature for the account is replaced, that for
// another is refused.
func TestAzureSharedKey(t *testing.T) {
	const key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
	k, g := newCloudKit(t, policyfile.Scheme{Type: policyfile.AzureStorage, Azure: policyfile.Azure{Account: "acme"}}, "AccountName=acme;AccountKey="+key)
	sig := base64.StdEncoding.EncodeToString(make([]byte, 32))
	for auth, want := range map[string]rules.CarryState{
		"SharedKey evil:" + sig: rules.Foreign, "SharedKey acme:" + sig + "AA": rules.Foreign, "SharedKeyLite acme:" + sig: rules.Foreign,
		"Bearer " + sig: rules.Foreign, "SharedKey acme:" + sig: rules.Bound,
	} {
		got := k.client.Find("cell1", request("GET", "https://api.test/v1/x", "Authorization", auth))
		if len(got) != 1 || got[0].State != want {
			t.Errorf("%s: %v, want %v", auth, got, want)
		}
	}
	if g.Env != "" || len(g.More) != 1 || g.More[0].Placeholder != "AccountName=acme;AccountKey="+g.Placeholder {
		t.Errorf("the sandbox gets %+v", g)
	}
	if got := k.client.Find("cell1", request("GET", "https://api.test/v1/x?k="+url.QueryEscape(g.Placeholder))); len(got) != 1 || got[0].State != rules.Leaked {
		t.Errorf("the key in the query: %v", got)
	}
	r := request("POST", "https://api.test/v1/x", "Authorization", "SharedKey acme:"+sig, "Date", "yesterday", "Range", "bytes=0-1")
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader("text")), 4
	if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil {
		t.Fatal(err)
	}
	auth := r.Header.Get("Authorization")
	if auth == "SharedKey acme:"+sig || !strings.HasPrefix(auth, "SharedKey acme:") || r.Header.Get("Date") != "" || r.Header.Get("X-Ms-Date") == "" || r.Header.Get("Range") == "" {
		t.Errorf("SG-09 sent %v", r.Header)
	}
}

// TestAzureSAS: the parameters of the credential take the place of the sandbox's.
func TestAzureSAS(t *testing.T) {
	k, g := newCloudKit(t, policyfile.Scheme{Type: policyfile.AzureSAS}, "?sv=2022-11-02&sr=c&sp=rl&sig=dGhlIHRydWUgc2lnbmF0dXJlIG9mIDMyIG9jdGV0cw%3D%3D")
	sas := g.More[0].Placeholder
	r := request("GET", "https://api.test/v1/x?restype=container&comp=list&"+sas)
	if got := k.client.Find("cell1", r); len(got) != 1 || got[0].State != rules.Bound {
		t.Fatalf("Find = %v", got)
	}
	p := pass(t, "cell1", "run1", r)
	if err := k.client.Inject(t.Context(), p, r); err != nil {
		t.Fatal(err)
	}
	q := r.URL.Query()
	if q.Get("sig") != "dGhlIHRydWUgc2lnbmF0dXJlIG9mIDMyIG9jdGV0cw==" || q.Get("sp") != "rl" || q.Get("comp") != "list" || len(q["sv"]) != 1 {
		t.Errorf("sent %v", q)
	}
	if params := k.client.Params(p); !slices.Contains(params, "sig") || slices.Contains(params, "comp") {
		t.Errorf("Params = %q", params)
	}
	if got := k.client.Find("cell1", request("GET", "https://api.test/v1/x?sv=1&sig=b3RoZXI%3D")); len(got) != 1 || got[0].State != rules.Foreign {
		t.Errorf("SG-07 another's signature: %v", got)
	}
	if got := k.client.Find("cell1", request("GET", "https://other.test/?x="+g.Placeholder)); len(got) != 1 || got[0].State != rules.Leaked {
		t.Errorf("the signature elsewhere: %v", got)
	}
}

// TestHMACBodies: what is signed is what is sent, and no more than can be seen.
func TestHMACBodies(t *testing.T) {
	tpl, err := policyfile.ParseTemplate("{body}", []string{"body"})
	if err != nil {
		t.Fatal(err)
	}
	k, _ := newCloudKit(t, policyfile.Scheme{Type: policyfile.HMACSigned, HMAC: policyfile.HMAC{
		Algorithm: "sha256", Encoding: "hex", Header: "X-Sig", Template: tpl, Value: policyfile.Template{{Name: "signature"}},
	}}, "It's a Secret to Everybody")
	send := func(body io.Reader) (*http.Request, error) {
		r := request("POST", "https://api.test/v1/x", "X-Sig", "of the sandbox", "X_sig", "another")
		r.Body = io.NopCloser(body)
		return r, k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r)
	}
	r, err := send(strings.NewReader("Hello, World!"))
	if err != nil || r.Header.Get("X-Sig") != "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17" || r.Header["X_sig"] != nil {
		t.Errorf("sent %v, %v", r.Header, err)
	}
	if b, err := io.ReadAll(r.Body); err != nil || string(b) != "Hello, World!" {
		t.Errorf("the body is %q, %v", b, err)
	}
	_, err = send(strings.NewReader(strings.Repeat("x", 1<<20+1)))
	wantDenied(t, err, rules.CredentialUnavail)
	if _, err := send(strings.NewReader(strings.Repeat("x", 1<<20))); err != nil {
		t.Errorf("twin: %v", err)
	}
}

// TestHandshakesAreJudged: the broker signs handshakes for requests that both locks
// let through, with certificates alone.
func TestHandshakesAreJudged(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "api")
	r := request("GET", "https://api.test/v1/x")
	p := pass(t, "cell1", "run1", r)
	if k.client.Certified(p) {
		t.Error("a bearer token is taken for a certificate")
	}
	_, err := k.client.Certificate(t.Context(), p)
	wantDenied(t, err, rules.CredentialMismatch)
	for _, op := range []string{"/v1/certificate", "/v1/handshake"} {
		for name, in := range map[string]map[string]any{
			"unknown":  {"cell": "cell1", "run": "run1", "credential": "none", "secure": true},
			"no grant": {"cell": "cell2", "run": "run1", "credential": "api", "secure": true},
		} {
			var out any
			if err := k.admin.Call(t.Context(), op, in, &out); err == nil {
				t.Errorf("%s %s: %v", op, name, out)
			}
		}
	}
}
