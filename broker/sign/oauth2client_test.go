package sign_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/rules/policyfile"
)

const (
	clientID     = "agent one+two"
	clientSecret = "s3cr3t/with:odd +octets%"
)

// issuer is a token endpoint that refuses everybody but one client.
type issuer struct {
	*httptest.Server
	mints   atomic.Int64
	answer  atomic.Pointer[func(http.ResponseWriter)] // in place of a token
	mu      sync.Mutex
	form    url.Values
	secret  string
	release chan struct{} // if not nil, answers wait for it
	arrived chan struct{} // if not nil, told before an answer waits
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{secret: clientSecret}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(i.serve))
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) serve(w http.ResponseWriter, r *http.Request) {
	n := i.mints.Add(1)
	if i.release != nil {
		if i.arrived != nil {
			i.arrived <- struct{}{}
		}
		<-i.release
	}
	w.Header().Set("Content-Type", "application/json;charset=UTF-8")
	id, pw, _ := r.BasicAuth()
	id, _ = url.QueryUnescape(id)
	pw, _ = url.QueryUnescape(pw)
	i.mu.Lock()
	ok := r.Method == http.MethodPost && id == clientID && pw == i.secret && r.ParseForm() == nil && r.PostForm.Get("grant_type") == "client_credentials"
	i.form = r.PostForm
	i.mu.Unlock()
	switch a := i.answer.Load(); {
	case !ok:
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"error":"invalid_client","error_description":"`+pw+`"}`)
	case a != nil:
		(*a)(w)
	default:
		fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"Bearer","expires_in":3600}`, n)
	}
}

