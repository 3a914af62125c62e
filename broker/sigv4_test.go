package broker_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"sallyport/broker"
	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/policyfile"
)

const (
	awsID     = "AKIAIOSFODNN7EXAMPLE"
	awsSecret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	awsToken  = "IQoJb3JpZ2luX2VjEXAMPLETOKEN/with+odd=octets"
)

// newAWSKit grants cell1 a credential of type aws-sigv4 on s3.test and ddb.test.
func newAWSKit(t *testing.T, token string) (*kit, control.Grant) {
	t.Helper()
	k := newKit(t)
	k.stop()
	writeSecret(t, k.secret("aws"), fmt.Sprintf(`{"AccessKeyId":%q,"SecretAccessKey":%q,"SessionToken":%q}`, awsID, awsSecret, token))
	k.creds = append(k.creds, policyfile.Credential{
		Name: "aws", Env: "AWS_ACCESS_KEY_ID", SecretEnv: "AWS_SECRET_ACCESS_KEY", Source: policyfile.Source{File: k.secret("aws")},
		Scheme:    policyfile.Scheme{Type: policyfile.AWSSigV4, AWS: policyfile.AWS{Regions: []string{"eu-west-1"}, Services: []string{"s3", "dynamodb"}}},
		Endpoints: []policyfile.Endpoint{{Host: host("s3.test"), Ports: []uint16{443, 8443}}, {Host: host("ddb.test"), Ports: []uint16{443}}},
	})
	k.start()
	f := k.grant("cell1", "run1", "aws")
	return k, f.Grants[0]
}

// sandboxSigns signs with placeholders, as the SDK in a sandbox does.
func sandboxSigns(t *testing.T, r *http.Request, g control.Grant, service, payload string) {
	t.Helper()
	creds := aws.Credentials{AccessKeyID: g.Placeholder, SecretAccessKey: g.More[0].Placeholder}
	err := v4.NewSigner().SignHTTP(t.Context(), creds, r, payload, service, "eu-west-1", epoch.Add(-7*24*time.Hour), s3Rules(service))
	if err != nil {
		t.Fatal(err)
	}
}

func s3Rules(service string) func(*v4.SignerOptions) {
	return func(o *v4.SignerOptions) { o.DisableURIPathEscaping = service == "s3" }
}

// awsVerifies is an origin that computes the signature with AWS's own signer, over
// what it was sent, and refuses another.
func awsVerifies(t *testing.T, r *http.Request, service, token string) error {
	t.Helper()
	return awsVerifiesBy(t, r, service, aws.Credentials{AccessKeyID: awsID, SecretAccessKey: awsSecret, SessionToken: token})
}

