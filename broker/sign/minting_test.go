package sign_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// mintingScheme is a scheme that asks an endpoint for tokens: a secret that it can
// use, and what the endpoint answers in order, with a token that holds for life from
// date on.
type mintingScheme struct {
	name   string
	scheme policyfile.Scheme
	secret string
	status int
	kind   string
	answer func(date time.Time, life time.Duration) string
}

const mintURL = "https://id.test/token"

// mintingSchemes are all schemes with a minter.
func mintingSchemes(t *testing.T) []mintingScheme {
	t.Helper()
	oauth := func(date time.Time, life time.Duration) string {
		return fmt.Sprintf(`{"access_token":"a-minted-token","token_type":"bearer","expires_in":%d}`, int(life.Seconds()))
	}
	end := func(format string) func(time.Time, time.Duration) string {
		return func(date time.Time, life time.Duration) string {
			return fmt.Sprintf(format, date.Add(life).UTC().Format(time.RFC3339))
		}
	}
	o := policyfile.OAuth2{TokenURL: mintURL, ClientID: "agent", Issuer: "a", Algorithm: "RS256", Scopes: []string{"a"}}
	client, refresh := o, o
	client.Algorithm, refresh.Algorithm = "", ""
	key := pemOf(rsaKey())
	return []mintingScheme{
		{
			"oauth2-client", policyfile.Scheme{Type: policyfile.OAuth2Client, OAuth2: client}, "the-client-secret", 200, "application/json", oauth,
		},
		{
			"oauth2-refresh", policyfile.Scheme{Type: policyfile.OAuth2Refresh, OAuth2: refresh}, "1//a-refresh-token", 200, "application/json", oauth,
		},
		{
			"oauth2-jwt", policyfile.Scheme{Type: policyfile.OAuth2JWT, OAuth2: o}, key, 200, "application/json", oauth,
		},
		{
			"gcp-service-account",
			policyfile.Scheme{Type: policyfile.GCPServiceAccount, Google: policyfile.Google{Token: policyfile.GoogleAccess}, OAuth2: o},
			keyFile(t, rsaKey(), mintURL), 200, "application/json", oauth,
		},
		{
			"github-app",
			policyfile.Scheme{Type: policyfile.GitHub, GitHubApp: policyfile.GitHubApp{App: "1", TokenURL: mintURL}},
			key,
			201, "application/json", end(`{"token":"ghs_a-minted-token","expires_at":"%s"}`),
		},
		{
			"oci-registry",
			policyfile.Scheme{Type: policyfile.OCIRegistry, OCI: policyfile.OCI{TokenURL: mintURL, Service: "r.test", Username: "bot"}},
			"registry-password",
			200, "application/json", oauth,
		},
		{
			"aws-sigv4 with a role",
			policyfile.Scheme{Type: policyfile.AWSSigV4, AWS: policyfile.AWS{
				Regions: []string{"eu-west-1"}, Services: []string{"s3"},
				Role: policyfile.AWSRole{Role: "arn:aws:iam::1:role/a", Session: "s", URL: "https://sts.test/", Region: "eu-west-1"},
			}},
			`{"AccessKeyId":"` + awsExampleID + `","SecretAccessKey":"` + awsExampleSecret + `"}`,
			200, "text/xml", func(date time.Time, life time.Duration) string {
				return roleAnswer("ASIAIOSFODNN7EXAMPLE", date.Add(life))
			},
		},
	}
}

// endpoint is a token endpoint without a network.
type endpoint struct {
	asked  atomic.Int64
	answer func(ctx context.Context) (*http.Response, error)
}

func (e *endpoint) RoundTrip(r *http.Request) (*http.Response, error) {
	e.asked.Add(1)
	resp, err := e.answer(r.Context())
	if resp != nil {
		resp.Request = r
	}
	return resp, err
}

func answered(status int, kind, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(body))}
}

// with makes the scheme, and returns what signs one request.
func (m mintingScheme) with(t *testing.T, e *endpoint) func(context.Context) error {
	t.Helper()
	s, err := sign.New(m.scheme, sign.Config{Transport: e, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	path, err := target.ParsePath("/v2/")
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context) error {
		v := secret.New(bytes.Clone([]byte(m.secret)))
		defer v.Wipe() // as the broker does, whether the mint is done or not
		_, err := s.Sign(ctx, v, sign.Request{Method: "GET", Endpoint: mustEndpoint(t, "box.test"), Path: path, Now: time.Now()})
		return err
	}
}

func mustEndpoint(t *testing.T, authority string) target.Endpoint {
	t.Helper()
	e, err := target.ParseAuthority(authority, 443)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestEverySchemeMintsOnceForAll: a thousand first uses at once ask once.
func TestEverySchemeMintsOnceForAll(t *testing.T) {
	for _, m := range mintingSchemes(t) {
		t.Run(m.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				e := &endpoint{answer: func(context.Context) (*http.Response, error) {
					<-release
					return answered(m.status, m.kind, m.answer(time.Now(), time.Hour)), nil
				}}
				use := m.with(t, e)
				var wg sync.WaitGroup
				for range 1000 {
					wg.Go(func() {
						if err := use(t.Context()); err != nil {
							t.Error(err)
						}
					})
				}
				synctest.Wait() // all wait, one of them for the endpoint
				close(release)
				wg.Wait()
				if n := e.asked.Load(); n != 1 {
					t.Errorf("asked %d times, want once", n)
				}
			})
		})
	}
}