func (i *issuer) answers(status int, header, body string) {
	f := func(w http.ResponseWriter) {
		if name, value, ok := strings.Cut(header, ": "); ok {
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
	i.answer.Store(&f)
}

// clock is a time that a test sets.
type clock struct{ now atomic.Int64 }

func (c *clock) Now() time.Time          { return time.Unix(0, c.now.Load()) }
func (c *clock) advance(d time.Duration) { c.now.Add(int64(d)) }

func (i *issuer) scheme(t *testing.T, c *clock) sign.Scheme {
	t.Helper()
	s, err := sign.New(policyfile.Scheme{Type: "oauth2-client", OAuth2: policyfile.OAuth2{TokenURL: i.URL + "/token", ClientID: clientID, Scopes: []string{"read", "write"}, Audience: "api"}},
		sign.Config{Transport: i.Client().Transport, Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func token(ctx context.Context, s sign.Scheme, clientSecret string) (string, error) {
	ch, err := s.Sign(ctx, secret.New([]byte(clientSecret)), sign.Request{})
	if err != nil {
		return "", err
	}
	return strings.TrimPrefix(ch.Set["Authorization"][0], "Bearer "), nil
}

func TestOAuth2ClientNewRefuses(t *testing.T) {
	way := sign.Config{Transport: http.DefaultTransport, Now: time.Now}
	good := policyfile.OAuth2{TokenURL: "https://id.test/token", ClientID: "x"}
	tests := []struct {
		name string
		spec policyfile.Scheme
		cfg  sign.Config
	}{
		{"plain http", policyfile.Scheme{Type: "oauth2-client", OAuth2: policyfile.OAuth2{TokenURL: "http://id.test/token", ClientID: "x"}}, way},
		{"user in URL", policyfile.Scheme{Type: "oauth2-client", OAuth2: policyfile.OAuth2{TokenURL: "https://u:p@id.test/token", ClientID: "x"}}, way},
		{"no URL", policyfile.Scheme{Type: "oauth2-client", OAuth2: policyfile.OAuth2{ClientID: "x"}}, way},
		{"no client", policyfile.Scheme{Type: "oauth2-client", OAuth2: policyfile.OAuth2{TokenURL: "https://id.test/token"}}, way},
		{"no way out", policyfile.Scheme{Type: "oauth2-client", OAuth2: good}, sign.Config{Now: time.Now}},
	}
	for _, tt := range tests {
		if _, err := sign.New(tt.spec, tt.cfg); err == nil {
			t.Errorf("%s: accepted", tt.name)
		}
	}
	if _, err := sign.New(policyfile.Scheme{Type: "oauth2-client", OAuth2: good}, way); err != nil {
		t.Errorf("twin: %v", err)
	}
}

// TestOAuth2ClientIsWhatALibraryDoes: the issuer takes the client of
// golang.org/x/oauth2 and ours for the same.
func TestOAuth2ClientIsWhatALibraryDoes(t *testing.T) {
	i, c := newIssuer(t), &clock{}
	got, err := token(t.Context(), i.scheme(t, c), clientSecret)
	if err != nil || got != "token-1" {
		t.Fatalf("ours: %q, %v", got, err)
	}
	ours := i.form
	lib := clientcredentials.Config{
		ClientID: clientID, ClientSecret: clientSecret, TokenURL: i.URL + "/token", Scopes: []string{"read", "write"},
		EndpointParams: url.Values{"audience": {"api"}}, AuthStyle: oauth2.AuthStyleInHeader,
	}
	tok, err := lib.Token(context.WithValue(t.Context(), oauth2.HTTPClient, i.Client()))
	if err != nil || tok.AccessToken != "token-2" {
		t.Fatalf("the library: %v, %v", tok, err)
	}
	if d := cmp.Diff(i.form, ours); d != "" {
		t.Errorf("form (-library +ours):\n%s", d)
	}
}

func TestOAuth2ClientRefuses(t *testing.T) {
	const leak = "LEAKED-TEXT"
	tests := []struct {
		name         string
		status       int
		header, body string
		want         string
	}{
		{"error code", 400, "", `{"error":"invalid_scope","error_description":"` + leak + `"}`, "400, invalid_scope"},
		{"odd error code", 400, "", `{"error":"` + leak + `"}`, "answered 400"},
		{"server error", 500, "", leak, "answered 500"},
		{"redirect", 302, "Location: https://evil.test/", "", "answered 302"},
		{"not JSON", 200, "Content-Type: text/html", leak, "no token"},
		{"no token", 200, "", `{"token_type":"bearer"}`, "no token"},
		{"another kind of token", 200, "", `{"access_token":"x","token_type":"mac","expires_in":60}`, "not a bearer"},
		{"CR-12 line break", 200, "", `{"access_token":"x\r\nX-Evil: 1","token_type":"bearer"}`, "cannot stand"},
		{"ended", 200, "", `{"access_token":"x","token_type":"bearer","expires_in":0}`, "ended already"},
		{"ends now", 200, "", `{"access_token":"x","token_type":"bearer","expires_in":20}`, "clocks"},
		{"end is text", 200, "", `{"access_token":"x","token_type":"bearer","expires_in":"soon"}`, "no token"},
		{"never ends", 200, "", `{"access_token":"x","token_type":"bearer","expires_in":9999999999}`, "no readable end"},
		{"long", 200, "", `{"access_token":"` + strings.Repeat("x", 70<<10) + `"}`, "no token"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			i, c := newIssuer(t), &clock{}
			s := i.scheme(t, c)
			i.answers(tt.status, tt.header, tt.body)
			got, err := token(t.Context(), s, clientSecret)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %q, %v, want an error with %q", got, err, tt.want)
			}
			if err != nil && (strings.Contains(err.Error(), leak) || strings.Contains(err.Error(), clientSecret)) {
				t.Errorf("the error shows what it must not: %v", err)
			}
			i.answer.Store(nil)
			if _, again := token(t.Context(), s, clientSecret); again == nil || i.mints.Load() != 1 {
				t.Errorf("a failure is not remembered: %v, %d mints", again, i.mints.Load())
			}
			c.advance(5 * time.Second)
			if got, err := token(t.Context(), s, clientSecret); err != nil || got != "token-2" {
				t.Errorf("twin, five seconds later: %q, %v", got, err)
			}
		})
	}
	i, c := newIssuer(t), &clock{}
	if _, err := token(t.Context(), i.scheme(t, c), "another secret"); err == nil || strings.Contains(err.Error(), "another secret") || !strings.Contains(err.Error(), "invalid_client") {
		t.Errorf("a wrong secret: %v", err)
	}
}

func TestOneMintForAThousandRequests(t *testing.T) {
	i, c := newIssuer(t), &clock{}
	s := i.scheme(t, c)
	i.release = make(chan struct{})
	var wg sync.WaitGroup
	started := make(chan struct{}, 1000)
	for range 1000 {
		wg.Go(func() {
			started <- struct{}{}
			if got, err := token(t.Context(), s, clientSecret); err != nil || got != "token-1" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	for range 1000 {
		<-started
	}
	close(i.release)
	wg.Wait()
	if n := i.mints.Load(); n != 1 {
		t.Errorf("%d mints, want 1", n)
	}
}

func TestTokenIsRenewedAheadOfItsEnd(t *testing.T) {
	i, c := newIssuer(t), &clock{}
	s := i.scheme(t, c)
	ahead := s.(sign.Renewer)
	want := func(tok string, mints int64) {
		t.Helper()
		got, err := token(t.Context(), s, clientSecret)
		if err != nil || got != tok || i.mints.Load() != mints {
			t.Errorf("at %v: %q, %v, %d mints, want %q, %d", c.Now().Sub(time.Unix(0, 0)), got, err, i.mints.Load(), tok, mints)
		}
	}
	renew := func(fails bool) {
		t.Helper()
		if err := ahead.Renew(t.Context(), secret.New([]byte(clientSecret))); (err != nil) != fails {
			t.Errorf("renewing: %v", err)
		}
	}
	if due := ahead.Due(); !due.IsZero() {
		t.Errorf("due at %v before the first use", due)
	}
	want("token-1", 1)
	if due := ahead.Due().Sub(c.Now()); due < 44*time.Minute || due > 53*time.Minute {
		t.Errorf("due in %v, want between three quarters and seven eighths of its use", due)
	}
	c.advance(44 * time.Minute)
	renew(false)
	want("token-1", 1)
	c.advance(10 * time.Minute) // three quarters and the jitter have passed
	want("token-1", 1)          // no request makes the next one
	renew(false)
	if due := ahead.Due(); !due.IsZero() {
		t.Errorf("due at %v, and nobody used the token", due)
	}
	want("token-2", 2)
	// The endpoint goes down: the token serves until shortly before its end.
	i.answers(503, "", "")
	c.advance(55 * time.Minute)
	renew(true)
	want("token-2", 3)
	if due := ahead.Due().Sub(c.Now()); due != 5*time.Second {
		t.Errorf("after a failure due in %v", due)
	}
	renew(false) // not yet
	want("token-2", 3)
	c.advance(4*time.Minute + 31*time.Second)
	if got, err := token(t.Context(), s, clientSecret); err == nil {
		t.Errorf("after its end: %q", got)
	}
	if due := ahead.Due(); !due.IsZero() {
		t.Errorf("due at %v without a token", due)
	}
}

// TestRenewalIsNotAskedTwice: while one is under way, nobody waits and nobody asks.
func TestRenewalIsNotAskedTwice(t *testing.T) {
	i, c := newIssuer(t), &clock{}
	s := i.scheme(t, c)
	if got, err := token(t.Context(), s, clientSecret); err != nil || got != "token-1" {
		t.Fatal(got, err)
	}
	c.advance(54 * time.Minute)
	i.release, i.arrived = make(chan struct{}), make(chan struct{})
	done := make(chan error)
	go func() { done <- s.(sign.Renewer).Renew(t.Context(), secret.New([]byte(clientSecret))) }()
	<-i.arrived
	for range 1000 {
		if got, err := token(t.Context(), s, clientSecret); err != nil || got != "token-1" {
			t.Fatal(got, err)
		}
	}
	if err := s.(sign.Renewer).Renew(t.Context(), secret.New([]byte(clientSecret))); err != nil {
		t.Error(err)
	}
	close(i.release)
	if err := <-done; err != nil || i.mints.Load() != 2 {
		t.Errorf("%v, %d mints, want 2", err, i.mints.Load())
	}
	if got, err := token(t.Context(), s, clientSecret); err != nil || got != "token-2" {
		t.Errorf("after it: %q, %v", got, err)
	}
}

// TestRotatedClientSecretEndsItsTokens: CR-18 and CR-25.
func TestRotatedClientSecretEndsItsTokens(t *testing.T) {
	i, c := newIssuer(t), &clock{}
	s := i.scheme(t, c)
	if got, err := token(t.Context(), s, clientSecret); err != nil || got != "token-1" {
		t.Fatal(got, err)
	}
	if got, err := token(t.Context(), s, "rotated, not yet known there"); err == nil {
		t.Errorf("a token of the old secret is used: %q", got)
	}
	i.mu.Lock()
	i.secret = "rotated, and known"
	i.mu.Unlock()
	if got, err := token(t.Context(), s, "rotated, and known"); err != nil || got != "token-3" {
		t.Errorf("twin: %q, %v", got, err)
	}
}

func TestWhoWaitsForATokenCanLeave(t *testing.T) {
	i, c := newIssuer(t), &clock{}
	s := i.scheme(t, c)
	i.release, i.arrived = make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		_, err := token(t.Context(), s, clientSecret)
		first <- err
	}()
	<-i.arrived
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := token(ctx, s, clientSecret); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want cancelled", err)
	}
	close(i.release)
	if err := <-first; err != nil {
		t.Errorf("twin, the one it waited for: %v", err)
	}
}