func awsVerifiesBy(t *testing.T, r *http.Request, service string, creds aws.Credentials) error {
	t.Helper()
	auth, query := r.Header.Get("Authorization"), r.URL.Query()
	presigned := query.Has("X-Amz-Signature")
	signed := query.Get("X-Amz-SignedHeaders")
	if !presigned {
		_, signed, _ = strings.Cut(auth, "SignedHeaders=")
		signed, _, _ = strings.Cut(signed, ",")
	}
	names := strings.Split(signed, ";")
	for name := range r.Header {
		if n := strings.ToLower(name); strings.HasPrefix(n, "x-amz-") && !slices.Contains(names, n) {
			return fmt.Errorf("%s was not signed", name)
		}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	payload := r.Header.Get("X-Amz-Content-Sha256")
	switch {
	case payload == "" && presigned && service == "s3":
		payload = "UNSIGNED-PAYLOAD"
	case payload == "":
		payload = hex.EncodeToString(sum[:])
	case len(payload) == 64 && payload != hex.EncodeToString(sum[:]):
		return fmt.Errorf("the body does not have the hash %s", payload)
	}
	again := &http.Request{Method: r.Method, Host: r.Host, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: r.Host, Path: r.URL.Path, RawPath: r.URL.RawPath}}
	for _, n := range names {
		if n != "host" && n != "x-amz-date" && n != "x-amz-security-token" {
			again.Header[http.CanonicalHeaderKey(n)] = r.Header.Values(n)
		}
	}
	if !presigned {
		again.URL.RawQuery = r.URL.RawQuery
		if err := v4.NewSigner().SignHTTP(t.Context(), creds, again, payload, service, "eu-west-1", epoch, s3Rules(service)); err != nil {
			return err
		}
		if got := again.Header.Get("Authorization"); got != auth {
			return fmt.Errorf("signature:\n got %s\nwant %s", auth, got)
		}
		return nil
	}
	// The SDK moves AWS's fields into the query when it presigns; the plain
	// signature of a request without them is the same as ours.
	for n, v := range query {
		if !slices.Contains([]string{"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Security-Token"}, n) {
			again.URL.RawQuery += "&" + n + "=" + url.QueryEscape(v[0])
		}
	}
	again.URL.RawQuery = strings.TrimPrefix(again.URL.RawQuery, "&")
	uri, _, err := v4.NewSigner().PresignHTTP(t.Context(), creds, again, payload, service, "eu-west-1", epoch, s3Rules(service))
	if err != nil {
		return err
	}
	u, err := url.Parse(uri)
	if err != nil || u.Query().Encode() != query.Encode() {
		return fmt.Errorf("presigned:\n got %s\nwant %s (%w)", query.Encode(), uri, err)
	}
	return nil
}

func hashOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// TestSigV4SignsAnew: SG-02, SG-03, SG-06, SG-09.
func TestSigV4SignsAnew(t *testing.T) {
	tests := []struct {
		name, service, method, url, body string
		header                           []string
		payload                          string
	}{
		{"list", "s3", "GET", "https://s3.test/bucket?list-type=2&prefix=a%20b%2Fc&delimiter=%2F&empty=", "", nil, "hash"},
		{"SG-02 blank", "s3", "GET", "https://s3.test/bucket/a%20b", "", nil, "hash"},
		{"SG-02 percent", "s3", "GET", "https://s3.test/bucket/a%2520b", "", nil, "hash"},
		{"SG-02 umlaut", "s3", "GET", "https://s3.test/bucket/%C3%BC~x", "", nil, "hash"},
		{"SG-02 two slashes", "s3", "GET", "https://s3.test/bucket/a//b", "", nil, "hash"},
		{"SG-02 encoded slash", "s3", "GET", "https://s3.test/bucket/a%2Fb", "", nil, "hash"},
		{"SG-06 another port", "s3", "GET", "https://s3.test:8443/bucket/a", "", nil, "hash"},
		{"put, hashed", "s3", "PUT", "https://s3.test/bucket/k", "some text", []string{"Content-Type", "text/plain", "X-Amz-Meta-A", "  two   blanks ", "X-Amz-Acl", "private"}, "hash"},
		{"put, unsigned", "s3", "PUT", "https://s3.test/bucket/k", "some text", nil, "UNSIGNED-PAYLOAD"},
		{
			"put, unsigned chunks with a trailer", "s3", "PUT", "https://s3.test/bucket/k", "9\r\nsome text\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n",
			[]string{"Content-Encoding", "aws-chunked", "X-Amz-Decoded-Content-Length", "9", "X-Amz-Trailer", "x-amz-checksum-crc32"},
			"STREAMING-UNSIGNED-PAYLOAD-TRAILER",
		},
		{"SG-03 another service, whose body has to be read", "dynamodb", "POST", "https://ddb.test/", `{"TableName":"t"}`, []string{"X-Amz-Target", "DynamoDB_20120810.GetItem", "Content-Type", "application/x-amz-json-1.0"}, ""},
		{"SG-03 encoded twice", "dynamodb", "POST", "https://ddb.test/a%20b/%2F/c", "x", nil, ""},
	}
	for _, token := range []string{"", awsToken} {
		k, g := newAWSKit(t, token)
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				r := request(tt.method, tt.url, tt.header...)
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(tt.body)), int64(len(tt.body))
				payload := tt.payload
				if payload == "hash" || payload == "" {
					payload = hashOf(tt.body)
				}
				if tt.payload != "" {
					r.Header.Set("X-Amz-Content-Sha256", payload)
				}
				sandboxSigns(t, r, g, tt.service, payload)
				if carries := k.client.Find("cell1", r); len(carries) != 1 || carries[0].State != rules.Bound {
					t.Fatalf("Find = %v", carries)
				}
				if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil {
					t.Fatal(err)
				}
				if err := awsVerifies(t, r, tt.service, token); err != nil {
					t.Error(err)
				}
				if got := r.Header.Get("X-Amz-Date"); got != "20260901T120000Z" || r.Header.Get("X-Amz-Security-Token") != token {
					t.Errorf("date %s, token %q", got, r.Header.Get("X-Amz-Security-Token"))
				}
			})
		}
	}
}

