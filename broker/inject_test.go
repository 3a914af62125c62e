package broker_test

import (
	"encoding/base64"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/gate"
)

var sandboxAddr = netip.MustParseAddr("10.213.0.2")

func TestInjectRefuses(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "api", "key")
	k.grant("cell2", "run2", "key")
	tests := []struct {
		name, cell, run, method, url string
		want                         rules.Reason // "" is allowed
	}{
		{"CR-24 another method than the endpoint's", "cell1", "run1", "DELETE", "https://api.test/v1/x", rules.CredentialMismatch},
		{"CR-24 another path", "cell1", "run1", "GET", "https://api.test/v2/x", rules.CredentialMismatch},
		{"CR-24 a path with two readings", "cell1", "run1", "GET", "https://api.test/v1/../v2/x", ""},
		{"another port", "cell1", "run1", "GET", "https://api.test:8443/v1/x", rules.CredentialMismatch},
		{"CR-05 another host, whatever the policy grants there", "cell1", "run1", "GET", "https://evil.test/v1/x", rules.CredentialMismatch},
		{"not granted to this run", "cell2", "run2", "GET", "https://api.test/v1/x", rules.CredentialMismatch},
		{"CR-18 another run of the cell", "cell1", "run9", "GET", "https://api.test/v1/x", rules.CredentialRevoked},
		{"JW-07 a cell that is not attached", "cell9", "run1", "GET", "https://api.test/v1/x", rules.CredentialRevoked},
		{"twin", "cell1", "run1", "GET", "https://api.test/v1/x", "ok"},
		{"twin, another method and path", "cell1", "run1", "POST", "https://api.test/v1/y/z?q=1", "ok"},
		{"twin, another cell", "cell2", "run2", "PUT", "https://key.test:8443/", "ok"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := request(tt.method, tt.url)
			p, err := admit(t, tt.cell, tt.run, r, nil)
			if tt.want == "" { // refused before the broker is asked, or by it
				if err == nil {
					err = k.client.Inject(t.Context(), p, r)
				}
				if err == nil {
					t.Error("signed")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			err = k.client.Inject(t.Context(), p, r)
			signed := r.Header.Get("Authorization") + r.Header.Get("X-Api-Key")
			if tt.want != "ok" {
				wantDenied(t, err, tt.want)
				if signed != "" {
					t.Errorf("the refused request holds %q", signed)
				}
				return
			}
			if err != nil || signed == "" {
				t.Errorf("Inject = %v, signed %q, want signed", err, signed)
			}
		})
	}
}

// TestServerRefusesWhateverTheClientAsks speaks to the broker as a gateway would
// that has been taken over.
func TestServerRefusesWhateverTheClientAsks(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "api")
	good := map[string]any{
		"cell": "cell1", "run": "run1", "rule": "r", "credential": "api", "secure": true,
		"method": "GET", "host": "api.test", "port": 443, "path": "/v1/x", "query": "",
	}
	tests := []struct {
		name, field string
		value       any
	}{
		{"CR-03 plain HTTP", "secure", false},
		{"no such credential", "credential", "root"},
		{"credential of somebody else", "credential", "key"},
		{"no run", "run", ""},
		{"no cell", "cell", ""},
		{"CR-01 host with a trailing part", "host", "api.test.evil.test"},
		{"host that does not parse", "host", "api.test\x00.evil.test"},
		{"host with a port", "host", "api.test:443"},
		{"address", "host", "127.0.0.1"},
		{"port 0", "port", 0},
		{"port 80", "port", 80},
		{"method in lower case", "method", "get"},
		{"no method", "method", ""},
		{"method with a line break", "method", "GET\r\nX: y"},
		{"path outside", "path", "/v2"},
		{"path that climbs", "path", "/v1/../v2"},
		{"path that climbs, encoded", "path", "/v1/%2e%2e/v2"},
		{"no path", "path", ""},
		{"path with a query", "path", "/v1/x?y"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := maps.Clone(good)
			in[tt.field] = tt.value
			var out map[string]any
			err := k.admin.Call(t.Context(), "/v1/inject", in, &out)
			refusal, ok := errors.AsType[*control.Error](err)
			if !ok || refusal.Reason != string(rules.CredentialMismatch) || out != nil {
				t.Errorf("inject = %v, %v, want credential_mismatch", out, err)
			}
		})
	}
	var out struct{ Set map[string][]string }
	if err := k.admin.Call(t.Context(), "/v1/inject", good, &out); err != nil || out.Set["Authorization"][0] != "Bearer "+realToken {
		t.Errorf("twin: inject = %v, %v", out, err)
	}
}