// TestMintOutlivesItsRequest: who gives up is told so at once, and the token serves
// the next one; an endpoint that hangs is given up.
func TestMintOutlivesItsRequest(t *testing.T) {
	for _, m := range mintingSchemes(t) {
		t.Run(m.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				delay := 7 * time.Second
				e := &endpoint{answer: func(ctx context.Context) (*http.Response, error) {
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-time.After(delay):
						return answered(m.status, m.kind, m.answer(time.Now(), time.Hour)), nil
					}
				}}
				use := m.with(t, e)
				errSlow := errors.New("no answer within 4s")
				ctx, cancel := context.WithTimeoutCause(t.Context(), 4*time.Second, errSlow)
				defer cancel()
				began := time.Now()
				if err := use(ctx); !errors.Is(err, errSlow) || time.Since(began) != 4*time.Second {
					t.Errorf("a slow endpoint: %v after %v", err, time.Since(began))
				}
				if err := use(t.Context()); err != nil || e.asked.Load() != 1 || time.Since(began) != 7*time.Second {
					t.Errorf("twin, the next one: %v after %v, asked %d times", err, time.Since(began), e.asked.Load())
				}
				delay = time.Hour
				use = m.with(t, e)
				began = time.Now()
				if err := use(t.Context()); err == nil || !strings.Contains(err.Error(), "longer than 10s") || time.Since(began) != 10*time.Second {
					t.Errorf("one that hangs: %v after %v", err, time.Since(began))
				}
			})
		})
	}
}

// TestEverySchemeRefusesBadAnswers: nothing of them is used or told, and no redirect is
// followed.
func TestEverySchemeRefusesBadAnswers(t *testing.T) {
	const leak = "LEAKED-TEXT"
	redirect := answered(307, "text/html", leak)
	redirect.Header.Set("Location", "https://evil.test/")
	for _, m := range mintingSchemes(t) {
		good := m.answer(time.Now(), time.Hour)
		tests := []struct {
			name string
			resp *http.Response
			want string
		}{
			{"broken", answered(500, m.kind, leak), "answered 500"},
			{"a redirect", redirect, "answered 307"},
			{"a page", answered(m.status, "text/html", "<html>"+leak+"</html>"), ""},
			{"nothing", answered(m.status, m.kind, ""), ""},
			{"half of it", answered(m.status, m.kind, good[:len(good)/2]), ""},
			{"much", answered(m.status, m.kind, strings.Repeat(" ", 65<<10)+good), ""},
			{"no content", answered(204, m.kind, good), "answered 204"},
			{"ended", answered(m.status, m.kind, m.answer(time.Now(), -time.Hour)), ""},
			{"ends now", answered(m.status, m.kind, m.answer(time.Now(), 20*time.Second)), "clocks"},
			{"twin", answered(m.status, m.kind, good), "none"},
		}
		for _, tt := range tests {
			t.Run(m.name+", "+tt.name, func(t *testing.T) {
				e := &endpoint{answer: func(context.Context) (*http.Response, error) { return tt.resp, nil }}
				use := m.with(t, e)
				err := use(t.Context())
				switch {
				case tt.want == "none" && err != nil, tt.want != "none" && (err == nil || !strings.Contains(err.Error(), tt.want)):
					t.Errorf("%v, want %q", err, tt.want)
				case err != nil && (strings.Contains(err.Error(), leak) || strings.Contains(err.Error(), m.secret)):
					t.Errorf("the error shows what it must not: %v", err)
				case e.asked.Load() != 1:
					t.Errorf("asked %d times", e.asked.Load())
				}
			})
		}
	}
}

// TestExpiresIn: what no whole number of seconds is, is no end.
func TestExpiresIn(t *testing.T) {
	m := mintingSchemes(t)[0]
	for text, ok := range map[string]bool{
		"0": false, "-3600": false, `"soon"`: false, "1e99": false, "1e3": false, "3600.5": false, "99999999999999999999": false, "true": false, "[3600]": false,
		"3600": true, `"3600"`: true, "null": true,
	} {
		e := &endpoint{answer: func(context.Context) (*http.Response, error) {
			return answered(200, "application/json", `{"access_token":"x","token_type":"bearer","expires_in":`+text+`}`), nil
		}}
		use := m.with(t, e)
		if err := use(t.Context()); (err == nil) != ok {
			t.Errorf("expires_in %s: %v", text, err)
		}
	}
}

// TestClocksThatDiffer: a token's end is read by the clock of who made it, and a
// refusal tells of clocks that differ.
func TestClocksThatDiffer(t *testing.T) {
	for _, m := range mintingSchemes(t) {
		for _, skew := range []time.Duration{-10 * time.Minute, 0, 10 * time.Minute} {
			t.Run(fmt.Sprint(m.name, " ", skew), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					refuse := true
					e := &endpoint{answer: func(context.Context) (*http.Response, error) {
						theirs := time.Now().Add(skew)
						resp := answered(m.status, m.kind, m.answer(theirs, 5*time.Minute))
						if refuse {
							resp = answered(401, m.kind, "")
						}
						resp.Header.Set("Date", theirs.UTC().Format(http.TimeFormat))
						return resp, nil
					}}
					use := m.with(t, e)
					err := use(t.Context())
					if told := err != nil && strings.Contains(err.Error(), "10m0s"); err == nil || told != (skew != 0) {
						t.Errorf("a refusal: %v", err)
					}
					refuse = false
					use = m.with(t, e)
					e.asked.Store(0)
					if err := use(t.Context()); err != nil {
						t.Fatal(err)
					}
					time.Sleep(4 * time.Minute)
					if err := use(t.Context()); err != nil || e.asked.Load() != 1 {
						t.Errorf("a minute before its end: %v, asked %d times", err, e.asked.Load())
					}
					time.Sleep(time.Minute)
					if err := use(t.Context()); err != nil || e.asked.Load() != 2 {
						t.Errorf("at its end: %v, asked %d times", err, e.asked.Load())
					}
				})
			})
		}
	}
}
