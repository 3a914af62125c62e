package sign

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sallyport/broker/secret"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// awsRole gets a role's temporary keys with the secret's (AWS Security Token
// Service API reference, AssumeRole). The secret's own keys sign that question
// and nothing else.
type awsRole struct {
	spec      policyfile.AWSRole
	endpoint  target.Endpoint
	path      target.Path
	transport http.RoundTripper
	now       func() time.Time
	*minter
}

func newAWSRole(spec policyfile.AWSRole, cfg Config) (*awsRole, error) {
	u, err := url.Parse(spec.URL)
	switch {
	case err != nil || u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("assume_role needs the address of the token service as an https URL")
	case spec.Role == "" || spec.Session == "" || spec.Region == "":
		return nil, errors.New("assume_role needs a role, a session's name and a region")
	case cfg.Transport == nil || cfg.Now == nil:
		return nil, errors.New("assume_role needs a way out for the broker, and there is none")
	}
	r := &awsRole{spec: spec, transport: cfg.Transport, now: cfg.Now}
	if r.endpoint, err = target.ParseAuthority(u.Host, 443); err != nil {
		return nil, err
	}
	if r.path, err = target.ParsePath(u.EscapedPath()); err != nil {
		return nil, err
	}
	r.minter = newMinter(cfg, r.mint)
	return r, nil
}

// keys returns the role's keys.
func (r *awsRole) keys(ctx context.Context, v secret.Value) (awsKeys, error) {
	text, err := r.minter.get(ctx, v)
	if err != nil {
		return awsKeys{}, fmt.Errorf("assuming the role at %s: %w", r.spec.URL, err)
	}
	return readAWSKeys(secret.New([]byte(text)))
}

// mint asks once. What is kept for a token are the keys, as a credential process
// would print them.
func (r *awsRole) mint(ctx context.Context, v secret.Value) (minted, error) {
	own, err := readAWSKeys(v)
	if err != nil {
		return minted{}, err
	}
	form := url.Values{
		"Action": {"AssumeRole"}, "Version": {"2011-06-15"}, "RoleArn": {r.spec.Role}, "RoleSessionName": {r.spec.Session},
	}
	if r.spec.ExternalID != "" {
		form.Set("ExternalId", r.spec.ExternalID)
	}
	if r.spec.Duration > 0 {
		form.Set("DurationSeconds", strconv.Itoa(r.spec.Duration))
	}
	body := form.Encode()
	sum := sha256.Sum256([]byte(body))
	header := http.Header{"Content-Type": {"application/x-www-form-urlencoded; charset=utf-8"}}
	t := sigV4Task{keys: own, region: r.spec.Region, service: "sts", now: r.now().UTC(), r: Request{
		Method: http.MethodPost, Endpoint: r.endpoint, Path: r.path, Header: header, Payload: hex.EncodeToString(sum[:]),
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.spec.URL, strings.NewReader(body))
	if err != nil {
		return minted{}, err
	}
	req.Header = header
	maps.Copy(req.Header, t.sign().Set)
	got, err := roundTrip(ctx, r.transport, req)
	if err != nil {
		return minted{}, err
	}
	return r.read(got)
}

var awsErrorCode = regexp.MustCompile(`^[A-Za-z.]{1,64}$`)

// read takes the keys out of an answer. Nothing of it but a well-formed error code
// is put into an error.
func (r *awsRole) read(got told) (minted, error) {
	var ans struct {
		Keys struct {
			AccessKeyID     string    `xml:"AccessKeyId" json:"AccessKeyId"`
			SecretAccessKey string    `xml:"SecretAccessKey"`
			SessionToken    string    `xml:"SessionToken"`
			Expiration      time.Time `xml:"Expiration" json:"Expiration,omitzero"`
		} `xml:"AssumeRoleResult>Credentials"`
		Code string `xml:"Error>Code"`
	}
	err := xml.Unmarshal(got.body, &ans)
	switch {
	case got.status != http.StatusOK && err == nil && awsErrorCode.MatchString(ans.Code):
		return minted{}, got.refusal(ans.Code, r.now())
	case got.status != http.StatusOK:
		return minted{}, got.refusal("", r.now())
	case err != nil || ans.Keys.SessionToken == "" || ans.Keys.Expiration.IsZero():
		return minted{}, errors.New("its answer holds no temporary keys with an end")
	}
	life := ans.Keys.Expiration.Sub(got.clock(r.now()))
	ans.Keys.Expiration = time.Time{}   // it is by their clock, and the minter's to keep
	text, err := json.Marshal(ans.Keys) //nolint:gosec // it stays in the broker, as a secret does
	if err != nil {
		return minted{}, err
	}
	if _, err := readAWSKeys(secret.New(text)); err != nil {
		return minted{}, errors.New("its answer holds no keys that can be used")
	}
	if life <= 0 {
		return minted{}, errors.New("its keys have ended already")
	}
	return minted{string(text), life}, nil
}
