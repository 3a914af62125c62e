package clients_test

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

const (
	s3Host    = "box.s3.eu-west-1.amazonaws.com"
	otherHost = "other.s3.eu-west-1.amazonaws.com"
	awsID     = "AKIAIOSFODNN7EXAMPLE"
	awsSecret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	awsToken  = "IQoJb3JpZ2luX2VjEXAMPLETOKEN/with+odd=octets"
)

// bucket is a fixture of S3 that verifies every signature with AWS's own signer,
// and every body against what was signed. It speaks what clients need: objects,
// lists, and uploads in parts.
type bucket struct {
	mu      sync.Mutex
	objects map[string][]byte
	parts   map[string][]byte
	served  []string // method and path, of those whose signature was good
	// ranges and trailers count reads in ranges and bodies in chunks.
	ranges, trailers int
	token            string
}

func newBucket(token string) *bucket {
	return &bucket{objects: map[string][]byte{}, parts: map[string][]byte{}, token: token}
}

// ServeHTTP implements [http.Handler].
func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = b.verify(r, body)
	}
	if err != nil {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, "<Error><Code>SignatureDoesNotMatch</Code><Message>%s</Message></Error>", err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.served = append(b.served, r.Method+" "+r.URL.Path)
	if r.Header.Get("X-Amz-Content-Sha256") == "STREAMING-UNSIGNED-PAYLOAD-TRAILER" {
		b.trailers++
		if body, err = unframe(body, r.Header.Get("X-Amz-Decoded-Content-Length")); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, "<Error><Code>InvalidRequest</Code><Message>%s</Message></Error>", err)
			return
		}
	}
	b.object(w, r, body)
}

// verify computes the signature over what came, with AWS's signer.
func (b *bucket) verify(r *http.Request, body []byte) error {
	q := r.URL.Query()
	auth, date, signed := r.Header.Get("Authorization"), r.Header.Get("X-Amz-Date"), ""
	presigned := q.Has("X-Amz-Signature")
	if presigned {
		date, signed = q.Get("X-Amz-Date"), q.Get("X-Amz-SignedHeaders")
	} else {
		_, signed, _ = strings.Cut(auth, "SignedHeaders=")
		signed, _, _ = strings.Cut(signed, ",")
	}
	at, err := time.Parse("20060102T150405Z", date)
	if err != nil || time.Since(at).Abs() > 15*time.Minute {
		return fmt.Errorf("the request is of %q", date)
	}
	sum := sha256.Sum256(body)
	payload := r.Header.Get("X-Amz-Content-Sha256")
	switch {
	case payload == "" && presigned:
		payload = "UNSIGNED-PAYLOAD"
	case len(payload) == 64 && payload != hex.EncodeToString(sum[:]):
		return errors.New("the body does not have its hash")
	}
	again := &http.Request{Method: r.Method, Host: r.Host, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: r.Host, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}}
	for n := range strings.SplitSeq(signed, ";") {
		if n != "host" && n != "x-amz-date" && n != "x-amz-security-token" {
			again.Header[http.CanonicalHeaderKey(n)] = r.Header.Values(n)
		}
	}
	s3 := func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }
	creds := aws.Credentials{AccessKeyID: awsID, SecretAccessKey: awsSecret, SessionToken: b.token}
	if presigned {
		return verifyPresigned(r, again, creds, payload, at, s3)
	}
	if err := v4.NewSigner().SignHTTP(r.Context(), creds, again, payload, "s3", "eu-west-1", at, s3); err != nil {
		return err
	}
	if got := again.Header.Get("Authorization"); got != auth || auth == "" {
		return errors.New("the signature is another")
	}
	return nil
}

func verifyPresigned(r, again *http.Request, creds aws.Credentials, payload string, at time.Time, s3 func(*v4.SignerOptions)) error {
	q := r.URL.Query()
	for _, n := range []string{"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Security-Token"} {
		q.Del(n)
	}
	again.URL.RawQuery = q.Encode()
	text, _, err := v4.NewSigner().PresignHTTP(r.Context(), creds, again, payload, "s3", "eu-west-1", at, s3)
	if err != nil {
		return err
	}
	u, err := url.Parse(text)
	if err != nil || u.Query().Encode() != r.URL.Query().Encode() {
		return errors.New("the presigned signature is another")
	}
	return nil
}