// TestSigV4Presigned: a URL that was signed with placeholders is signed anew, for
// minutes at most.
func TestSigV4Presigned(t *testing.T) {
	for _, token := range []string{"", awsToken} {
		k, g := newAWSKit(t, token)
		for _, method := range []string{"GET", "PUT"} {
			r := request(method, "https://s3.test/bucket/a%20b?X-Amz-Expires=86400&x-id=GetObject")
			creds := aws.Credentials{AccessKeyID: g.Placeholder, SecretAccessKey: g.More[0].Placeholder}
			uri, _, err := v4.NewSigner().PresignHTTP(t.Context(), creds, r, "UNSIGNED-PAYLOAD", "s3", "eu-west-1", epoch, s3Rules("s3"))
			if err != nil {
				t.Fatal(err)
			}
			r = request(method, uri)
			if carries := k.client.Find("cell1", r); len(carries) != 1 || carries[0].State != rules.Bound {
				t.Fatalf("Find = %v", carries)
			}
			p := pass(t, "cell1", "run1", r)
			if err := k.client.Inject(t.Context(), p, r); err != nil {
				t.Fatal(err)
			}
			if got := r.URL.Query().Get("X-Amz-Expires"); got != "300" {
				t.Errorf("it holds for %s s", got)
			}
			if err := awsVerifies(t, r, "s3", token); err != nil {
				t.Error(err)
			}
			if params := k.client.Params(p); !slices.Contains(params, "X-Amz-Signature") || slices.Contains(params, "x-id") {
				t.Errorf("Params = %q", params)
			}
		}
	}
}

