package broker_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"sallyport/broker"
	"sallyport/rules/policyfile"
)

// TestReload is CR-21 over time: the lock that holds is the one on disk, for runs
// that were granted the credential before too.
func TestReload(t *testing.T) {
	k := newKit(t)
	k.stop()
	var next broker.Config
	var fail error
	k.tweak = func(c *broker.Config) { c.Reread = func() (broker.Config, error) { return next, fail } }
	k.start()
	k.grant("cell0001", "run1", "api")
	ask := func(method string) error {
		req, err := http.NewRequestWithContext(t.Context(), method, "https://api.test/v1/x", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		return k.client.Inject(t.Context(), pass(t, "cell0001", "run1", req), req)
	}
	reload := func() error { return k.admin.Call(t.Context(), "/v1/reload", struct{}{}, nil) }
	change := func(f func(*policyfile.Credential)) {
		next.Credentials = append([]policyfile.Credential{}, k.creds...)
		f(&next.Credentials[0])
	}
	for _, tt := range []struct {
		name   string
		change func(*policyfile.Credential)
		fail   error
		refuse string // of the reload
		post   string // why a POST is refused, "" for allowed
	}{
		{"the same", func(*policyfile.Credential) {}, nil, "", ""},
		{"cannot be read", func(c *policyfile.Credential) { c.Endpoints[0].Methods = []string{"GET"} }, errors.New("torn"), "torn", ""},
		{"broken", func(c *policyfile.Credential) { c.Endpoints = nil }, nil, "no endpoints", ""},
		{"narrower", func(c *policyfile.Credential) {
			c.Endpoints = []policyfile.Endpoint{c.Endpoints[0]}
			c.Endpoints[0].Methods = []string{"GET"}
		}, nil, "", "does not go to"},
		{"wide again", func(c *policyfile.Credential) {
			c.Endpoints = []policyfile.Endpoint{{Host: host("api.test"), Ports: []uint16{443}}}
		}, nil, "", ""},
		{"gone", func(c *policyfile.Credential) { c.Name = "other" }, nil, "", "there is no credential"},
	} {
		change(tt.change)
		fail = tt.fail
		err := reload()
		if (err == nil) != (tt.refuse == "") || err != nil && !strings.Contains(err.Error(), tt.refuse) {
			t.Errorf("%s: reload = %v, want %q", tt.name, err, tt.refuse)
		}
		err = ask(http.MethodPost)
		if (err == nil) != (tt.post == "") || err != nil && !strings.Contains(err.Error(), tt.post) {
			t.Errorf("%s: POST = %v, want %q", tt.name, err, tt.post)
		}
		k.creds[0].Endpoints = []policyfile.Endpoint{{Host: host("api.test"), Ports: []uint16{443}, Methods: []string{"GET", "POST"}, Paths: paths("/v1/**")}}
	}
	// One that is back is not granted again by itself.
	next.Credentials = k.creds
	if err := reload(); err != nil {
		t.Fatal(err)
	}
	if err := ask(http.MethodPost); err == nil {
		t.Error("a grant came back with its credential")
	}
	k.revoke("cell0001")
	k.grant("cell0001", "run1", "api")
	if err := ask(http.MethodPost); err != nil {
		t.Errorf("granted again: %v", err)
	}
}