// unframe takes a body out of chunks, and holds it against the checksum in the
// trailer ("Checking object integrity" in the S3 user guide).
func unframe(body []byte, length string) ([]byte, error) {
	var out []byte
	for {
		line, rest, ok := bytes.Cut(body, []byte("\r\n"))
		n, err := strconv.ParseInt(string(line), 16, 64) // a signature behind the size is none here
		if !ok || err != nil || int64(len(rest)) < n {
			return nil, fmt.Errorf("the chunk's head is %.40q", line)
		}
		if body = rest; n == 0 {
			break
		}
		out = append(out, rest[:n]...)
		if body = bytes.TrimPrefix(rest[n:], []byte("\r\n")); len(body) == len(rest)-int(n) {
			return nil, errors.New("a chunk has no end")
		}
	}
	name, value, _ := strings.Cut(string(bytes.TrimSpace(body)), ":")
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(out))
	if name != "x-amz-checksum-crc32" || value != base64.StdEncoding.EncodeToString(sum) || strconv.Itoa(len(out)) != length {
		return nil, fmt.Errorf("%d octets of %s, trailer %q", len(out), length, body)
	}
	return out, nil
}

// object serves a request whose signature is good.
func (b *bucket) object(w http.ResponseWriter, r *http.Request, body []byte) {
	q, key := r.URL.Query(), strings.TrimPrefix(r.URL.Path, "/")
	sum := md5.Sum(body)
	etag := `"` + hex.EncodeToString(sum[:]) + `"`
	switch {
	case r.Method == http.MethodPost && q.Has("uploads"):
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><Bucket>box</Bucket><Key>%s</Key><UploadId>u1</UploadId></InitiateMultipartUploadResult>", key)
	case r.Method == http.MethodPut && q.Has("partNumber"):
		b.parts[q.Get("partNumber")] = body
		w.Header().Set("ETag", etag)
	case r.Method == http.MethodPost && q.Has("uploadId"):
		b.complete(w, key, body)
	case r.Method == http.MethodPut:
		b.objects[key] = body
		w.Header().Set("ETag", etag)
	case key == "":
		b.list(w, q.Get("prefix"))
	default:
		data, ok := b.objects[key]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if r.Header.Get("Range") != "" {
			b.ranges++
		}
		w.Header().Set("ETag", etag)
		http.ServeContent(w, r, key, time.Unix(1, 0), bytes.NewReader(data))
	}
}

func (b *bucket) complete(w http.ResponseWriter, key string, body []byte) {
	var in struct {
		Part []struct{ PartNumber string }
	}
	if err := xml.Unmarshal(body, &in); err != nil || len(in.Part) != len(b.parts) {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	var whole []byte
	for _, p := range in.Part {
		whole = append(whole, b.parts[p.PartNumber]...)
	}
	b.objects[key] = whole
	fmt.Fprintf(w, "<CompleteMultipartUploadResult><Key>%s</Key><ETag>\"x\"</ETag></CompleteMultipartUploadResult>", key)
}

func (b *bucket) list(w http.ResponseWriter, prefix string) {
	w.Header().Set("Content-Type", "application/xml")
	fmt.Fprint(w, `<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>box</Name><IsTruncated>false</IsTruncated>`)
	for key, data := range b.objects {
		if strings.HasPrefix(key, prefix) {
			fmt.Fprintf(w, `<Contents><Key>%s</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>%d</Size></Contents>`, key, len(data))
		}
	}
	fmt.Fprint(w, "</ListBucketResult>")
}

func (b *bucket) get(key string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.objects[key])
}

// newAWS is a cell with a grant for the bucket.
func newAWS(t *testing.T, token string) (*gateway, *bucket) {
	t.Helper()
	return newAWSWith(t, awsSecret, token)
}

// newAWSWith is a cell whose broker has another secret key. It may reach another
// bucket as well, without the grant.
func newAWSWith(t *testing.T, secret, token string) (*gateway, *bucket) {
	t.Helper()
	b := newBucket(token)
	g := newGateway(t, []origin{{host: s3Host, handler: b}, {host: otherHost, handler: b}}, []credential{{
		name: "aws", host: s3Host, secret: fmt.Sprintf(`{"AccessKeyId":%q,"SecretAccessKey":%q,"SessionToken":%q}`, awsID, secret, token),
		doc: "type: aws-sigv4\naws-sigv4: {regions: [eu-west-1], services: [s3]}\nplaceholder: {env: AWS_ACCESS_KEY_ID, secret_env: AWS_SECRET_ACCESS_KEY}",
	}})
	return g, b
}

