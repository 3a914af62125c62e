package sign_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// The keys of AWS's own examples.
const (
	awsExampleID     = "AKIAIOSFODNN7EXAMPLE"
	awsExampleSecret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	awsExampleLines  = "[default]\naws_access_key_id = " + awsExampleID + "\naws_secret_access_key = " + awsExampleSecret + "\n"
	emptyHash        = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

func awsScheme(t *testing.T, regions, services []string) sign.Scheme {
	t.Helper()
	s, err := sign.New(policyfile.Scheme{Type: policyfile.AWSSigV4, AWS: policyfile.AWS{Regions: regions, Services: services}}, sign.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func signRequest(t *testing.T, method, host, path, query string) sign.Request {
	t.Helper()
	e, err := target.ParseAuthority(host, 443)
	if err != nil {
		t.Fatal(err)
	}
	p, err := target.ParsePath(path)
	if err != nil {
		t.Fatal(err)
	}
	return sign.Request{Method: method, Endpoint: e, Path: p, Query: query, Header: http.Header{}}
}

// TestSigV4Vectors: the signatures that the S3 API reference publishes ("Examples:
// Signature calculations" of the authorization header).
func TestSigV4Vectors(t *testing.T) {
	s := awsScheme(t, []string{"us-east-1"}, []string{"s3"})
	for query, want := range map[string]string{
		"lifecycle":           "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
		"max-keys=2&prefix=J": "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
	} {
		r := signRequest(t, "GET", "examplebucket.s3.amazonaws.com", "/", query)
		r.Payload, r.Now = emptyHash, time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)
		ch, err := s.Sign(t.Context(), secret.New([]byte(awsExampleLines)), r)
		if err != nil {
			t.Fatal(err)
		}
		full := "AWS4-HMAC-SHA256 Credential=" + awsExampleID + "/20130524/us-east-1/s3/aws4_request, " +
			"SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=" + want
		if got := ch.Set["Authorization"][0]; got != full {
			t.Errorf("%s:\n got %s\nwant %s", query, got, full)
		}
	}
}

// TestSigV4Scope: SG-01.
func TestSigV4Scope(t *testing.T) {
	one := awsScheme(t, []string{"us-east-1"}, []string{"s3"})
	two := awsScheme(t, []string{"us-east-1", "eu-west-1"}, []string{"s3", "sts"})
	tests := []struct {
		name   string
		scheme sign.Scheme
		scope  string // after the id
		want   string // the error, or the scope in the signature
		ok     bool
	}{
		{"another service", one, "20260901/us-east-1/iam/aws4_request", "service", false},
		{"another region", one, "20260901/us-west-2/s3/aws4_request", "region", false},
		{"swapped", one, "20260901/s3/us-east-1/aws4_request", "region", false},
		{"another end", one, "20260901/us-east-1/s3/aws4_other", "does not say", false},
		{"nothing, where there are several", two, "", "does not say", false},
		{"nothing, where there is one", one, "", "us-east-1/s3", true},
		{"one of several", two, "20250101/eu-west-1/sts/aws4_request", "20260901/eu-west-1/sts/aws4_request", true},
	}
	for _, tt := range tests {
		r := signRequest(t, "GET", "h.test", "/", "")
		r.Payload, r.Now = emptyHash, time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
		if tt.scope != "" {
			r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=AKIAPLACEHOLDER0000/"+tt.scope+", SignedHeaders=host, Signature=00")
		}
		ch, err := tt.scheme.Sign(t.Context(), secret.New([]byte(awsExampleLines)), r)
		switch {
		case tt.ok && (err != nil || !strings.Contains(ch.Set["Authorization"][0], tt.want)):
			t.Errorf("%s: %v, %v", tt.name, ch.Set, err)
		case !tt.ok && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want an error with %q", tt.name, err, tt.want)
		}
	}
}

func TestSigV4Keys(t *testing.T) {
	s := awsScheme(t, []string{"us-east-1"}, []string{"s3"})
	const id, key = awsExampleID, awsExampleSecret
	tests := []struct{ name, text, want string }{
		{"one token", "sk_test_0123456789abcdef", "none of"},
		{"no secret", "aws_access_key_id=" + id, "no secret access key"},
		{"no id", "aws_secret_access_key=" + key, "no access key id"},
		{"two pairs", awsExampleLines + awsExampleLines, "more than one"},
		{"broken JSON", `{"AccessKeyId": "` + id + `"`, "not the JSON"},
		{"CR-12 token with a line break", `{"AccessKeyId":"` + id + `","SecretAccessKey":"` + key + `","SessionToken":"a\r\nX: y"}`, "session token"},
		{"CR-12 id with a blank", `{"AccessKeyId":"AKIA IOSFODNN7EXAMP","SecretAccessKey":"` + key + `"}`, "no access key id"},
		{"lines", awsExampleLines, ""},
		{"JSON", `{"Version":1,"AccessKeyId":"` + id + `","SecretAccessKey":"` + key + `","SessionToken":"tok","Expiration":"2026-09-01T13:00:00Z"}`, ""},
	}
	for _, tt := range tests {
		err := s.Check(secret.New([]byte(tt.text)))
		if (tt.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), key) {
			t.Errorf("%s: the error holds the key", tt.name)
		}
	}
	r := signRequest(t, "GET", "h.test", "/", "")
	r.Now = time.Date(2026, 9, 1, 13, 0, 0, 0, time.UTC)
	if _, err := s.Sign(t.Context(), secret.New([]byte(tests[len(tests)-1].text)), r); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("SG-09 expired keys: %v", err)
	}
}
