package sign

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// sigV4 is AWS Signature Version 4 (IAM User Guide, "Create a signed AWS API
// request"). The program in the sandbox signs with placeholders; the broker
// signs anew, for a region and a service that the credential lists. The
// placeholder's own signature tells which of them is meant, and nothing else.
type sigV4 struct {
	regions, services []string
	role              *awsRole // whose keys sign, unless nil
}

const (
	sigV4Algorithm  = "AWS4-HMAC-SHA256"
	unsignedPayload = "UNSIGNED-PAYLOAD"
	amzTime         = "20060102T150405Z"
	// maxPresigned bounds how long a signature in a query is good for: it is
	// used at once.
	maxPresigned = 5 * time.Minute
)

// SigV4Params are the parameters of a presigned request that are signed anew.
func SigV4Params() []string {
	return []string{"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-Security-Token", "X-Amz-Signature", "X-Amz-SignedHeaders"}
}

func newSigV4(s policyfile.Scheme, cfg Config) (Scheme, error) {
	if len(s.AWS.Regions) == 0 || len(s.AWS.Services) == 0 {
		return nil, errors.New(`type "aws-sigv4" needs regions and services`)
	}
	v4 := sigV4{regions: s.AWS.Regions, services: s.AWS.Services}
	if s.AWS.Role == (policyfile.AWSRole{}) {
		return v4, nil
	}
	var err error
	v4.role, err = newAWSRole(s.AWS.Role, cfg)
	return v4, err
}

func (sigV4) Place() control.Place {
	return control.Place{Type: "aws-sigv4", Header: "Authorization", Fields: true, Payload: true}
}

// Due implements [Renewer].
func (s sigV4) Due() time.Time {
	if s.role == nil {
		return time.Time{}
	}
	return s.role.Due()
}

// Renew implements [Renewer].
func (s sigV4) Renew(ctx context.Context, v secret.Value) error {
	if s.role == nil {
		return nil
	}
	return s.role.Renew(ctx, v)
}

func (sigV4) Check(v secret.Value) error {
	_, err := readAWSKeys(v)
	return err
}

// Shapes implements [Shaper]: what the sandbox gets stand-ins for.
func (sigV4) Shapes(v secret.Value) ([]string, error) {
	k, err := readAWSKeys(v)
	return []string{k.id, k.secret}, err
}

// Sign makes the signature in a header or, where the placeholder's stands in the
// query, in the query.
func (s sigV4) Sign(ctx context.Context, v secret.Value, r Request) (Changes, error) {
	k, err := readAWSKeys(v)
	if err == nil && s.role != nil {
		k, err = s.role.keys(ctx, v)
	}
	if err != nil {
		return Changes{}, err
	}
	if k.expires != nil && !r.Now.Before(*k.expires) {
		return Changes{}, errors.New("the keys have expired")
	}
	asked := r.Header.Get("Authorization")
	params, err := url.ParseQuery(strings.ReplaceAll(r.Query, ";", "%3B"))
	if err != nil {
		return Changes{}, unfit("the query has a broken escape")
	}
	presigned := params.Has("X-Amz-Credential")
	credential := params.Get("X-Amz-Credential")
	if !presigned {
		credential, _, _ = strings.Cut(strings.TrimPrefix(asked, sigV4Algorithm+" Credential="), ",")
	}
	t := sigV4Task{keys: k, r: r, params: params, now: r.Now.UTC()}
	if t.region, t.service, err = s.scope(credential); err != nil {
		return Changes{}, err
	}
	if presigned {
		return t.presign(), nil
	}
	return t.sign(), nil
}

// scope takes region and service from the placeholder's signature, within what
// the credential lists (SG-01). Without one there has to be one of each.
func (s sigV4) scope(credential string) (region, service string, err error) {
	parts := strings.Split(credential, "/")
	switch {
	case credential == "" && len(s.regions) == 1 && len(s.services) == 1:
		return s.regions[0], s.services[0], nil
	case len(parts) != 5 || parts[4] != "aws4_request":
		return "", "", unfit("the request does not say for which region and service it is meant, and the credential lists several")
	case !slices.Contains(s.regions, parts[2]):
		return "", "", unfit("region %.40q is not one of %s", parts[2], strings.Join(s.regions, ", "))
	case !slices.Contains(s.services, parts[3]):
		return "", "", unfit("service %.40q is not one of %s", parts[3], strings.Join(s.services, ", "))
	}
	return parts[2], parts[3], nil
}

// sigV4Task is one signature in the making.
type sigV4Task struct {
	keys            awsKeys
	r               Request
	params          url.Values
	region, service string
	now             time.Time
}

func (t *sigV4Task) scope() string {
	return strings.Join([]string{t.now.Format("20060102"), t.region, t.service, "aws4_request"}, "/")
}