// TestAWSCLI: objects small and large, up and down, in parts and ranges.
func TestAWSCLI(t *testing.T) {
	g, b := newAWS(t, awsToken)
	large := strings.Repeat("0123456789abcdef", 640<<10) // 10 MiB: two parts
	for name, data := range map[string]string{"small": "some text", "large": large} {
		if err := os.WriteFile(filepath.Join(g.dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		g.must("", "aws", "s3", "cp", "--quiet", name, "s3://box/dir/a b+"+name+".txt")
		if got := b.get("dir/a b+" + name + ".txt"); got != data {
			t.Errorf("%s: the bucket has %d octets, want %d", name, len(got), len(data))
		}
		g.must("", "aws", "s3", "cp", "--quiet", "s3://box/dir/a b+"+name+".txt", "back")
		if got, err := os.ReadFile(filepath.Join(g.dir, "back")); err != nil || string(got) != data {
			t.Errorf("%s: %d octets came back, %v, want %d", name, len(got), err, len(data))
		}
	}
	if b.ranges == 0 {
		t.Error("the large object was not read in ranges: the test shows less than it should")
	}
	if out := g.must("", "aws", "s3", "ls", "s3://box/dir/"); !strings.Contains(out, "a b+large.txt") {
		t.Errorf("ls: %s", out)
	}
	// SG-07: the caller's own keys are refused, and nothing arrives.
	before := len(b.served)
	g.env = append(g.env, "AWS_ACCESS_KEY_ID=AKIAATTACKER00000000", "AWS_SECRET_ACCESS_KEY=attackers/secret/key/0000000000000000000")
	if out, err := g.command("", "aws", "s3", "ls", "s3://box/dir/"); err == nil || !slices.Contains(g.reasons(), "foreign_credential") || len(b.served) != before {
		t.Errorf("another's keys: %v, refusals %q, %s", err, g.reasons(), out)
	}
	g.holdsNone(awsSecret, awsToken)
}

const boto = `
import boto3, io, os, sys, urllib.request
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
s3 = boto3.client("s3", endpoint_url="https://s3.eu-west-1.amazonaws.com", config=Config(signature_version="s3v4", retries={"max_attempts": 0}, region_name="eu-west-1", s3={"addressing_style": "virtual", "payload_signing_enabled": sys.argv[1] == "signed"}))
s3.put_object(Bucket="box", Key="k/ü~x", Body=b"text", Metadata={"a": "1"}, ContentType="text/plain", ChecksumAlgorithm="CRC32")
assert s3.get_object(Bucket="box", Key="k/ü~x")["Body"].read() == b"text"
assert s3.get_object(Bucket="box", Key="k/ü~x", Range="bytes=1-2")["Body"].read() == b"ex"
assert s3.head_object(Bucket="box", Key="k/ü~x")["ContentLength"] == 4
assert [o["Key"] for o in s3.list_objects_v2(Bucket="box", Prefix="k/")["Contents"]] == ["k/ü~x"]
data = os.urandom(6 << 20)
conf = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
s3.upload_fileobj(io.BytesIO(data), "box", "big", Config=conf)
back = io.BytesIO()
s3.download_fileobj("box", "big", back, Config=conf)
assert back.getvalue() == data
print(s3.generate_presigned_url("get_object", Params={"Bucket": "box", "Key": "k/ü~x"}, ExpiresIn=3600))
`

// TestBoto3: with hashed and unsigned bodies, with permanent and temporary keys,
// and a presigned URL that curl takes through the gateway.
func TestBoto3(t *testing.T) {
	for token, mode := range map[string]string{"": "signed", awsToken: "unsigned"} {
		t.Run(mode, func(t *testing.T) {
			g, b := newAWS(t, token)
			out := strings.TrimSpace(g.must(boto, "python3", "-", mode))
			if got := b.get("k/ü~x"); got != "text" {
				t.Errorf("the bucket has %q", got)
			}
			if b.trailers == 0 {
				t.Error("no body came in chunks with a checksum behind: the test shows less than it should")
			}
			if !strings.HasPrefix(out, "https://"+s3Host+"/") {
				t.Fatalf("boto3 says %s", out)
			}
			if got := g.must("", "curl", "-sS", "--fail", out); got != "text" {
				t.Errorf("presigned: %q", got)
			}
			if out, err := g.command("", "curl", "-sS", "--fail", strings.Replace(out, "X-Amz-Credential=AKIA", "X-Amz-Credential=AKIB", 1)); err == nil || !slices.Contains(g.reasons(), "foreign_credential") {
				t.Errorf("SG-07 another's presigned URL: %v, refusals %q, %s", err, g.reasons(), out)
			}
			g.holdsNone(awsSecret)
		})
	}
}
