package broker_test

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/broker"
	"sallyport/rules"
	"sallyport/rules/policyfile"
)

func TestPreview(t *testing.T) {
	docs := []policyfile.Credential{
		{Name: "shop", Scheme: policyfile.Scheme{Type: policyfile.Header, Header: "X-Shop", Prefix: "Token "}, KeysIn: []policyfile.Field{{Kind: "header", Name: "X-Shop-Admin"}}},
		{Name: "cloud", Scheme: policyfile.Scheme{Type: policyfile.AWSSigV4, AWS: policyfile.AWS{
			Regions: []string{"eu-west-1"}, Services: []string{"sts"},
			Role: policyfile.AWSRole{Role: "arn:aws:iam::123456789012:role/agent", Session: "s", Region: "eu-west-1", URL: "https://sts.test/"},
		}}},
	}
	foreign := []rules.Carry{{Credential: "shop", State: rules.Foreign}}
	for _, tt := range []struct {
		name    string
		granted []string
		header  http.Header
		uri     string
		want    []rules.Carry
	}{
		{"its place", []string{"shop"}, http.Header{"X-Shop": {"Token mine"}}, "/", foreign},
		{"a place that its document names", []string{"shop"}, http.Header{"X-Shop-Admin": {"mine"}}, "/", foreign},
		{"a place that any API may have", []string{"shop"}, nil, "/?api_key=mine", foreign},
		{"without a document", []string{"other"}, http.Header{"Authorization": {"Bearer mine"}}, "/", []rules.Carry{{Credential: "other", State: rules.Foreign}}},
		{"of a scheme that makes tokens", []string{"cloud"}, http.Header{"Authorization": {"Bearer mine"}}, "/", []rules.Carry{{Credential: "cloud", State: rules.Foreign}}},
		{"leaked", []string{"shop"}, http.Header{"X-Other": {"placeholder-of-shop"}}, "/", []rules.Carry{{Credential: "shop", State: rules.Leaked}}},
		{"bound", []string{"shop"}, http.Header{"X-Shop": {"Token placeholder-of-shop"}}, "/", []rules.Carry{{Credential: "shop", State: rules.Bound}}},
		{"nothing", []string{"shop", "cloud"}, http.Header{"X-Mode": {"dry"}}, "/?v=1", nil},
		{"not granted", nil, http.Header{"Authorization": {"Bearer mine"}}, "/", nil},
	} {
		r := &http.Request{Method: http.MethodGet, Host: "a.test", RequestURI: tt.uri, Header: tt.header}
		got, err := broker.Preview(tt.granted, docs, r)
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", tt.name, err, diff)
		}
	}
	docs[1].AWS.Regions = nil
	if _, err := broker.Preview([]string{"cloud"}, docs, &http.Request{}); err == nil {
		t.Error("a document that makes no scheme is not told")
	}
}
