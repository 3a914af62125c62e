package policyfile_test

import (
	"os"
	"testing"

	"sallyport/rules/policyfile"
)

func TestSmoke(t *testing.T) {
	b, _ := os.ReadFile("testdata/stripe.yaml")
	c, err := policyfile.ParseCredential("stripe.yaml", b)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", c)
	b, _ = os.ReadFile("testdata/payments.yaml")
	p, err := policyfile.ReadPolicy("payments.yaml", b, []policyfile.Credential{*c})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range p.Tests {
		t.Logf("%+v", r)
	}
	_, err = policyfile.ParsePolicy("bad.yaml", []byte(`apiVersion: sallyport/v1
kind: Policy
metadata: {name: X, ownr: me}
mode: observe
rules:
  - id: a
    allow: {host: *.com, metods: [get]}
`), nil)
	t.Log(err)
	_, err = policyfile.ParsePolicy("bad.yaml", []byte(`apiVersion: sallyport/v1
kind: Policy
metadata: {name: X, ownr: me}
mode: observe
rules:
  - id: a
    allow: {host: "*.com", metods: [get], ports: [0, 443, 443], paths: ["/a/../b", "/é"]}
    credential: strip-test
    limits: {requests: 60/min}
  - id: a
    reason: x
    deny: {host: HTTPS://Foo.example:8443/x, methods: [get]}
  - id: b
    reason: x
    deny: {hosts: [Foo.example., "*.github.io", 127.1, "::FFFF", "bücher.example", "BÜCHER.example", "ok.test evil.test"], methods: [GET]}
`), nil)
	t.Log("\n" + err.Error())
}
