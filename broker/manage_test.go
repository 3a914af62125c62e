package broker_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/broker"
	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/policyfile"
)

// inject signs one request of cell1 for a host.
func (k *kit) inject(url string) (header string, err error) {
	k.t.Helper()
	r := request("GET", url)
	err = k.client.Inject(k.t.Context(), pass(k.t, "cell1", "run1", r), r)
	return r.Header.Get("Authorization") + r.Header.Get("X-Api-Key"), err
}

func (k *kit) op(op string, in, out any) error {
	k.t.Helper()
	return k.admin.Call(k.t.Context(), op, in, out)
}

// TestRevokedCredential: CR-25. It acts on the next request, whatever was held,
// and outlives the broker.
func TestRevokedCredential(t *testing.T) {
	k := newKit(t)
	gone := filepath.Join(k.dir, "revoked-")
	generation := ""
	k.tweak = func(c *broker.Config) {
		c.Revoked = func(name string) bool { _, err := os.Stat(gone + name); return err == nil }
		c.Generation = func(string) string { return generation }
		c.Reread = func() (broker.Config, error) { return broker.Config{Credentials: k.creds}, nil }
	}
	k.stop()
	k.start()
	f := k.grant("cell1", "run1", "api", "key")
	if err := f.Write(k.cells, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := k.inject("https://api.test/v1/x"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(gone+"api", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var out broker.Revoked
	if err := k.op("/v1/credentials/revoke", broker.Named{Credential: "api"}, &out); err != nil || out.Grants != 1 {
		t.Fatalf("%+v, %v", out, err)
	}
	refused := func(when string) {
		t.Helper()
		if header, err := k.inject("https://api.test/v1/x"); header != "" || err == nil {
			t.Errorf("%s: signed %q", when, header)
		} else {
			wantDenied(t, err, rules.CredentialRevoked)
		}
		err := k.op("/v1/grants", broker.GrantRequest{Cell: "other", Run: "r", Credentials: []string{"api"}}, nil)
		if err == nil || !strings.Contains(err.Error(), "sallyport credential rotate api") {
			t.Errorf("%s: granted: %v", when, err)
		}
		if _, err := k.inject("https://key.test/"); err != nil {
			t.Errorf("%s: twin, another credential of the run: %v", when, err)
		}
	}
	refused("at once")
	if err := k.op("/v1/reload", struct{}{}, nil); err != nil {
		t.Fatal(err)
	}
	refused("after a reload")
	k.stop()
	k.start()
	k.client.Attach(f)
	refused("after a restart")
	var list broker.Statuses
	if err := k.op("/v1/credentials", struct{}{}, &list); err != nil || list.Credentials[0].Status != "revoked" {
		t.Errorf("listed as %+v, %v", list.Credentials[0], err)
	}
	if err := k.op("/v1/credentials/test", broker.Named{Credential: "api"}, nil); err == nil {
		t.Error("a revoked credential passes its test")
	}
	// Rotated: it may be granted again, to new runs.
	generation = "2"
	if err := os.Remove(gone + "api"); err != nil {
		t.Fatal(err)
	}
	var st broker.Status
	if err := k.op("/v1/credentials/refresh", broker.Named{Credential: "api"}, &st); err != nil || st.Status != "ok" {
		t.Fatalf("%+v, %v", st, err)
	}
	rotated := func(when string) {
		t.Helper()
		if _, err := k.inject("https://api.test/v1/x"); err == nil {
			t.Errorf("%s: a revoked grant is back", when)
		} else {
			wantDenied(t, err, rules.CredentialRevoked)
		}
	}
	rotated("after a rotation")
	k.stop()
	k.start()
	k.client.Attach(f)
	rotated("after a rotation and a restart")
	k.revoke("cell1")
	k.grant("cell1", "run1", "api")
	if _, err := k.inject("https://api.test/v1/x"); err != nil {
		t.Errorf("twin, after a rotation: %v", err)
	}
}

// TestRefusalsDoNotFloodTheLog: a sandbox that asks for ever writes one line a minute.
func TestRefusalsDoNotFloodTheLog(t *testing.T) {
	k := newKit(t)
	now := epoch
	k.tweak = func(c *broker.Config) { c.Now = func() time.Time { return now } }
	k.stop()
	k.start()
	k.grant("cell1", "run1", "api", "key")
	lines := func() int { return strings.Count(k.log.String(), `"refused to sign"`) }
	for range 50 {
		if _, err := k.inject("https://api.test/v2/x"); err == nil {
			t.Fatal("signed")
		}
	}
	if n := lines(); n != 1 {
		t.Errorf("%d lines of 50 refusals, want 1", n)
	}
	if err := k.op("/v1/credentials/revoke", broker.Named{Credential: "key"}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := k.inject("https://key.test/"); err == nil || lines() != 2 {
		t.Errorf("twin, another credential: %v, %d lines, want 2", err, lines())
	}
	now = now.Add(time.Minute)
	if _, err := k.inject("https://api.test/v2/x"); err == nil || lines() != 3 || !strings.Contains(k.log.String(), `"more":49`) {
		t.Errorf("a minute later: %v, %d lines:\n%s", err, lines(), k.log.String())
	}
	var list broker.Statuses
	if err := k.op("/v1/credentials", struct{}{}, &list); err != nil || list.Credentials[0].Refused != 51 {
		t.Errorf("counted: %+v, %v", list.Credentials, err)
	}
}

func TestDrySignature(t *testing.T) {
	k := newKit(t)
	tests := []struct {
		name            string
		headers, params []string
		path            string
	}{
		{"api", []string{"Authorization"}, nil, "/v1/x"},
		{"key", []string{"X-Api-Key"}, nil, "/"},
		{"git", []string{"Authorization"}, nil, "/"},
		{"maps", nil, []string{"key"}, "/"},
	}
	for _, tt := range tests {
		var raw json.RawMessage
		if err := k.op("/v1/credentials/test", broker.Named{Credential: tt.name}, &raw); err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		var out broker.Tested
		if err := json.Unmarshal(raw, &out); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(out.Headers, tt.headers) || !slices.Equal(out.Params, tt.params) || out.Path != tt.path || out.Method != "GET" {
			t.Errorf("%s: %+v", tt.name, out)
		}
		for _, s := range []string{realToken, otherKey, "16C7e42F", "SyD-9tSrke"} {
			if strings.Contains(string(raw), s) {
				t.Errorf("%s: %s", tt.name, raw)
			}
		}
	}
	if err := os.Chmod(k.secret("api"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := k.op("/v1/credentials/test", broker.Named{Credential: "api"}, nil)
	refusal, ok := errors.AsType[*control.Error](err)
	if !ok || refusal.Reason != string(rules.CredentialUnavail) || !strings.Contains(refusal.Text, "chmod 0400") {
		t.Errorf("a secret that cannot be read: %v", err)
	}
	for _, op := range []string{"test", "refresh", "revoke"} {
		if err := k.op("/v1/credentials/"+op, broker.Named{Credential: "apj"}, nil); err == nil || !strings.Contains(err.Error(), `no credential "apj"`) {
			t.Errorf("%s of nothing: %v", op, err)
		}
	}
}

// TestDrySignatureSaysWhatCannotBeSigned: the secret is in order, the request is none that
// the settings sign; and what a person grants is nothing to try.
func TestDrySignatureSaysWhatCannotBeSigned(t *testing.T) {
	sas := policyfile.Scheme{Type: policyfile.AzureSAS, SAS: policyfile.SAS{Account: "acme", Scope: policyfile.SASBlob, Container: "incoming", Permissions: "r", Life: 300}}
	user := policyfile.Scheme{Type: policyfile.OAuth2User, OAuth2: policyfile.OAuth2{
		TokenURL: "https://idp.test/token", DeviceURL: "https://idp.test/device", ClientID: "x", Auth: policyfile.PublicClient, Scopes: []string{"s"}, Grants: []string{policyfile.DeviceCode},
	}}
	tests := []struct {
		name         string
		scheme       policyfile.Scheme
		path         string
		reason, says string
	}{
		{"another container", sas, "/other/**", "credential_mismatch", `GET https://blobs.test:443/other/x cannot be signed: the request is not for container "incoming"`},
		{"a person's", user, "", "bad_request", "what a person grants inside a run"},
		{"its container", sas, "/incoming/**", "", "/incoming/x"},
		{"any path", sas, "", "", "/incoming/x"},
	}
	for _, tt := range tests {
		k := newKit(t)
		k.stop()
		c := policyfile.Credential{Name: "x", Scheme: tt.scheme, Source: policyfile.Source{File: k.secret("x")}, Endpoints: []policyfile.Endpoint{{Host: host("blobs.test"), Ports: []uint16{443}}}}
		if c.Type == policyfile.OAuth2User {
			c.Source = policyfile.Source{None: true}
		}
		if tt.path != "" {
			c.Endpoints[0].Paths = paths(tt.path)
		}
		writeSecret(t, k.secret("x"), azureKey())
		k.creds, k.tweak = []policyfile.Credential{c}, func(cfg *broker.Config) { cfg.Transport = &identity{} }
		k.start()
		var out broker.Tested
		err := k.op("/v1/credentials/test", broker.Named{Credential: "x"}, &out)
		refusal, refused := errors.AsType[*control.Error](err)
		switch {
		case refused && (refusal.Reason != tt.reason || !strings.Contains(refusal.Text, tt.says)):
			t.Errorf("%s: %s %q, want %s %q", tt.name, refusal.Reason, refusal.Text, tt.reason, tt.says)
		case refused != (tt.reason != "") || !refused && (err != nil || out.Path != tt.says):
			t.Errorf("%s: %+v, %v", tt.name, out, err)
		}
	}
}
