package main

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/proxy/dial"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// tokenEndpoint is a fixture that gives a token for one secret; paths other than
// /token lead on, as a thief would have it.
func tokenEndpoint(t *testing.T) (srv *httptest.Server, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	srv = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, pw, _ := r.BasicAuth()
		switch {
		case r.URL.Path == "/away":
			http.Redirect(w, r, "/token", http.StatusTemporaryRedirect)
		case pw != "a-secret-of-the-client":
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"invalid_client"}`)
		default:
			fmt.Fprint(w, `{"access_token":"minted-token-1","token_type":"Bearer","expires_in":3600}`)
		}
	}))
	t.Cleanup(srv.Close)
	return srv, asked
}

func oauth2Credential(tokenURL string) policyfile.Credential {
	return policyfile.Credential{Name: "api", Where: "api.yaml:3", Scheme: policyfile.Scheme{
		Type: policyfile.OAuth2Client, OAuth2: policyfile.OAuth2{TokenURL: tokenURL, ClientID: "bot"},
	}}
}

// TestMintingGoesThroughTheDoor: the same vetting as for a sandbox's requests.
func TestMintingGoesThroughTheDoor(t *testing.T) {
	srv, asked := tokenEndpoint(t)
	port := netip.MustParseAddrPort(strings.TrimPrefix(srv.URL, "https://")).Port()
	name, err := target.ParseName("example.com")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	tests := []struct {
		name, allowed, url string
		roots              *x509.CertPool
		hosts              map[target.Name][]netip.Addr
		want               string
		asked              int64
	}{
		{"another path than the policy's", srv.URL + "/token", srv.URL + "/other", roots, own(name), "denied", 0},
		{"another port", srv.URL + "/token", "https://127.0.0.1:1/token", roots, own(name), "denied", 0},
		{"IP-01 this machine's own address, unless the operator names it", srv.URL + "/token", srv.URL + "/token", roots, nil, "private_ip", 0},
		{"IP-12 a name with a private address", fmt.Sprintf("https://example.com:%d/token", port), fmt.Sprintf("https://example.com:%d/token", port), roots, own(name), "private_ip", 0},
		{"TL-07 an unknown authority", srv.URL + "/token", srv.URL + "/token", x509.NewCertPool(), own(name), "certificate", 0},
		{"RD-01 a redirect", srv.URL + "/away", srv.URL + "/away", roots, own(name), "it answered 307", 1},
		{"twin", srv.URL + "/token", srv.URL + "/token", roots, own(name), "", 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			asked.Store(0)
			var log bytes.Buffer
			policy, err := doorPolicy([]policyfile.Credential{oauth2Credential(tt.allowed)})
			if err != nil {
				t.Fatal(err)
			}
			d, err := newDoor(policy, dial.Config{Hosts: tt.hosts, Roots: tt.roots, Now: time.Now}, slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			defer d.dialer.Close()
			c := oauth2Credential(tt.url)
			s, err := sign.New(c.Scheme, sign.Config{Transport: d, Now: time.Now})
			if err != nil {
				t.Fatal(err)
			}
			ch, err := s.Sign(t.Context(), secret.New([]byte("a-secret-of-the-client")), sign.Request{})
			if tt.want == "" && (err != nil || !slices.Equal(ch.Set["Authorization"], []string{"Bearer minted-token-1"})) {
				t.Errorf("Sign = %v, %v", ch, err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Sign = %v, want an error with %q", err, tt.want)
			}
			if asked.Load() != tt.asked {
				t.Errorf("the endpoint was asked %d times, want %d", asked.Load(), tt.asked)
			}
			if !strings.Contains(log.String(), "asked for a credential") || strings.Contains(log.String(), "a-secret") || strings.Contains(log.String(), "minted-token") {
				t.Errorf("log: %s", &log)
			}
		})
	}
}

func own(n target.Name) map[target.Name][]netip.Addr {
	return map[target.Name][]netip.Addr{n: {netip.MustParseAddr("127.0.0.1")}}
}

// TestTheDoorIsForHTTPSAlone: CR-03.
func TestTheDoorIsForHTTPSAlone(t *testing.T) {
	srv, _ := tokenEndpoint(t)
	policy, err := doorPolicy([]policyfile.Credential{oauth2Credential(srv.URL + "/token")})
	if err != nil {
		t.Fatal(err)
	}
	d, err := newDoor(policy, dial.Config{Now: time.Now}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer d.dialer.Close()
	u := &url.URL{Scheme: "http", Host: strings.TrimPrefix(srv.URL, "https://"), Path: "/token"}
	resp, err := d.RoundTrip((&http.Request{Method: http.MethodPost, URL: u, Body: io.NopCloser(strings.NewReader("x"))}).WithContext(t.Context()))
	if err == nil {
		resp.Body.Close()
		t.Error("plain HTTP went out")
	}
	if p, err := doorPolicy([]policyfile.Credential{{Scheme: policyfile.Scheme{Type: policyfile.Bearer}}}); p != nil || err != nil {
		t.Errorf("a door for nothing: %v, %v", p, err)
	}
}

func TestBrokerEnvironmentHoldsOnlyWhatSourcesName(t *testing.T) {
	env := map[string]string{"API": "1", "OTHER": "2", "CREDENTIALS_DIRECTORY": "/run/x"}
	lookup := func(n string) (string, bool) { v, ok := env[n]; return v, ok }
	creds := []policyfile.Credential{
		{Source: policyfile.Source{Env: "API"}},
		{Source: policyfile.Source{Env: "API"}},
		{Source: policyfile.Source{Env: "UNSET"}},
		{Source: policyfile.Source{File: "/s"}},
	}
	if got := brokerEnv(creds, lookup); !slices.Equal(got, []string{"API=1"}) {
		t.Errorf("brokerEnv = %q", got)
	}
	creds = append(creds, policyfile.Credential{Source: policyfile.Source{Systemd: "key"}})
	if got := brokerEnv(creds, lookup); !slices.Equal(got, []string{"API=1", "CREDENTIALS_DIRECTORY=/run/x"}) {
		t.Errorf("brokerEnv = %q", got)
	}
}