func (t *sigV4Task) sign() Changes {
	set := map[string][]string{"X-Amz-Date": {t.now.Format(amzTime)}}
	if t.service == "s3" || t.r.Header.Get("X-Amz-Content-Sha256") != "" {
		set["X-Amz-Content-Sha256"] = []string{t.r.Payload}
	}
	remove := []string{"Date"}
	if t.keys.token != "" {
		set["X-Amz-Security-Token"] = []string{t.keys.token}
	} else {
		remove = append(remove, "X-Amz-Security-Token")
	}
	names, lines := t.headers(set)
	signature := t.signature(names, lines, t.r.Payload)
	set["Authorization"] = []string{fmt.Sprintf("%s Credential=%s/%s, SignedHeaders=%s, Signature=%s",
		sigV4Algorithm, t.keys.id, t.scope(), names, signature)}
	return Changes{Set: set, Remove: remove, Expose: t.keys.exposed()}
}

func (t *sigV4Task) presign() Changes {
	life := maxPresigned
	if n, err := strconv.Atoi(t.params.Get("X-Amz-Expires")); err == nil && n > 0 {
		life = min(life, time.Duration(n)*time.Second)
	}
	names, lines := t.headers(nil)
	query := map[string]string{
		"X-Amz-Algorithm": sigV4Algorithm, "X-Amz-Credential": t.keys.id + "/" + t.scope(), "X-Amz-Date": t.now.Format(amzTime),
		"X-Amz-Expires": strconv.Itoa(int(life / time.Second)), "X-Amz-SignedHeaders": names,
	}
	if t.keys.token != "" {
		query["X-Amz-Security-Token"] = t.keys.token
	}
	for _, name := range SigV4Params() {
		t.params.Del(name)
	}
	for name, value := range query {
		t.params.Set(name, value)
	}
	payload := t.r.Payload
	if t.service == "s3" && t.r.Header.Get("X-Amz-Content-Sha256") == "" {
		payload = unsignedPayload // so S3 reads a presigned request
	}
	query["X-Amz-Signature"] = t.signature(names, lines, payload)
	return Changes{Query: query, Remove: []string{"Authorization", "X-Amz-Security-Token", "X-Amz-Date", "Date"}, Expose: t.keys.exposed()}
}

// headers returns the signed fields: those that say where and what, and all of
// AWS's own. set holds those that will be set.
func (t *sigV4Task) headers(set map[string][]string) (names, lines string) {
	fields := map[string]string{"host": t.r.Endpoint.Authority(443)}
	for name, values := range t.r.Header {
		n := lower(name)
		switch {
		case n == "x-amz-security-token" || n == "x-amz-date":
		case n == "content-type" || n == "content-md5" || strings.HasPrefix(n, "x-amz-"):
			fields[n] = joinField(values)
		}
	}
	for name, values := range set {
		fields[lower(name)] = joinField(values)
	}
	keys := sortedKeys(fields)
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(k + ":" + fields[k] + "\n")
	}
	return strings.Join(keys, ";"), b.String()
}

func (t *sigV4Task) signature(names, lines, payload string) string {
	canonical := strings.Join([]string{t.r.Method, t.uri(), awsQuery(t.params), lines, names, payload}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	toSign := strings.Join([]string{sigV4Algorithm, t.now.Format(amzTime), t.scope(), hex.EncodeToString(sum[:])}, "\n")
	return hex.EncodeToString(hmacSHA256(chained("AWS4"+t.keys.secret, t.now.Format("20060102"), t.region, t.service, "aws4_request"), toSign))
}

// uri returns the canonical path. S3 encodes once and changes nothing; all
// others normalise, and encode what is encoded again (SG-02, SG-03).
func (t *sigV4Task) uri() string {
	sent := cmp.Or(t.r.Path.String(), "/")
	if t.service == "s3" {
		segments := strings.Split(sent, "/")
		for i, s := range segments {
			if plain, err := url.PathUnescape(s); err == nil {
				segments[i] = awsEncode(plain)
			}
		}
		return strings.Join(segments, "/")
	}
	clean := path.Clean(sent)
	if strings.HasSuffix(sent, "/") && clean != "/" {
		clean += "/"
	}
	segments := strings.Split(clean, "/")
	for i, s := range segments {
		segments[i] = awsEncode(s)
	}
	return strings.Join(segments, "/")
}

// awsQuery returns the canonical query: encoded, then sorted.
func awsQuery(params url.Values) string {
	var parts [][2]string
	for name, values := range params {
		for _, v := range values {
			parts = append(parts, [2]string{awsEncode(name), awsEncode(v)})
		}
	}
	slices.SortFunc(parts, func(a, b [2]string) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	out := make([]string, len(parts))
	for i, p := range parts {
		out[i] = p[0] + "=" + p[1]
	}
	return strings.Join(out, "&")
}

// awsEncode escapes everything but the unreserved characters (RFC 3986 section 2.3).
func awsEncode(s string) string {
	const hexDigits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hexDigits[c>>4])
		b.WriteByte(hexDigits[c&15])
	}
	return b.String()
}

func hmacSHA256(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