// TestSigV4Unframes: chunks that were signed with a placeholder lose their frames.
func TestSigV4Unframes(t *testing.T) {
	k, g := newAWSKit(t, "")
	sig := ";chunk-signature=" + strings.Repeat("0", 64) + "\r\n"
	long := strings.Repeat("0123456789abcdef", 4096) // 64 KiB
	good := "10000" + sig + long + "\r\n3" + sig + "abc\r\n0" + sig + "\r\n"
	tests := []struct {
		name, body, length string
		ok                 bool
	}{
		{"good", good, "65539", true},
		{"HT-01 longer than it says", good, "65538", false},
		{"shorter than it says", good, "65540", false},
		{"cut", good[:1000], "65539", false},
		{"cut at the end", good[:len(good)-2], "65539", false},
		{"something behind it", good + "x", "65539", false},
		{"a size that is none", "zz" + sig + "\r\n", "0", false},
		{"a negative size", "-1" + sig + "\r\n", "0", false},
		{"no length", good, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := request("PUT", "https://s3.test/b/k", "Content-Encoding", "identity, aws-chunked", "X-Amz-Decoded-Content-Length", tt.length)
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(tt.body)), int64(len(tt.body))
			r.Header.Set("X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
			sandboxSigns(t, r, g, "s3", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
			err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r)
			if err != nil {
				if tt.ok {
					t.Fatal(err)
				}
				return
			}
			b, err := io.ReadAll(r.Body)
			if tt.ok != (err == nil) {
				t.Fatalf("reading: %v", err)
			}
			if !tt.ok {
				return
			}
			if string(b) != long+"abc" || r.ContentLength != 65539 || r.Header.Get("Content-Encoding") != "identity" || r.Header.Get("X-Amz-Decoded-Content-Length") != "" {
				t.Errorf("%d octets, length %d, %v", len(b), r.ContentLength, r.Header)
			}
			r.Body = io.NopCloser(bytes.NewReader(b))
			if err := awsVerifies(t, r, "s3", ""); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSigV4UnframesTrailers: with a trailer the frames stay, and lose what was signed
// with a placeholder.
func TestSigV4UnframesTrailers(t *testing.T) {
	k, g := newAWSKit(t, "")
	sig := ";chunk-signature=" + strings.Repeat("0", 64) + "\r\n"
	long := strings.Repeat("0123456789abcdef", 4096) // 64 KiB
	const crc = "x-amz-checksum-crc32c:sOO8/Q==\r\n"
	const trailerSig = "x-amz-trailer-signature:63bddb248ad2590c92712055f51b8e78ab024eead08276b24f010b0efd74843f\r\n"
	chunks := "10000" + sig + long + "\r\n3" + sig + "abc\r\n0" + sig
	tests := []struct {
		name, body string
		trailer    string
		ok         bool
	}{
		{"good", chunks + crc + trailerSig + "\r\n", "x-amz-checksum-crc32c", true},
		{"the announced field is missing", chunks + trailerSig + "\r\n", "x-amz-checksum-crc32c", false},
		{"HT-09 a field that was not announced", chunks + crc + "x-evil: 1\r\n" + trailerSig + "\r\n", "x-amz-checksum-crc32c", false},
		{"twice", chunks + crc + crc + trailerSig + "\r\n", "x-amz-checksum-crc32c", false},
		{"CR-12 a value that cannot stand in a field", chunks + "x-amz-checksum-crc32c:a\x00b\r\n" + trailerSig + "\r\n", "x-amz-checksum-crc32c", false},
		{"cut", chunks + crc, "x-amz-checksum-crc32c", false},
		{"something behind it", chunks + crc + trailerSig + "\r\nGET / HTTP/1.1\r\n", "x-amz-checksum-crc32c", false},
		{"nothing announced", chunks + crc + trailerSig + "\r\n", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := request("PUT", "https://s3.test/b/k", "Content-Encoding", "aws-chunked", "X-Amz-Decoded-Content-Length", "65539")
			if tt.trailer != "" {
				r.Header.Set("X-Amz-Trailer", tt.trailer)
			}
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(tt.body)), int64(len(tt.body))
			r.Header.Set("X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")
			sandboxSigns(t, r, g, "s3", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")
			var b []byte
			err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r)
			if err == nil {
				b, err = io.ReadAll(r.Body)
			}
			if tt.ok != (err == nil) {
				t.Fatalf("Inject or reading: %v", err)
			}
			if !tt.ok {
				return
			}
			if strings.Contains(string(b), "signature") || r.ContentLength != -1 || r.Header.Get("X-Amz-Content-Sha256") != "STREAMING-UNSIGNED-PAYLOAD-TRAILER" {
				t.Errorf("length %d, %v, %.80q", r.ContentLength, r.Header, b)
			}
			if got, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(b))); err != nil || string(got) != long+"abc" {
				t.Errorf("%d octets in the chunks, %v", len(got), err)
			}
			if end := "\r\n0\r\n" + crc + "\r\n"; !strings.HasSuffix(string(b), end) {
				t.Errorf("it ends with %q, want %q", b[len(b)-60:], end)
			}
			r.Body = io.NopCloser(bytes.NewReader(b))
			if err := awsVerifies(t, r, "s3", ""); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSigV4KeepsRanges: who signs sends no secret, and reads large objects in
// ranges; a secret in a header has the whole answer sent.
func TestSigV4KeepsRanges(t *testing.T) {
	k, g := newAWSKit(t, "")
	r := request("GET", "https://s3.test/b/k", "Range", "bytes=0-9")
	sandboxSigns(t, r, g, "s3", hashOf(""))
	if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil || r.Header.Get("Range") != "bytes=0-9" {
		t.Errorf("range %q, %v", r.Header.Get("Range"), err)
	}
}

// TestSigV4Refuses: SG-07 and leaks of either placeholder.
func TestSigV4Refuses(t *testing.T) {
	k, g := newAWSKit(t, "")
	id, key := g.Placeholder, g.More[0].Placeholder
	auth := func(id string) string {
		return "AWS4-HMAC-SHA256 Credential=" + id + "/20260901/eu-west-1/s3/aws4_request, SignedHeaders=host, Signature=00"
	}
	const presigned = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=00&X-Amz-Credential="
	tests := []struct {
		name, url string
		header    []string
		want      rules.CarryState
	}{
		{"SG-07 an attacker's signature", "https://s3.test/", []string{"Authorization", auth("AKIAATTACKER00000000")}, rules.Foreign},
		{"SG-07 an attacker's presigned URL", "https://s3.test/?" + presigned + "AKIAATTACKER00000000%2F20260901", nil, rules.Foreign},
		{"SG-07 a session token alone", "https://s3.test/", []string{"X-Amz-Security-Token", "attacker"}, rules.Foreign},
		{"SG-07 a session token in the query", "https://s3.test/?X-Amz-Security-Token=attacker&" + presigned + id + "%2F2026", nil, rules.Foreign},
		{"two credentials in one signature", "https://s3.test/", []string{"Authorization", auth(id) + ", Credential=AKIAATTACKER00000000/x"}, rules.Foreign},
		{"header and query", "https://s3.test/?" + presigned + id + "%2F2026", []string{"Authorization", auth("AKIAATTACKER00000000")}, rules.Foreign},
		{"bearer", "https://s3.test/", []string{"Authorization", "Bearer " + id}, rules.Foreign},
		{"the id elsewhere", "https://s3.test/" + id, nil, rules.Leaked},
		{"the secret in a header", "https://s3.test/", []string{"X-Amz-Meta-A", key}, rules.Leaked},
		{"the secret in the place of the id", "https://s3.test/", []string{"Authorization", auth(key)}, rules.Leaked},
		{"the secret behind the signature", "https://s3.test/", []string{"Authorization", auth(id) + key}, rules.Leaked},
		{"the secret in the query", "https://s3.test/?a=" + url.QueryEscape(key), nil, rules.Leaked},
	}
	for _, tt := range tests {
		carries := k.client.Find("cell1", request("GET", tt.url, tt.header...))
		if !slices.ContainsFunc(carries, func(c rules.Carry) bool { return c.State == tt.want }) {
			t.Errorf("%s: Find = %v, want %v", tt.name, carries, tt.want)
		}
	}
	// What cannot be signed anew, or cannot be read whole, does not leave.
	for _, tt := range []struct {
		name, payload string
		body          io.Reader
	}{
		{"signed trailers", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", strings.NewReader("x")},
		{"a payload of another kind", "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", strings.NewReader("x")},
		{"a large body without a hash", "", bytes.NewReader(make([]byte, 8<<20+1))},
	} {
		r := request("PUT", "https://s3.test/b/k", "Authorization", auth(id))
		if tt.payload != "" {
			r.Header.Set("X-Amz-Content-Sha256", tt.payload)
		}
		r.Body = io.NopCloser(tt.body)
		wantDenied(t, k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r), rules.CredentialUnavail)
		if strings.Contains(r.Header.Get("Authorization"), awsID) {
			t.Errorf("%s: signed", tt.name)
		}
	}
	// Neither half of the pair is told to the gateway but in its place.
	var list broker.Statuses
	if err := k.admin.Call(t.Context(), "/v1/credentials", struct{}{}, &list); err != nil || strings.Contains(fmt.Sprint(list), awsSecret) {
		t.Errorf("credentials: %v, %v", list, err)
	}
	if log := k.log.String(); strings.Contains(log, awsSecret) {
		t.Error("the log holds the secret")
	}
}