func TestInjectWithoutPassRefuses(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "api")
	r := request("GET", "https://api.test/v1/x")
	wantDenied(t, k.client.Inject(t.Context(), gate.Pass{}, r), rules.CredentialMismatch)
	p := pass(t, "cell1", "run1", r)
	if err := p.Done(t.Context(), gate.Outcome{}); err != nil {
		t.Fatal(err)
	}
	wantDenied(t, k.client.Inject(t.Context(), p, r), rules.CredentialMismatch)
}

// TestInjectSignsOnlyWhatWasAdmitted: CR-01.
func TestInjectSignsOnlyWhatWasAdmitted(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "api")
	tests := []struct {
		name   string
		change func(*http.Request)
		ok     bool
	}{
		{"another Host", func(r *http.Request) { r.Host = "evil.test" }, false},
		{"another URL host", func(r *http.Request) { r.URL.Host = "evil.test" }, false},
		{"another port", func(r *http.Request) { r.URL.Host = "api.test:8443" }, false},
		{"another method", func(r *http.Request) { r.Method = "POST" }, false},
		{"another path", func(r *http.Request) { r.URL.Path = "/v1/y" }, false},
		{"another path, opaque", func(r *http.Request) { r.URL.Opaque = "/v1/y" }, false},
		{"another place, opaque", func(r *http.Request) { r.URL.Opaque = "//evil.test/v1/x" }, false},
		{"twin, opaque", func(r *http.Request) { r.URL.Path, r.URL.Opaque = "", "/v1/x" }, true},
		{"unparsable Host", func(r *http.Request) { r.Host = "api.test@evil.test" }, false},
		{"twin", func(r *http.Request) { r.Host = "API.test:443" }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := request("GET", "https://api.test/v1/x")
			p := pass(t, "cell1", "run1", r)
			tt.change(r)
			err := k.client.Inject(t.Context(), p, r)
			if tt.ok {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantDenied(t, err, rules.CredentialMismatch)
			if len(r.Header["Authorization"]) > 0 {
				t.Error("signed")
			}
		})
	}
}

// TestInjectReplacesEverySpelling: CR-14 and HT-09.
func TestInjectReplacesEverySpelling(t *testing.T) {
	k := newKit(t)
	f := k.grant("cell1", "run1", "key")
	r := request("POST", "https://key.test/a?b=1",
		"X-Api-Key", "ATTACKER", "X-Api-Key", "ATTACKER2", "x-api-key", "ATTACKER3", "X_Api_Key", "ATTACKER4", "X-API-KEY", "ATTACKER5",
		"Connection", "keep-alive, x-api-key", "Connection", "X_API_KEY", "Accept-Encoding", "gzip", "X-Other", "stays")
	r.Body = http.NoBody
	r.Trailer = http.Header{"X-Api-Key": {"ATTACKER6"}, "X_api-Key": nil, "X-Sum": nil}
	p := pass(t, "cell1", "run1", r)
	if err := k.client.Inject(t.Context(), p, r); err != nil {
		t.Fatal(err)
	}
	want := http.Header{"X-Api-Key": {otherKey}, "Connection": {"keep-alive"}, "Accept-Encoding": {"identity"}, "X-Other": {"stays"}}
	if d := cmp.Diff(want, r.Header); d != "" {
		t.Errorf("header (-want +got):\n%s", d)
	}
	if d := cmp.Diff(http.Header{"X-Sum": nil}, r.Trailer); d != "" {
		t.Errorf("trailer (-want +got):\n%s", d)
	}
	if strings.Contains(f.Grants[0].Placeholder, otherKey) {
		t.Error("the placeholder is the secret")
	}
}

func TestInjectUnannouncedTrailer(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "key")
	r := request("POST", "https://key.test/")
	body := &lateTrailer{r: r}
	r.Body = body
	if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if _, err := r.Body.Read(buf); err == nil {
		t.Fatal("the body goes on")
	}
	if d := cmp.Diff(http.Header{"X-Sum": {"1"}}, r.Trailer); d != "" {
		t.Errorf("trailer (-want +got):\n%s", d)
	}
}

// lateTrailer is a body whose trailers come at its end, as net/http has it.
type lateTrailer struct{ r *http.Request }

func (b *lateTrailer) Read([]byte) (int, error) {
	b.r.Trailer = http.Header{"X-Api-Key": {"ATTACKER"}, "X-Sum": {"1"}}
	return 0, os.ErrClosed
}

func (b *lateTrailer) Close() error { return nil }

