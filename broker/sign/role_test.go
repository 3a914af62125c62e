package sign_test

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/rules/policyfile"
)

// tokenService is a fixture of AWS STS that verifies the signature with AWS's own
// signer over what it was sent.
func tokenService(t *testing.T, now func() time.Time, answer func(n int) (int, string)) *httptest.Server {
	t.Helper()
	n := 0
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		w.Header().Set("Date", now().UTC().Format(http.TimeFormat)) // keys end by the clock of who gives them
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		again, err := http.NewRequestWithContext(t.Context(), r.Method, "https://"+r.Host+"/", nil)
		if err != nil {
			t.Error(err)
			return
		}
		again.Header.Set("Content-Type", r.Header.Get("Content-Type"))
		err = v4.NewSigner().SignHTTP(t.Context(), aws.Credentials{AccessKeyID: awsExampleID, SecretAccessKey: awsExampleSecret}, again, hashHex(body), "sts", "eu-west-1", now())
		form := string(body)
		if err != nil || again.Header.Get("Authorization") != r.Header.Get("Authorization") ||
			form != "Action=AssumeRole&DurationSeconds=900&ExternalId=ext&RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Fagent&RoleSessionName=s1&Version=2011-06-15" {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "<ErrorResponse><Error><Code>SignatureDoesNotMatch</Code><Message>"+awsExampleSecret+"</Message></Error></ErrorResponse>")
			return
		}
		status, text := answer(n)
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	}))
	t.Cleanup(srv.Close)
	return srv
}

const roleKey = "roleSecretKey/roleSecretKey+EXAMPLE00000"

func roleAnswer(id string, end time.Time) string {
	var token strings.Builder
	if err := xml.EscapeText(&token, []byte("FwoG<token>&"+id)); err != nil {
		panic(err)
	}
	return fmt.Sprintf(`<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>`+
		`<AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken>%s</SessionToken><Expiration>%s</Expiration>`+
		`</Credentials></AssumeRoleResult></AssumeRoleResponse>`, id, roleKey, token.String(), end.UTC().Format(time.RFC3339))
}

// TestAssumeRole: the role's keys sign, and are asked for once.
func TestAssumeRole(t *testing.T) {
	c := &clock{}
	c.now.Store(time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC).UnixNano())
	status, broken := http.StatusOK, ""
	srv := tokenService(t, c.Now, func(n int) (int, string) {
		if broken != "" {
			return status, broken
		}
		return status, roleAnswer(fmt.Sprintf("ASIAEXAMPLE00000%04d", n), c.Now().Add(15*time.Minute))
	})
	spec := policyfile.Scheme{Type: policyfile.AWSSigV4, AWS: policyfile.AWS{
		Regions: []string{"eu-west-1"}, Services: []string{"dynamodb"},
		Role: policyfile.AWSRole{Role: "arn:aws:iam::123456789012:role/agent", Session: "s1", ExternalID: "ext", Duration: 900, Region: "eu-west-1", URL: srv.URL + "/"},
	}}
	load := func() sign.Scheme {
		s, err := sign.New(spec, sign.Config{Transport: srv.Client().Transport, Now: c.Now})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := load()
	ask := func(s sign.Scheme, keys string) (sign.Changes, error) {
		r := signRequest(t, "POST", "ddb.test", "/", "")
		r.Payload, r.Now = emptyHash, c.Now()
		return s.Sign(t.Context(), secret.New([]byte(keys)), r)
	}
	if _, err := ask(load(), strings.Replace(awsExampleLines, "wJalr", "wXalr", 1)); err == nil || !strings.Contains(err.Error(), "403, SignatureDoesNotMatch") {
		t.Errorf("other keys: %v", err)
	}
	for range 2 {
		ch, err := ask(s, awsExampleLines)
		if err != nil {
			t.Fatal(err)
		}
		again, err := http.NewRequestWithContext(t.Context(), "POST", "https://ddb.test/", nil)
		if err != nil {
			t.Fatal(err)
		}
		creds := aws.Credentials{AccessKeyID: "ASIAEXAMPLE000000002", SecretAccessKey: roleKey, SessionToken: "FwoG<token>&ASIAEXAMPLE000000002"}
		if err := v4.NewSigner().SignHTTP(t.Context(), creds, again, emptyHash, "dynamodb", "eu-west-1", c.Now()); err != nil {
			t.Fatal(err)
		}
		if got, want := ch.Set["Authorization"][0], again.Header.Get("Authorization"); got != want {
			t.Errorf("signature:\n got %s\nwant %s", got, want)
		}
		if strings.Contains(fmt.Sprint(ch), roleKey) || strings.Contains(fmt.Sprint(ch), awsExampleID) {
			t.Error("the role's secret key, or the user's own id, leaves the broker")
		}
	}
	c.advance(15 * time.Minute)
	if ch, err := ask(s, awsExampleLines); err != nil || !strings.Contains(ch.Set["Authorization"][0], "ASIAEXAMPLE000000003") {
		t.Errorf("after their end: %v, %v", ch.Set, err)
	}
	for name, bad := range map[string]string{
		"not XML": "{", "no keys": "<AssumeRoleResponse/>", "ended": roleAnswer("ASIAEXAMPLE000000009", c.Now().Add(-time.Minute)),
		"CR-12": strings.Replace(roleAnswer("ASIAEXAMPLE000000009", c.Now().Add(time.Hour)), "FwoG", "Fw&#13;&#10;oG", 1),
	} {
		broken = bad
		if _, err := ask(load(), awsExampleLines); err == nil || strings.Contains(err.Error(), roleKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAssumeRoleRefuses: what cannot work does not load.
func TestAssumeRoleRefuses(t *testing.T) {
	good := policyfile.AWSRole{Role: "arn:aws:iam::123456789012:role/agent", Session: "s1", Region: "eu-west-1", URL: "https://sts.eu-west-1.amazonaws.com/"}
	way := sign.Config{Transport: http.DefaultTransport, Now: time.Now}
	load := func(cfg sign.Config, change func(*policyfile.AWSRole)) error {
		r := good
		change(&r)
		_, err := sign.New(policyfile.Scheme{Type: policyfile.AWSSigV4, AWS: policyfile.AWS{Regions: []string{"a"}, Services: []string{"b"}, Role: r}}, cfg)
		return err
	}
	for name, change := range map[string]func(*policyfile.AWSRole){
		"CR-03 plain http": func(r *policyfile.AWSRole) { r.URL = "http://sts.test/" }, "no role": func(r *policyfile.AWSRole) { r.Role = "" },
		"a query": func(r *policyfile.AWSRole) { r.URL += "?a" }, "no region": func(r *policyfile.AWSRole) { r.Region = "" },
	} {
		if err := load(way, change); err == nil {
			t.Errorf("%s: loads", name)
		}
	}
	same := func(*policyfile.AWSRole) {}
	if err := load(sign.Config{}, same); err == nil {
		t.Error("no way out: loads")
	}
	if err := load(way, same); err != nil {
		t.Errorf("twin: %v", err)
	}
}
