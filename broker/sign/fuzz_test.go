package sign_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go/encoding/httpbinding"
	"golang.org/x/net/http/httpguts"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// FuzzSigV4Canonical: whatever path and query, AWS's own signer has the same
// signature, or one of the two refuses.
func FuzzSigV4Canonical(f *testing.F) {
	for _, s := range [][2]string{
		{"/", ""}, {"/a b/c", "a=b&a=a"}, {"/ü~x", "x=%2F&y=%20+z"}, {"/a//b/../c", "k"}, {"/a+b*'()!", "=&&a=%"}, {"/%2f", "a=1;2"},
	} {
		f.Add(s[0], s[1], "one  two")
	}
	f.Fuzz(func(t *testing.T, key, query, field string) {
		path := httpbinding.EscapePath(key, false) // as AWS's clients write a key
		p, err := target.ParsePath(path)
		u, perr := url.ParseRequestURI("https://b.test" + path + "?" + query)
		_, qerr := url.ParseQuery(query)
		if err != nil || perr != nil || qerr != nil || strings.ContainsAny(query, ";#") || !plain(query) || !plain(field) {
			return
		}
		for _, service := range []string{"s3", "dynamodb"} {
			if service != "s3" && strings.Contains(path, "//") || strings.Contains(path, "/.") {
				continue // AWS's signer leaves cleaning to its caller
			}
			s := awsScheme(t, []string{"eu-west-1"}, []string{service})
			r := sign.Request{Method: "GET", Endpoint: target.Endpoint{Host: host(t, "b.test"), Port: 443}, Path: p, Query: query, Header: http.Header{"X-Amz-Meta-A": {field}}, Payload: emptyHash, Now: noon}
			ch, err := s.Sign(t.Context(), secret.New([]byte(awsExampleLines)), r)
			if err != nil {
				t.Fatal(err)
			}
			again := &http.Request{Method: "GET", Host: "b.test", URL: u, Header: http.Header{"X-Amz-Meta-A": {field}}}
			if service == "s3" {
				again.Header.Set("X-Amz-Content-Sha256", emptyHash)
			}
			err = v4.NewSigner().SignHTTP(t.Context(), aws.Credentials{AccessKeyID: awsExampleID, SecretAccessKey: awsExampleSecret}, again, emptyHash, service, "eu-west-1", noon,
				func(o *v4.SignerOptions) { o.DisableURIPathEscaping = service == "s3" })
			if got, want := ch.Set["Authorization"][0], again.Header.Get("Authorization"); err != nil || got != want {
				t.Errorf("%s %q %q: %v\n got %s\nwant %s", service, path, query, err, got, want)
			}
		}
	})
}

func host(t *testing.T, s string) target.Host {
	t.Helper()
	return must(target.ParseHost(s))
}

// plain reports whether s can stand in a field, a line and a query.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// FuzzSchemes: whatever a request holds, no signer panics, and what it sets can
// stand in a header.
func FuzzSchemes(f *testing.F) {
	f.Add("GET", "/a b", "x=1&y=%zz;", "Authorization", "TC3-HMAC-SHA256 Credential=a/b", "body")
	f.Add("POST", "/", "", "X-Ms-Meta-a_b", "HMAC-SHA256 Credential=/////", "")
	f.Add("PUT", "/%2F//", "=&=&A=1&a=2", "Content-Length", "-1", "\x00\r\n")
	schemes := map[policyfile.CredentialType]string{
		"azure-storage": vendors["azure-storage"].keys, "azure-sas": vendors["azure-storage"].keys, "tencent-tc3": `{"SecretId":"AKIDEXAMPLE0000","SecretKey":"Gu5t9xGARNpq86cd98joQYCN3EXAMPLE"}`,
		"alibaba-acs3":  `{"AccessKeyId":"LTAIEXAMPLE0000","AccessKeySecret":"YourAccessKeySecretEXAMPLE0000"}`,
		"volcengine-v4": `{"AccessKeyId":"AKLTEXAMPLE0000","SecretAccessKey":"VolcSecretEXAMPLE0000=="}`,
		"hmac":          "It's a Secret to Everybody", "aws-sigv4": awsExampleLines,
	}
	f.Fuzz(func(t *testing.T, method, path, query, name, value, body string) {
		p, err := target.ParsePath(path)
		if err != nil || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return // net/http lets none in
		}
		for typ, keys := range schemes {
			spec := vendors[string(typ)].spec
			spec.Type = typ
			spec.AWS = policyfile.AWS{Regions: []string{"a"}, Services: []string{"b"}}
			spec.SAS = policyfile.SAS{Account: "devstoreaccount1", Scope: policyfile.SASBlob, Container: "a", Permissions: "r", Life: 300}
			spec.HMAC = policyfile.HMAC{Algorithm: "sha256", Encoding: "hex", Header: "X-Sig", Template: template(t, "{method}{target}{header:A}{body}"), Value: template(t, "{signature}")}
			s, err := sign.New(spec, sign.Config{})
			if err != nil {
				t.Fatal(err)
			}
			r := sign.Request{Method: method, Endpoint: target.Endpoint{Host: host(t, "b.test"), Port: 443}, Path: p, Query: query, Header: http.Header{name: {value}}, Payload: hashHex([]byte(body)), Body: []byte(body), Now: noon}
			ch, err := s.Sign(t.Context(), secret.New([]byte(keys)), r)
			if err != nil {
				continue
			}
			for n, values := range ch.Set {
				for _, v := range values {
					if strings.ContainsAny(v, "\r\n\x00") || strings.Contains(v, keys) {
						t.Errorf("%s sets %s to %q", typ, n, v)
					}
				}
			}
		}
	})
}

// FuzzTemplate: what parses is written as it was read.
func FuzzTemplate(f *testing.F) {
	names := []string{"method", "header", "body"}
	for _, s := range []string{"{method}\n{header:X-A}", "{{}}", "{", "}", "{header}", "{method:x}", "{{{body}}}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		tpl, err := policyfile.ParseTemplate(s, names)
		if err != nil {
			return
		}
		if got := tpl.String(); got != s {
			t.Errorf("%q is written %q", s, got)
		}
	})
}