func TestInjectSchemes(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "api", "key", "git", "maps")
	tests := []struct{ url, header, want, query string }{
		{"https://api.test/v1/x", "Authorization", "Bearer " + realToken, ""},
		{"https://key.test/", "X-Api-Key", otherKey, ""},
		{
			"https://git.test/r.git/info/refs?service=git-upload-pack", "Authorization",
			"Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:ghp_16C7e42F292c6912E7710c838347Ae178B4a")), "service=git-upload-pack",
		},
		{"https://maps.test/geo?q=a%20b&key=PH&%6Bey=2&KEY=3&r=%2f", "", "", "q=a%20b&r=%2f&key=AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY"},
	}
	for _, tt := range tests {
		r := request("GET", tt.url)
		if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil {
			t.Fatal(err)
		}
		if tt.header != "" && r.Header.Get(tt.header) != tt.want {
			t.Errorf("%s: %s = %q, want %q", tt.url, tt.header, r.Header.Get(tt.header), tt.want)
		}
		if r.URL.RawQuery != tt.query {
			t.Errorf("%s: query %q, want %q", tt.url, r.URL.RawQuery, tt.query)
		}
	}
}

func TestInjectWithoutCredentialChangesNothing(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "api")
	r := request("GET", "https://ok.test/v1/x", "Authorization", "Bearer mine", "Accept-Encoding", "gzip")
	want := r.Header.Clone()
	if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, r.Header); d != "" {
		t.Errorf("header (-want +got):\n%s", d)
	}
}

// TestSourceFailureRefuses: CR-11, and CR-25 for the rotated secret.
func TestSourceFailureRefuses(t *testing.T) {
	k := newKit(t)
	k.restart(holdNothing)
	k.grant("cell1", "run1", "api")
	inject := func() (string, error) {
		r := request("GET", "https://api.test/v1/x", "Authorization", "Bearer ATTACKER")
		err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r)
		return r.Header.Get("Authorization"), err
	}
	if got, err := inject(); err != nil || got != "Bearer "+realToken {
		t.Fatalf("twin: %q, %v", got, err)
	}
	writeSecret(t, k.secret("api"), "sk_test_rotated_rotated_rotated")
	if got, err := inject(); err != nil || got != "Bearer sk_test_rotated_rotated_rotated" {
		t.Errorf("after a rotation: %q, %v", got, err)
	}
	breaks := []struct {
		name string
		do   func() error
	}{
		{"mode", func() error { return os.Chmod(k.secret("api"), 0o640) }},
		{"owner", func() error { return os.Chown(k.secret("api"), 65534, -1) }},
		{"empty", func() error { return os.Truncate(k.secret("api"), 0) }},
		{"gone", func() error { return os.Remove(k.secret("api")) }},
	}
	for _, b := range breaks {
		writeSecret(t, k.secret("api"), realToken)
		if err := b.do(); err != nil {
			t.Fatal(err)
		}
		_, err := inject()
		wantDenied(t, err, rules.CredentialUnavail)
		if err != nil && strings.Contains(err.Error(), realToken[:8]) {
			t.Errorf("%s: the error shows the secret: %v", b.name, err)
		}
	}
	writeSecret(t, k.secret("api"), realToken)
	if _, err := inject(); err != nil {
		t.Errorf("twin, mended: %v", err)
	}
}

func TestBrokerGoneRefusesAndComesBack(t *testing.T) {
	k := newKit(t)
	f := k.grant("cell1", "run1", "api")
	if err := f.Write(k.cells, 0); err != nil {
		t.Fatal(err)
	}
	client := k.client
	inject := func() error {
		r := request("GET", "https://api.test/v1/x")
		return client.Inject(t.Context(), pass(t, "cell1", "run1", r), r)
	}
	if err := inject(); err != nil {
		t.Fatal(err)
	}
	k.stop()
	wantDenied(t, inject(), rules.BrokerUnavailable)
	k.start() // reads the cell file
	if err := inject(); err != nil {
		t.Errorf("twin, after the restart: %v", err)
	}
	client.Close()
}

// TestRevocationActsAtOnce: CR-25.
func TestRevocationActsAtOnce(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "api")
	k.grant("cell2", "run2", "api")
	r1, r2 := request("GET", "https://api.test/v1/x"), request("GET", "https://api.test/v1/x")
	p1, p2 := pass(t, "cell1", "run1", r1), pass(t, "cell2", "run2", r2)
	k.revoke("cell1")
	wantDenied(t, k.client.Inject(t.Context(), p1, r1), rules.CredentialRevoked)
	if err := k.client.Inject(t.Context(), p2, r2); err != nil {
		t.Errorf("twin: %v", err)
	}
	k.revoke("cell1") // twice is no error
	k.client.Detach("cell2")
	wantDenied(t, k.client.Inject(t.Context(), p2, r2), rules.CredentialRevoked)
}
